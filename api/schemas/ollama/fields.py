"""The bodies of ollama's requests, checked for shape. What becomes of them is in `requests`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from api.schemas.lane import LaneFields
from api.schemas.ollama.formats import constraint_of
from api.schemas.ollama.messages import OllamaMessage
from api.schemas.ollama.options import OptionFields, Options
from api.schemas.strict import bad_field, by_hand, to_json
from api.schemas.tools import Tool
from shared.errors import InvalidRequest
from shared.jobs import Constraint

MAX_TOP_LOGPROBS = 20

Level = Literal["low", "medium", "high", "max"]

_DURATION = re.compile(r"[+-]?(?:0|(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
"""Go's way to write one: https://pkg.go.dev/time#ParseDuration."""


def _keep_alive(value: Any) -> Any:
    """True when the model is to be unloaded, which is all that anybody can notice here."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value == 0
    if not isinstance(value, str) or not _DURATION.fullmatch(value):
        raise ValueError("must be a number of seconds or a duration such as '5m' or '1h30m'")
    return not re.search("[1-9]", value)


def _think(value: Any) -> Any:
    if not isinstance(value, bool) and value not in get_args(Level):
        shown = f"{to_json(value).decode():.100}"
        raise InvalidRequest(
            f'invalid think value: {shown} (must be "high", "medium", "low", "max", true, or false)',
            param="think",
        )
    return value


def _top_logprobs(value: int) -> int:
    if not 0 <= value <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs")
    return value


class ModelBody(LaneFields):
    """What every request about a model has."""

    options: Options = OptionFields()
    is_unloading: Annotated[bool, BeforeValidator(_keep_alive, float | str)] = Field(False, alias="keep_alive")


class TextBody(ModelBody):
    """What every generating request has."""

    stream: bool = True
    constraint: Annotated[Constraint | None, BeforeValidator(constraint_of, Literal["", "json"] | dict[str, Any])] = (
        Field(None, alias="format")
    )
    think: Annotated[bool | Level | None, BeforeValidator(_think, bool | Level)] = None
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: Annotated[int, AfterValidator(_top_logprobs)] = 0

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """What the template is told of thinking: nothing where the client says nothing, so that it does as it was made
        to."""
        if self.think is None or isinstance(self.think, bool):
            return {} if self.think is None else {"enable_thinking": self.think}
        return {"enable_thinking": True, "reasoning_effort": self.think}


class GenerateBody(TextBody):
    """Of `/api/generate`."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: list[int] = []
    raw: bool = False
    images: list[str] = []

    @property
    def is_load(self) -> bool:
        """There is nothing to generate from: who asks wants the model to be there, or gone."""
        return not (self.prompt or self.suffix or self.images)


class ChatBody(TextBody):
    """Of `/api/chat`."""

    messages: Annotated[Any, by_hand(list[OllamaMessage])] = None
    tools: Annotated[Any, by_hand(list[Tool])] = None

    @property
    def is_load(self) -> bool:
        return self.messages is None or self.messages == []


class EmbedBody(ModelBody):
    """Of `/api/embed`. That an input is too long says who knows the model."""

    input: Annotated[Any, by_hand(str | list[str])] = None
    truncate: bool = True
    dimensions: Annotated[Any, by_hand(None)] = None
    """The model's vectors cannot be shortened."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """None of them where there is nothing to embed. Raises InvalidRequest."""
        if self.dimensions is not None:
            raise bad_field("dimensions", "the model's vectors cannot be shortened")
        match self.input:
            case None | "":
                return ()
            case str(text):
                return (text,)
            case list(texts) if all(isinstance(text, str) for text in texts):
                return tuple(texts)
        raise InvalidRequest("invalid input type", param="input")


class EmbeddingsBody(ModelBody):
    """Of `/api/embeddings`."""

    prompt: str = ""


class ShowBody(LaneFields):
    """Of `/api/show`."""

    name: str | None = None
    """An older name for `model`."""
