"""What the engine is asked to do. Frozen values; knows nothing of jobs on a queue or of their bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from shared.errors import SlotstreamError
from shared.events import ChosenLogprob, ReplyForm
from shared.jobs import Generation, Lane
from worker.engine.adapters import Scales
from worker.engine.constraint import Grammar
from worker.engine.llama import Bytes, Ids
from worker.engine.sampling.bias import NO_BIAS, Bias
from worker.engine.sampling.breakers import NO_BREAKERS, Breakers
from worker.engine.sampling.repeats import Repeats
from worker.engine.vision.images import Placed


class SequenceKey(NamedTuple):
    """Names one sequence: the job, which of its prompts or inputs, and at which attempt.

    A job may come back to a worker that lost it; what its earlier attempt still says must not be taken for the new one.
    """

    job_id: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which no key needs
    attempt: int = 0
    """A number that no other attempt at the job has."""


@dataclass(frozen=True, slots=True)
class GenerateTask:
    """Continue one prompt. `produced` are ids of an earlier attempt: they are replayed, and not said again."""

    key: SequenceKey
    prompt: tuple[int, ...]
    """Token ids, and ids of `images` where their rows stand."""
    request: Generation
    seed: int
    """Resolved: 0 to 2**32 - 1."""
    lane: Lane = Lane.INTERACTIVE
    produced: tuple[int, ...] = ()
    memory: tuple[float, ...] = ()
    """The sampler's, as it was behind the last of them."""
    logprobs: tuple[ChosenLogprob, ...] = ()
    """Of `produced`, in order, where they were asked for."""
    biases: Bias = NO_BIAS
    """Of `request.sampling.logit_bias`, with texts resolved to ids."""
    banned: tuple[int, ...] = ()
    """Of `request.sampling.ignore_eos`: what the answer tells of it. The sampler knows by itself."""
    penalized: tuple[int, ...] | None = None
    """What the penalties look back on at first; None: the prompt."""
    breakers: Breakers = NO_BREAKERS
    """Of `request.sampling.dry_sequence_breakers`."""
    repeats: Repeats | None = None
    """Of the end of the prompt, as far as DRY looks back; None: it finds out by itself, when the sequence starts."""
    grammar: Grammar | None = None
    """Of `request.constraint`, for this sequence alone."""
    is_truncated: bool = False
    """The prompt was cut to fit."""
    scales: Scales = ()
    """Of the worker's adapters, as `request.lora` says or as was usual when it came."""
    queue_ms: float = 0.0
    """Time the job had waited when it was submitted here; the wait for a slot is added to it."""
    deadline: float | None = None
    """`time.monotonic()` seconds."""
    slot: int | None = None
    """The one that it wants to run in; None: any."""
    images: tuple[Placed, ...] = ()
    """Rows that stand in the prompt, in order."""
    reply: ReplyForm | None = None
    """How what is said is to be read; for the answer."""
    shown: frozenset[int] = frozenset()
    """Control tokens that are words in what is said: the others have no text."""

    @property
    def text(self) -> tuple[int, ...]:
        """The prompt without its images."""
        return tuple(token for token in self.prompt if token >= 0) if self.images else self.prompt


@dataclass(frozen=True, slots=True)
class EmbedTask:
    """Embed one input, or judge it where the worker reranks."""

    key: SequenceKey
    tokens: tuple[int, ...]
    norm: int = 2
    """As in the request."""
    lane: Lane = Lane.INTERACTIVE
    scales: Scales = ()
    """Of the worker's adapters, as they were when it came."""
    deadline: float | None = None


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class SlotState:
    """What the cache has of one sequence, outside of the cache. Without tokens there is no state either."""

    tokens: Ids
    state: Bytes
    """llama.cpp's own, to be had back by a context of the same kind alone."""
    scales: Scales = ()
    """With which it was computed."""
    n_pure: int = 0
    """Tokens whose cells are what any sequence with the same beginning would compute."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotTask:
    """What is done with the cache of a slot as soon as nobody is in it, nor waits for that very slot since before."""

    key: SequenceKey
    slot: int
    deadline: float | None


@dataclass(frozen=True, slots=True, eq=False)
class TakeState(SlotTask):
    """Copy what the last sequence there has."""

    keep: Callable[[SlotState, float], SlotstreamError | None]
    """Gets the copy and the ms that it took, on the decode thread, where it must not block. It is its part to say the
    end, unless it returns why it does not take it."""


@dataclass(frozen=True, slots=True, eq=False)
class PutState(SlotTask):
    """Let the slot have this instead of what it has."""

    state: SlotState
    n_bytes: int
    """Of the file; for the report, as is the next."""
    ms: float
    """That it took so far."""


@dataclass(frozen=True, slots=True, eq=False)
class DropState(SlotTask):
    """Forget all that ran there last."""


Task = GenerateTask | EmbedTask | SlotTask
