"""`/v1/chat/completions` of May 2024."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from api import sse
from api.schemas import openai
from api.schemas.answers import answers_of, usage_json
from api.schemas.ask import Ask, Origin
from api.schemas.choices import ChatShape, Wanted
from api.schemas.logprobs import native_json
from api.schemas.of_2024 import failure
from api.schemas.of_2024.defaults import capped, completed_chat
from api.schemas.telling import Telling
from shared.events import Answer, Finished
from shared.jobs import Chat


def chat(fields: dict[str, Any]) -> Ask:
    """The job of a body. Raises InvalidRequest or NotSupported."""
    return capped(openai.chat(completed_chat(fields), partial(ChatShapeOf2024, fields.get("model"))))


class ChatShapeOf2024(ChatShape):
    """The model is called as the client called it. Of a stream the first piece has no content, usage comes with the
    reason why it ended, and nothing comes behind that."""

    def __init__(self, name: str | None, origin: Origin, request: Chat, wanted: Wanted, telling: Telling) -> None:
        super().__init__(origin._replace(model=name or origin.model), request, wanted, telling)

    def end(self) -> bytes:
        return super().end().removesuffix(sse.DONE)

    def failed(self, error: Exception) -> bytes:
        return failure.told(error, {})

    def body(self, endings: Sequence[Finished]) -> Any:
        whole = super().body(endings)
        if not self._request.wants_logprobs:
            return whole
        first = answers_of(endings[0])[0]
        is_post_sampling = self._request.post_sampling_probs
        return whole | {"completion_probabilities": native_json(first.logprobs, is_post_sampling=is_post_sampling)}

    def _first_delta(self) -> dict[str, Any]:
        return {"role": "assistant"}

    def _last_parts(self, answer: Answer) -> dict[str, Any]:
        return {"usage": usage_json([answer], n_choices=1), **super()._last_parts(answer)}
