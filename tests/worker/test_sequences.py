"""Jobs of several sequences, from the queue through a real engine to their one ending, also over a worker's death."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from shared.bus import Bus, LeaseKeeper, Reader, open_bus
from shared.errors import EngineFailed
from shared.events import Answer, Failure, Finished, Tokens
from shared.jobs import Completion, Job, JobStatus, Sampling
from shared.settings import BusSettings
from tests.models import write_byte_model
from tests.worker.engine.harness import config
from worker.engine import Engine, SequenceKey
from worker.held import HeldJobs
from worker.intake import Registrar
from worker.publisher import Publisher
from worker.puller import Hands, Puller, Station
from worker.rules import Rules

WILD = Sampling(seed=7, temperature=1.5, top_k=0, min_p=0.0, ignore_eos=True)
LONG = 200
PATIENCE_S = 30


class Worker:
    """All of a worker but its process, which can end between any two tokens as if it had been killed."""

    def __init__(self, bus: Bus, settings: BusSettings, model: Path, name: str, **engine: Any) -> None:
        self._held = HeldJobs()
        self._publisher = Publisher(bus.queue, self._held, name)
        # In 32 bits a text does not depend on who is in the batch.
        exact = {"n_ctx": 8192, "cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off"}
        self.engine = Engine(config(model, **exact | engine), self._publisher.post)
        loop = asyncio.get_running_loop()
        self._keeper = LeaseKeeper(
            settings,
            name,
            is_alive=lambda: True,
            on_cancel=lambda job_id: loop.call_soon_threadsafe(self._publisher.cancel, job_id) and None,
            on_lost=lambda lease: loop.call_soon_threadsafe(self._publisher.lose, lease) and None,
        )
        self._publisher.attach(self.engine, self._keeper)
        self._bus, self._name, self._lease_s = bus, name, settings.lease_s
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.engine.start)
        registrar = Registrar(self.engine.model, Rules(n_ctx=self.engine.n_ctx_slot, n_ubatch=512))
        hands = Hands(self.engine, self._held, self._publisher, self._keeper)
        station = Station(self._name, "m", self.engine.config.n_slots, self._lease_s)
        puller = Puller(self._bus.queue, self._bus.log, hands, registrar, station)
        self._keeper.start()
        work = (self._publisher.run(), puller.run(), puller.listen())
        self._tasks = [asyncio.create_task(each) for each in work]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()

    async def kill(self) -> None:
        """Not one more word; its leases run out."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._keeper.stop)
        await asyncio.to_thread(self.engine.stop)

    def fail(self, job_id: str, index: int) -> None:
        """As when the engine finds a sequence at fault."""
        held = self._held.get(job_id)
        assert held
        failure = Failure.of(EngineFailed("its logits are not numbers"))
        self._publisher.post([(SequenceKey(job_id, index, held.lease.mark), failure)])

    async def has_free_slots(self, n_slots: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.engine.free_slots() < n_slots or len(self._held):  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.005)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("models") / "bytes.gguf", n_ctx_train=8192)


@pytest.fixture
async def bus(settings: BusSettings) -> AsyncIterator[Bus]:
    async with open_bus(settings, name="test") as opened:
        yield opened


@pytest.fixture
def settings(embedded_settings: BusSettings) -> BusSettings:
    return embedded_settings.model_copy(update={"lease_s": 0.5})


@pytest.fixture
async def hire(bus: Bus, settings: BusSettings, model: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts workers that end with the test."""
    async with AsyncExitStack() as stack:

        async def start(name: str = "w1", **engine: Any) -> Worker:
            return await stack.enter_async_context(Worker(bus, settings, model, name, **engine))

        yield start


class Listener:
    """Hears a job, and keeps what was heard of each sequence."""

    def __init__(self, job: Job, reader: Reader) -> None:
        self.job = job
        self._reader = reader
        self.tokens: defaultdict[int, list[Tokens]] = defaultdict(list)
        self.numbers: list[int] = []
        self.finished: Finished | None = None

    async def until(self, is_enough: Callable[[], bool]) -> Self:
        """Or up to the end."""
        async for number, event in self._reader:
            if number is not None:
                self.numbers.append(number)
            if isinstance(event, Tokens):
                self.tokens[event.index].append(event)
            if isinstance(event, Finished):
                self.finished = event
            if is_enough():
                break
        return self

    async def to_the_end(self) -> Self:
        return await self.until(lambda: False)

    @property
    def answers(self) -> list[Answer]:
        assert self.finished
        return [part for part in self.finished.parts if isinstance(part, Answer)]

    def text(self, index: int) -> str:
        return "".join(event.text for event in self.tokens[index])


@asynccontextmanager
async def queued(bus: Bus, request: Completion) -> AsyncIterator[Listener]:
    job = Job(id=bus.queue.new_job_id(), model="m", request=request)
    async with bus.log.follow(job.id, expects=True) as reader, asyncio.timeout(PATIENCE_S):
        await bus.queue.enqueue(job)
        yield Listener(job, reader)


async def heard_of(bus: Bus, request: Completion) -> Listener:
    async with queued(bus, request) as listener:
        return await listener.to_the_end()


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
    assert worker.engine.snapshot().n_prompt_tokens <= 400 + 9
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
    assert worker.engine.snapshot().n_predicted_tokens < 128 * 40


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
    assert worker.engine.snapshot().n_predicted_tokens < 4 * 2000


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
    assert worker.engine.snapshot().n_predicted_tokens < 3 * 2000
