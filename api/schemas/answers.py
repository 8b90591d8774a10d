"""The parts of an answer that both families share: timings, usage, why it ended. Knows no field of a request."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from shared.errors import Cancelled, EngineFailed, Expired, SlotstreamError
from shared.events import Answer, Finished, Score, StopType, Timings, Vector

FINGERPRINT = "b" + version("slotstream")


def answers_of(ending: Finished) -> list[Answer]:
    """The answers of one job by index."""
    return sorted((part for part in ending.parts if isinstance(part, Answer)), key=lambda answer: answer.index)


def vectors_of(ending: Finished) -> list[Vector]:
    return sorted((part for part in ending.parts if isinstance(part, Vector)), key=lambda vector: vector.index)


def scores_of(ending: Finished) -> list[Score]:
    return sorted((part for part in ending.parts if isinstance(part, Score)), key=lambda score: score.index)


def failure_of(finished: Finished) -> SlotstreamError | None:
    """Why a job has no answer; None when it succeeded. A cancelled or expired one need not carry a reason."""
    if finished.status == "succeeded":
        return None
    if finished.failure is not None:
        return finished.failure.to_error()
    match finished.status:
        case "cancelled":
            return Cancelled("The job was cancelled")
        case "expired":
            return Expired("The job's deadline passed before it was done")
    return EngineFailed("The job failed")


def finish_reason(stop_type: StopType, *, has_calls: bool = False) -> str:
    if stop_type is StopType.LIMIT:
        return "length"
    return "tool_calls" if has_calls else "stop"


def timings_json(timings: Timings) -> dict[str, Any]:
    """llama.cpp's timings. The first token comes from the prefill, so rates count one decode less than tokens."""
    decodes = max(0, timings.predicted_n - 1)
    return {
        "queue_ms": timings.queue_ms,
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": _ratio(timings.prompt_ms, timings.prompt_n),
        "prompt_per_second": _ratio(1e3 * timings.prompt_n, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": _ratio(timings.predicted_ms, decodes),
        "predicted_per_second": _ratio(1e3 * decodes, timings.predicted_ms),
    }


def usage_json(answers: Iterable[Answer], n_choices: int) -> dict[str, Any]:
    """Of all choices of all prompts. A prompt counts once, however many choices it has."""
    prompt_tokens = completion_tokens = cached_tokens = 0
    for answer in answers:
        completion_tokens += answer.timings.predicted_n
        if answer.index % n_choices == 0:
            prompt_tokens += answer.prompt_tokens
            cached_tokens += answer.timings.cache_n
    return {
        "completion_tokens": completion_tokens,
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def prompt_usage_json(parts: Iterable[Vector | Score]) -> dict[str, int]:
    """Of what generates nothing."""
    prompt_tokens = sum(part.prompt_tokens for part in parts)
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}


def _ratio(number: float, divisor: float) -> float:
    return number / divisor if divisor > 0 else 0.0
