"""The jobs of one request as one source: the wait for a worker's yes, and for the endings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from api.fleet import Staffing
from api.made import MadeJobs
from api.schemas.ask import Heard
from shared.errors import Cancelled, EngineFailed, Expired, NotReady, SlotstreamError
from shared.events import Accepted, Failure, Finished, Tokens
from shared.jobs import Completion, Job


def jobs(n_jobs: int, deadline_s: float = 60) -> list[Job]:
    request = Completion(prompts=("x",))
    return [Job(id=f"job_0_{i}", model="m", request=request, deadline_s=deadline_s) for i in range(n_jobs)]


def source(said: Sequence[Heard], n_jobs: int = 1) -> MadeJobs:
    script = iter(said)

    async def hear(timeout_s: float) -> Heard | None:
        if (heard := next(script, None)) is None:
            await asyncio.sleep(timeout_s)
        return heard

    return MadeJobs(jobs(n_jobs), hear)


ACCEPTED = Accepted(prompt_tokens=1, n_ctx=2)
TOKEN = Tokens(ids=(1,), text="a")
DONE = Finished(status="succeeded")


async def test_headers_wait_until_every_job_is_accepted() -> None:
    said = [Heard(0, None, ACCEPTED), Heard(1, None, ACCEPTED), Heard(0, 1, TOKEN)]
    assert await source(said, 2).settle(1) == said[:2]


async def test_headers_wait_no_longer_than_for_the_first_token() -> None:
    said = [Heard(0, None, ACCEPTED), Heard(0, 1, TOKEN), Heard(1, None, ACCEPTED)]
    assert await source(said, 2).settle(1) == said[:2]


async def test_headers_wait_no_longer_than_they_may() -> None:
    assert await source([]).settle(0.01) == []
    assert await source([Heard(0, None, ACCEPTED)]).settle(0) == []


@pytest.mark.parametrize(
    ("finished", "error"),
    [
        (Finished(status="cancelled"), Cancelled),
        (Finished(status="expired"), Expired),
        (Finished(status="failed"), EngineFailed),
        (Finished(status="failed", failure=Failure.of(Expired("x"))), Expired),
        (Finished(status="failed", failure=Failure(code="from the future", message="x")), SlotstreamError),
    ],
)
async def test_an_ending_that_is_no_success_is_raised(finished: Finished, error: type[SlotstreamError]) -> None:
    followed = source([Heard(0, 1, finished)])
    with pytest.raises(error):
        await followed.settle(1)
    assert followed.is_over


async def test_a_job_that_nobody_can_take_is_given_up_and_one_that_was_taken_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("api.made.UNSTAFFED_S", 0.01)
    monkeypatch.setattr("api.made.LOOK_S", 0.005)
    script = iter([Heard(0, None, ACCEPTED), *[None] * 20, Heard(0, 1, DONE)])

    async def hear(timeout_s: float) -> Heard | None:
        await asyncio.sleep(min(timeout_s, 0.005))
        return next(script, None)

    assert await MadeJobs(jobs(1), hear, lambda: Staffing(is_there=False)).endings() == [DONE]
    with pytest.raises(NotReady, match="No worker serves 'm' now"):
        await MadeJobs(jobs(1), hear, lambda: Staffing(is_there=False)).endings()


async def test_why_a_model_cannot_be_loaded_is_known_at_once() -> None:
    async def hear(timeout_s: float) -> Heard | None:
        await asyncio.sleep(0.005)
        return None

    with pytest.raises(NotReady, match="no such file"):
        async with asyncio.timeout(2):
            await MadeJobs(jobs(1), hear, lambda: Staffing(is_there=False, failure="no such file")).endings()


async def test_endings_come_in_the_order_of_the_jobs() -> None:
    first, second = DONE, Finished(status="succeeded", worker="w2")
    followed = source([Heard(1, 1, second), Heard(0, 1, TOKEN), Heard(0, 2, first)], 2)
    assert await followed.endings() == [first, second]


async def test_a_relay_gives_up_when_even_the_bus_forgets_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.made.OVERTIME_S", 0.0)

    async def hear(timeout_s: float) -> Heard | None:
        await asyncio.sleep(timeout_s)
        return None

    followed = MadeJobs(jobs(1, deadline_s=0.05), hear)
    with pytest.raises(Expired):
        await followed.endings()
    assert followed.running
