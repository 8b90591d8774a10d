"""Probabilities of tokens as each family tells them."""

from __future__ import annotations

import base64
import math

import pytest

from api.schemas.logprobs import LegacyLogprobs, chat_json, native_json
from api.schemas.strict import to_json
from shared.events import ChosenLogprob, Logprob


def packed(piece: bytes) -> str:
    return base64.b64encode(piece).decode()


def entry(piece: bytes, probability: float, *others: tuple[bytes, float]) -> ChosenLogprob:
    top = tuple(
        Logprob(id=n, piece=packed(other), logprob=math.log(likely)) for n, (other, likely) in enumerate(others)
    )
    return ChosenLogprob(id=7, piece=packed(piece), logprob=math.log(probability), top=top)


HALF = b"\xf0\x9f"
WORD = entry(b" a", 0.5, (b" a", 0.5), (HALF, 0.25))


def test_a_native_entry_has_the_keys_of_both_generations() -> None:
    [told] = native_json([WORD], is_post_sampling=False)
    assert told == {
        "id": 7,
        "token": " a",
        "bytes": [32, 97],
        "logprob": math.log(0.5),
        "top_logprobs": [
            {"id": 0, "token": " a", "bytes": [32, 97], "logprob": math.log(0.5)},
            {"id": 1, "token": "\ufffd", "bytes": [0xF0, 0x9F], "logprob": math.log(0.25)},
        ],
        "content": " a",
        "probs": [{"tok_str": " a", "prob": 0.5}, {"tok_str": "\ufffd", "prob": 0.25}],
    }


def test_after_sampling_a_native_entry_has_probabilities() -> None:
    [told] = native_json([WORD], is_post_sampling=True)
    assert told["prob"] == 0.5 and [other["prob"] for other in told["top_probs"]] == [0.5, 0.25]
    assert not {"logprob", "top_logprobs"} & (told.keys() | told["top_probs"][0].keys())


def test_a_chats_entry_is_openais_and_tells_probabilities_beside_it() -> None:
    [told] = chat_json([WORD], is_post_sampling=False)["content"]
    assert told.keys() == {"id", "token", "bytes", "logprob", "top_logprobs"}
    [told] = chat_json([WORD], is_post_sampling=True)["content"]
    assert told["logprob"] == math.log(0.5) and told["prob"] == 0.5
    assert [other["prob"] for other in told["top_probs"]] == [0.5, 0.25]


@pytest.mark.parametrize("logprob", [0.0, 1e-7, -1e30])
def test_what_is_told_is_strict_json_however_unlikely(logprob: float) -> None:
    odd = ChosenLogprob(id=0, piece="", logprob=logprob, top=(Logprob(id=0, piece="", logprob=logprob),))
    for is_post_sampling in (False, True):
        assert to_json(native_json([odd], is_post_sampling=is_post_sampling))
        assert to_json(LegacyLogprobs(is_post_sampling=is_post_sampling).push([odd]))
    assert 0 <= native_json([odd], is_post_sampling=True)[0]["prob"] <= 1


def test_a_legacy_object_lists_by_token_and_tells_the_chosen_one_too() -> None:
    told = LegacyLogprobs(is_post_sampling=False).push([entry(b"a", 0.1, (b"b", 0.9)), entry(b"c", 0.5)])
    assert told["tokens"] == ["a", "c"]
    assert told["token_logprobs"] == [math.log(0.1), math.log(0.5)]
    assert told["top_logprobs"] == [{"b": math.log(0.9), "a": math.log(0.1)}, {"c": math.log(0.5)}]
    assert [item["token"] for item in told["content"]] == ["a", "c"]


def test_legacy_offsets_count_characters_over_all_pieces() -> None:
    legacy = LegacyLogprobs(is_post_sampling=False)
    pieces = [[b"ab"], [HALF, b"\x91\x8b"], [b"c", b"d"]]
    offsets = [legacy.push([entry(piece, 0.5) for piece in some])["text_offset"] for some in pieces]
    assert offsets == [[0], [2, 2], [3, 4]]


def test_half_characters_of_a_legacy_object_are_told_by_their_bytes() -> None:
    told = LegacyLogprobs(is_post_sampling=False).push([entry(b"\x91", 0.1, (HALF, 0.6), (b"\x91", 0.1))])
    assert told["tokens"] == [r"bytes:\x91"]
    assert told["top_logprobs"] == [{r"bytes:\xf0\x9f": math.log(0.6), r"bytes:\x91": math.log(0.1)}]
