"""What must be true of jobs, whatever has happened to them. Pure: knows no server, no scripts and no keys.

Each method of `Model` is one thing that happens: it changes what is expected, and returns what the bus must answer.
Only a claim has a choice (which tenant, whether it meets a job at all); the model is told how it chose, and holds it to
the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import unquote

from shared.bus import Chunk, Claimed, Lease, Receipt, Verdict, Wanted
from shared.events import Failure, Finished
from shared.jobs import Job, JobStatus, Lane

MOST_DEATHS = 3
SUSPECT_DEATHS = 2

FAILURES = {
    JobStatus.CANCELLED: Failure(code="cancelled", message="The job was cancelled."),
    JobStatus.EXPIRED: Failure(code="expired", message="The deadline passed."),
    JobStatus.FAILED: Failure(code="worker_died", message="The job was given up: 3 workers died while they had it."),
}
"""Of jobs that end without a worker's word."""
BEREFT = Failure(code="not_ready", message="The worker that it was for is gone.")


class Place(Enum):
    """Where a job's entry is in its stream."""

    WAITING = "waiting"  # delivered to nobody
    HELD = "held"  # delivered, and younger than a lease
    AGED = "aged"  # delivered, and free for the next sweep
    GONE = "gone"


class Hearing(Enum):
    """Since when the server has heard any worker without a break."""

    NEVER = "never"
    LOST = "lost"  # it heard somebody, and then nobody for long: it was away itself
    BEGUN = "begun"  # too short for the living to have been heard
    STEADY = "steady"


class Fate(Enum):
    """Of a worker whose lease has run out."""

    ALIVE = "alive"  # it is heard: it never knew of the lease, or was held up
    UNHEARD = "unheard"  # nobody can have been heard yet
    SILENT = "silent"  # it died


@dataclass(slots=True)
class JobState:
    """All of a job that can be read from the keys."""

    status: JobStatus | None = JobStatus.QUEUED
    """None: its record has gone."""
    place: Place = Place.WAITING
    lease: str | None = None
    worker: str = ""
    """Who had it last."""
    epoch: int = 0
    attempts: int = 0
    deaths: int = 0
    is_cancelled: bool = False
    """Somebody asked for it while it ran."""
    is_accepted: bool = False
    n_events: int = 0
    log: list[tuple[str, str]] = field(default_factory=list)
    """(epoch-number, what was said): `attempt 1` at number 0, the text of each event, `end succeeded`."""
    finished: Finished | None = None

    @property
    def is_ended(self) -> bool:
        return self.status is None or self.status.is_ended


@dataclass(slots=True)
class Known:
    """A job, and what only the model knows of it."""

    job: Job
    key: str | None
    """Of idempotency."""
    worker: str | None
    """For whom alone it is."""
    state: JobState = field(default_factory=JobState)
    is_overdue: bool = False
    is_reapable: bool = False
    """It is overdue, and the reaper has not put off looking at it."""
    finished_by: str | None = None
    released_by: str | None = None
    is_unheard: bool = False
    """The worker that has it saw that nobody listens."""
    is_abandoned: bool = False
    """That was long ago."""

    @property
    def queue(self) -> str:
        return "own" if self.worker else self.job.queue

    @property
    def is_bound(self) -> bool:
        """No other worker could do it."""
        return self.worker is not None and self.job.is_bound

    @property
    def stream(self) -> tuple[str, str]:
        return (self.worker, "") if self.worker else (self.job.queue, self.job.tenant)

    @property
    def is_suspect(self) -> bool:
        return self.state.deaths >= SUSPECT_DEATHS

    def is_held_by(self, lease: Lease) -> bool:
        return self.state.status is JobStatus.RUNNING and self.state.lease == lease.token

    def say(self, text: str) -> None:
        self.state.log.append((f"{self.state.epoch}-{self.state.n_events + 1}", text))


@dataclass(slots=True)
class _Claiming:
    """One claim: what it handed out and the model has not yet come to, and which suspects it has met."""

    worker: str
    is_sweep: bool
    claims: dict[str, Claimed]
    met: Collection[str]
    n_suspects: int = 0
    is_suspect_left: bool = False


class Model:
    def __init__(self) -> None:
        self.jobs: dict[str, Known] = {}
        """In the order in which they were queued, which is that of every stream."""
        self.outbox: list[tuple[str, str]] = []
        self.dead: list[str] = []
        self._keys: dict[tuple[str, str], str] = {}
        self._leases: set[Lease] = set()
        self._heard: set[str] = set()
        self._left: set[str] = set()
        """Workers that said they would claim nothing any more."""
        self.hearing = Hearing.NEVER

    def enqueue(self, job: Job, key: str | None, worker: str | None) -> Receipt | None:
        """None: the key has made a job from another body."""
        if job.id in self.jobs:
            return Receipt(job.id, True)
        owner = self.jobs.get(self._keys.get((job.tenant, key), "")) if key else None
        if owner and owner.state.status is not None:
            is_same = (owner.job.body, owner.job.lane) == (job.body, job.lane)
            return Receipt(owner.job.id, False) if is_same else None
        self.jobs[job.id] = Known(job, key, worker)
        if key:
            self._keys[job.tenant, key] = job.id
        return Receipt(job.id, True)

    def claim(
        self, worker: str, wanted: Wanted, is_sweep: bool, claims: Sequence[Claimed], met: Collection[str]
    ) -> None:
        """`met`: the jobs whose entry or status the claim has changed, once `settle` was done by a sweep."""
        claiming = _Claiming(worker, is_sweep, {claim.job.id: claim for claim in claims}, met)
        n_own = self._claim_from(worker, wanted.own, claiming)
        n_quick = self._claim_from("quick", wanted.quick, claiming)
        n_interactive = self._claim_from(Lane.INTERACTIVE, wanted.interactive, claiming)
        n_inputs = self._claim_from("inputs", wanted.inputs, claiming)
        n_bulk = self._claim_from(Lane.BULK, wanted.bulk - n_interactive, claiming)
        n_bulk_inputs = self._claim_from("bulk_inputs", wanted.bulk_inputs, claiming)
        assert not claiming.claims, "handed out although it was not to be had"
        assert len(claims) == n_own + n_quick + n_interactive + n_inputs + n_bulk + n_bulk_inputs
        assert claiming.n_suspects <= wanted.suspects, "more suspects than wanted"
        assert not claiming.is_suspect_left or claiming.n_suspects == wanted.suspects, "a suspect was passed over"

    def _claim_from(self, source: str, room: int, claiming: _Claiming) -> int:
        """From a worker's own stream, or all streams of a lane. Returns how many were handed out."""
        here = [known for known in self.jobs.values() if known.stream[0] == source]
        orphans = [known for known in self._orphans(claiming.worker) if known.job.queue == source]
        aged = [known for known in (*here, *orphans) if known.state.place is Place.AGED]
        waiting = [known for known in here if known.state.place is Place.WAITING]
        met_aged = [known for known in aged if known.job.id in claiming.met]
        met_waiting = [known for known in waiting if known.job.id in claiming.met]

        n_handed = sum([self._meet(known, claiming) for known in met_aged])
        has_room = n_handed < room
        n_queued = sum(known.state.status is JobStatus.QUEUED for known in here)
        may_look_on = has_room and (claiming.is_sweep or source == claiming.worker or n_queued > 0)
        n_handed += sum([self._meet(known, claiming) for known in met_waiting])

        assert n_handed <= max(0, room), "more than wanted"
        assert claiming.is_sweep or not met_aged, "only a sweep looks at what was delivered"
        assert may_look_on or not met_waiting, "nobody asked for this"
        if claiming.is_sweep and has_room:
            passed_over = [known for known in aged if known not in met_aged and not self._must_rest(known, claiming)]
            assert not passed_over, "lost work goes before new work"
        if may_look_on and n_handed < room:
            assert met_waiting == waiting, "work was passed over"
        for stream in {known.stream for known in waiting}:
            order = [known in met_waiting for known in waiting if known.stream == stream]
            assert order == sorted(order, reverse=True), "out of turn"
        return n_handed

    def _meet(self, known: Known, claiming: _Claiming) -> bool:
        """A claim meets a job's entry: what becomes of it. True when it was handed out."""
        state, was = known.state, known.state.place
        if state.is_ended:
            state.place = Place.GONE
            return False
        if was is Place.WAITING and state.status is JobStatus.RUNNING:
            state.place = Place.HELD  # the group was made again; its holder goes on
            return False
        if state.is_cancelled:
            self._end_without_answer(known, JobStatus.CANCELLED, was_met=True)
            return False
        if known.is_overdue:
            self._end_without_answer(known, JobStatus.EXPIRED, was_met=True)
            return False
        if state.status is JobStatus.RUNNING:
            fate = self.fate(state.worker)
            assert fate is not Fate.UNHEARD, "taken although its worker may live"
            state.deaths += fate is Fate.SILENT
        if state.deaths >= MOST_DEATHS:
            self.dead.append(known.job.id)
            self._end_without_answer(known, JobStatus.FAILED, was_met=True)
            return False
        if known.is_suspect and known.job.id not in claiming.claims:
            claiming.is_suspect_left = True
            state.status, state.place, state.lease = JobStatus.QUEUED, Place.AGED, None
            return False
        assert known.job.id in claiming.claims, "met, and neither handed out nor ended"
        claiming.n_suspects += known.is_suspect
        self._hand_out(known, claiming.claims.pop(known.job.id), claiming.worker)
        return True

    def _must_rest(self, known: Known, claiming: _Claiming) -> bool:
        """A delivered job that a sweep leaves as it is."""
        state = known.state
        if state.is_cancelled or known.is_overdue:
            return False
        if state.status is JobStatus.RUNNING:
            return self.fate(state.worker) is Fate.UNHEARD
        claiming.is_suspect_left |= known.is_suspect
        return known.is_suspect

    def _hand_out(self, known: Known, claim: Claimed, worker: str) -> None:
        state = known.state
        state.epoch += 1
        state.attempts += 1
        state.status, state.place = JobStatus.RUNNING, Place.HELD
        state.lease, state.worker = claim.lease.token, worker
        known.is_unheard = known.is_abandoned = False
        state.log.append((f"{state.epoch}-0", f"attempt {state.attempts}"))
        assert claim.job == known.job.model_copy(update={"body": None})
        assert (claim.attempt, claim.deaths, claim.n_events) == (state.attempts, state.deaths, state.n_events)
        assert (unquote(claim.lease.worker), claim.lease.epoch) == (worker, state.epoch)
        assert claim.lease not in self._leases, "a lease was given twice"
        self._leases.add(claim.lease)

    def fate(self, worker: str) -> Fate:
        """What became of a worker whose lease has run out."""
        if worker in self._heard:
            return Fate.ALIVE
        return Fate.UNHEARD if self.hearing in (Hearing.LOST, Hearing.BEGUN) else Fate.SILENT

    def is_gone(self, worker: str) -> bool:
        """So that what is for it alone is others' to settle."""
        return worker in self._left or (self.hearing is not Hearing.NEVER and self.fate(worker) is Fate.SILENT)

    def leave(self, worker: str) -> None:
        self._left.add(worker)

    def _orphans(self, worker: str) -> list[Known]:
        """What was for single workers that are gone, but not for this one."""
        return [
            known for known in self.jobs.values() if known.worker not in (None, worker) and self.is_gone(known.worker)
        ]

    def settle(self, worker: str) -> None:
        """A sweep of a worker, or the reaper, looks after the work of those that are gone."""
        for known in self._orphans(worker):
            state = known.state
            if state.place is Place.WAITING:
                running = state.status is JobStatus.RUNNING
                state.place = Place.GONE if state.is_ended else Place.HELD if running else Place.AGED
            if known.is_bound and not state.is_ended and state.place is Place.AGED:
                self._end(known, Finished(status="failed", failure=BEREFT))

    def beat(self, worker: str) -> None:
        self._heard.add(worker)
        if self.hearing in (Hearing.NEVER, Hearing.LOST):
            self.hearing = Hearing.BEGUN

    def fall_silent(self, worker: str) -> None:
        self._heard.discard(worker)

    def be_away(self) -> None:
        """The server hears nobody for longer than a lease."""
        self._heard.clear()
        if self.hearing is not Hearing.NEVER:
            self.hearing = Hearing.LOST

    def hear_for_a_while(self) -> bool:
        """Somebody beats without a break for most of a lease, if anybody does."""
        if self.hearing is Hearing.BEGUN:
            self.hearing = Hearing.STEADY
        return self.hearing is Hearing.STEADY

    def renew(self, lease: Lease) -> Verdict:
        """As the worker is told: nothing of what it has ended itself."""
        known = self.jobs[lease.job_id]
        status = known.state.status
        if status is not None and status.is_ended and known.finished_by == lease.token:
            return Verdict.OK
        if not known.is_held_by(lease):
            return Verdict.LOST
        if known.state.place is Place.AGED:
            known.state.place = Place.HELD
        if not known.job.is_durable:
            known.state.is_cancelled |= known.is_abandoned
            known.is_unheard = True
        return Verdict.CANCEL if known.state.is_cancelled else Verdict.OK

    def append(self, chunk: Chunk) -> Verdict:
        known = self.jobs[chunk.lease.job_id]
        state = known.state
        if not known.is_held_by(chunk.lease) or chunk.first_event > state.n_events + 1:
            return Verdict.LOST
        state.is_accepted |= chunk.accepted is not None
        if chunk.events and chunk.first_event == state.n_events + 1:
            for event in chunk.events:
                known.say(event.text)
                state.n_events += 1
        return Verdict.CANCEL if state.is_cancelled else Verdict.OK

    def finish(self, lease: Lease, finished: Finished, first_event: int) -> bool:
        known = self.jobs[lease.job_id]
        if known.state.status is not None and known.finished_by == lease.token:
            return True
        if not known.is_held_by(lease) or first_event != known.state.n_events + 1:
            return False
        known.finished_by = lease.token
        self._end(known, finished)
        return True

    def release(self, lease: Lease) -> bool:
        known = self.jobs[lease.job_id]
        state = known.state
        if state.status is not None and known.released_by == lease.token:
            return True
        if not known.is_held_by(lease):
            return False
        known.released_by = lease.token
        if state.is_cancelled:
            self._end_without_answer(known, JobStatus.CANCELLED)
            return True
        if known.is_bound:
            self._end(known, Finished(status="failed", failure=BEREFT))
            return True
        state.status, state.lease = JobStatus.QUEUED, None
        state.attempts -= 1
        if state.place is Place.HELD:
            state.place = Place.AGED
        return True

    def cancel(self, job_id: str) -> JobStatus | None:
        """The status that it has then."""
        known = self.jobs[job_id]
        if known.state.status is JobStatus.QUEUED:
            self._end_without_answer(known, JobStatus.CANCELLED)
        elif known.state.status is JobStatus.RUNNING:
            known.state.is_cancelled = True
        return known.state.status

    def reap(self) -> int:
        """The number of jobs that it ends."""
        n_ended = 0
        for known in self.jobs.values():
            if known.state.is_ended or not known.is_reapable:
                continue
            if known.state.status is JobStatus.RUNNING and known.state.place is Place.HELD:
                known.is_reapable = False
            else:
                self._end_without_answer(known, JobStatus.EXPIRED)
                n_ended += 1
        self._drop_ended_heads()
        self.settle("")
        return n_ended

    def _drop_ended_heads(self) -> None:
        """Entries of ended jobs go as far as they are first in line; a worker's own stream is left to the worker."""
        blocked = set()
        for known in self.jobs.values():
            if known.state.place is not Place.WAITING or known.worker or known.stream in blocked:
                continue
            if known.state.is_ended:
                known.state.place = Place.GONE
            else:
                blocked.add(known.stream)

    def lose_leases(self, worker: str) -> list[str]:
        """The jobs that it has, whose leases all run out."""
        held = [known for known in self.jobs.values() if known.state.worker == worker]
        held = [known for known in held if known.state.status is JobStatus.RUNNING and known.state.place is Place.HELD]
        for known in held:
            known.state.place = Place.AGED
        return [known.job.id for known in held]

    def pass_deadline(self, job_id: str) -> bool:
        known = self.jobs[job_id]
        known.is_overdue = known.is_reapable = not known.state.is_ended
        return known.is_overdue

    def abandon(self, job_id: str) -> bool:
        """Nobody has listened to it for long, since its worker first saw that."""
        known = self.jobs[job_id]
        known.is_abandoned = known.is_unheard and known.state.status is not None
        return known.is_abandoned

    def lose_group(self, stream: tuple[str, str]) -> None:
        """Who had what is forgotten: every entry of the stream counts as delivered to nobody."""
        for known in self.jobs.values():
            if known.stream == stream and known.state.place is not Place.GONE:
                known.state.place = Place.WAITING

    def forget(self, job_id: str) -> bool:
        """Its record and its log expire, if it has ended."""
        known = self.jobs[job_id]
        if known.state.is_ended:
            known.state = JobState(status=None, place=known.state.place)
        return known.state.is_ended

    def durable(self, tenant: str) -> set[str]:
        """A tenant's jobs as they are listed."""
        return {
            job_id
            for job_id, known in self.jobs.items()
            if known.job.is_durable and known.job.tenant == tenant and known.state.status is not None
        }

    def counters(self) -> Counter[str]:
        """How many jobs are queued, by lane and by lane and tenant."""
        return Counter(
            name
            for known in self._queued()
            for name in (f"queued:{known.queue}", f"queued:{known.queue}:{known.job.tenant}")
        )

    def unended(self) -> set[str]:
        return {job_id for job_id, known in self.jobs.items() if not known.state.is_ended}

    def _queued(self) -> list[Known]:
        return [known for known in self.jobs.values() if known.state.status is JobStatus.QUEUED]

    def _end_without_answer(self, known: Known, status: JobStatus, *, was_met: bool = False) -> None:
        """`was_met`: by a claim, which has its entry delivered."""
        self._end(known, Finished(status=status.value, failure=FAILURES[status]))
        if was_met:
            known.state.place = Place.GONE

    def _end(self, known: Known, finished: Finished) -> None:
        state = known.state
        known.say(f"end {finished.status}")
        state.status, state.lease, state.finished = JobStatus(finished.status), None, finished
        if state.place is not Place.WAITING:
            state.place = Place.GONE
        if known.job.is_durable:
            self.outbox.append((known.job.id, finished.status))
