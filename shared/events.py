"""What a job says while it runs and when it ends. Knows no Redis and no HTTP.

`Tokens` and `Finished` are numbered and kept in the job's log; the numbers run from 1 without gaps and are the ids
that clients see. `Accepted` is a state of the job, kept in its record. `Progress` is said once and kept nowhere.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from shared.errors import BY_CODE, PromptTooLong, SlotstreamError, Unavailable
from shared.wire import Wire


class StopType(StrEnum):
    """Why a sequence ended; llama.cpp's `stop_type`."""

    EOS = "eos"
    WORD = "word"
    LIMIT = "limit"


class Timings(Wire):
    """Milliseconds and tokens of one answer. `prompt_n` counts what was computed, `cache_n` what was reused."""

    queue_ms: float = 0.0
    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0


class CallForm(Wire):
    """How a model writes that it calls functions. All calls stand between `beginning` and `ending`, with a `separator`
    between two; each is `opening`, the name, `middle`, the arguments as one JSON object, `closing`. Where one of these
    has white space, a model may write other white space, or none; before a `closing` it may write what is no part of
    the call, such as an id.

    Calls whose first words could be any JSON are calls only at the beginning of a reply; any other, such as those
    behind `<tool_call>` or `[TOOL_CALLS]`, wherever they stand. Learned from the model's template, which was given
    calls to write.
    """

    opening: str
    middle: str
    closing: str
    separator: str = ""
    beginning: str = ""
    """Before the first one; mostly nothing."""
    ending: str = ""
    """Behind the last one."""


class ReplyForm(Wire):
    """How the text of a chat's reply is to be read, which only who rendered its prompt can know.

    A plain reply is content throughout. Before the content there may be reasoning between two marks; in it, or behind
    it, calls. A `generic` reply, of a model that was never taught to call, is one JSON object and nothing else: it is
    `{"response": "text"}` or `{"tool_calls": [{"name": "…", "arguments": {…}}, …]}`.
    """

    reasoning: tuple[str, str] | None = None
    """What opens and what closes it; None for a model that does not think aloud."""
    is_reasoning: bool = False
    """The prompt ends with the opening mark: the reply begins with reasoning."""
    calls: CallForm | None = None
    is_generic: bool = False


class Accepted(Wire):
    """A worker took the job, and its prompt fits."""

    kind: Literal["accepted"] = "accepted"
    prompt_tokens: int
    n_ctx: int
    reply: ReplyForm | None = None
    """Of a chat; None reads as a plain one."""


class Progress(Wire):
    """Prefill of one sequence: `processed` of `total` prompt tokens are in the cache, `cache` of them were there."""

    kind: Literal["progress"] = "progress"
    index: int = 0
    total: int
    cache: int
    processed: int
    time_ms: float


class Logprob(Wire):
    """How likely a token was: the natural logarithm of its probability, finite."""

    id: int
    piece: str
    """Its bytes in base64."""
    logprob: float

    @property
    def piece_bytes(self) -> bytes:
        return base64.b64decode(self.piece)


class ChosenLogprob(Logprob):
    """The same of the token that was chosen, and of the likeliest ones, likeliest first."""

    top: tuple[Logprob, ...] = ()


class Tokens(Wire):
    """One token, or several whose text was held back until now. Ids are what a retry continues from."""

    kind: Literal["tokens"] = "tokens"
    index: int = 0
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[ChosenLogprob, ...] = ()
    """One for each id whose text counts, when asked for: not of an end of generation, nor of a stop string."""
    memory: tuple[float, ...] = ()
    """What the sampler remembers behind the last id and no replay of ids would rebuild: mirostat's mu, say."""
    timings: Timings | None = None
    """As of the last id, when asked for."""


class Answer(Wire):
    """How one sequence of a job ended, with all it said."""

    kind: Literal["answer"] = "answer"
    index: int = 0
    text: str
    ids: tuple[int, ...]
    prompt: str
    """The prompt as the model saw it, detokenized with its control tokens."""
    prompt_tokens: int
    n_ctx: int = 0
    """The most tokens that its context holds; 0 when its worker does not say."""
    n_cached: int | None = None
    """Tokens of it in the cache at its end, without those that a shift took; None when its worker does not say."""
    stop_type: StopType
    stopping_word: str = ""
    truncated: bool = False
    has_new_line: bool = False
    id_slot: int = -1
    seed: int
    """The seed that was used, also when none was asked for."""
    banned: tuple[int, ...] = ()
    """Ids that `ignore_eos` banned: all that end a generation."""
    logprobs: tuple[ChosenLogprob, ...] = ()
    """Of every token whose text is in `text`, when asked for."""
    timings: Timings = Timings()
    reply: ReplyForm | None = None
    """How `text` is to be read, as in `Accepted`."""


class Vector(Wire):
    """The embedding of one input: little-endian float32, base64; or one for each of its tokens, row after row."""

    kind: Literal["vector"] = "vector"
    index: int = 0
    prompt_tokens: int
    f32: str
    n_rows: int = Field(1, ge=1)

    @classmethod
    def of(cls, index: int, values: NDArray[np.float32], prompt_tokens: int) -> Vector:
        """`values` are one vector, or rows of them."""
        packed = base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")
        return cls(index=index, prompt_tokens=prompt_tokens, f32=packed, n_rows=len(np.atleast_2d(values)))

    def values(self) -> NDArray[np.float32]:
        """All of them, row after row."""
        return np.frombuffer(base64.b64decode(self.f32), dtype="<f4")

    def rows(self) -> NDArray[np.float32]:
        """One vector a row."""
        return self.values().reshape(self.n_rows, -1)


class Score(Wire):
    """How well one document answers a query: the model's own number, higher is better."""

    kind: Literal["score"] = "score"
    index: int = 0
    prompt_tokens: int
    score: float


class TokenIds(Wire):
    """What a text was split into: ids, and for each the bytes that it stands for, in base64."""

    kind: Literal["token_ids"] = "token_ids"
    index: int = 0
    ids: tuple[int, ...]
    pieces: tuple[str, ...]

    @classmethod
    def of(cls, ids: Sequence[int], pieces: Iterable[bytes]) -> TokenIds:
        return cls(ids=tuple(ids), pieces=tuple(base64.b64encode(piece).decode("ascii") for piece in pieces))

    def pieces_bytes(self) -> list[bytes]:
        return [base64.b64decode(piece) for piece in self.pieces]


class Text(Wire):
    """A text that no model had to be run for."""

    kind: Literal["text"] = "text"
    index: int = 0
    text: str


class Properties(Wire):
    """What a worker knows of its model beyond the card."""

    kind: Literal["properties"] = "properties"
    index: int = 0
    metadata: dict[str, Any] = {}
    """The GGUF's own keys and values, without long lists."""
    chat_template: str = ""
    tool_template: str = ""
    """Another one, for chats with tools, where the model has it."""
    chat_template_caps: dict[str, bool] = {}
    """What the template can render, under llama.cpp's names: `supports_tools`, `supports_system_role`, …"""
    reply: ReplyForm = ReplyForm()
    """Of a chat with a tool."""
    can_infill: bool = False


class SlotReport(Wire):
    """What was done with a slot's cache."""

    kind: Literal["slot_report"] = "slot_report"
    index: int = 0
    n_tokens: int
    """Saved, restored or erased."""
    n_bytes: int = 0
    """Written or read."""
    ms: float = 0.0


class AdapterScales(Wire):
    """What is in force now, for each adapter of the worker."""

    kind: Literal["adapter_scales"] = "adapter_scales"
    index: int = 0
    scales: tuple[float, ...]


Part = Annotated[
    Answer | Vector | Score | TokenIds | Text | Properties | SlotReport | AdapterScales, Field(discriminator="kind")
]


class Failure(Wire):
    """An error on its way through the bus: `code` names the class in `shared.errors`."""

    code: str
    message: str
    param: str | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None

    @classmethod
    def of(cls, error: SlotstreamError) -> Failure:
        sizes: dict[str, Any] = {}
        if isinstance(error, PromptTooLong):
            sizes = {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
        return cls(code=error.code, message=error.message, param=error.param, **sizes)

    def to_error(self) -> SlotstreamError:
        cls = BY_CODE.get(self.code, SlotstreamError)
        if issubclass(cls, PromptTooLong):
            return cls(self.message, n_prompt_tokens=self.n_prompt_tokens or 0, n_ctx=self.n_ctx or 0)
        if issubclass(cls, Unavailable):
            return cls(self.message)
        return cls(self.message, param=self.param)


class Finished(Wire):
    """The one ending of a job. `parts` are what it answers, by index; `failure` is set unless it succeeded."""

    kind: Literal["finished"] = "finished"
    status: Literal["succeeded", "failed", "cancelled", "expired"]
    parts: tuple[Part, ...] = ()
    failure: Failure | None = None
    worker: str | None = None


Event = Annotated[Accepted | Progress | Tokens | Finished, Field(discriminator="kind")]
