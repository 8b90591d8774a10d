"""Jobs of several sequences, from the queue through a real engine to their one ending, also over a worker's death."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from shared.bus import Bus
from shared.jobs import Completion, JobStatus
from tests.worker.crew import WILD, Listener, heard_of, queued

LONG = 200


async def heard_over_a_death(
    bus: Bus, hire: Callable[..., Any], request: Completion, *, last: int, **engine: Any
) -> Listener:
    """The first worker dies when the sequence `last` has begun to speak."""
    doomed = await hire("doomed", **engine)
    async with queued(bus, request) as listener:
        await listener.until(lambda: len(listener.tokens[last]) > 5)
        await doomed.kill()
        assert listener.finished is None
        await hire("heir", **engine)
        return await listener.to_the_end()


@pytest.mark.parametrize(("n_slots", "last"), [(4, 2), (2, 1), (1, 1)], ids=["all run", "one waits", "one has ended"])
async def test_choices_of_one_seed_differ_and_are_the_same_again_also_over_a_death(
    bus: Bus, hire: Callable[..., Any], n_slots: int, last: int
) -> None:
    request = Completion(prompts=("Once upon a time",), n=3, n_predict=LONG, sampling=WILD)
    over_a_death = await heard_over_a_death(bus, hire, request, last=last, n_slots=n_slots)
    again = await heard_of(bus, request)
    texts = [answer.text for answer in over_a_death.answers]
    assert len(set(texts)) == 3
    assert texts == [answer.text for answer in again.answers]
    assert [answer.seed for answer in again.answers] == [7, 8, 9]
    for heard in (over_a_death, again):
        assert heard.numbers == list(range(1, len(heard.numbers) + 1))
        assert [heard.text(index) for index in range(3)] == texts


async def test_prompts_and_choices_stream_interleaved_and_answer_in_order(bus: Bus, hire: Callable[..., Any]) -> None:
    worker = await hire(n_slots=2)
    prompts = ("A long prompt " * 40, "B")
    heard = await heard_of(bus, Completion(prompts=prompts, n=2, n_predict=30, sampling=WILD))
    assert [answer.index for answer in heard.answers] == [0, 1, 2, 3]
    assert [answer.prompt for answer in heard.answers] == [prompts[0]] * 2 + [prompts[1]] * 2
    assert [answer.seed for answer in heard.answers] == [7, 8, 7, 8]
    assert [heard.text(answer.index) for answer in heard.answers] == [answer.text for answer in heard.answers]
    alone = await heard_of(bus, Completion(prompts=prompts[1:], n_predict=30, sampling=WILD))
    assert alone.answers[0].text == heard.answers[2].text
    await worker.has_free_slots(2)


async def test_what_was_told_of_tokens_before_a_death_is_in_the_answer(bus: Bus, hire: Callable[..., Any]) -> None:
    request = Completion(prompts=("Hi",), n=2, n_predict=LONG, sampling=WILD, n_probs=2)
    heard = await heard_over_a_death(bus, hire, request, last=1)
    for answer in heard.answers:
        told = tuple(logprob for event in heard.tokens[answer.index] for logprob in event.logprobs)
        assert answer.logprobs == told
        assert [logprob.id for logprob in told] == list(answer.ids)
        assert all(len(logprob.top) == 2 for logprob in told)


@pytest.mark.parametrize("mirostat", [1, 2])
async def test_what_a_sampler_remembers_outlives_its_worker(bus: Bus, hire: Callable[..., Any], mirostat: int) -> None:
    sampling = WILD.model_copy(update={"mirostat": mirostat, "mirostat_tau": 3.0})
    request = Completion(prompts=("Hi",), n=2, n_predict=LONG, sampling=sampling)
    over_a_death = await heard_over_a_death(bus, hire, request, last=1)
    again = await heard_of(bus, request)
    assert [answer.text for answer in over_a_death.answers] == [answer.text for answer in again.answers]
    assert all(event.memory for events in again.tokens.values() for event in events)


async def test_a_prompt_is_computed_once_for_all_its_choices(bus: Bus, hire: Callable[..., Any]) -> None:
    worker = await hire()
    heard = await heard_of(bus, Completion(prompts=("Once " * 80,), n=10, n_predict=4, sampling=WILD))
    assert worker.engine.snapshot().work.n_prompt_tokens <= 400 + 9
    assert [answer.timings.prompt_n for answer in heard.answers] == [400] + [1] * 9


async def test_a_job_of_many_sequences_lets_another_in_between_and_ends_when_it_is_told_to(
    bus: Bus, hire: Callable[..., Any]
) -> None:
    worker = await hire(n_slots=2)
    request = Completion(prompts=("Hi",), n_predict=40, sampling=WILD)
    async with queued(bus, request.model_copy(update={"n": 128})) as many:
        await many.until(lambda: bool(many.tokens))
        await heard_of(bus, request)
        record = await bus.queue.cancel(many.job.id)
        assert record.status is JobStatus.RUNNING
        await many.to_the_end()
    assert many.finished and many.finished.status == "cancelled"
    await worker.has_free_slots(2)
    assert worker.engine.snapshot().work.n_predicted_tokens < 128 * 40


async def test_a_cancelled_job_frees_all_its_slots(bus: Bus, hire: Callable[..., Any]) -> None:
    worker = await hire()
    request = Completion(prompts=("Hi",), n=6, n_predict=2000, sampling=WILD)
    async with queued(bus, request) as heard:
        await heard.until(lambda: len(heard.tokens) == 4)
        assert worker.engine.free_slots() == 0
        await bus.queue.cancel(heard.job.id)
        await heard.to_the_end()
    assert heard.finished and heard.finished.status == "cancelled"
    await worker.has_free_slots(4)
    assert worker.engine.snapshot().work.n_predicted_tokens < 4 * 2000


async def test_a_sequence_that_fails_ends_its_job_and_the_work_on_the_others(
    bus: Bus, hire: Callable[..., Any]
) -> None:
    worker = await hire()
    request = Completion(prompts=("Hi",), n_predict=LONG, sampling=WILD)
    neighbour = asyncio.create_task(heard_of(bus, request))
    async with queued(bus, request.model_copy(update={"n": 3, "n_predict": 2000})) as heard:
        await heard.until(lambda: len(heard.tokens) == 3)
        worker.fail(heard.job.id, 1)
        await heard.to_the_end()
    assert heard.finished and heard.finished.failure
    assert (heard.finished.status, heard.finished.failure.code) == ("failed", "engine_failed")
    assert (await neighbour).answers[0].timings.predicted_n == LONG
    await worker.has_free_slots(4)
    assert worker.engine.snapshot().work.n_predicted_tokens < 3 * 2000
