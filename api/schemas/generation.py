"""The fields that every generating path shares, native and OpenAI alike: limits, sampling, stops, lanes.

Fields that others have and this build does not are in `LATER`: let through where they change nothing, else refused,
since an answer that silently ignored them would not be what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PlainValidator

from api.schemas.prompts import MAX_TOKEN_ID
from api.schemas.strict import ClientFields, bad_field
from shared.errors import NotSupported
from shared.jobs import Lane, Sampling

INT32_MAX = 2**31 - 1
F32_MAX = 3.4028234663852886e38
MAX_STOPS = 256
MAX_STOP_LENGTH = 1024
MAX_BIASES = 65_536
"""Limits of what every token of every neighbour would wait for: far above what is asked for in good faith."""
PENALTY_MAX = 1e6
"""Beyond any logit, and far from where 32-bit floats overflow."""

DEFAULT_SAMPLERS = [
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
]


def _stops(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} strings are taken")
    if any(len(stop) > MAX_STOP_LENGTH for stop in stops):
        raise ValueError(f"a string may have at most {MAX_STOP_LENGTH} characters")
    return [stop for stop in stops if stop]


def _seed(value: Any) -> Any:
    return None if value == -1 and not isinstance(value, bool) else value


def _biases(value: Any) -> list[tuple[int, float | None]]:
    if isinstance(value, dict | list) and len(value) > MAX_BIASES:
        raise ValueError(f"at most {MAX_BIASES} tokens are taken")
    if isinstance(value, dict):
        return [_bias(key, bias) for key, bias in value.items()]
    if not isinstance(value, list):
        raise ValueError("must be an object or a list of pairs")  # noqa: TRY004
    pairs = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("must be a list of pairs of a token and a bias")
        pairs.append(_bias(*pair))
    return pairs


def _bias(token: Any, bias: Any) -> tuple[int, float | None]:
    if isinstance(token, str):
        if not (token.isascii() and token.isdecimal()):
            raise NotSupported("Field 'logit_bias': text as a key is not supported", param="logit_bias")
        token = int(token)
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= MAX_TOKEN_ID:
        raise ValueError(f"{token!r} is not a token id")
    if bias is False:
        return token, None
    if not isinstance(bias, int | float) or isinstance(bias, bool) or abs(bias) > F32_MAX:
        raise ValueError("a bias must be a number or false")
    return token, float(bias)


Float32 = Annotated[float, Field(ge=-F32_MAX, le=F32_MAX)]
Limit = Annotated[int, Field(ge=-1, le=INT32_MAX)]
Stops = Annotated[list[str], BeforeValidator(_stops)]
Seed = Annotated[Annotated[int, Field(ge=0, le=0xFFFFFFFF)] | None, BeforeValidator(_seed)]
Biases = Annotated[list[tuple[int, float | None]], PlainValidator(_biases)]


class StreamOptions(ClientFields):
    include_usage: bool = False


class GenerationFields(ClientFields):
    """As llama.cpp: hard limits are refused, `top_k`, `top_p`, `min_p`, `typical_p` and `temperature` are clamped."""

    model: str | None = None
    priority: Lane | None = Field(None, strict=False)
    service_tier: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n_predict: Limit | None = None
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    n: int = Field(1, ge=1, le=INT32_MAX)
    n_cmpl: int = Field(1, ge=1, le=INT32_MAX)
    stop: Stops = []
    cache_prompt: bool = True
    n_keep: Limit = 0
    n_discard: int = Field(0, ge=0, le=INT32_MAX)

    seed: Seed = None
    temperature: Float32 = 0.8
    top_k: int = Field(40, ge=-INT32_MAX, le=INT32_MAX)
    top_p: Float32 = 0.95
    min_p: Float32 = 0.05
    typical_p: Float32 = 1.0
    min_keep: int = Field(0, ge=0, le=INT32_MAX)
    repeat_last_n: Limit = 64
    repeat_penalty: float = Field(1.0, gt=0, le=F32_MAX)
    presence_penalty: float = Field(0.0, ge=-PENALTY_MAX, le=PENALTY_MAX)
    frequency_penalty: float = Field(0.0, ge=-PENALTY_MAX, le=PENALTY_MAX)
    ignore_eos: bool = False
    logit_bias: Biases = []

    @property
    def lane(self) -> Lane | None:
        """`priority` counts before OpenAI's word for the same."""
        return self.priority or (Lane.BULK if self.service_tier == "flex" else None)

    def limit(self) -> int:
        """Tokens to generate at most, from the first of the three names that is given; -1 without one."""
        names = (self.n_predict, self.max_completion_tokens, self.max_tokens)
        return next((given for given in names if given is not None), -1)

    def sampling(self) -> Sampling:
        return Sampling(
            seed=self.seed,
            temperature=max(0.0, self.temperature),
            top_k=max(0, self.top_k),
            top_p=min(1.0, max(0.0, self.top_p)),
            min_p=min(1.0, max(0.0, self.min_p)),
            typical_p=min(1.0, max(0.0, self.typical_p)),
            min_keep=self.min_keep,
            repeat_last_n=self.repeat_last_n,
            repeat_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            ignore_eos=self.ignore_eos,
            logit_bias=tuple(self.logit_bias),
        )


class Later(NamedTuple):
    """A field that this build does not do: its type, and the values that change nothing."""

    kind: Literal["a number", "a boolean", "a string", "a list", "an object", "any"]
    is_off: Callable[[Any], bool]


_TYPES: dict[str, tuple[type, ...]] = {
    "a number": (int, float),
    "a boolean": (bool,),
    "a string": (str,),
    "a list": (list,),
    "an object": (dict,),
}

FLAG = Later("a boolean", lambda value: not value)
TEXT = Later("a string", lambda value: not value)
LIST = Later("a list", lambda value: not value)
ALWAYS = Later("any", lambda value: False)
POSITIVE = Later("a number", lambda value: value <= 0)
"""On when positive."""
ONE = Later("a number", lambda value: value == 1)

LATER: dict[str, Later] = {
    "grammar_lazy": FLAG,
    "grammar_triggers": LIST,
    "preserved_tokens": LIST,
    "samplers": Later("any", lambda value: value == DEFAULT_SAMPLERS),
    "mirostat": POSITIVE,
    "dry_multiplier": POSITIVE,
    "xtc_probability": POSITIVE,
    "top_n_sigma": POSITIVE,
    "dynatemp_range": POSITIVE,
    "adaptive_target": Later("a number", lambda value: value < 0),
    "tfs_z": ONE,
    "penalty_prompt": ALWAYS,
    "system_prompt": ALWAYS,
    "n": ONE,
    "n_cmpl": ONE,
    "n_probs": POSITIVE,
    "post_sampling_probs": FLAG,
    "n_indent": POSITIVE,
    "t_max_predict_ms": POSITIVE,
    "timings_per_token": FLAG,
    "verbose": FLAG,
    "truncate": FLAG,
    "shift": FLAG,
    "id_slot": Later("a number", lambda value: value < 0),
    "lora": LIST,
    "image_data": LIST,
    "multimodal_data": LIST,
}


def refuse_later(fields: Mapping[str, Any], table: Mapping[str, Later]) -> None:
    """Raises NotSupported for a field that would change the answer, InvalidRequest for one of a wrong type."""
    for name, later in table.items():
        value = fields.get(name)
        if value is None:
            continue
        if later.kind != "any" and type(value) not in _TYPES[later.kind]:
            raise bad_field(name, f"must be {later.kind}")
        if not later.is_off(value):
            raise NotSupported(f"Field '{name}': this build does not support it", param=name)
