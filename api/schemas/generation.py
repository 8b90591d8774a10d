"""The fields that every generating path shares, native and OpenAI alike: limits, choices, stops, probabilities, lanes.

Knows no prompt. How tokens are chosen is in `sampling`; what this build does not do is in `later`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from api.schemas.adapters import Adapters, adapters_of
from api.schemas.constraints import ConstraintFields
from api.schemas.lane import LaneFields
from api.schemas.sampling import Limit, Natural, SamplingFields, Whole
from api.schemas.strict import ClientFields, bad_field
from shared.jobs import MAX_CHOICES, MAX_SEQUENCES, Truncation

LONGEST_MS = 2**53
"""What any JSON reader takes for the number it is."""
MAX_STOPS = 256
MAX_STOP_LENGTH = 1024

MAX_ALTERNATIVES = 262_144
"""Alternatives of all tokens of all answers. Each takes about 130 bytes of the queue's memory, in the log and the
result."""
WIDE = 1024
MAX_WIDE_ALTERNATIVES = 65_536
"""The same where a token has more than `WIDE`: they come within few steps, and neighbours' streams stand still while
they are written down."""
FREE_ALTERNATIVES = 20
"""As many as any client of OpenAI may ask for."""
TYPICAL_LIMIT = 8192
"""Tokens that an answer without a limit is taken to have at most."""


Stop = Annotated[str, Field(max_length=MAX_STOP_LENGTH)]


def _stops(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} strings are taken")
    if any(len(stop) > MAX_STOP_LENGTH for stop in stops):
        raise ValueError(f"a string may have at most {MAX_STOP_LENGTH} characters")
    return [stop for stop in stops if stop]


def _truncation(value: Any) -> Truncation | None:
    """llama.cpp's server of 2024 cut in blocks, so that is what `true` means."""
    match value:
        case True:
            return Truncation.BLOCKS
        case False:
            return None
        case "blocks" | "tail":
            return Truncation(value)
    raise ValueError("must be true, false, 'blocks' or 'tail'")


Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]


class StreamOptions(ClientFields):
    include_usage: bool = False


class GenerationFields(ConstraintFields, LaneFields, SamplingFields):
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n_predict: Limit | None = None
    """Tokens to generate at most; -1 to the end of the context, 0 reads the prompt only."""
    max_tokens: Limit | None = None
    """Another name for `n_predict`."""
    max_completion_tokens: Limit | None = None
    """Another name for `n_predict`; counts before `max_tokens`."""
    n_cmpl: Choices | None = None
    """Choices for each prompt."""
    n: Choices | None = None
    """Another name for `n_cmpl`."""
    stop: Annotated[list[str], BeforeValidator(_stops, Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)])] = []
    cache_prompt: bool = True
    """Whether what the cache has of the beginning is reused."""
    n_keep: Limit = 0
    """Tokens at the beginning that neither `truncate` nor `shift` takes away; -1 keeps the whole prompt."""
    n_discard: Natural = 0
    """Tokens behind the kept ones that a shift drops; 0 is half of them."""
    truncate: Annotated[Truncation | None, BeforeValidator(_truncation, bool | Literal["blocks", "tail"])] = None
    """Cuts a prompt that does not fit, behind `n_keep`: by halves of the rest, or with 'tail' by what is too much."""
    shift: bool | None = None
    """Whether a full context loses its middle and goes on, or ends the text; else as the worker was started."""
    t_max_predict_ms: int = Field(-1, ge=-1, le=LONGEST_MS)
    """Once a line was begun, no longer than this from the first token on; -1 and 0 are no limit."""
    n_indent: Natural = 0
    """A line that is less indented than this ends the text."""
    n_probs: Whole = 0
    """Likeliest alternatives that are told with each token."""
    post_sampling_probs: bool = False
    """Whether these are told as they are after all samplers, and not as the model says them."""
    timings_per_token: bool = False
    """Whether each piece of a stream has timings."""
    return_progress: bool = False
    """Whether a stream tells how much of the prompt has been read."""
    lora: Adapters = []
    id_slot: Annotated[Whole, AfterValidator(lambda slot: max(-1, slot))] = -1
    """The slot to run in; -1 is any."""
    verbose: bool = False
    """Tells llama.cpp's own answer beside OpenAI's."""
    n_cache_reuse: Natural = 0
    """Checked only: what is reused here is a common beginning, of any sequence that is in the cache."""
    sse_ping_interval: Limit | None = None
    """Seconds; none for 0 and -1."""

    @property
    def n_choices(self) -> int:
        """For each prompt, from the first of the two names that is given."""
        return self.n_cmpl or self.n or 1

    @property
    def alternatives(self) -> int | None:
        """How many are told with each token; None when not even the token's own probability is asked for."""
        return self.n_probs if self.n_probs > 0 else None

    @property
    def keep_alive_s(self) -> float | None:
        """Seconds of silence that a stream may have; None when the client does not say."""
        if self.sse_ping_interval is None:
            return None
        return float(self.sse_ping_interval) if self.sse_ping_interval > 0 else math.inf

    def limit(self) -> int:
        """Tokens to generate at most, from the first of the three names that is given; -1 without one."""
        names = (self.n_predict, self.max_completion_tokens, self.max_tokens)
        return next((given for given in names if given is not None), -1)

    def generation(self, n_prompts: int = 1) -> dict[str, Any]:
        """The fields of a `Generation` but its constraint. Raises InvalidRequest when so many prompts have too many
        choices."""
        if n_prompts * self.n_choices > MAX_SEQUENCES:
            name = "n_cmpl" if self.n_cmpl else "n"
            raise bad_field(name, f"{n_prompts} prompts may have {MAX_SEQUENCES} choices together")
        return {
            "n_predict": self.limit(),
            "n": self.n_choices,
            "stop": tuple(self.stop),
            "sampling": self.sampling(),
            "cache_prompt": self.cache_prompt,
            "n_keep": self.n_keep,
            "n_discard": self.n_discard,
            "truncate": self.truncate,
            "shift": self.shift,
            "t_max_predict_ms": self.t_max_predict_ms,
            "n_indent": self.n_indent,
            "n_probs": self._bounded_alternatives(n_prompts * self.n_choices),
            "has_logprobs": self.alternatives is not None,
            "post_sampling_probs": self.post_sampling_probs,
            "timings_per_token": self.timings_per_token,
            "lora": adapters_of(self.lora) or None,
            "id_slot": self.id_slot,
        }

    def _bounded_alternatives(self, n_answers: int) -> int:
        limit = self.limit()
        n_tokens = max(1, limit if limit >= 0 else TYPICAL_LIMIT)
        n_told = n_answers * n_tokens
        most = min(MAX_ALTERNATIVES // n_told, max(WIDE, MAX_WIDE_ALTERNATIVES // n_told))
        return min(self.alternatives or 0, max(FREE_ALTERNATIVES, most))
