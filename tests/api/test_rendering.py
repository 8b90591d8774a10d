"""How answers are written down, small ones and those that take seconds."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.rendering import LARGE, pieces_of, rendered
from api.schemas.strict import to_json
from shared.events import Answer, ChosenLogprob, Finished, Logprob, Part, Vector

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text('aß"\\\n'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('aß"\\'), inner, max_size=4),
)


@given(JSON, st.integers(0, 6))
def test_pieces_are_what_is_written_at_once(value: Any, depth: int) -> None:
    assert b"".join(pieces_of(value, depth)) == to_json(value)


def test_no_piece_has_more_than_one_vector() -> None:
    vectors = [{"index": index, "embedding": [0.5] * 1000} for index in range(9)]
    for body in ({"data": vectors}, vectors, {"result": {"data": vectors}}, {"data": [{"result": {"data": vectors}}]}):
        assert max(piece.count(b"0.5") for piece in pieces_of(body)) == 1000


def test_no_piece_has_the_probabilities_of_many_tokens() -> None:
    entries = [{"token": "a", "bytes": [97], "top": [{"token": "b", "bytes": [98], "p": 0.5}] * 100}] * 50
    for body in ({"entries": entries}, {"data": [{"result": {"choices": [{"logprobs": {"content": entries}}]}}]}):
        pieces = list(pieces_of(body))
        assert b"".join(pieces) == to_json(body)
        assert max(piece.count(b"0.5") for piece in pieces) <= 100
        assert len(pieces) < 50 * 20  # one for each probability would take ten times as long


def vector(n_values: int) -> Vector:
    return Vector.of(0, np.zeros(n_values, dtype=np.float32), prompt_tokens=1)


def answer(n_tokens: int) -> Answer:
    alternative = Logprob(id=1, piece="YQ==", logprob=-1.0)
    chosen = ChosenLogprob(id=1, piece="YQ==", logprob=-1.0, top=(alternative,) * 100)
    return Answer(text="", ids=(), prompt="", prompt_tokens=1, stop_type="limit", seed=1, logprobs=(chosen,) * n_tokens)


@pytest.mark.parametrize(
    ("part", "is_large"), [(vector(4), False), (vector(LARGE), True), (answer(2), False), (answer(100), True)]
)
async def test_only_a_large_answer_is_written_in_a_thread(part: Part, is_large: bool) -> None:
    threads = list[threading.Thread]()

    def body() -> list[int]:
        threads.append(threading.current_thread())
        return [1]

    assert await rendered([Finished(status="succeeded", parts=(part,))], body) == b"[1]"
    assert (threads[0] is not threading.main_thread()) is is_large
