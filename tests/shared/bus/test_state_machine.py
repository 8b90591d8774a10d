"""Two workers, an API and a clock do what they like, in any order: after each step the keys are as the model says.

Every run of the suite goes the same ways. `STATE_MACHINE_EXAMPLES=5000 python -m pytest -k order <this file>` goes that
many others, by chance.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis, ResponseError
from redis.asyncio import Redis as AsyncRedis

from shared.bus import Chunk, Lease, LeaseKeeper, Receipt, Verdict, Wanted, open_bus
from shared.bus import claims as claims_module
from shared.bus import lease as lease_module
from shared.bus import queue as queue_module
from shared.bus.keys import Keys, part
from shared.bus.script import Script, script
from shared.errors import IdempotencyConflict, UnknownJob
from shared.events import Accepted, Finished
from shared.jobs import Completion, Embedding, Job, JobStatus, Lane, Request, SlotAction, Tokenize
from shared.settings import BusSettings
from tests.shared.bus.conftest import ANY, Behind, a_job, tokens
from tests.shared.bus.model import Model, Place
from tests.shared.bus.snapshot import Entry, Snapshot, take_snapshot

LEASE_S = 3600.0
"""Longer than any run: leases end when the machine says so."""
LIFE_S = 7200.0
MOST_AT_ONCE = 2
"""Jobs that are alive: with more of them, less would happen to each."""

LONG_RUN = int(os.environ.get("STATE_MACHINE_EXAMPLES", "0"))
TIMEOUT_S = 0 if LONG_RUN else 600  # to shrink a counterexample takes a while

COMPLETION = Completion(prompts=("Hello",), n_predict=8)
INPUT = Embedding(inputs=("Hello",))
BOUND = SlotAction(action="erase", slot=0)
"""Only one worker can do it."""
WORKERS = st.sampled_from(["w1", "w:2"])
AGES = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 7])
"""Of a lease: how many were handed out after it."""

WANTED = st.builds(
    Wanted,
    quick=st.sampled_from([2, 1, 2, 0]),
    interactive=st.sampled_from([2, 1, 2, 0]),
    bulk=st.sampled_from([2, 1, 3, 0]),
    suspects=st.sampled_from([1, 1, 2, 0]),
    own=st.sampled_from([2, 1, 2, 0]),
    inputs=st.sampled_from([2, 1, 2, 0]),
    bulk_inputs=st.sampled_from([2, 1, 3, 0]),
)


def often(**weights: int) -> st.SearchStrategy[str]:
    """One of some names, each as often as its number says."""
    return st.sampled_from([name for name, weight in weights.items() for _ in range(weight)])


class Submission(NamedTuple):
    """A job as a client asks for it."""

    request: Request
    lane: Lane
    tenant: str
    key: str | None
    body: str
    is_durable: bool
    worker: str | None
    is_bound: bool
    """To that worker."""


SUBMISSIONS = st.builds(
    Submission,
    request=st.sampled_from([COMPLETION, COMPLETION, COMPLETION, Tokenize(content="Hello"), INPUT, INPUT]),
    lane=st.sampled_from(Lane),
    tenant=st.sampled_from("ab"),
    key=st.sampled_from([None, None, "k"]),
    body=st.sampled_from(["{}", "[]"]),
    is_durable=st.booleans(),
    worker=st.sampled_from([None, None, None, None, "w1", "w:2"]),
    is_bound=st.booleans(),
)


while_a_job_is_alive = precondition(lambda machine: bool(machine.model.unended()))
"""Else little of what might happen would change anything."""


class Machine(RuleBasedStateMachine):
    """One queue of one partition, and the model of it, in a namespace of their own."""

    jobs: Bundle[str] = Bundle("jobs")

    def __init__(self, url: str) -> None:
        super().__init__()
        # Hypothesis would leave half of the rules out of each run, and a takeover needs most of them.
        self._rules_strategy.enabled_rules_strategy = st.just(SimpleNamespace(is_enabled=lambda _: True))
        self.settings = BusSettings(redis_url=url, namespace=f"t{secrets.token_hex(6)}", lease_s=LEASE_S)
        self.keys = Keys(self.settings.namespace, 1)
        self.client = Redis.from_url(url)
        self.model = Model()
        self.entries: dict[str, Entry] = {}
        self.leases: list[Lease] = []
        """All that were ever handed out: a worker that lost one may come back with it at any time."""
        self.told: dict[str, Verdict] = {}
        """What the keepers of leases have said of jobs."""
        self.keepers = {worker: self.keeper_of(worker) for worker in ("w1", "w:2")}
        self.resources = AsyncExitStack()
        self.runner = asyncio.Runner()
        self.run = self.runner.run
        self.run(self.open())

    def keeper_of(self, worker: str) -> LeaseKeeper:
        """Its thread is never started: the machine decides when it beats."""
        return LeaseKeeper(
            self.settings,
            worker,
            is_alive=lambda: True,
            on_cancel=lambda job_id: self.told.update({job_id: Verdict.CANCEL}),
            on_lost=lambda lease: self.told.update({lease.job_id: Verdict.LOST}),
        )

    async def open(self) -> None:
        self.queue = (await self.resources.enter_async_context(open_bus(self.settings, name="test"))).queue
        client = await self.resources.enter_async_context(
            AsyncRedis.from_url(self.settings.redis_url.get_secret_value())
        )
        self.behind = Behind(client, self.keys)

    def teardown(self) -> None:
        self.run(self.resources.aclose())
        self.runner.close()
        for keeper in self.keepers.values():
            keeper.stop()
        self.client.delete(*self.client.keys(f"{self.settings.namespace}:*"), "nothing")
        self.client.close()

    @initialize(target=jobs, what=SUBMISSIONS)
    def begin(self, what: Submission) -> str | MultipleResults[str]:
        return self.submit(what)

    @precondition(lambda self: len(self.model.unended()) < MOST_AT_ONCE)
    @rule(target=jobs, what=SUBMISSIONS)
    def enqueue(self, what: Submission) -> str | MultipleResults[str]:
        return self.submit(what)

    def submit(self, what: Submission) -> str | MultipleResults[str]:
        """The id of the job, if there is a new one."""
        job = Job(
            id=self.queue.new_job_id(what.key, what.tenant),
            model="m",
            request=BOUND if what.worker and what.is_bound else what.request,
            lane=what.lane,
            tenant=what.tenant,
            body=what.body,
            is_durable=what.is_durable,
            deadline_s=LIFE_S,
        )
        expected = self.model.enqueue(job, what.key, what.worker)
        enqueuing = self.queue.enqueue(job, idempotency_key=what.key, worker=what.worker)
        if expected is None:
            with pytest.raises(IdempotencyConflict):
                self.run(enqueuing)
            return multiple()
        assert self.run(enqueuing) == expected
        if not expected.is_new:
            return multiple()
        stream, entry_id = self.client.hmget(self.keys.job(job.id), "stream", "entry")
        self.entries[job.id] = Entry(job.id, stream.decode(), entry_id.decode())
        return job.id

    @while_a_job_is_alive
    @rule(worker=WORKERS, wanted=WANTED, is_sweep=st.sampled_from([True, True, False]))
    def claim(self, worker: str, wanted: Wanted, is_sweep: bool) -> None:
        claims = self.run(self.queue.claim(worker, "m", wanted, sweep=is_sweep))
        seen = self.look().jobs
        if is_sweep:
            self.model.settle(worker)
        met = {job_id for job_id, known in self.model.jobs.items() if known.state != seen[job_id]}
        self.model.claim(worker, wanted, is_sweep, claims, met)
        self.leases += [claim.lease for claim in claims]

    @while_a_job_is_alive
    @precondition(lambda self: bool(self.leases))
    @rule(age=AGES, what=often(append=3, append_again=1, append_beyond=1, finish=2, finish_beyond=1, release=2))
    def write(self, age: int, what: str) -> None:
        """A worker shows a lease, which may long have gone to another."""
        lease = self.lease_of(age)
        next_event = self.model.jobs[lease.job_id].state.n_events + 1
        match what:
            case "append":
                self.append(Chunk(lease, next_event, tokens(f"{lease.epoch}.{next_event}", "and more")))
            case "append_again":
                self.append(Chunk(lease, max(1, next_event - 1), tokens("again"), Accepted(prompt_tokens=1, n_ctx=2)))
            case "append_beyond":
                self.append(Chunk(lease, next_event + 1, tokens("beyond")))
            case "finish":
                self.finish(lease, next_event)
            case "finish_beyond":
                self.finish(lease, next_event + 1)
            case "release":
                assert self.run(self.queue.release(lease)) is self.model.release(lease)

    def append(self, chunk: Chunk) -> None:
        assert self.run(self.queue.append([chunk])) == [self.model.append(chunk)]

    def finish(self, lease: Lease, first_event: int) -> None:
        finished = Finished(status="succeeded", worker=lease.worker)
        assert self.run(self.queue.finish(lease, finished, first_event)) is self.model.finish(
            lease, finished, first_event
        )

    @while_a_job_is_alive
    @precondition(lambda self: bool(self.leases))
    @rule(age=AGES, other_age=AGES)
    def renew(self, age: int, other_age: int) -> None:
        """A worker says that it lives, and which leases it thinks it has."""
        one, another = self.lease_of(age), self.lease_of(other_age)
        self.beat(unquote(one.worker), {lease.job_id: lease for lease in (another, one) if lease.worker == one.worker})

    def lease_of(self, age: int) -> Lease:
        return self.leases[-1 - age % len(self.leases)]

    def beat(self, worker: str, thought: Mapping[str, Lease]) -> None:
        keeper = self.keepers[worker]
        self.told.clear()
        for lease in thought.values():
            keeper.hold(lease)
        keeper.beat()
        self.model.beat(worker)
        for job_id, lease in thought.items():
            keeper.drop(job_id)
            assert self.told.get(job_id, Verdict.OK) is self.model.renew(lease)

    @while_a_job_is_alive
    @rule(worker=WORKERS, is_heard=st.sampled_from([False, False, True]), n_suspects=st.sampled_from([None, 1, 0, 2]))
    def stall(self, worker: str, is_heard: bool, n_suspects: int | None) -> None:
        """All leases of a worker run out: it is dead, or it lives and knows nothing of them.

        With `n_suspects`, the other worker looks for what is lost at once.
        """
        for job_id in self.model.lose_leases(worker):
            self.run(self.behind.let_lease_run_out(job_id))
        if not is_heard:
            self.model.fall_silent(worker)
            self.age_beats(part(worker))
        if n_suspects is not None:
            [other] = self.keepers.keys() - {worker}
            self.claim(other, Wanted(2, 2, 2, n_suspects, own=2, inputs=2, bulk_inputs=2), is_sweep=True)

    @while_a_job_is_alive
    @rule(worker=WORKERS, what=often(beat=2, go_on=8, be_away=2, leave=1))
    def listen(self, worker: str, what: str) -> None:
        """The server hears a worker that has nothing, or wants nothing more; the living for most of a lease, or nobody
        for longer than one."""
        match what:
            case "leave":
                self.run(self.queue.leave(worker, "m"))
                self.model.leave(worker)
            case "beat":
                self.beat(worker, {})
            case "go_on" if self.model.hear_for_a_while():
                self.age_beats("@since")
            case "be_away":
                self.model.be_away()
                self.age_beats("@last", "@since", *map(part, self.keepers))

    @while_a_job_is_alive
    @rule(job_id=jobs, what=often(pass_deadline=1, lose_group=1, abandon=1, forget=1))
    def let_time_pass(self, job_id: str, what: str) -> None:
        match what:
            case "pass_deadline" if self.model.pass_deadline(job_id):
                self.run(self.behind.let_deadline_pass(job_id))
            case "lose_group" if self.client.exists(self.entries[job_id].stream):
                self.model.lose_group(self.model.jobs[job_id].stream)
                self.client.xgroup_destroy(self.entries[job_id].stream, "workers")
            case "abandon" if self.model.abandon(job_id):
                self.client.hset(self.keys.job(job_id), "unheard_ms", 1)
            case "forget" if self.model.forget(job_id):
                self.client.delete(self.keys.job(job_id), self.keys.log(job_id))

    @while_a_job_is_alive
    @rule(job_id=jobs, what=often(cancel=1, enqueue_again=1, page=1, reap=3, flush_scripts=1))
    def tend(self, job_id: str, what: str) -> None:
        """A client, with a job that it knows, or a caretaker."""
        known = self.model.jobs[job_id]
        match what:
            case "cancel" if known.state.status is None:
                with pytest.raises(UnknownJob):
                    self.run(self.queue.cancel(job_id))
            case "cancel":
                assert self.run(self.queue.cancel(job_id)).status is self.model.cancel(job_id)
            case "enqueue_again" if known.state.status is not None:
                again = self.queue.enqueue(known.job, idempotency_key=known.key, worker=known.worker)
                assert self.run(again) == self.model.enqueue(known.job, known.key, known.worker)
            case "page":
                page = self.run(self.queue.page(known.job.tenant))
                assert {record.id for record in page.records} == self.model.durable(known.job.tenant)
            case "reap":
                assert self.run(self.queue.reap()) == self.model.reap()
            case "flush_scripts":
                self.client.script_flush()

    def age_beats(self, *names: str) -> None:
        seconds, _ = self.client.time()
        for name in names:
            if self.client.hexists(self.keys.beats(0), name):
                self.client.hset(self.keys.beats(0), name, round(1000 * (seconds - 2 * LEASE_S)))

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        seen = self.look()
        check_laws(seen)
        assert seen.jobs == {job_id: known.state for job_id, known in self.model.jobs.items()}
        assert seen.counters == self.model.counters()
        assert seen.due == self.model.unended()
        assert sorted(seen.outbox) == sorted(self.model.outbox)
        assert sorted(seen.dead) == sorted(self.model.dead)
        assert not seen.staying
        for job_id, state in seen.jobs.items():
            if state.status is JobStatus.QUEUED:
                record = self.run(self.queue.record(job_id))
                assert record and record.position and record.position >= 1

    def look(self) -> Snapshot:
        return take_snapshot(self.client, self.keys, "m", list(self.entries.values()), LEASE_S)


def check_laws(seen: Snapshot) -> None:
    """What holds of every job at every moment, whatever the model thinks."""
    for state in seen.jobs.values():
        if state.status is None:
            continue
        numbers = [int(entry_id.partition("-")[2]) for entry_id, _ in state.log]
        spoken = [number for number in numbers if number]  # 0 marks an attempt
        endings = [index for index, (_, text) in enumerate(state.log) if text.startswith("end ")]
        assert spoken == list(range(1, state.n_events + state.is_ended + 1))
        assert endings == [len(state.log) - 1] * state.is_ended
        assert (state.finished is not None) == state.is_ended
        assert (state.lease is not None) == (state.status is JobStatus.RUNNING)
        assert state.place in (
            (Place.WAITING, Place.GONE) if state.is_ended else (Place.WAITING, Place.HELD, Place.AGED)
        )


def explore(url: str, n_examples: int, *, phases: Collection[Phase] = (Phase.generate, Phase.shrink)) -> None:
    chosen = settings(
        max_examples=n_examples,
        stateful_step_count=50,
        derandomize=not LONG_RUN,
        phases=phases,
        report_multiple_bugs=False,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(partial(Machine, url), settings=chosen)


@pytest.mark.timeout(TIMEOUT_S)
def test_no_order_of_events_breaks_a_promise(valkey_url: str) -> None:
    explore(valkey_url, LONG_RUN or 60)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_nor_does_any_order_on_another_server(redis7_url: str) -> None:
    explore(redis7_url, LONG_RUN or 10)


BROKEN = [
    ("enqueue", "redis.call('EXISTS', job) == 1", "false"),
    ("claim", "'IDLE', lease_ms", "'IDLE', 0"),
    ("append", "held ~= lease or status ~= 'running' or", ""),
    ("finish", "held ~= lease or was ~= 'running'", "false"),
    ("release", "held ~= lease or status ~= 'running'", "false"),
    ("cancel", "redis.call('HSET', job, 'cancel', 1)", ""),
    ("renew", "status ~= 'running' or lease ~= ARGV[i + 2]", "false"),
    ("reap", "status == 'running' and has_holder(stream, entry, lease_ms)", "false"),
]
"""One hole in a script."""
BROKEN_FOR_ONE_WORKER = [
    ("leave", "worker .. ':left'", "'@left'"),
    ("claim", "owner ~= worker and is_gone(prefix, owner, now, lease_ms)", "owner ~= worker"),
    ("claim", "'home') == lane", "'home') ~= lane"),
    ("claim", "home == '' and", ""),
]
"""Holes in what becomes of work for one worker alone: it takes some seconds to fall into each."""


@pytest.mark.parametrize(
    ("name", "text", "instead"),
    [*BROKEN, *(pytest.param(*broken, marks=pytest.mark.slow) for broken in BROKEN_FOR_ONE_WORKER)],
)
def test_a_broken_script_is_noticed(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch, name: str, text: str, instead: str
) -> None:
    whole = script(name).text
    assert text in whole
    broken = whole.replace(text, instead)
    scripts = {name: Script(broken, hashlib.sha1(broken.encode(), usedforsecurity=False).hexdigest())}
    for module in (queue_module, claims_module, lease_module):
        monkeypatch.setattr(module, "script", lambda which: scripts.get(which) or script(which))
    with pytest.raises((AssertionError, ResponseError)):
        explore(valkey_url, 500, phases=[Phase.generate])


@pytest.mark.parametrize(
    "other", [{}, {"body": "[]"}, {"lane": Lane.BULK}, {"tenant": "b"}], ids=["the same", "body", "lane", "tenant"]
)
async def test_one_key_used_by_two_clients_at_once_makes_one_job(
    bus_settings: BusSettings, other: dict[str, Any]
) -> None:
    async with open_bus(bus_settings, name="one") as one, open_bus(bus_settings, name="two") as two:
        for number in range(20):
            key = f"k{number}"
            asked = [(one, a_job(one, body="{}")), (two, a_job(two, **{"body": "{}"} | other))]
            receipts = await asyncio.gather(
                *(bus.queue.enqueue(job, idempotency_key=key) for bus, job in asked), return_exceptions=True
            )
            made = [receipt.job_id for receipt in receipts if isinstance(receipt, Receipt) and receipt.is_new]
            assert sorted(claim.job.id for claim in await one.queue.claim("w1", "m", ANY)) == sorted(made)
            if "tenant" in other:
                assert len(made) == 2
                continue
            [second] = [receipt for receipt in receipts if receipt != (made[0], True)]
            assert isinstance(second, IdempotencyConflict) if other else second == (made[0], False)
