"""What a body of May 2024 means: other defaults of the same fields, each of which a client may still name."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas import of_2024
from api.schemas.dialect import DIALECTS, ENDPOINTS, OF_2024, TODAY
from shared.jobs import Compat, Generation, SamplerKind, Truncation

TEXT = {"prompt": "x", "input_prefix": "x", "input_suffix": "y"}
CHAT = {"messages": [{"role": "user", "content": "x"}]}


def asked(read_body: Any, **given: Any) -> Generation:
    request = read_body(TEXT | CHAT | given).request
    assert isinstance(request, Generation)
    return request


@pytest.mark.parametrize("read_body", [of_2024.completion, of_2024.infill, of_2024.chat])
def test_a_request_that_does_not_say_means_what_it_meant_then(read_body: Any) -> None:
    request = asked(read_body)
    assert (request.truncate, request.shift, request.cache_prompt) == (Truncation.BLOCKS, True, False)
    assert request.is_capped
    named = asked(read_body, truncate=False, shift=False, cache_prompt=True)
    assert (named.truncate, named.shift, named.cache_prompt) == (None, False, True)


def test_only_a_chat_has_openais_temperature() -> None:
    told = [asked(read_body).sampling for read_body in (of_2024.completion, of_2024.chat)]
    assert [(sampling.temperature, sampling.top_p) for sampling in told] == [(0.8, 0.95), (1.0, 1.0)]
    assert asked(of_2024.chat, temperature=None, top_p=0.5).sampling.top_p == 0.5


def test_the_tail_is_cut_and_repetitions_are_penalized_whatever_steps_are_named() -> None:
    assert SamplerKind.TAIL_FREE in asked(of_2024.completion).sampling.samplers
    named = asked(of_2024.completion, samplers=["top_k", "temperature"]).sampling.samplers
    assert named == (SamplerKind.PENALTIES, SamplerKind.TOP_K, SamplerKind.TEMPERATURE)


def test_every_dialect_knows_every_path() -> None:
    assert DIALECTS.keys() == set(Compat)
    assert OF_2024.readers.keys() == TODAY.readers.keys() == set(ENDPOINTS)
