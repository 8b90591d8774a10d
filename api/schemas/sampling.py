"""How the next token is chosen, in a client's words: llama.cpp's names of today and of 2024, and its limits.

What llama.cpp refuses is refused, what it brings back into its range is brought back. Knows no vocabulary: a text that
stands for tokens goes to the worker as it is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator
from typing_extensions import TypedDict

from api.schemas.prompts import MAX_TOKEN_ID, Pieces, TokenId, prompt_of
from api.schemas.strict import ClientFields
from shared.errors import NotSupported
from shared.jobs import DEFAULT_SAMPLERS, Prompt, SamplerKind, Sampling

INT32_MAX = 2**31 - 1
F32_MAX = 3.4028234663852886e38
PENALTY_MAX = 1e6
"""Beyond any logit, and far from where 32-bit floats overflow."""

MAX_BIASES = 65_536
MAX_TEXT_BIASES = 1024
MAX_TEXT_BIAS_LENGTH = 256
MAX_SAMPLERS = 64
MAX_BREAKERS = 64
MAX_BREAKER_LENGTH = 256
"""Limits of what every token of every neighbour would wait for: far above what is asked for in good faith."""

_CHARS = {
    "e": SamplerKind.PENALTIES,
    "d": SamplerKind.DRY,
    "s": SamplerKind.TOP_N_SIGMA,
    "k": SamplerKind.TOP_K,
    "y": SamplerKind.TYPICAL_P,
    "p": SamplerKind.TOP_P,
    "m": SamplerKind.MIN_P,
    "x": SamplerKind.XTC,
    "t": SamplerKind.TEMPERATURE,
    "f": SamplerKind.TAIL_FREE,
    "a": SamplerKind.ADAPTIVE_P,
}
_NAMES = {
    spelling: kind for kind in SamplerKind for spelling in (kind, kind.replace("_", "-"), kind.replace("_", ""))
} | {
    "nucleus": SamplerKind.TOP_P,
    "temp": SamplerKind.TEMPERATURE,
    "tfs": SamplerKind.TAIL_FREE,
    "typ": SamplerKind.TYPICAL_P,
    "typical": SamplerKind.TYPICAL_P,
    "typical_p": SamplerKind.TYPICAL_P,
    "typical-p": SamplerKind.TYPICAL_P,
}


def _samplers(value: Any) -> tuple[SamplerKind, ...]:
    """Names, or one character for each. As in llama.cpp, unknown ones are left out."""
    if not isinstance(value, str | list) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a list of names or a string of characters")
    if len(value) > MAX_SAMPLERS:
        raise ValueError(f"at most {MAX_SAMPLERS} steps are taken")
    names, known = (value, _CHARS) if isinstance(value, str) else ([name.lower() for name in value], _NAMES)
    if ("i" if isinstance(value, str) else "infill") in names:
        raise NotSupported("Field 'samplers': this build has no step 'infill'", param="samplers")
    return tuple(known[name] for name in names if name in known)


Samplers = Annotated[list[str], Field(max_length=MAX_SAMPLERS)] | Annotated[str, Field(max_length=MAX_SAMPLERS)]


def _seed(value: Any) -> Any:
    return None if value == -1 and not isinstance(value, bool) else value


def _penalty_prompt(value: Any) -> Prompt:
    if not isinstance(value, str | list):
        raise ValueError("must be a string or a list of token ids")  # noqa: TRY004
    return prompt_of("penalty_prompt", value)


def _breakers(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(breaker, str) for breaker in value):
        raise ValueError("must be a list of strings that is not empty")
    if len(value) > MAX_BREAKERS:
        raise ValueError(f"at most {MAX_BREAKERS} strings are taken")
    if any(len(breaker) > MAX_BREAKER_LENGTH for breaker in value):
        raise ValueError(f"a string may have at most {MAX_BREAKER_LENGTH} characters")
    return tuple(breaker for breaker in value if breaker)


Breakers = Annotated[
    list[Annotated[str, Field(max_length=MAX_BREAKER_LENGTH)]], Field(min_length=1, max_length=MAX_BREAKERS)
]

Bias = tuple[int | str, float | None]


def _biases(value: Any) -> tuple[Bias, ...]:
    """A list of pairs, or of objects as `generation_settings` tells them, or an object."""
    if not isinstance(value, dict | list):
        raise ValueError("must be an object or a list of pairs")  # noqa: TRY004
    if len(value) > MAX_BIASES:
        raise ValueError(f"at most {MAX_BIASES} tokens are taken")
    if isinstance(value, dict):
        biases = tuple(_bias(int(key) if _is_number(key) else key, bias) for key, bias in value.items())
    else:
        biases = tuple(_listed_bias(item) for item in value)
    if sum(isinstance(token, str) for token, _ in biases) > MAX_TEXT_BIASES:
        raise ValueError(f"at most {MAX_TEXT_BIASES} texts are taken")
    return biases


def _is_number(key: str) -> bool:
    return key.isascii() and key.isdecimal()


def _listed_bias(item: Any) -> Bias:
    match item:
        case [token, bias]:
            return _bias(token, bias)
        case {"token": token, "bias": bias}:
            # JSON has no minus infinity: here null is how a ban is told.
            return _bias(token, False if bias is None else bias)
    raise ValueError("must be a list of pairs of a token and a bias")


def _bias(token: Any, bias: Any) -> Bias:
    if isinstance(token, str):
        if not 0 < len(token) <= MAX_TEXT_BIAS_LENGTH:
            raise ValueError(f"a text must have 1 to {MAX_TEXT_BIAS_LENGTH} characters")
    elif not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= MAX_TOKEN_ID:
        raise ValueError(f"{token!r} is not a token id")
    if bias is False:
        return token, None
    if not isinstance(bias, int | float) or isinstance(bias, bool) or abs(bias) > F32_MAX:
        raise ValueError("a bias must be a number or false")
    return token, float(bias)


_Weight = Annotated[float, Field(ge=-F32_MAX, le=F32_MAX)] | Literal[False]
_Biased = TokenId | Annotated[str, Field(min_length=1, max_length=MAX_TEXT_BIAS_LENGTH)]


class ToldBias(TypedDict):
    """As `generation_settings` tells it; null is a ban."""

    token: _Biased
    bias: _Weight | None


Biases = (
    Annotated[list[tuple[_Biased, _Weight] | ToldBias], Field(max_length=MAX_BIASES)]
    | Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=MAX_TEXT_BIAS_LENGTH)], _Weight],
        Field(max_length=MAX_BIASES),
    ]
)


def within(least: float, most: float) -> AfterValidator:
    """Brings a number back into its range."""
    return AfterValidator(lambda number: min(most, max(least, number)))


Real = Annotated[float, Field(ge=-F32_MAX, le=F32_MAX)]
Share = Annotated[Real, within(0.0, 1.0)]
Natural = Annotated[int, Field(ge=0, le=INT32_MAX)]
Limit = Annotated[int, Field(ge=-1, le=INT32_MAX)]
"""-1 is as many as there are."""
Whole = Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)]
Seed = Annotated[int, Field(ge=-1, le=0xFFFFFFFF)]
"""-1 is a random one."""
Penalty = Annotated[float, Field(ge=-PENALTY_MAX, le=PENALTY_MAX)]


class SamplingFields(ClientFields):
    """Every field of `Sampling`, under its name."""

    seed: Annotated[Annotated[int, Field(ge=0, le=0xFFFFFFFF)] | None, BeforeValidator(_seed, Seed)] = None
    samplers: Annotated[tuple[SamplerKind, ...], PlainValidator(_samplers, Samplers)] = DEFAULT_SAMPLERS
    """The steps, in this order: names, or one character for each. Unknown ones are left out."""
    temperature: Annotated[Real, within(0.0, F32_MAX)] = 0.8
    dynatemp_range: Real = 0.0
    """The temperature is between so much less and so much more, by how sure the model is; 0 is without."""
    dynatemp_exponent: Real = 1.0
    top_k: Annotated[Whole, within(0, INT32_MAX)] = 40
    top_p: Share = 0.95
    min_p: Share = 0.05
    typical_p: Share = 1.0
    """1 is without."""
    top_n_sigma: Real = -1.0
    """-1 is without."""
    tfs_z: Share = 1.0
    """1 is without."""
    xtc_probability: Share = 0.0
    """0 is without."""
    xtc_threshold: Share = 0.1
    min_keep: Natural = 0
    repeat_last_n: Limit = 64
    """Tokens that the penalties look back on; -1 is the whole context."""
    repeat_penalty: float = Field(1.0, gt=0, le=F32_MAX)
    """1 is without."""
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    penalize_nl: bool = True
    penalty_prompt: Annotated[Prompt | None, PlainValidator(_penalty_prompt, str | Pieces)] = None
    """What the penalties look back on at first, in place of the prompt."""
    dry_multiplier: Real = 0.0
    """0 is without."""
    dry_base: Annotated[Real, AfterValidator(lambda base: base if base >= 1 else 1.75)] = 1.75
    dry_allowed_length: Natural = 2
    dry_penalty_last_n: Limit = 64
    dry_sequence_breakers: Annotated[tuple[str, ...], PlainValidator(_breakers, Breakers)] = ("\n", ":", '"', "*")
    mirostat: Annotated[Whole, within(0, 2)] = 0
    """1 or 2 in place of all other steps; 0 is without."""
    mirostat_tau: Real = 5.0
    mirostat_eta: Real = 0.1
    adaptive_target: Annotated[Real, within(-F32_MAX, 1.0)] = -1.0
    """Below 0 is without."""
    adaptive_decay: float = Field(0.9, ge=0, le=0.99)
    ignore_eos: bool = False
    """Whether the text goes on where the model would end it."""
    logit_bias: Annotated[tuple[Bias, ...], PlainValidator(_biases, Biases)] = ()
    """By token id or by text, whose tokens are all meant; `false` bans a token."""

    def sampling(self) -> Sampling:
        return Sampling(**{name: getattr(self, name) for name in Sampling.model_fields})
