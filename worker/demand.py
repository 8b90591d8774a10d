"""How much of which work a worker wants now.

It takes no more than it can start: the interactive lane gets the slots that are free or hold bulk, the bulk lane the
free ones and a small window beyond, so that a slot that frees up has its next job at hand. A job counts as many slots
as it has sequences to go; one with more of them than there are slots is taken all the same, has them in turn, and
lets one other job at a time in between. What is meant for this worker alone has a number of its own: it waits here, for
its slot, and keeps nobody else out but from that one. Inputs need no slot: of them it has in hand about what one decode
holds, so that those of a pile are shared by all workers. Knows no queue: it is asked before each claim.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from shared.bus import Claimed, Wanted
from shared.jobs import Generation, Lane
from worker.engine import Engine, EngineSnapshot
from worker.held import Held, HeldJobs

REST_S = 3.0
"""For so long after it gave bulk back a worker leaves all of it to others."""
QUICK_JOBS = 4
"""At once, beside all slots."""
INPUT_PLACES = 32
"""In hand, of people or of bulk: some two thousand tokens keep the embedder busy while more are claimed, and another
worker would have nothing to do for as long as they take."""
OWN_JOBS = 64
"""That are meant for this worker alone, at once: many may wait for one slot, before one that wants another."""
EXAMINED_S = 0.25
"""A constraint that is tried for longer may be tried for seconds, and images are encoded as long: such a job wants no
slot meanwhile, which others can have."""
MOST_EXAMINED = 32
"""Such jobs that are held at once."""


def bulk_window(n_waiting: int, n_slots: int) -> int:
    """Bulk jobs to hold beyond the slots. With many waiting, as many as there are slots: sequences that end together
    are followed by others at once, and batches stay full. It shrinks as the backlog ends, so that no worker hoards
    the tail while another has nothing to do."""
    return min(n_slots, max(1, n_waiting // 4))


def _n_slots(jobs: Sequence[Held]) -> int:
    """Slots that these take, or could soon."""
    before = time.monotonic() - EXAMINED_S
    examined = [held for held in jobs if _is_examined(held, before)][:MOST_EXAMINED]
    return sum(held.n_slots for held in jobs) - sum(held.n_slots for held in examined)


def _is_examined(held: Held, before: float) -> bool:
    return (held.job.is_constrained or held.job.has_images) and not held.is_taken_in and held.held_since < before


class Demand:
    """Of one worker, by what it holds and what its engine is doing."""

    def __init__(self, engine: Engine, held: HeldJobs, n_slots: int) -> None:
        self._engine = engine
        self._held = held
        self._n_slots = n_slots
        self._n_waiting = 0
        self._rests_until = 0.0

    def rest(self) -> None:
        """Bulk is about to be given back: want none for a while, so that it is not this worker that has it again."""
        self._rests_until = time.monotonic() + REST_S

    def heard(self, claimed: Sequence[Claimed]) -> None:
        """What a claim brought, and with it how much waits."""
        self._n_waiting = claimed[-1].n_waiting if claimed else self._n_waiting // 2

    def wanted(self, *, may_share: bool = False) -> Wanted:
        """`may_share`: also what has no slot to itself. One more, if a job that is larger than this worker has it
        alone, so that it keeps nobody out; and bulk while people have all slots, to grow old here until its turn."""
        interactive, bulk = self._held.of(Lane.INTERACTIVE), self._held.of(Lane.BULK)
        snapshot = self._engine.snapshot()
        n_people_own, n_bulk_own = self._n_slots_of_own(snapshot)
        n_free = self._n_slots - _n_slots(interactive) - n_people_own
        window = bulk_window(self._n_waiting, self._n_slots) if n_free > 0 or may_share else 0
        n_free_for_bulk = n_free + window - _n_slots(bulk) - n_bulk_own
        one_more = int(may_share and n_free < 0 and len(interactive) == 1)
        one_more_of_bulk = int(may_share and n_free_for_bulk < 0 and len(bulk) == 1)
        is_resting = time.monotonic() < self._rests_until
        n_inputs, n_bulk_inputs = self._n_places(may_share=may_share)
        return Wanted(
            quick=max(0, QUICK_JOBS - len(self._held.of("quick"))),
            interactive=max(n_free, one_more),
            # What is parked goes first when there is room again; others may have room for more now.
            bulk=0 if snapshot.n_parked_for_any or is_resting else max(n_free_for_bulk, one_more_of_bulk),
            suspects=0 if self._held.has_suspect else 1,
            own=max(0, OWN_JOBS - len(self._held.of("own"))),
            inputs=n_inputs,
            bulk_inputs=n_bulk_inputs,
        )

    def _n_places(self, *, may_share: bool) -> tuple[int, int]:
        """For inputs, of people and of bulk. Beside people bulk is taken at intervals alone: it waits for them here,
        and another worker may have nothing to do."""
        people, bulk = self._held.of("inputs"), self._held.of("bulk_inputs")
        n_free = INPUT_PLACES - sum(held.n_places for held in people)
        n_free_for_bulk = INPUT_PLACES - sum(held.n_places for held in bulk)
        one_more = int(may_share and len(people) == 1)
        return max(n_free, one_more), max(n_free_for_bulk, 0) if may_share or not people else 0

    def _n_slots_of_own(self, snapshot: EngineSnapshot) -> tuple[int, int]:
        """Slots that those take which are meant for this worker alone, of people and of bulk: however many want one
        slot, one has it at a time. Who waits for one that is counted already, since another has it to whom he does not
        go first, takes none."""
        named: dict[Lane, set[int]] = {lane: set() for lane in Lane}
        n_others = dict.fromkeys(Lane, 0)
        for held in self._held.of("own"):
            if isinstance(held.job.request, Generation):
                named[held.job.lane].add(held.job.request.id_slot % self._n_slots)
                n_others[held.job.lane] += held.n_slots - 1
        running = [(slot.id, self._held.get(slot.job_id)) for slot in snapshot.slots if slot.job_id]
        others = [(slot, held.job.lane) for slot, held in running if held and not held.claimed.is_own]
        people = named[Lane.INTERACTIVE] - {slot for slot, lane in others if lane is Lane.INTERACTIVE}
        bulk = named[Lane.BULK] - named[Lane.INTERACTIVE] - {slot for slot, _ in others}
        return len(people) + n_others[Lane.INTERACTIVE], len(bulk) + n_others[Lane.BULK]
