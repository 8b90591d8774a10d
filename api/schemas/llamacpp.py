"""llama.cpp's own `/completion`: its fields, and the union of what old and new clients read in its answers.

Knows neither the model's vocabulary nor who is asked: token ids beyond the vocabulary are refused by the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api import sse
from api.problems import body_of
from api.schemas.answers import answers_of, timings_json
from api.schemas.ask import Ask, Heard, Origin
from api.schemas.constraints import constraint_of
from api.schemas.generation import (
    DEFAULT_SAMPLERS,
    LATER,
    POSITIVE,
    GenerationFields,
    refuse_later,
)
from api.schemas.prompts import prompts_of
from api.schemas.strict import bad_field, read
from shared.events import Accepted, Answer, Finished, Progress, StopType, Tokens
from shared.jobs import Completion

_LATER = LATER | {"logprobs": POSITIVE}


class CompletionFields(GenerationFields):
    return_tokens: bool = False
    return_progress: bool = False
    response_fields: list[str] = []


def completion(fields: dict[str, Any]) -> Ask:
    """The jobs of a `/completion` body, one for each prompt. Raises InvalidRequest or NotSupported."""
    typed = read(CompletionFields, fields)
    if fields.get("prompt") is None:
        raise bad_field("prompt", "is needed")
    prompts = prompts_of("prompt", fields["prompt"])
    refuse_later(fields, _LATER)
    constraint = constraint_of(fields)
    sampling, limit, stops = typed.sampling(), typed.limit(), tuple(typed.stop)
    requests = tuple(
        Completion(
            prompts=(prompt,),
            n_predict=limit,
            stop=stops,
            sampling=sampling,
            cache_prompt=typed.cache_prompt,
            constraint=constraint,
        )
        for prompt in prompts
    )
    return Ask(
        requests=requests,
        shape=lambda origin: CompletionShape(origin, typed, requests),
        model=typed.model,
        lane=typed.lane,
        is_stream=typed.stream,
    )


@dataclass(slots=True)
class _Said:
    """What one prompt's stream has said so far."""

    prompt_tokens: int = 0
    predicted: int = 0


class CompletionShape:
    """Objects with `stop`: in a stream false until the last one of each prompt, which has no text of its own."""

    def __init__(self, origin: Origin, fields: CompletionFields, requests: tuple[Completion, ...]) -> None:
        self._origin = origin
        self._fields = fields
        self._requests = requests
        self._said = [_Said() for _ in requests]

    def say(self, heard: Heard) -> bytes:
        said = self._said[heard.place]
        match heard.event:
            case Accepted(prompt_tokens=prompt_tokens):
                said.prompt_tokens = prompt_tokens
            case Progress() as progress if self._fields.return_progress:
                return sse.data(self._chunk(heard.place, "", ()) | {"prompt_progress": _progress_json(progress)})
            case Tokens(text=text, ids=ids):
                said.predicted += len(ids)
                return sse.data(self._chunk(heard.place, text, ids))
            case Finished() as finished:
                answers = answers_of([finished])
                return b"".join(sse.data(self._final(heard.place, answer, content="", ids=())) for answer in answers)
        return b""

    def end(self) -> bytes:
        return b""

    def failed(self, error: Exception) -> bytes:
        return sse.data(body_of(error))

    def body(self, endings: Sequence[Finished]) -> Any:
        finals = [
            self._final(place, answer, content=answer.text, ids=answer.ids if self._fields.return_tokens else ())
            for place, answer in enumerate(answers_of(endings))
        ]
        return finals[0] if len(finals) == 1 else finals

    def _chunk(self, place: int, text: str, ids: Sequence[int]) -> dict[str, Any]:
        return {
            "index": place,
            "content": text,
            "tokens": list(ids),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._said[place].predicted,
            "tokens_evaluated": self._said[place].prompt_tokens,
        }

    def _final(self, place: int, answer: Answer, *, content: str, ids: Sequence[int]) -> dict[str, Any]:
        predicted = answer.timings.predicted_n
        final = {
            "index": place,
            "content": content,
            "tokens": list(ids),
            "id_slot": answer.id_slot,
            "stop": True,
            "model": self._origin.model,
            "tokens_predicted": predicted,
            "tokens_evaluated": answer.prompt_tokens,
            "generation_settings": self._settings(self._requests[place], answer),
            "prompt": answer.prompt,
            "has_new_line": answer.has_new_line,
            "truncated": answer.truncated,
            "stop_type": answer.stop_type.value,
            "stopped_eos": answer.stop_type is StopType.EOS,
            "stopped_word": answer.stop_type is StopType.WORD,
            "stopped_limit": answer.stop_type is StopType.LIMIT,
            "stopping_word": answer.stopping_word,
            # The last token was sampled but never decoded, so it is not in the cache.
            "tokens_cached": answer.prompt_tokens + max(0, predicted - 1),
            "timings": timings_json(answer.timings),
        }
        wanted = self._fields.response_fields
        return _picked(final, wanted) if wanted else final

    def _settings(self, request: Completion, answer: Answer) -> dict[str, Any]:
        sampling = request.sampling
        return {
            "model": self._origin.model,
            "seed": answer.seed,
            "temperature": sampling.temperature,
            "dynatemp_range": 0.0,
            "dynatemp_exponent": 1.0,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "top_n_sigma": -1.0,
            "xtc_probability": 0.0,
            "xtc_threshold": 0.1,
            "typical_p": sampling.typical_p,
            "repeat_last_n": sampling.repeat_last_n,
            "repeat_penalty": sampling.repeat_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "dry_multiplier": 0.0,
            "mirostat": 0,
            "mirostat_tau": 5.0,
            "mirostat_eta": 0.1,
            "adaptive_target": -1.0,
            "adaptive_decay": 0.9,
            "stop": list(request.stop),
            "max_tokens": request.n_predict,
            "n_predict": request.n_predict,
            "n_keep": self._fields.n_keep,
            "n_discard": self._fields.n_discard,
            "ignore_eos": sampling.ignore_eos,
            "stream": self._fields.stream,
            "logit_bias": [{"bias": bias, "token": token} for token, bias in sampling.logit_bias],
            "n_probs": 0,
            "min_keep": sampling.min_keep,
            "grammar": request.constraint.text if request.constraint and request.constraint.syntax == "gbnf" else "",
            "samplers": DEFAULT_SAMPLERS,
            "cache_prompt": request.cache_prompt,
            "timings_per_token": False,
            "post_sampling_probs": False,
            "lora": [],
        }


def _progress_json(progress: Progress) -> dict[str, Any]:
    return {
        "total": progress.total,
        "cache": progress.cache,
        "processed": progress.processed,
        "time_ms": progress.time_ms,
    }


def _picked(final: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Only the wanted fields; a path with slashes stays its own flat key, and a missing one is left out."""
    picked = {}
    for path in paths:
        value: Any = final
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            picked[path] = value
    return picked
