"""Holds what clients were promised and saw against what the server has in the end. Pure.

Each check is a function that yields violations; its docstring is the claim.
"""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from shared.events import Answer
from tests.chaos.aftermath import Aftermath
from tests.chaos.history import History, Session
from tests.chaos.orders import NEVER_S

ENDED = {"succeeded", "failed", "cancelled", "expired"}
MOST_DEATHS = 3


class Violation(NamedTuple):
    check: str
    job_id: str
    """Empty when it is not about one job."""
    what: str


Found = Iterator[tuple[str, str]]
"""(job id, what is wrong)."""


def check(history: History, aftermath: Aftermath) -> list[Violation]:
    return [Violation(each.__name__, *found) for each in CHECKS for found in each(history, aftermath)]


def clients_were_served(history: History, aftermath: Aftermath) -> Found:
    """No client met what no fault explains."""
    for complaint in history.complaints:
        yield "", complaint


def acknowledged_jobs_ended(history: History, aftermath: Aftermath) -> Found:
    """Every job that was acknowledged is there and has ended, and so has every other that is there."""
    for order, job_id in history.promises:
        if job_id not in aftermath.jobs:
            yield job_id, f"order {order.number} was acknowledged, and there is no such job"
    for job in aftermath.jobs.values():
        if job.status not in ENDED or job.finished is None or job.finished.status != job.status:
            yield job.id, f"is {job.status} with the result {job.finished}"
        if job.fields.get("lease"):
            yield job.id, f"has ended, and {job.fields['lease']} holds it"


def endings_stand(history: History, aftermath: Aftermath) -> Found:
    """Whoever was told of an ending was told of the one that stands."""
    told = [(session.job_id, session.heard[-1].status, "log") for session in history.sessions if session.has_ended]
    for job_id, status, by in (*told, *history.witnesses):
        if job_id in aftermath.jobs and aftermath.jobs[job_id].status != status:
            yield job_id, f"{by} said {status}, and it is {aftermath.jobs[job_id].status}"


def endings_have_reasons(history: History, aftermath: Aftermath) -> Found:
    """A job is cancelled when somebody asked for it or nobody listens to it, expired when its time was short, failed
    when its workers died."""
    for job in aftermath.jobs.values():
        order = history.offered[job.id]
        has_listeners = order.is_durable or order.n_readers > 0
        if job.status == "cancelled" and job.id not in history.cancelled and has_listeners:
            yield job.id, "was cancelled, and nobody asked for it"
        if job.status == "expired" and order.deadline_s == NEVER_S:
            yield job.id, "expired long before its time"
        if job.status == "failed" and (job.finished is None or job.finished.failure is None):
            yield job.id, "failed without a failure"
        elif job.status == "failed" and job.id not in aftermath.dead:
            yield job.id, f"failed of {job.finished.failure.code}"
        if job.status == "succeeded" and order.is_poison:
            yield job.id, "is poison and succeeded"


def readers_saw_every_token_once(history: History, aftermath: Aftermath) -> Found:
    """A reader gets the events after its cursor, each once, in order, with the right text, and the ending last."""
    for session in history.sessions:
        for what in _faults_of(session, history, aftermath):
            yield session.job_id, f"a reader after {session.after} {what}"


def _faults_of(session: Session, history: History, aftermath: Aftermath) -> Iterator[str]:
    numbers = [heard.number for heard in session.heard]
    expected = list(range(session.after + 1, session.after + 1 + len(numbers)))
    if numbers != expected:
        yield f"got the numbers {numbers}"
        return
    script = history.script(session.job_id)
    for number, text, status in session.heard:
        if status is not None:
            job = aftermath.jobs.get(session.job_id)
            if job and number != len(job.said) + 1:
                yield f"was told of the end as {number}, and the log has {len(job.said)} events"
            if status == "succeeded" and number != len(script) + 1:
                yield f"was told of success after {number - 1} of {len(script)} events"
        elif number > len(script) or text != script[number - 1].text:
            yield f"was told {text!r} as {number}"
            return
    if any(heard.status for heard in session.heard[:-1]):
        yield "was told of something after the end"


def logs_are_exact(history: History, aftermath: Aftermath) -> Found:
    """A log has the events of the job's script from 1 on without a gap or a double, its attempts in order, and one
    ending as its last entry."""
    for job in aftermath.jobs.values():
        script = history.script(job.id)
        if job.said != script[: len(job.said)]:
            yield job.id, f"the log says {[event.text for event in job.said]}"
        firsts = [(entry.first, len(entry.events)) for entry in job.log if entry.kind == "events"]
        if any(first + n != following for (first, n), (following, _) in pairwise(firsts)):
            yield job.id, f"the log's entries are numbered {firsts}"
        if job.count("events") != len(job.said):
            yield job.id, f"counts {job.count('events')} events, and the log has {len(job.said)}"
        ends = [entry for entry in job.log if entry.kind == "end"]
        if [entry.end for entry in ends] != [job.status] or job.log[-1] is not ends[0]:
            yield job.id, f"{job.status}, and the log's ends are {ends}"
        elif not job.count("end_event") == ends[0].first == len(job.said) + 1:
            yield job.id, f"ends as {job.count('end_event')}, in the log as {ends[0].first}"


def results_are_what_was_said(history: History, aftermath: Aftermath) -> Found:
    """The result of a job that succeeded has all its tokens, and the log has the same."""
    for job in aftermath.jobs.values():
        if job.status != "succeeded" or job.finished is None:
            continue
        script = history.script(job.id)
        [part] = job.finished.parts or (None,)
        if not isinstance(part, Answer) or part.ids != tuple(token for event in script for token in event.ids):
            yield job.id, f"the result is {part}"
        if job.said != script:
            yield job.id, f"succeeded with {len(job.said)} of {len(script)} events in its log"


def endings_are_told_once(history: History, aftermath: Aftermath) -> Found:
    """There is one outbox row for each durable job that ended, and none for others."""
    rows = Counter((row.id, row.status.value) for row in history.rows)
    for job_id, status in aftermath.untold:
        yield job_id, f"its row {status} was not told"
    expected = Counter((job.id, job.status) for job in aftermath.jobs.values() if history.offered[job.id].is_durable)
    for (job_id, status), n in (expected - rows).items():
        yield job_id, f"lacks {n} row {status}"
    for (job_id, status), n in (rows - expected).items():
        yield job_id, f"has {n} row {status} too many"


def keys_make_one_job(history: History, aftermath: Aftermath) -> Found:
    """All that was enqueued with one idempotency key is one job, and everybody was told its id."""
    owners: dict[str, set[str]] = defaultdict(set)
    for job_id, order in history.offered.items():
        if order.idempotency_key and job_id in aftermath.jobs:
            owners[order.idempotency_key].add(job_id)
    for order, job_id in history.promises:
        if order.idempotency_key:
            owners[order.idempotency_key].add(job_id)
    for key, job_ids in owners.items():
        if len(job_ids) > 1:
            yield "", f"{key} made {sorted(job_ids)}"


def attempts_are_counted(history: History, aftermath: Aftermath) -> Found:
    """Each time that a job was handed out is marked in its log; deaths and attempts are no more than that."""
    for job in aftermath.jobs.values():
        epochs = [entry.epoch for entry in job.log if entry.kind == "attempt"]
        if epochs != list(range(1, job.count("epoch") + 1)):
            yield job.id, f"was handed out {job.count('epoch')} times, and the log has {epochs}"
        if not 0 <= job.count("deaths") <= job.count("attempts") <= job.count("epoch"):
            yield job.id, f"has {job.count('attempts')} attempts and {job.count('deaths')} deaths"
    twice = Counter((attempt.job_id, attempt.mark) for attempt in history.attempts)
    for (job_id, _), n in twice.items():
        if n > 1:
            yield job_id, f"came into {n} engines in one attempt"


def the_dead_had_deaths(history: History, aftermath: Aftermath) -> Found:
    """A job is among the dead once, and failed, of as many deaths as it takes."""
    for job_id, n in Counter(aftermath.dead).items():
        job = aftermath.jobs.get(job_id)
        if n > 1 or job is None or job.status != "failed" or job.count("deaths") < MOST_DEATHS:
            yield job_id, f"is {n} times among the dead, and is {job and (job.status, job.count('deaths'))}"


def deaths_have_causes(history: History, aftermath: Aftermath) -> Found:
    """A death is counted only when a worker was killed, or kept from speaking, while it had the job."""
    pids: dict[str, list[int]] = defaultdict(list)
    for attempt in history.attempts:
        pids[attempt.job_id].append(attempt.pid)
    for job in aftermath.jobs.values():
        # Nobody knows which worker had an attempt that never came into an engine.
        unseen = job.count("epoch") - len(pids[job.id])
        most = unseen + sum(pid in history.harmed for pid in pids[job.id])
        if job.count("deaths") > most:
            yield job.id, f"counts {job.count('deaths')} deaths, and at most {most} workers can have died with it"


def nothing_is_left(history: History, aftermath: Aftermath) -> Found:
    """No stream, pending entry, lane or turn is left, nothing is counted as waiting, and no key stays for ever."""
    for name, (length, pending) in aftermath.streams.items():
        yield "", f"{name} has {length} entries, {pending} of them pending"
    for name in (*aftermath.lanes, *aftermath.stray):
        yield "", f"{name} is left"
    for name, counts in aftermath.loads.items():
        for counter, n in counts.items():
            if counter.startswith(("queued", "added", "taken")) and n != "0":
                yield "", f"{name} counts {n} {counter}"


def workers_left_in_good_order(history: History, aftermath: Aftermath) -> Found:
    """A worker process ends when it is killed, or with 0 when it is asked to leave; so early that it has no ears for
    that yet, by the signal itself."""
    for pid, code, was_asked in history.exits:
        if code != -signal.SIGKILL and not (was_asked and code in (0, -signal.SIGTERM)):
            yield "", f"worker {pid} ended with {code}, {'asked to leave' if was_asked else 'not asked'}"


CHECKS: tuple[Callable[[History, Aftermath], Found], ...] = (
    clients_were_served,
    acknowledged_jobs_ended,
    endings_stand,
    endings_have_reasons,
    readers_saw_every_token_once,
    logs_are_exact,
    results_are_what_was_said,
    endings_are_told_once,
    keys_make_one_job,
    attempts_are_counted,
    the_dead_had_deaths,
    deaths_have_causes,
    nothing_is_left,
    workers_left_in_good_order,
)
