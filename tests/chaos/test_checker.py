"""Each check notices what it is for: a history without fault, spoiled in one way at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from shared.bus import OutboxRow
from shared.events import Answer, Finished, StopType
from shared.jobs import JobStatus, Lane
from tests.chaos.aftermath import Aftermath, EndedJob, Entry
from tests.chaos.checker import CHECKS, check
from tests.chaos.history import Attempt, Exit, Heard, History, Promise, Witness
from tests.chaos.orders import NEVER_S, Order
from tests.chaos.speech import speech

JOB = "job_0_00"
N_TOKENS = 6
SCRIPT = speech(JOB, N_TOKENS)
N_EVENTS = len(SCRIPT)
ORDER = Order(
    number=0,
    at_s=0.0,
    tenant="ann",
    lane=Lane.BULK,
    n_tokens=N_TOKENS,
    is_durable=True,
    deadline_s=NEVER_S,
    idempotency_key="key 0",
    n_asks=1,
    n_readers=1,
    cancel_after_s=None,
    is_abandoned=False,
    is_poison=False,
)


@dataclass
class Case:
    """A job that was handed out twice and succeeded, as everybody saw it."""

    history: History
    aftermath: Aftermath

    @property
    def job(self) -> EndedJob:
        return self.aftermath.jobs[JOB]

    @property
    def heard(self) -> list[Heard]:
        return self.history.sessions[0].heard

    def set(self, **fields: str) -> None:
        self.job.fields.update(fields)

    def end_as(self, status: str) -> None:
        """Consistently, but for the reasons."""
        result = Finished.model_validate({"status": status, "failure": {"code": "worker_died", "message": "no"}})
        self.set(status=status, result=result.to_json())
        self.job.log[-1] = self.job.log[-1]._replace(end=status)
        self.history.rows = {OutboxRow(0, "1-0", "job", JOB, JobStatus(status))}
        self.history.witnesses = [Witness(JOB, status, "record")]
        self.history.sessions[0].heard[-1] = Heard(N_EVENTS + 1, "", status)


@pytest.fixture
def case() -> Case:
    answer = Answer(
        text="".join(event.text for event in SCRIPT),
        ids=tuple(token for event in SCRIPT for token in event.ids),
        prompt="",
        prompt_tokens=1,
        stop_type=StopType.LIMIT,
        seed=1,
    )
    fields = {
        "status": "succeeded",
        "result": Finished(status="succeeded", parts=(answer,)).to_json(),
        "events": str(N_EVENTS),
        "end_event": str(N_EVENTS + 1),
        "epoch": "2",
        "attempts": "2",
        "deaths": "1",
    }
    log = [
        Entry(1, 0, "attempt"),
        Entry(1, 1, "events", tuple(SCRIPT[:2])),
        Entry(2, 0, "attempt"),
        Entry(2, 3, "events", tuple(SCRIPT[2:])),
        Entry(2, N_EVENTS + 1, "end", end="succeeded"),
    ]
    history = History(
        offered={JOB: ORDER},
        promises=[Promise(ORDER, JOB)],
        witnesses=[Witness(JOB, "succeeded", "record")],
        rows={OutboxRow(0, "1-0", "job", JOB, JobStatus.SUCCEEDED)},
        attempts=[Attempt(1, JOB, 1), Attempt(2, JOB, 2)],
        harmed={1},
        exits=[Exit(1, -9, False), Exit(2, 0, True)],
    )
    session = history.begin_session(JOB, 0)
    for number, event in enumerate(SCRIPT, 1):
        session.hear(number, event)
    session.hear(N_EVENTS + 1, Finished(status="succeeded"))
    aftermath = Aftermath(
        jobs={JOB: EndedJob(JOB, fields, log)}, dead=[], untold=[], streams={}, loads={}, lanes=[], stray=[]
    )
    return Case(history, aftermath)


def leave(case: Case, **left: object) -> None:
    case.aftermath = replace(case.aftermath, **left)


def ask_again_with_the_key(case: Case) -> None:
    case.history.offered["job_0_01"] = ORDER
    case.history.promises.append(Promise(ORDER, "job_0_01"))


def end_twice(case: Case) -> None:
    case.job.log.append(case.job.log[-1])


def bury(case: Case) -> None:
    case.end_as("failed")
    leave(case, dead=[JOB])


SPOILERS: list[tuple[str, Callable[[Case], object]]] = [
    ("clients_were_served", lambda case: case.history.complaints.append("nobody came")),
    ("acknowledged_jobs_ended", lambda case: case.aftermath.jobs.clear()),
    ("acknowledged_jobs_ended", lambda case: case.set(status="running")),
    ("acknowledged_jobs_ended", lambda case: case.job.fields.pop("result")),
    ("acknowledged_jobs_ended", lambda case: case.set(lease="w:2:x")),
    ("endings_stand", lambda case: case.history.witnesses.append(Witness(JOB, "cancelled", "cancel"))),
    ("endings_stand", lambda case: case.heard.__setitem__(-1, Heard(N_EVENTS + 1, "", "cancelled"))),
    ("endings_have_reasons", lambda case: case.end_as("cancelled")),
    ("endings_have_reasons", lambda case: case.end_as("expired")),
    ("endings_have_reasons", lambda case: case.end_as("failed")),
    ("endings_have_reasons", lambda case: case.history.offered.update({JOB: replace(ORDER, is_poison=True)})),
    ("readers_saw_every_token_once", lambda case: case.heard.insert(1, case.heard[0])),
    ("readers_saw_every_token_once", lambda case: case.heard.pop(1)),
    ("readers_saw_every_token_once", lambda case: case.heard.__setitem__(1, Heard(2, "wrong"))),
    ("readers_saw_every_token_once", lambda case: case.heard.append(Heard(N_EVENTS + 2, "more"))),
    ("readers_saw_every_token_once", lambda case: case.job.log.pop(1)),
    ("logs_are_exact", lambda case: case.job.log.insert(1, case.job.log[1])),
    ("logs_are_exact", lambda case: case.job.log.pop(1)),
    ("logs_are_exact", lambda case: case.job.log.__setitem__(3, case.job.log[3]._replace(first=4))),
    ("logs_are_exact", lambda case: case.job.log.pop()),
    ("logs_are_exact", end_twice),
    ("logs_are_exact", lambda case: case.set(end_event="1")),
    ("logs_are_exact", lambda case: case.set(events="1")),
    ("results_are_what_was_said", lambda case: case.set(result=Finished(status="succeeded").to_json())),
    ("results_are_what_was_said", lambda case: case.job.log.pop(3)),
    ("endings_are_told_once", lambda case: case.history.rows.clear()),
    (
        "endings_are_told_once",
        lambda case: case.history.rows.add(OutboxRow(0, "2-0", "job", JOB, JobStatus.SUCCEEDED)),
    ),
    ("endings_are_told_once", lambda case: leave(case, untold=[(JOB, "succeeded")])),
    ("endings_are_told_once", lambda case: case.history.offered.update({JOB: replace(ORDER, is_durable=False)})),
    ("keys_make_one_job", ask_again_with_the_key),
    ("attempts_are_counted", lambda case: case.job.log.pop(2)),
    ("attempts_are_counted", lambda case: case.set(deaths="3")),
    ("attempts_are_counted", lambda case: case.set(attempts="3")),
    ("attempts_are_counted", lambda case: case.history.attempts.append(Attempt(3, JOB, 2))),
    ("the_dead_had_deaths", bury),
    ("the_dead_had_deaths", lambda case: leave(case, dead=[JOB])),
    ("deaths_have_causes", lambda case: case.set(deaths="2")),
    ("deaths_have_causes", lambda case: case.history.harmed.clear()),
    ("nothing_is_left", lambda case: leave(case, streams={"q:m:bulk:ann": (1, 1)})),
    ("nothing_is_left", lambda case: leave(case, lanes=["lanes"])),
    ("nothing_is_left", lambda case: leave(case, stray=["job:x"])),
    ("nothing_is_left", lambda case: leave(case, loads={"load:m": {"queued:bulk": "-1"}})),
    ("workers_left_in_good_order", lambda case: case.history.exits.append(Exit(3, 1, False))),
    ("workers_left_in_good_order", lambda case: case.history.exits.append(Exit(3, 0, False))),
    ("workers_left_in_good_order", lambda case: case.history.exits.append(Exit(3, -15, False))),
]


def test_what_went_well_is_let_pass(case: Case) -> None:
    assert check(case.history, case.aftermath) == []


@pytest.mark.parametrize(("name", "spoil"), SPOILERS)
def test_what_went_wrong_is_noticed(case: Case, name: str, spoil: Callable[[Case], object]) -> None:
    spoil(case)
    assert name in {violation.check for violation in check(case.history, case.aftermath)}


def test_every_check_is_tried() -> None:
    assert {each.__name__ for each in CHECKS} == {name for name, _ in SPOILERS}
