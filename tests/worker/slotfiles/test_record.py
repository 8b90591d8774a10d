"""A saved slot is had back whole, or refused before anything is made of it."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine import SlotState
from worker.slotfiles import record
from worker.slotfiles.origin import Origin
from worker.slotfiles.record import Destination, Unfit

ORIGIN = Origin(model="m", description="a model", n_vocab=100, cache="f16 and f16", positions="{}", adapters=("a", "b"))
HERE = Destination(ORIGIN, n_ctx=64)


def state(n_tokens: int = 5, n_bytes: int = 300, scales: tuple[float, ...] = (0.5, 0.0)) -> SlotState:
    tokens = np.arange(n_tokens, dtype=np.int32)
    return SlotState(tokens, np.arange(n_bytes).astype(np.uint8), scales, n_pure=n_tokens)


def written(what: SlotState, origin: Origin = ORIGIN) -> bytes:
    file = BytesIO()
    record.write(file, what, origin)
    assert len(file.getvalue()) == record.size_of(what, origin)
    return file.getvalue()


def read(text: bytes, destination: Destination = HERE) -> SlotState:
    return record.read(BytesIO(text), len(text), destination)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 64), st.integers(1, 3_000_000))
def test_what_was_written_is_read(n_tokens: int, n_bytes: int) -> None:
    what = state(n_tokens, n_bytes if n_tokens else 0)
    back = read(written(what))
    assert (back.tokens == what.tokens).all()
    assert (back.state == what.state).all()
    assert (back.scales, back.n_pure) == (what.scales if n_tokens else (), n_tokens)


def test_a_changed_byte_anywhere_is_noticed() -> None:
    whole = written(state())
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x20
        with pytest.raises(Unfit):
            read(bytes(damaged))


def test_a_file_of_any_other_length_is_noticed() -> None:
    whole = written(state())
    for length in range(len(whole)):
        with pytest.raises(Unfit):
            read(whole[:length])
    with pytest.raises(Unfit, match="cut short or damaged"):
        read(whole + b"\0")


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_a_stranger_is_no_saved_slot(text: bytes) -> None:
    with pytest.raises(Unfit):
        read(text)


def test_a_file_that_is_shorter_than_it_was_a_moment_ago_is_noticed() -> None:
    whole = written(state())
    with pytest.raises(Unfit, match="cut short"):
        record.read(BytesIO(whole[:200]), len(whole), HERE)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": "n", "description": "another model"}, "it was saved from another model, another model"),
        ({"n_vocab": 101}, "it was saved from another model"),
        ({"cache": "q8_0 and f16"}, "its cache has the types q8_0 and f16, and this worker's f16 and f16"),
        ({"positions": "[]"}, "other settings of positions"),
    ],
)
def test_it_is_of_use_only_where_it_comes_from(change: dict[str, Any], why: str) -> None:
    with pytest.raises(Unfit, match=why):
        read(written(state(), ORIGIN.model_copy(update=change)))


def test_it_must_fit_into_a_slot() -> None:
    with pytest.raises(Unfit, match="it has 65 tokens, which exceeds the 64 of a slot here"):
        read(written(state(65)))


@pytest.mark.parametrize("token", [-1, 100])
def test_its_tokens_must_be_the_models(token: int) -> None:
    what = state()
    what.tokens[2] = token
    with pytest.raises(Unfit, match="tokens that the model does not have"):
        read(written(what))


def test_adapters_are_found_by_what_they_are_and_not_by_their_ids() -> None:
    whole = written(state(scales=(0.5, 0.25)))
    here = Destination(ORIGIN.model_copy(update={"adapters": ("c", "b", "a")}), n_ctx=64)
    assert read(whole, here).scales == (0.0, 0.25, 0.5)


@pytest.mark.parametrize("adapters", [(), ("b",), ("a", "a", "b")], ids=["none", "others", "two of them"])
def test_one_that_is_not_here_is_missed(adapters: tuple[str, ...]) -> None:
    here = Destination(ORIGIN.model_copy(update={"adapters": adapters}), n_ctx=64)
    with pytest.raises(Unfit, match="an adapter that this worker does not have"):
        read(written(state()), here)


def test_one_that_was_not_used_is_not_missed() -> None:
    here = Destination(ORIGIN.model_copy(update={"adapters": ("a",)}), n_ctx=64)
    assert read(written(state(scales=(0.5, 0.0))), here).scales == (0.5,)


def test_a_file_of_another_version_is_refused_by_its_number() -> None:
    whole = bytearray(written(state()))
    whole[8] = 2
    with pytest.raises(Unfit, match="its file is of version 2, and this worker reads 1"):
        read(bytes(whole))
