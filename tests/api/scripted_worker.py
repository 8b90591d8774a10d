"""A worker that does as its prompts say: a peer on the real bus, with a script instead of a model.

`say a|b|c` speaks three tokens. `hold a|b` speaks one, waits for `go`, then speaks on. `shut a` says nothing at all,
not even that it took the job, before `go`. `read a` tells every few milliseconds how it gets on with its prompt, before
`go`. `long` is refused as too long, `die a|b` ends as a job whose workers died. `see a` also speaks of its images.
An input of an embedding that begins with `rows` has two; a document's score is the number of its letters that the query
has too. Its tokens are bytes, and a chat's prompt is its last message.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from types import TracebackType
from typing import Any, Self

import numpy as np

from shared.bus import Bus, Chunk, Claimed, ModelCard, SlotState, Verdict, Wanted, WorkerState
from shared.errors import Cancelled, InvalidRequest, NotSupported, PromptTooLong, SlotstreamError, WorkerDied
from shared.events import (
    Accepted,
    AdapterScales,
    Answer,
    ChosenLogprob,
    Failure,
    Finished,
    Logprob,
    Part,
    Progress,
    Properties,
    ReplyForm,
    Score,
    SlotReport,
    StopType,
    Text,
    Timings,
    TokenIds,
    Tokens,
    Vector,
)
from shared.jobs import (
    ApplyTemplate,
    Chat,
    Completion,
    Detokenize,
    Embedding,
    Generation,
    GetProperties,
    Infill,
    Request,
    Rerank,
    SetAdapters,
    SlotAction,
    Tokenize,
)

N_CTX = 64


def card(name: str, **more: Any) -> ModelCard:
    return ModelCard(
        name=name,
        path=f"{name}.gguf",
        n_ctx=N_CTX,
        n_ctx_train=N_CTX,
        n_embd=4,
        size=1,
        **{"n_vocab": 100, "n_params": 1, **more},
    )


class ScriptedWorker:
    def __init__(self, bus: Bus, *, model: str = "tiny", worker_id: str = "w1", n_slots: int = 4, **card: Any) -> None:
        """`card` is what its model's card has besides what all have."""
        self.bus = bus
        self.model = model
        self.card = card
        self.id = worker_id
        self.n_slots = n_slots
        self.go = asyncio.Event()
        self.cancelled: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """By job: set when the worker was told to stop."""
        self.taken: list[str] = []
        self.scales: tuple[float, ...] | None = None
        """Of adapters, as they were set last."""
        self.scales_set_at = 0.0
        self.properties = Properties(metadata={"general.name": model}, chat_template="{{ messages }}")
        self.reply: ReplyForm | None = None
        """How what it says in chats is to be read."""
        self._changed = asyncio.Condition()
        self._running: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        await self.announce("ready")
        self._pull = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [self._pull, *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.bus.presence.leave(self.id)

    async def announce(self, status: str, n_busy: int = 0, **more: object) -> None:
        state = {
            "id": self.id,
            "model": card(self.model, **self.card),
            "status": status,
            "started_at": time.time(),
            "slots": [SlotState(id=i, is_processing=i < n_busy, n_ctx=N_CTX) for i in range(self.n_slots)],
            "n_slots": self.n_slots,
            "host": "here",
            "pid": 1,
            "build": "b1",
            "stores": tuple(self.bus.annex.marks),
            **more,
        }
        await self.bus.presence.announce(WorkerState.model_validate(state), ttl_s=60)

    async def has_taken(self, n_jobs: int) -> list[str]:
        """Waits until so many jobs were claimed in all; their ids."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.taken) >= n_jobs)
        return self.taken

    async def is_idle(self) -> None:
        """Waits until no job runs."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._running)

    async def _listen(self) -> None:
        async for wake in self.bus.queue.wakes(self.id, self.model):
            if wake.kind == "cancel":
                assert wake.job_id
                self.cancelled[wake.job_id].set()
            else:
                await self._claim(sweep=wake.kind != "new")

    async def _claim(self, *, sweep: bool = False) -> None:
        free = self.n_slots - len(self._running)
        wanted = Wanted(1, free, free, own=1, inputs=free, bulk_inputs=free)
        for claimed in await self.bus.queue.claim(self.id, self.model, wanted, sweep=sweep):
            self._running[claimed.job.id] = asyncio.create_task(self._work(claimed))
            async with self._changed:
                self.taken.append(claimed.job.id)
                self._changed.notify_all()

    async def _work(self, claimed: Claimed) -> None:
        performance = Performance(self, claimed)
        finished = await performance.run()
        await self.bus.queue.finish(claimed.lease, finished, performance.next_event)
        del self._running[claimed.job.id]
        async with self._changed:
            self._changed.notify_all()
        await self._claim()


class Performance:
    """One job from its claim to its ending."""

    def __init__(self, worker: ScriptedWorker, claimed: Claimed) -> None:
        self.worker = worker
        self.claimed = claimed
        self.next_event = 1
        self.is_cancelled = False

    async def run(self) -> Finished:
        request = self.claimed.job.request
        return await self._generate(request) if isinstance(request, Generation) else self._answer(request)

    def _answer(self, request: Request) -> Finished:
        """What needs no slot."""
        match request:
            case Embedding() if request.is_pooled and any(map(_is_many, request.inputs)):
                return failed(InvalidRequest("this worker does not pool"))
            case Embedding():
                parts: tuple[Part, ...] = tuple(map(vector, range(10**6), request.inputs))
            case Rerank():
                parts = tuple(scores(request))
            case SetAdapters():
                self.worker.scales = tuple(adapter.scale for adapter in request.adapters)
                self.worker.scales_set_at = request.set_at
                parts = (AdapterScales(scales=self.worker.scales),)
            case GetProperties():
                parts = (self.worker.properties,)
            case Tokenize(content=content):
                raw = str(content).encode()
                parts = (TokenIds.of(raw, [bytes([byte]) for byte in raw]),)
            case Detokenize(tokens=tokens):
                parts = (Text(text=bytes(token % 256 for token in tokens).decode(errors="replace")),)
            case ApplyTemplate(chat=chat):
                parts = (Text(text=prompts_of(chat)[0]),)
            case SlotAction():
                parts = (SlotReport(index=0, n_tokens=10 + request.slot, n_bytes=1000, ms=1.5),)
        return Finished(status="succeeded", parts=parts, worker=self.worker.id)

    async def _generate(self, request: Generation) -> Finished:
        verb, _, _ = prompts_of(request)[0].partition(" ")
        if verb == "long":
            return failed(
                PromptTooLong("the request exceeds the available context size", n_prompt_tokens=99, n_ctx=N_CTX)
            )
        if verb == "lack":
            return failed(NotSupported("the model has no tokens for that"))
        if verb == "shut":
            await self._wait_for_go()
        form = self.worker.reply if isinstance(request, Chat) else None
        await self._append(accepted=Accepted(prompt_tokens=7, n_ctx=N_CTX, reply=form))
        if verb == "read":
            await self._tell_of_progress()
        speeches = [
            Speech(request, index, prompt, choice)
            for index, (prompt, choice) in enumerate(product(prompts_of(request), range(request.n)))
        ]
        await self._speak(speeches, holds=verb == "hold")
        if self.is_cancelled:
            return Finished(status="cancelled", failure=Failure.of(Cancelled("The job was cancelled")))
        if verb == "die":
            return failed(WorkerDied("its workers died"))
        answers = (speech.answer().model_copy(update={"reply": form}) for speech in speeches)
        return Finished(status="succeeded", parts=tuple(answers))

    async def _speak(self, speeches: list[Speech], *, holds: bool) -> None:
        """A word of each in turn."""
        for number in range(max(len(speech.words) for speech in speeches)):
            if holds and number == 1:
                await self._wait_for_go()
            if self.is_cancelled:
                break
            for speech in speeches:
                if number < len(speech.words):
                    await self._append(speech.say(number))

    async def _wait_for_go(self) -> None:
        told = [
            asyncio.create_task(self.worker.go.wait()),
            asyncio.create_task(self.worker.cancelled[self.claimed.job.id].wait()),
        ]
        try:
            await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in told:
                task.cancel()
        self.is_cancelled = self.worker.cancelled[self.claimed.job.id].is_set()

    async def _tell_of_progress(self) -> None:
        processed = 0
        while not self.worker.go.is_set():
            processed += 1
            await self._append(progress=Progress(total=10**6, cache=0, processed=processed, time_ms=processed))
            await asyncio.sleep(0.005)

    async def _append(
        self, *events: Tokens, accepted: Accepted | None = None, progress: Progress | None = None
    ) -> None:
        chunk = Chunk(self.claimed.lease, self.next_event, events, accepted=accepted, progress=progress)
        (verdict,) = await self.worker.bus.queue.append([chunk])
        self.next_event += len(events)
        if verdict is Verdict.CANCEL:
            self.is_cancelled = True
            self.worker.cancelled[self.claimed.job.id].set()


class Speech:
    """What one sequence of a job says."""

    def __init__(self, request: Generation, index: int, prompt: str, choice: int) -> None:
        self._request = request
        self._index = index
        words = [word + "'" * choice for word in prompt.partition(" ")[2].split("|")]
        if request.media:
            words = [word.replace(request.media.mark, "*") for word in words]
            words += [image.data for image in request.media.images]
        self.words = words if request.n_predict < 0 else words[: request.n_predict]
        self._is_cut = 0 <= request.n_predict <= len(words)
        self._said: list[Tokens] = []

    @property
    def _ids(self) -> tuple[int, ...]:
        return tuple(token for tokens in self._said for token in tokens.ids)

    def say(self, number: int) -> Tokens:
        word = self.words[number]
        pieces = [word.encode()] if word.isascii() else [word.encode()[:-1], word.encode()[-1:]]
        ids = tuple(range(len(self._ids), len(self._ids) + len(pieces)))
        entries = tuple(map(self._chosen, ids, pieces)) if self._request.wants_logprobs else ()
        timings = Timings(predicted_n=ids[-1] + 1) if self._request.timings_per_token else None
        self._said.append(Tokens(index=self._index, ids=ids, text=word, logprobs=entries, timings=timings))
        return self._said[-1]

    def _chosen(self, token: int, piece: bytes) -> ChosenLogprob:
        """As likely as all that is less likely together."""
        others = [(token, piece), *((90 + n, b"x%d" % n) for n in range(9))][: self._request.n_probs]
        top = tuple(
            Logprob(id=other, piece=base64.b64encode(raw).decode(), logprob=math.log(0.5**rank))
            for rank, (other, raw) in enumerate(others, 1)
        )
        return ChosenLogprob(id=token, piece=base64.b64encode(piece).decode(), logprob=math.log(0.5), top=top)

    def answer(self) -> Answer:
        sampling, n_said = self._request.sampling, len(self._ids)
        return Answer(
            index=self._index,
            text="".join(self.words),
            ids=self._ids,
            prompt="the prompt",
            prompt_tokens=7,
            stop_type=StopType.LIMIT if self._is_cut else StopType.EOS,
            id_slot=self._request.id_slot if self._request.id_slot >= 0 else 2,
            seed=sampling.seed if sampling.seed is not None else 42,
            logprobs=tuple(entry for tokens in self._said for entry in tokens.logprobs),
            timings=Timings(queue_ms=1.5, cache_n=3, prompt_n=4, prompt_ms=8.0, predicted_n=n_said, predicted_ms=10.0),
        )


def prompts_of(request: Generation) -> list[str]:
    match request:
        case Chat(messages=messages):
            return [str(messages[-1]["content"])]
        case Completion(prompts=prompts):
            return [prompt if isinstance(prompt, str) else f"say {prompt}" for prompt in prompts]
        case Infill(prefix=prefix):
            return [prefix if isinstance(prefix, str) else f"say {prefix}"]
    raise AssertionError(f"no prompt in {request}")


def failed(error: SlotstreamError) -> Finished:
    return Finished(status="failed", failure=Failure.of(error))


def vector(index: int, prompt: object) -> Part:
    """Of length 1, and a function of the input alone."""
    digest = hashlib.sha256(repr(prompt).encode()).digest()[:4]
    values = np.frombuffer(digest, dtype=np.uint8).astype(np.float32) + 1
    values /= np.linalg.norm(values)
    return Vector.of(index, values.reshape(2, -1) if _is_many(prompt) else values, prompt_tokens=len(str(prompt)))


def _is_many(prompt: object) -> bool:
    return str(prompt).startswith("rows")


def scores(request: Rerank) -> Iterator[Score]:
    for index, document in enumerate(request.documents):
        n_shared = len(set(document) & set(request.query))
        yield Score(index=index, prompt_tokens=len(document), score=float(n_shared) - 0.5)
