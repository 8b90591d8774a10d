"""How a saved slot is made up in a file: a header of ours, the tokens, llama.cpp's state, and a digest of it all.

    8 bytes   SLOTSTRM
    uint32    version, little-endian as all numbers are
    uint32    length of the header
    header    JSON: where the state is good for, how many tokens and bytes follow
    int32     of each token
    state     llama.cpp's own
    32 bytes  SHA-256 of all that stands before

Whoever changes a byte is noticed before llama.cpp sees any. Knows no folder.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from shared.wire import Wire
from worker.engine import SlotState
from worker.slotfiles.origin import Origin

MAGIC = b"SLOTSTRM"
VERSION = 1
MAX_HEADER = 1 << 20
PIECE = 1 << 20
"""Bytes that are read or written at once."""

_START = struct.Struct("<8sII")
_N_DIGEST = hashlib.sha256().digest_size


class Unfit(Exception):
    """A file is no slot of ours, is damaged, or is of no use here; the message says which in half a sentence."""


class Header(Wire):
    origin: Origin
    n_tokens: int = Field(ge=0)
    n_pure: int = Field(ge=0)
    n_state: int = Field(ge=0)
    """Bytes."""
    scales: tuple[float, ...] = ()
    """Of the adapters of the origin, with which the tokens were computed; none without tokens."""


class Destination(NamedTuple):
    """What a state must fit into."""

    origin: Origin
    n_ctx: int
    """Tokens of a slot at most."""


def size_of(state: SlotState, origin: Origin) -> int:
    """Bytes of its file."""
    return _START.size + len(_header(state, origin)) + state.tokens.nbytes + state.state.nbytes + _N_DIGEST


def write(file: BinaryIO, state: SlotState, origin: Origin) -> None:
    header = _header(state, origin)
    digest = hashlib.sha256()
    parts = (_START.pack(MAGIC, VERSION, len(header)), header, state.tokens.astype("<i4").tobytes(), state.state.data)
    for part in parts:
        for piece in _pieces(memoryview(part)):
            digest.update(piece)
            file.write(piece)
    file.write(digest.digest())


def read(file: BinaryIO, n_bytes: int, destination: Destination) -> SlotState:
    """From a file of so many bytes. Raises Unfit. Takes no more memory than a slot that fits needs, whatever the file
    says of itself."""
    digest = hashlib.sha256()

    def take(n: int) -> memoryview:
        part = memoryview(np.empty(n, dtype=np.uint8).data)
        for piece in _pieces(part):
            if file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                raise Unfit("its file is cut short")
            digest.update(piece)
        return part

    if n_bytes < _START.size + _N_DIGEST:
        raise Unfit("its file is no saved slot")
    magic, version, n_header = _START.unpack(take(_START.size))
    if magic != MAGIC:
        raise Unfit("its file is no saved slot")
    if version != VERSION:
        raise Unfit(f"its file is of version {version}, and this worker reads {VERSION}")
    if n_header > MAX_HEADER or _START.size + n_header + _N_DIGEST > n_bytes:
        raise Unfit("its file is damaged")
    header = _read_header(bytes(take(n_header)))
    n_tokens = header.n_tokens
    if n_bytes != _START.size + n_header + 4 * n_tokens + header.n_state + _N_DIGEST:
        raise Unfit("its file is cut short or damaged")
    if refusal := destination.origin.refusal(header.origin):
        raise Unfit(refusal)
    if n_tokens > destination.n_ctx:
        raise Unfit(f"it has {n_tokens} tokens, which exceeds the {destination.n_ctx} of a slot here")
    tokens = np.frombuffer(take(4 * n_tokens), dtype="<i4").astype(np.int32)
    state = np.frombuffer(take(header.n_state), dtype=np.uint8)
    if digest.digest() != file.read(_N_DIGEST):
        raise Unfit("its file is damaged")
    if n_tokens and not (tokens.min() >= 0 and tokens.max() < destination.origin.n_vocab):
        raise Unfit("its file has tokens that the model does not have")
    n_scales = len(header.origin.adapters) if n_tokens else 0
    if header.n_pure > n_tokens or (n_tokens == 0) != (header.n_state == 0) or len(header.scales) != n_scales:
        raise Unfit("its file contradicts itself")
    return SlotState(tokens, state, _scales(header, destination.origin) if n_tokens else (), header.n_pure)


def _header(state: SlotState, origin: Origin) -> bytes:
    header = Header(
        origin=origin,
        n_tokens=len(state.tokens),
        n_pure=state.n_pure,
        n_state=state.state.nbytes,
        scales=state.scales if len(state.tokens) else (),
    )
    return header.to_json().encode()


def _read_header(text: bytes) -> Header:
    try:
        return Header.from_json(text)
    except ValidationError:
        raise Unfit("its file is damaged") from None


def _scales(header: Header, origin: Origin) -> tuple[float, ...]:
    """By the ids that the same adapters have here."""
    if header.origin.adapters == origin.adapters:
        return header.scales
    used = [(digest, scale) for digest, scale in zip(header.origin.adapters, header.scales, strict=True) if scale]
    scales = dict(used)
    if len(scales) < len(used) or any(origin.adapters.count(digest) != 1 for digest in scales):
        raise Unfit("it was computed with an adapter that this worker does not have")
    return tuple(scales.get(digest, 0.0) for digest in origin.adapters)


def _pieces(part: memoryview) -> Iterable[memoryview]:
    return (part[start : start + PIECE] for start in range(0, len(part), PIECE))
