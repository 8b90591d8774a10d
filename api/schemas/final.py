"""llama.cpp's whole answer: the union of the keys that clients of its server of 2024 and of today read.

Knows nothing of streams, and no field that picks among the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.schemas.answers import timings_json
from api.schemas.reasoning import ReasoningFormat
from api.schemas.settings import settings_json
from shared.events import Answer, StopType
from shared.jobs import Generation


def final_json(
    request: Generation,
    answer: Answer,
    *,
    index: int,
    model: str,
    is_stream: bool,
    ids: Sequence[int] = (),
    reasoning: ReasoningFormat = ReasoningFormat.NONE,
) -> dict[str, Any]:
    """`index` is among the answers of all jobs. The text is left out of a stream, which has told it."""
    predicted = answer.timings.predicted_n
    return {
        "index": index,
        "content": "" if is_stream else answer.text,
        "tokens": list(ids),
        "id_slot": answer.id_slot,
        "stop": True,
        "model": model,
        "tokens_predicted": predicted,
        "tokens_evaluated": answer.prompt_tokens,
        "generation_settings": settings_json(request, answer, model=model, is_stream=is_stream, reasoning=reasoning),
        "prompt": answer.prompt,
        "has_new_line": answer.has_new_line,
        "truncated": answer.truncated,
        "stop_type": answer.stop_type.value,
        "stopped_eos": answer.stop_type is StopType.EOS,
        "stopped_word": answer.stop_type is StopType.WORD,
        "stopped_limit": answer.stop_type is StopType.LIMIT,
        "stopping_word": answer.stopping_word,
        "tokens_cached": _n_cached(answer),
        "timings": timings_json(answer.timings),
    }


def _n_cached(answer: Answer) -> int:
    """A worker of an older version does not say: then all but the last token, which was sampled but never decoded."""
    if answer.n_cached is not None:
        return answer.n_cached
    return answer.prompt_tokens + max(0, answer.timings.predicted_n - 1)
