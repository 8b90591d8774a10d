"""ollama's `options`: how tokens are chosen and how many, with its names, its defaults and its words for a wrong type.

As there, unknown names are let through, null says nothing, and a fraction is cut off where a whole number is meant.
Knows no model: what is asked of a context is the worker's to bring about, without loading anything anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from api.schemas.generation import MAX_STOPS, Stop
from api.schemas.sampling import F32_MAX, INT32_MAX, Limit, Penalty, Real, Share, Whole, within
from api.schemas.strict import ClientFields
from shared.errors import InvalidRequest
from shared.jobs import Sampling

LEAST_CONTEXT = 4
"""Tokens: less is taken for as many."""
CONTEXTS = 10
"""Of how many contexts a text may be at most, however often the context was shifted."""


class OptionFields(ClientFields):
    """Of the types that ollama gives them; `converted` comes before."""

    num_ctx: Annotated[Whole, within(LEAST_CONTEXT, INT32_MAX)] = 0
    """0, which cannot be asked for: as much as there is."""
    num_keep: Annotated[Whole, within(-1, INT32_MAX)] = 4
    num_predict: Whole = -1
    stop: Annotated[
        list[Stop], Field(max_length=MAX_STOPS), AfterValidator(lambda stops: [stop for stop in stops if stop])
    ] = []
    seed: int = Field(-1, ge=-1, le=0xFFFFFFFF)
    temperature: Annotated[Real, within(0.0, F32_MAX)] = 0.8
    top_k: Annotated[Whole, within(0, INT32_MAX)] = 40
    top_p: Share = 0.9
    min_p: Share = 0.0
    typical_p: Share = 1.0
    repeat_last_n: Limit = 64
    repeat_penalty: float = Field(1.0, gt=0, le=F32_MAX)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    mirostat: Annotated[Whole, within(0, 2)] = 0
    mirostat_tau: Real = 5.0
    mirostat_eta: Real = 0.1

    # How a model is to be loaded. Here it is loaded when it is asked: they are read, and change nothing.
    num_batch: int = 512
    num_gpu: int = -1
    main_gpu: int = 0
    num_thread: int = 0
    draft_num_predict: int = 4
    low_vram: bool = False
    f16_kv: bool = True
    logits_all: bool = False
    vocab_only: bool = False
    use_mmap: bool = True
    use_mlock: bool = False

    def generation(self) -> dict[str, Any]:
        """The fields of a `Generation` that options decide."""
        return {
            "n_predict": self._limit(),
            "n_keep": self.num_keep,
            "n_ctx": self.num_ctx or None,
            "stop": tuple(self.stop),
            "sampling": self._sampling(),
        }

    def _limit(self) -> int:
        """-1 for as long as the text goes on: that is what 0 means, too."""
        if not self.num_ctx:
            return self.num_predict if self.num_predict > 0 else -1
        most = min(CONTEXTS * self.num_ctx, INT32_MAX)
        return min(self.num_predict, most) if self.num_predict > 0 else most

    def _sampling(self) -> Sampling:
        """All of it is said: where a client says nothing, ollama's defaults are meant and not ours."""
        named = {name: getattr(self, name) for name in Sampling.model_fields if name in OptionFields.model_fields}
        return Sampling(**named | {"seed": None if self.seed < 0 else self.seed})


def converted(options: Any) -> Any:
    """`options` with their numbers as ollama reads them. Raises InvalidRequest in its words for a wrong type."""
    if not isinstance(options, dict):
        return options
    return {
        name: _READERS[field.annotation](name, value)
        for name, value in options.items()
        if value is not None and (field := OptionFields.model_fields.get(name)) is not None
    }


Options = Annotated[OptionFields, BeforeValidator(converted, OptionFields)]


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, "of type integer")
    return int(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, "of type float32")
    return float(value)


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "of type boolean")
    return value


def _texts(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise _wrong(name, "of type array")
    if not all(isinstance(item, str) for item in value):
        raise _wrong(name, "of an array of strings")
    return value


_READERS: dict[Any, Callable[[str, Any], Any]] = {int: _integer, float: _number, bool: _boolean, list[Stop]: _texts}
"""By the type of the field."""


def _wrong(name: str, wanted: str) -> InvalidRequest:
    return InvalidRequest(f'option "{name}" must be {wanted}', param=f"options.{name}")
