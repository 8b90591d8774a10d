"""llama.cpp's `generation_settings`: what was asked for, under the names of today's server and of that of 2024.

Knows no vocabulary, so a text that stands for tokens is told as the text it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from api.schemas.reasoning import ReasoningFormat
from shared.events import Answer, ReplyForm
from shared.jobs import Constraint, Generation, Sampling

RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp's word for one that is drawn for each request."""


def settings_json(
    request: Generation,
    answer: Answer,
    *,
    model: str,
    is_stream: bool,
    reasoning: ReasoningFormat = ReasoningFormat.NONE,
) -> dict[str, Any]:
    """What only the worker knew, the context, the seed, what ends a generation and how a reply is written, is told by
    the answer."""
    told = _settings_json(request, model=model, seed=answer.seed, banned=answer.banned, is_stream=is_stream)
    return {
        "n_ctx": answer.n_ctx,
        **told,
        "chat_format": _chat_format(answer.reply),
        "reasoning_format": reasoning.value,
        "reasoning_in_content": is_stream and reasoning is ReasoningFormat.DEEPSEEK_LEGACY,
    }


def default_settings_json(defaults: Generation, *, model: str) -> dict[str, Any]:
    """`defaults` is a request that says nothing but its prompt."""
    return _settings_json(defaults, model=model, seed=RANDOM_SEED)


def shown_settings_json(request: Generation, *, model: str) -> dict[str, Any]:
    """What all may see of a request: how its text is made, and no word of it. The seed is the one asked for."""
    seed = RANDOM_SEED if request.sampling.seed is None else request.sampling.seed
    told = _settings_json(request, model=model, seed=seed)
    return {name: value for name, value in told.items() if name not in WORDS}


WORDS = frozenset(
    {
        *("stop", "grammar", "grammar_lazy", "grammar_triggers", "preserved_tokens", "json_schema", "regex"),
        *("logit_bias", "dry_sequence_breakers", "penalty_prompt_tokens", "use_penalty_prompt_tokens"),
    }
)
"""What clients wrote, or what tells of it."""


def _settings_json(
    request: Generation, *, model: str, seed: int, banned: Sequence[int] = (), is_stream: bool = False
) -> dict[str, Any]:
    return {
        "model": model,
        **_sampling_json(request.sampling, banned),
        "seed": seed,
        **_constraint_json(request.constraint),
        "stop": list(request.stop),
        "max_tokens": request.n_predict,
        "n_predict": request.n_predict,
        "n_cmpl": request.n,
        "n_keep": request.n_keep,
        "n_discard": request.n_discard,
        "truncate": request.truncate.value if request.truncate else False,
        "shift": request.shift,
        "t_max_predict_ms": request.t_max_predict_ms,
        "n_indent": request.n_indent,
        "n_probs": request.n_probs,
        "post_sampling_probs": request.post_sampling_probs,
        "timings_per_token": request.timings_per_token,
        "cache_prompt": request.cache_prompt,
        "stream": is_stream,
        "chat_format": "Content-only",
        "reasoning_format": "none",
        "reasoning_in_content": False,
        "generation_prompt": "",
        "speculative.types": "none",
        "backend_sampling": False,
        "lora": [{"id": adapter.id, "scale": adapter.scale} for adapter in request.lora or ()],
    }


def _chat_format(form: ReplyForm | None) -> str:
    """llama.cpp's names: a reply is its content, or the one JSON object of its generic format, or has marks that it
    learned from the template."""
    if form is None or form == ReplyForm():
        return "Content-only"
    return "Generic" if form.is_generic else "peg-native"


def _sampling_json(sampling: Sampling, banned: Sequence[int]) -> dict[str, Any]:
    told = sampling.model_dump(mode="json", exclude={"penalty_prompt", "logit_bias"})
    penalty_prompt = sampling.penalty_prompt
    pieces = [penalty_prompt] if isinstance(penalty_prompt, str) else list(penalty_prompt or ())
    return told | {
        "use_penalty_prompt_tokens": penalty_prompt is not None,
        "penalty_prompt_tokens": pieces,
        "logit_bias": [
            *({"bias": bias, "token": token} for token, bias in sampling.logit_bias),
            *({"bias": None, "token": token} for token in banned),
        ],
    }


def _constraint_json(constraint: Constraint | None) -> dict[str, Any]:
    told: dict[str, Any] = {"grammar": "", "grammar_lazy": False, "grammar_triggers": [], "preserved_tokens": []}
    match constraint:
        case Constraint(syntax="gbnf", text=text):
            told["grammar"] = text
        case Constraint(syntax="json_schema", text=text):
            told["json_schema"] = json.loads(text)
        case Constraint(syntax="regex", text=text):
            told["regex"] = text
    return told
