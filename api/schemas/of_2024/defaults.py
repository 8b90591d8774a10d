"""What llama.cpp's server of May 2024 did with a request that did not say: other defaults of the same fields.

It cut a prompt that did not fit, shifted a context that was full, reused no cache unless it was asked to, and let no
request have more tokens than its own `--n-predict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from api.schemas.ask import Ask
from shared.jobs import Generation, SamplerKind

_SAMPLERS = [
    SamplerKind.PENALTIES,
    SamplerKind.DRY,
    SamplerKind.TOP_N_SIGMA,
    SamplerKind.TOP_K,
    SamplerKind.TAIL_FREE,
    SamplerKind.TYPICAL_P,
    SamplerKind.TOP_P,
    SamplerKind.MIN_P,
    SamplerKind.XTC,
    SamplerKind.TEMPERATURE,
]
"""Those of then in their order, and between them what has come since and is off unless it is asked for."""

_DEFAULTS: dict[str, Any] = {"cache_prompt": False, "truncate": True, "shift": True, "samplers": _SAMPLERS}
_CHAT_DEFAULTS = _DEFAULTS | {
    "temperature": 1.0,
    "top_p": 1.0,
    "reasoning_format": "none",
    "continue_final_message": False,
}
"""A chat had OpenAI's of the first two, everything else llama.cpp's. Its text was content, and a turn of its own."""


def completed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a completion or an infill with what it leaves out."""
    return _completed(fields, _DEFAULTS)


def completed_chat(fields: Mapping[str, Any]) -> dict[str, Any]:
    return _completed(fields, _CHAT_DEFAULTS)


def capped(ask: Ask) -> Ask:
    """With the worker's limit over the request's own."""
    assert isinstance(ask.request, Generation)
    return replace(ask, request=ask.request.model_copy(update={"is_capped": True}))


def _completed(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if value is not None}
    samplers = given.get("samplers")
    if isinstance(samplers, list):
        # Penalties were no step among others: nobody could leave them out.
        given["samplers"] = [SamplerKind.PENALTIES, *samplers]
    return {**defaults, **given}
