"""`/completion`, which was `/v1/completions` too, and `/infill` of May 2024."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from api.schemas import llamacpp
from api.schemas.ask import Ask, Origin
from api.schemas.llamacpp import CompletionShape, NativeFields
from api.schemas.of_2024 import failure
from api.schemas.of_2024.defaults import capped, completed
from shared.events import Answer, Finished, Tokens
from shared.jobs import Completion, Infill


def completion(fields: dict[str, Any]) -> Ask:
    """The job of a body. Raises InvalidRequest or NotSupported."""
    return capped(llamacpp.completion(completed(fields), partial(CompletionShapeOf2024, fields.get("prompt"))))


def infill(fields: dict[str, Any]) -> Ask:
    """The same."""
    return capped(llamacpp.infill(completed(fields), partial(CompletionShapeOf2024, fields.get("prompt", ""))))


class CompletionShapeOf2024(CompletionShape):
    """The prompt comes back as it was sent, an array in an object, and biases in pairs. Its server of that month had no
    eye for images, and said so with each piece."""

    def __init__(self, prompt: Any, origin: Origin, fields: NativeFields, request: Completion | Infill) -> None:
        super().__init__(origin, fields, request)
        self._prompt = prompt

    def body(self, endings: Sequence[Finished]) -> Any:
        told = super().body(endings)
        return {"results": told} if isinstance(told, list) else told

    def failed(self, error: Exception) -> bytes:
        return failure.told(error, {"content": "", "stop": False})

    def _chunk(self, place: int, tokens: Tokens) -> dict[str, Any]:
        return super()._chunk(place, tokens) | {"multimodal": False}

    def _final(self, place: int, answer: Answer) -> dict[str, Any]:
        final = super()._final(place, answer)
        final["prompt"] = self._prompt_of(final["index"])
        final["generation_settings"] |= {"logit_bias": _pairs(final["generation_settings"])}
        if self._request.wants_logprobs:
            # A stream repeated them all at its end.
            final["completion_probabilities"] = self._probabilities(answer.logprobs)
        return final

    def _prompt_of(self, index: int) -> Any:
        """Of an array, the element whose answer it is."""
        is_array = self._request.n_prompts > 1
        return self._prompt[index // self._request.n] if is_array else self._prompt


def _pairs(settings: Mapping[str, Any]) -> list[list[Any]]:
    return [[bias["token"], bias["bias"]] for bias in settings["logit_bias"]]
