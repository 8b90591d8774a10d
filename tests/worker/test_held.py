"""How a held job gathers, numbers and ends."""

from __future__ import annotations

import dataclasses

import pytest

from shared.bus import Claimed, Lease
from shared.errors import Cancelled, EngineFailed, Expired, InvalidRequest, SlotstreamError
from shared.events import Accepted, Answer, Failure, Progress, StopType, Tokens
from shared.jobs import Completion, Job, Lane
from worker.engine import GenerateTask, SequenceKey
from worker.held import Held, HeldJobs


def held(lane: Lane = Lane.INTERACTIVE, expected: int = 1) -> Held:
    job = Job(id="job_0_00", model="m", request=Completion(prompts=("Hi",)), lane=lane)
    claimed = Claimed(
        job, Lease(job.id, "w:1:a0"), attempt=1, deaths=0, n_events=0, enqueued_at=0, deadline_at=9, now=1
    )
    return Held(claimed, expected=expected)


def said(text: str) -> Tokens:
    return Tokens(ids=(1,), text=text)


def answer(index: int = 0) -> Answer:
    return Answer(index=index, text="", ids=(), prompt="", prompt_tokens=1, stop_type=StopType.EOS, seed=1)


def test_chunks_are_numbered_without_gaps() -> None:
    job = held()
    firsts = []
    for texts in (["a"], ["b", "c"], ["d"]):
        for text in texts:
            job.hear(said(text))
        [chunk] = job.take_chunks()
        firsts.append((chunk.first_event, "".join(event.text for event in chunk.events)))
    assert firsts == [(1, "a"), (2, "bc"), (4, "d")]
    assert job.take_chunks() == []
    assert job.next_event == 5


def test_what_is_not_numbered_takes_no_number() -> None:
    job = held()
    job.hear(Accepted(prompt_tokens=3, n_ctx=8))
    job.hear(Progress(total=3, cache=0, processed=2, time_ms=1))
    [chunk] = job.take_chunks()
    assert (chunk.first_event, chunk.events, job.next_event) == (1, (), 1)
    assert chunk.accepted and chunk.progress


def test_each_sequence_tells_how_far_its_prompt_was_read() -> None:
    job = held(expected=3)
    for index, processed in ((0, 1), (1, 2), (0, 3)):
        job.hear(Progress(index=index, total=3, cache=0, processed=processed, time_ms=1))
    job.hear(said("a"))
    chunks = job.take_chunks()
    assert [(each.progress.index, each.progress.processed) for each in chunks if each.progress] == [(0, 3), (1, 2)]
    assert [(each.first_event, len(each.events)) for each in chunks] == [(1, 1), (2, 0)]
    assert not job.is_urgent


def test_a_person_waits_for_every_token_and_bulk_for_none() -> None:
    interactive, bulk = held(), held(Lane.BULK)
    assert not interactive.is_urgent
    for job in (interactive, bulk):
        job.hear(said("a"))
    assert interactive.is_urgent and not bulk.is_urgent
    interactive.take_chunks()
    assert not interactive.is_urgent


def test_of_what_leaves_the_engine_is_given_no_more_and_bulk_does_not_wait_with_it() -> None:
    job = held(Lane.BULK, expected=2)
    job.ahead.append(GenerateTask(SequenceKey(job.job.id, 1), (1,), Completion(prompts=("Hi",)), seed=1))
    assert not (job.is_over or job.is_urgent)
    job.leave()
    assert job.is_over and job.is_urgent and not job.is_complete
    assert job.take_tasks(8) == []


@pytest.mark.parametrize("event", [Accepted(prompt_tokens=3, n_ctx=8), answer(), Failure.of(InvalidRequest("no"))])
def test_an_acceptance_and_an_ending_never_wait(event: Accepted | Answer | Failure) -> None:
    job = held(Lane.BULK)
    job.hear(event)
    assert job.is_urgent


def test_a_job_ends_when_its_last_part_has() -> None:
    job = held(expected=2)
    job.hear(answer(1))
    assert not job.is_complete
    job.hear(answer(0))
    assert [part.index for part in job.ending("w").parts] == [0, 1]
    assert job.ending("w").status == "succeeded"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("no"), "failed"),
        (EngineFailed("no"), "failed"),
        (Cancelled("no"), "cancelled"),
        (Expired("no"), "expired"),
    ],
)
def test_the_first_failure_is_the_ending(error: SlotstreamError, status: str) -> None:
    job = held(expected=2)
    job.hear(answer(0))
    job.hear(Failure.of(error))
    job.hear(Failure.of(EngineFailed("later")))
    ending = job.ending("w")
    assert job.is_complete
    assert (ending.status, ending.failure and ending.failure.message) == (status, "no")


async def test_a_freed_job_is_told_of_once() -> None:
    jobs, freed = HeldJobs(), []
    jobs.on_freed = lambda: freed.append(len(jobs))
    jobs.add(held())
    assert jobs.remove("job_0_00") and not jobs.remove("job_0_00")
    assert freed == [0]
    await jobs.wait_empty()


def test_the_next_suspect_is_looked_for_when_one_goes() -> None:
    jobs, cleared = HeldJobs(), []
    jobs.on_cleared = lambda: cleared.append(jobs.has_suspect)
    for deaths in (1, 2):
        job = held()
        job.claimed = dataclasses.replace(job.claimed, deaths=deaths)
        jobs.add(job)
        job.hear(said("a"))
        assert jobs.has_suspect == (deaths == 2)
        jobs.remove(job.job.id)
    assert cleared == [False]
