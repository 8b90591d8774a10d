"""One prompt on its way through the engine: a state machine that the decode thread drives.

Knows its cells and its sampler; nothing of batches, of llama.cpp or of text, which is its transcript's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from shared.errors import SlotstreamError
from shared.events import StopType
from shared.jobs import Lane
from worker.engine.adapters import Scales
from worker.engine.cells.resident import Resident
from worker.engine.grouping import UNGROUPED, Grouping
from worker.engine.overflow import Shift
from worker.engine.sampling import Sampler
from worker.engine.task import GenerateTask
from worker.engine.transcript import Transcript
from worker.engine.vision.images import Placed


class Phase(Enum):
    PREFILL = "prefill"  # known tokens still to be decoded before the first choice
    DECODE = "decode"  # one new token per step
    PARKED = "parked"  # its slot or its cells went to others; its tokens stay, and its cells while there is room
    ENDED = "ended"  # `ending` is set; the slot may go


class Completed(NamedTuple):
    """The sequence has its answer. `is_truncated`: it ended because its slot is full."""

    stop_type: StopType
    is_truncated: bool = False


class Failed(NamedTuple):
    """It ends without one."""

    error: SlotstreamError


class Discarded(NamedTuple):
    """It belongs to somebody else now: nothing more is said."""


Ending = Completed | Failed | Discarded


class Limits(NamedTuple):
    """What ends a sequence by itself. `n_most` counts prompt and chosen tokens, `n_predict` is -1 for no limit."""

    n_most: int
    n_predict: int
    eog: frozenset[int]

    def ending(self, last: int, n_decoded: int, n_tokens: int) -> Completed | None:
        """How a sequence is complete with its last chosen token; None while it goes on."""
        if last in self.eog:
            return Completed(StopType.EOS)
        if 0 <= self.n_predict <= n_decoded:
            return Completed(StopType.LIMIT)
        if n_tokens >= self.n_most:
            return Completed(StopType.LIMIT, is_truncated=True)
        return None


@dataclass(slots=True)
class Clock:
    """Times of one sequence, `time.monotonic()` seconds. Written by the decode thread, read by the scribe after."""

    queue_ms: float
    started: float
    """It got its slot."""
    prompted: float = 0.0
    """The whole prompt was in the cache, and with it the first token."""
    counted: float = field(init=False)
    """Time until then is counted as somebody's work."""

    def __post_init__(self) -> None:
        self.counted = self.started

    def lap(self, now: float) -> float:
        """Seconds since this was last asked, or since the start."""
        took_s, self.counted = now - self.counted, now
        return took_s


@dataclass(slots=True, eq=False)
class Sequence:
    """Written by the decode thread alone, but for `transcript`, which is the scribe's.

    Invariant: `resident.tokens` begins with the prompt and goes on with every token that was chosen; less what its
    shifts have taken.
    """

    task: GenerateTask
    resident: Resident
    sampler: Sampler
    transcript: Transcript
    limits: Limits
    clock: Clock
    slot: int
    """The one it has, or had last."""
    phase: Phase = Phase.PREFILL
    ending: Ending | None = None
    n_reused: int = 0
    """Tokens of the prompt that it did not compute itself."""
    n_told: int = -1
    """Most of the prompt that was ever said to be in the cache; -1 before anything was."""
    served_at: float = 0.0
    """When it was last part of a decode; monotonic seconds."""
    waits_since: float = 0.0
    """When it came, or gave up its slot after a whole quantum in it."""
    placed_at: float = 0.0
    """When it got the slot that it has."""
    parked_at: float = 0.0
    """When it gave its slot up last."""
    guarded_until: float = 0.0
    """Until then it keeps its slot, whoever waits."""
    grouping: Grouping = UNGROUPED
    """Which tokens share a position."""
    shift: Shift | None = None
    """What goes when the context is full; None: it ends there."""
    n_chosen: int = 0
    """Tokens chosen in this attempt."""

    @property
    def n_prompt(self) -> int:
        return len(self.task.prompt)

    @property
    def n_decoded(self) -> int:
        """Tokens chosen, those of an earlier attempt included."""
        return len(self.task.produced) + self.n_chosen

    @property
    def n_prompt_cached(self) -> int:
        return min(self.resident.n_cached, self.n_prompt) if self.resident.n_pending else self.n_prompt

    @property
    def is_full(self) -> bool:
        """Its next token has no room in its context until some are dropped."""
        return self.has_slot and self.shift is not None and self.resident.n_tokens > self.shift.n_ctx

    @property
    def n_remain(self) -> int:
        """Tokens it may still choose; -1 when only its context limits it."""
        n_predict = self.task.request.n_predict
        return -1 if n_predict < 0 else max(n_predict - self.n_decoded, 0)

    @property
    def lane(self) -> Lane:
        return self.task.lane

    @property
    def is_bulk(self) -> bool:
        return self.task.lane is Lane.BULK

    @property
    def scales(self) -> Scales:
        """Of the adapters with which it is computed."""
        return self.task.scales

    @property
    def has_slot(self) -> bool:
        return self.phase in (Phase.PREFILL, Phase.DECODE)

    @property
    def has_ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def n_cached(self) -> int:
        """Known tokens that are in the cache."""
        return self.resident.n_cached

    @property
    def is_told_of(self) -> bool:
        """Whether anything was said of its prompt."""
        return self.n_told >= 0

    @property
    def is_generating(self) -> bool:
        """One token to decode for the next choice; after having been parked there may be more at first."""
        return self.phase is Phase.DECODE and self.resident.n_pending <= 1

    @property
    def is_awaited(self) -> bool:
        """Its first token has not been chosen yet."""
        return self.phase is Phase.PREFILL

    @property
    def n_wanted(self) -> int:
        """Tokens it could put into a batch now, or rows of an image: none while another computes its prefix."""
        resident = self.resident
        if resident.leader is not None:
            return 0
        n_wanted = min(resident.n_pending, self.grouping.n_open(resident.n_cached))
        return min(n_wanted, resident.spans.n_alike(resident.n_cached)) if resident.spans else n_wanted

    @property
    def image(self) -> Placed | None:
        """The one whose rows are next."""
        if not self.resident.spans or (span := self.resident.spans.at(self.resident.n_cached)) is None:
            return None
        return next(image for image in self.task.images if image.start == span.start)

    @property
    def is_at_image(self) -> bool:
        """Rows are next: those are no part of a batch of tokens."""
        return bool(self.resident.spans) and self.resident.spans.at(self.resident.n_cached) is not None

    @property
    def n_least(self) -> int:
        """Tokens that it must put into a batch, if any: all rows of an image that see each other."""
        image = self.image
        return 1 if image is None or image.rows.is_causal else len(image.rows)

    @property
    def is_choosing(self) -> bool:
        """Whether the next token can be chosen: all known ones are in the cache."""
        return self.has_slot and self.resident.n_pending == 0

    def served(self, now: float) -> None:
        """More of its known tokens are in the cache."""
        self.served_at = now
        if self.phase is Phase.PREFILL:
            self.n_reused = min(self.resident.n_reused, self.n_prompt)

    def choose(self, token: int, now: float) -> None:
        """The next token was chosen; the first one ends the prefill."""
        assert self.is_choosing
        if self.phase is Phase.PREFILL:
            self.phase, self.clock.prompted = Phase.DECODE, now
        self.resident.append(token)
        self.n_chosen += 1
        self.sampler.accept(token)
        ending = self.limits.ending(token, self.n_decoded, self.n_prompt + self.n_decoded)
        if ending is not None:
            self.end(ending)

    def park(self, now: float, quantum_s: float) -> None:
        """Give the slot up. Less than a quantum in it does not end the waiting."""
        assert self.has_slot
        if now - self.placed_at >= quantum_s:
            self.waits_since = now
        self.phase, self.parked_at = Phase.PARKED, now

    def resume(self, slot: int, now: float) -> None:
        """Go on where it was, mostly in another slot: its prompt is not told of again, nor is a first token."""
        assert self.phase is Phase.PARKED
        self.phase = Phase.DECODE if self.clock.prompted else Phase.PREFILL
        self.slot, self.placed_at = slot, now

    def end(self, ending: Ending) -> None:
        """The first ending wins: a late cancel never hides a real one."""
        if self.phase is not Phase.ENDED:
            self.phase, self.ending = Phase.ENDED, ending
