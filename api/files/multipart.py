"""A form with one file in it, read while it comes: the file goes to the store piece by piece, and is nowhere whole.

Knows no route and no purpose. What it holds of a client is bounded: a piece of the file, and some short fields. A form
that turns out to be wrong, or whose client leaves, leaves nothing in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import Request

from api.schemas.strict import bad_field
from shared.errors import InvalidRequest
from shared.store import Store, Writer

MAX_PARTS = 64
MAX_HEADER = 16 * 1024
"""Bytes of one header of a part: a file's name is in it."""
MAX_FIELD = 64 * 1024
"""Bytes of a field that is no file."""
MAX_OVERHEAD = 1024 * 1024
"""Bytes of a form besides its file."""
GATHERED = 256 * 1024
"""Bytes of the file that are gathered before they are written: each write is a thread's turn."""
MAX_FILENAME = 255
"""Characters. File systems take no longer ones either, so nobody has such a file."""


class Form(NamedTuple):
    fields: Mapping[str, str]
    filename: str
    n_bytes: int
    """Of the file."""


@asynccontextmanager
async def received(
    request: Request, store: Store, reading: asyncio.Semaphore, *, part: str, name: str, limit: int
) -> AsyncIterator[Form]:
    """The whole form, whose file stands in `part`. The file is the object `name` of the store once the context ends
    without an error. Raises InvalidRequest that names the field, HTTP 413 when the file has more than `limit` bytes,
    ClientDisconnect, and what the store raises."""
    boundary = _boundary_of(request)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit + MAX_OVERHEAD:
        raise _too_large(limit)
    parser = PushMultipartParser(boundary, max_header_size=MAX_HEADER, max_segment_count=MAX_PARTS)
    async with AsyncExitStack() as stack:
        reader = _FormReader(stack, store, part, name, limit)
        n_bytes = 0
        try:
            async for chunk in request.stream():
                n_bytes += len(chunk)
                if n_bytes > limit + MAX_OVERHEAD:
                    raise _too_large(limit)
                for event in await _taken_apart(parser, chunk, reading) if chunk else ():
                    await reader.take(event)
            parser.close()
        except MultipartError as error:
            reason = error.args[0]  # the others are for programmers
            raise InvalidRequest(f"The body is no valid form: {reason}") from None
        yield await reader.form()


async def _taken_apart(
    parser: PushMultipartParser, chunk: bytes, reading: asyncio.Semaphore
) -> list[MultipartSegment | bytes | None]:
    """What has come. Only so many uploads have their turn in one round of the event loop: hundreds that come as fast as
    they can would else make every round of it last as long as all of them."""
    async with reading:
        events = list(parser.parse(chunk))
        await asyncio.sleep(0)
        return events


class _FormReader:
    """Takes the parts' beginnings, bytes and ends as they come."""

    def __init__(self, stack: AsyncExitStack, store: Store, part: str, name: str, limit: int) -> None:
        """What is entered into `stack` ends with the form."""
        self._stack, self._store = stack, store
        self._part, self._name, self._limit = part, name, limit
        self._fields: dict[str, str] = {}
        self._field: str | None = None
        """The one whose bytes come. None: they are the file's, or nobody's."""
        self._writer: Writer | None = None
        self._is_file = False
        self._filename: str | None = None
        self._n_bytes = 0
        self._gathered = bytearray()
        """Of the file, when its bytes or a field's come: what is not written yet, or read."""

    async def take(self, event: MultipartSegment | bytes | None) -> None:
        match event:
            case MultipartSegment():
                await self._begin(event.name or "", event.filename)
            case bytes() | bytearray():
                await self._go_on(event)
            case None:
                await self._end()

    async def form(self) -> Form:
        if self._filename is None:
            raise bad_field(self._part, "is needed")
        return Form(self._fields, self._filename, self._n_bytes)

    async def _begin(self, name: str, filename: str | None) -> None:
        self._field, self._is_file = None, False
        if name == self._part:
            if self._filename is not None:
                raise bad_field(name, "is given twice")
            self._filename = _checked(name, filename)
            self._is_file = True
            self._writer = await self._stack.enter_async_context(self._store.writing(self._name))
        elif filename is None:
            if name in self._fields:
                raise bad_field(name, "is given twice")
            self._field = name

    async def _go_on(self, piece: bytes | bytearray) -> None:
        if self._is_file:
            self._n_bytes += len(piece)
            if self._n_bytes > self._limit:
                raise _too_large(self._limit)
            self._gathered += piece
            if len(self._gathered) >= GATHERED:
                await self._write()
        elif self._field is not None:
            self._gathered += piece
            if len(self._gathered) > MAX_FIELD:
                raise bad_field(self._field, f"has more than {MAX_FIELD} bytes")

    async def _end(self) -> None:
        if self._is_file:
            await self._write()
        elif self._field is not None:
            try:
                self._fields[self._field] = self._gathered.decode()
            except UnicodeDecodeError:
                raise bad_field(self._field, "is not valid UTF-8") from None
            self._gathered.clear()

    async def _write(self) -> None:
        assert self._writer is not None
        piece, self._gathered = bytes(self._gathered), bytearray()
        await self._writer.write(piece)


def _boundary_of(request: Request) -> str:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary: str = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary.isascii() or not 0 < len(boundary) <= 1000:
        raise InvalidRequest("The body must be multipart/form-data, with its boundary in Content-Type")
    return boundary


def _checked(part: str, filename: str | None) -> str:
    """A name is shown again, and never used as one: so whatever is in it may stay, but for what no file can have."""
    if not filename:
        raise bad_field(part, "must be a file, with a name")
    if len(filename) > MAX_FILENAME:
        raise bad_field(part, f"its name has more than {MAX_FILENAME} characters")
    if "\0" in filename:
        raise bad_field(part, "its name has a NUL in it")
    return filename


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"The file is larger than the {limit} bytes that this server takes")
