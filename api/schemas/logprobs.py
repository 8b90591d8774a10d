"""Probabilities of tokens as each family tells them. Knows no request and no answer.

Where two generations of clients read different keys, both are sent. A token that is half a character has U+FFFD for a
text where its bytes stand beside it.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import Any

from shared.events import ChosenLogprob, Logprob


def native_json(entries: Sequence[ChosenLogprob], *, is_post_sampling: bool) -> list[dict[str, Any]]:
    """llama.cpp's `completion_probabilities`: today's keys, and `content` and `probs` of 2024."""
    value, alternatives = ("prob", "top_probs") if is_post_sampling else ("logprob", "top_logprobs")
    return [
        _token_json(entry)
        | {
            value: _probability(entry) if is_post_sampling else entry.logprob,
            alternatives: [
                _token_json(other) | {value: _probability(other) if is_post_sampling else other.logprob}
                for other in entry.top
            ],
            "content": _text(entry),
            "probs": [{"tok_str": _text(other), "prob": _probability(other)} for other in entry.top],
        }
        for entry in entries
    ]


def chat_json(entries: Sequence[ChosenLogprob], *, is_post_sampling: bool) -> dict[str, Any]:
    """OpenAI's `logprobs` of a chat's choice. After sampling, llama.cpp's `prob` and `top_probs` come with it."""
    content = []
    for entry in entries:
        told = _token_json(entry) | {
            "logprob": entry.logprob,
            "top_logprobs": [_token_json(other) | {"logprob": other.logprob} for other in entry.top],
        }
        if is_post_sampling:
            told["prob"] = _probability(entry)
            told["top_probs"] = [_token_json(other) | {"prob": _probability(other)} for other in entry.top]
        content.append(told)
    return {"content": content}


class LegacyLogprobs:
    """OpenAI's `logprobs` of a text completion, with llama.cpp's `content` beside it, for the pieces of one choice.

    Remembers how long the text is so far, which the next token's offset is counted from.
    """

    def __init__(self, *, is_post_sampling: bool) -> None:
        self._is_post_sampling = is_post_sampling
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def push(self, entries: Sequence[ChosenLogprob]) -> dict[str, Any]:
        return {
            "tokens": [_exact_text(entry) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [_likeliest(entry) for entry in entries],
            "text_offset": [self._offset_of(entry) for entry in entries],
            **chat_json(entries, is_post_sampling=self._is_post_sampling),
        }

    def _offset_of(self, entry: ChosenLogprob) -> int:
        """Characters before the one that the token begins with, or goes on with."""
        offset = self._offset
        self._offset += len(self._decoder.decode(entry.piece_bytes))
        return offset


def _likeliest(entry: ChosenLogprob) -> dict[str, float]:
    """By text, the chosen token's with it."""
    told: dict[str, float] = {}
    for other in sorted((*entry.top, entry), key=lambda other: -other.logprob):
        told.setdefault(_exact_text(other), other.logprob)
    return told


def _token_json(entry: Logprob) -> dict[str, Any]:
    return {"id": entry.id, "token": _text(entry), "bytes": list(entry.piece_bytes)}


def _text(entry: Logprob) -> str:
    return entry.piece_bytes.decode(errors="replace")


def _exact_text(entry: Logprob) -> str:
    r"""As OpenAI writes a token that is no text of its own, and whose bytes have no other place: `bytes:\xf0\x9f`."""
    try:
        return entry.piece_bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.piece_bytes)


def _probability(entry: Logprob) -> float:
    return math.exp(min(0.0, entry.logprob))
