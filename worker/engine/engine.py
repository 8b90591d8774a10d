"""The loop that decodes. One thread, from start to stop; everything else reaches it through its inbox.

Knows no asyncio, no queue, no JSON. Text and events are the scribe's; llama.cpp is behind `llama`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from shared.errors import Cancelled, EngineFailed, Expired, InvalidRequest, PromptTooLong, SlotstreamError
from shared.events import Failure, StopType, Timings
from shared.jobs import Lane
from worker.engine.cells import Cells
from worker.engine.config import EngineConfig
from worker.engine.embedding import Embedder
from worker.engine.lanes import Ageing, Lanes
from worker.engine.llama import (
    Context,
    ContextParams,
    Decoded,
    DecodeFailed,
    Floats,
    Interrupt,
    Interrupted,
    LoadFailed,
    Model,
    Outcome,
    OutOfCells,
    Piece,
    max_sequences,
)
from worker.engine.meter import Meter
from worker.engine.plan import Pace, Plan, Yielding, plan_batch, with_bulk
from worker.engine.sampling import NO_TOKEN, Sampler, choose
from worker.engine.scribe import Chosen, Ended, EngineEvent, Line, OnEvents, Prefilled, Said, Scribe, answer
from worker.engine.sequence import Clock, Completed, Discarded, Ending, Failed, Limits, Phase, Sequence
from worker.engine.snapshot import BatchSnapshot, EngineSnapshot, SlotSnapshot
from worker.engine.task import EmbedTask, GenerateTask, Task
from worker.engine.transcript import Transcript

__all__ = ["Engine", "EngineEvent", "OnEvents"]


class _Cancel(NamedTuple):
    job_id: str


class _Discard(NamedTuple):
    job_id: str
    epoch: int


class _Submitted(NamedTuple):
    """A task, and when it came in (monotonic seconds)."""

    task: Task
    at: float


_Message = _Cancel | _Discard | _Submitted

OVERDUE_EVERY_S = 0.05
"""How often deadlines are looked at."""
WORTH_INTERRUPTING_MS = 50.0
"""A decode of bulk that a person interrupts is lost work: shorter ones are waited for."""
MOST_INTERRUPTIONS = 3
"""In a row: bulk goes on however often people come."""
HURRY_S = 60.0
"""People come in bursts: for so long after one, decodes stay short for the next."""


class Engine:
    """Runs tasks. `submit`, `cancel`, `discard`, `snapshot` and `free_slots` are for any thread.

    `on_events` is called from a thread of the engine, at most once per step and never twice at a time, with all that
    happened in order; it must not block.
    """

    def __init__(self, config: EngineConfig, on_events: OnEvents) -> None:
        self.config = config
        self._on_events = on_events
        self._inbox: deque[_Message] = deque()
        self._wake = threading.Event()
        self._is_stopping = False
        self._resources = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._model: Model | None = None
        self._meter = Meter()
        self._count_lock = threading.Lock()
        self._n_generating = 0  # tasks to generate that have not ended: under the lock
        # Below: written by the decode thread only. Others read `_slots`, `_batch`, `_progress_at`
        # and `_is_resting` as they are.
        self._to_generate: Lanes[GenerateTask] = Lanes()
        self._to_embed: Lanes[EmbedTask] = Lanes()
        self._running: list[Sequence] = []
        self._parked: list[Sequence] = []
        self._ageing = Ageing(config.age_s, config.quantum_s)
        self._embed_ageing = Ageing(config.age_s, config.quantum_s)
        self._slots: list[Sequence | None] = [None] * config.n_slots
        self._suspects: list[Sequence] = []
        self._lines: list[Line] = []
        self._yielding = Yielding()
        self._embed_yielding = Yielding()
        self._has_embedded = False
        self._interrupt = Interrupt()
        self._n_interruptions = 0
        self._overdue_at = 0.0
        self._hurried_until = 0.0
        self._batch = BatchSnapshot()
        self._progress_at = time.monotonic()
        self._is_resting = True

    def start(self) -> None:
        """Load the model, then decode. LoadFailed, after which nothing is left to stop."""
        with contextlib.ExitStack() as resources:
            model = resources.enter_context(Model.load(self.config.model, n_gpu_layers=self.config.n_gpu_layers))
            n_ctx = self.config.n_ctx or model.facts.n_ctx_train
            self._n_ctx_slot = min(self.config.n_ctx_slot or n_ctx // self.config.n_slots, n_ctx)
            _check(self.config, self._n_ctx_slot)
            n_shelves = _n_shelves(self.config, model)
            params = ContextParams.to_generate(self.config, n_ctx, n_shelves)
            context = resources.enter_context(Context.open(model, params))
            self._warm_up(context)
            self._embedder = resources.enter_context(Embedder(model, self.config))
            self._resources = resources.pop_all()
        self._model, self._context = model, context
        self._n_batch = self._max_prefill = context.n_batch
        self._pace = Pace(self._n_batch)
        self._cells = Cells(context, self.config.n_slots, n_shelves, can_rewind=model.facts.can_rewind)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current decode and free everything. What has not ended stays unsaid."""
        self._is_stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._resources.close()

    @property
    def model(self) -> Model:
        """For its facts and its vocabulary; there from `start` on."""
        assert self._model is not None, "the engine has not been started"
        return self._model

    @property
    def n_ctx_slot(self) -> int:
        """Longest that a sequence can get, in tokens: a prompt must be shorter."""
        return self._n_ctx_slot

    def submit(self, task: Task) -> None:
        """Take on a task. More may be submitted than there are slots: they wait, interactive ones first."""
        if isinstance(task, GenerateTask):
            self._count(1)
        self._send(_Submitted(task, time.monotonic()))
        if task.lane is Lane.INTERACTIVE:
            self._interrupt.set()  # after it can be found in the inbox: see `_decode`

    def cancel(self, job_id: str) -> None:
        """End all sequences of a job with a failure `cancelled`, before the next decode."""
        self._send(_Cancel(job_id))

    def discard(self, job_id: str, epoch: int = 0) -> None:
        """Drop all sequences of one attempt at a job without a word: it belongs to another now."""
        self._send(_Discard(job_id, epoch))

    def free_slots(self) -> int:
        """How many more tasks would start at once."""
        with self._count_lock:
            return max(0, self.config.n_slots - self._n_generating)

    def snapshot(self) -> EngineSnapshot:
        """The state at this moment. Takes no lock, so counts of one slot may be a step apart."""
        meter, batch = self._meter, self._batch
        slots = tuple(
            _slot_snapshot(slot, sequence, self._n_ctx_slot) for slot, sequence in enumerate(list(self._slots))
        )
        n_waiting = len(self._to_generate) + len(self._to_embed) + len(self._inbox)
        return EngineSnapshot(
            slots=slots,
            n_waiting=n_waiting,
            n_parked=len(self._parked),
            batch=batch,
            steps=meter.steps,
            progress_at=self._progress_at,
            is_busy=not self._is_resting,
            is_alive=self._thread.is_alive(),
            gap_ms=meter.gap_ms,
            gap_ms_p50=meter.gap_ms_p50,
            decode_ms=meter.decode_ms,
            tokens_per_second=meter.tokens_per_second(time.monotonic()),
            n_prompt_tokens=meter.n_prompt_tokens,
            n_prompt_tokens_cached=meter.n_prompt_tokens_cached,
            n_predicted_tokens=meter.n_predicted_tokens,
        )

    def _send(self, message: _Message) -> None:
        self._inbox.append(message)
        self._wake.set()

    def _count(self, change: int) -> None:
        with self._count_lock:
            self._n_generating += change

    def _run(self) -> None:
        self._is_resting = False
        with Scribe(self.model.detokenize, self._on_events) as self._scribe:
            while not self._is_stopping:
                self._progress_at = time.monotonic()
                if self._has_work():
                    self.step()
                else:
                    self._meter.pause()
                    self._is_resting = True
                    self._wake.wait()
                    self._progress_at = time.monotonic()
                    self._is_resting = False

    def _has_work(self) -> bool:
        has_tasks = len(self._to_generate) > 0 or len(self._to_embed) > 0
        return has_tasks or bool(self._inbox or self._lines or self._running or self._parked)

    def step(self) -> None:
        """One turn: listen, admit, compute while the text of the last turn is written, retire."""
        self._listen()
        self._admit()
        if self._is_turn_to_embed():
            self._embed()
        else:
            self._generate()
        self._retire()

    def _generate(self) -> None:
        """Plan, decode, choose."""
        plan = self._plan()
        pieces = [_piece(sequence, n_tokens) for sequence, n_tokens in plan.shares]
        self._scribe.hand(self._take_lines())  # the last thing before a decode, which leaves the scribe the GIL
        outcome = self._decode(plan, pieces)
        self._stop(self._scribe.collect())
        match outcome:
            case Decoded(logits):
                self._advance(plan, pieces, logits)
            case OutOfCells():
                self._make_room(plan)
            case DecodeFailed(reason):
                self._isolate(plan, reason)
            case Interrupted():
                self._undo(plan)

    def _take_lines(self) -> list[Line]:
        lines, self._lines = self._lines, []
        return lines

    def _listen(self) -> None:
        """Take in what others sent, in order, and end what is overdue."""
        self._wake.clear()
        while self._inbox:
            match self._inbox.popleft():
                case _Submitted(task, at):
                    self._take_on(task, at)
                case _Cancel(job_id):
                    self._end_all(partial(_is_of_job, job_id), _CANCELLED)
                case _Discard(job_id, epoch):
                    self._end_all(partial(_is_of_attempt, job_id, epoch), Discarded())
        now = time.monotonic()
        if now >= self._overdue_at:
            self._overdue_at = now + OVERDUE_EVERY_S
            self._end_all(partial(_is_overdue, now), _EXPIRED)

    def _take_on(self, task: Task, at: float) -> None:
        if task.lane is Lane.INTERACTIVE:
            self._hurried_until = at + HURRY_S
        if isinstance(task, EmbedTask):
            self._take_on_embedding(task, at)
        elif error := self._check(task):
            self._finish(task, Failure.of(error))
        elif (ending := self._ending_at_once(task)) is not None:
            self._answer_at_once(task, ending)
        else:
            self._to_generate.add(task, at)

    def _take_on_embedding(self, task: EmbedTask, at: float) -> None:
        if error := self._embedder.check(task):
            self._lines.append(Said(task.key, Failure.of(error)))
        else:
            self._to_embed.add(task, at)

    def _check(self, task: GenerateTask) -> SlotstreamError | None:
        """What would harm others if it got further. Intake says the same, earlier and better."""
        n_prompt, n_ctx = len(task.prompt), self._n_ctx_slot
        if not self.model.has_tokens((*task.prompt, *task.produced)):
            return InvalidRequest("the prompt contains invalid tokens", param="prompt")
        if n_prompt >= n_ctx:
            return PromptTooLong(
                f"the prompt has {n_prompt} tokens, which exceeds the available context size of {n_ctx} tokens",
                n_prompt_tokens=n_prompt,
                n_ctx=n_ctx,
            )
        return None

    def _ending_at_once(self, task: GenerateTask) -> Completed | None:
        """The ending of a task that needs no decode: an empty prompt, or an earlier attempt that got to the end."""
        if not task.prompt:
            return Completed(StopType.LIMIT)
        if not task.produced:
            return None
        transcript = self._transcript(task)
        transcript.replay(task.produced)
        if transcript.stopping_word:
            return Completed(StopType.WORD)
        n_decoded = len(task.produced)
        return self._limits(task).ending(task.produced[-1], n_decoded, len(task.prompt) + n_decoded)

    def _answer_at_once(self, task: GenerateTask, ending: Completed) -> None:
        transcript = self._transcript(task)
        transcript.replay(task.produced)
        transcript.flush()
        timings = Timings(queue_ms=task.queue_ms, cache_n=len(task.prompt), predicted_n=len(transcript.ids))
        self._finish(task, answer(task, transcript, ending, timings, self.model.detokenize))

    def _finish(self, task: GenerateTask, event: EngineEvent) -> None:
        """End a task that has no slot."""
        self._lines.append(Said(task.key, event))
        self._count(-1)

    def _end_all(self, is_going: Callable[[Task], bool], ending: Failed | Discarded) -> None:
        """End every sequence whose task is going, whether it waits, runs or is parked."""
        unplaced = self._to_generate.remove(is_going)
        self._count(-len(unplaced))
        waiting: list[Task] = [*unplaced, *self._to_embed.remove(is_going)]
        for task in waiting:
            if isinstance(ending, Failed):
                self._lines.append(Said(task.key, Failure.of(ending.error)))
        for sequence in (*self._running, *self._parked):
            if is_going(sequence.task):
                self._end(sequence, ending)

    def _end(self, sequence: Sequence, ending: Ending) -> None:
        """End a sequence between two tokens."""
        if sequence.phase is not Phase.ENDED:
            sequence.end(ending)
            self._lines.append(Ended(sequence, ending, time.monotonic()))

    def _admit(self) -> None:
        """Fill the slots. People who find none take those of bulk, which is parked."""
        self._retire()
        for sequence in self._running:
            self._cells.catch_up(sequence.resident)  # before slots change hands: a leader may be among those that go
        while self._cells.n_idle and self._start_next():
            pass
        while self._to_generate.count(Lane.INTERACTIVE) and (bulk := self._cheapest_to_park()):
            self._park(bulk)
            self._start(Lane.INTERACTIVE)

    def _start_next(self) -> bool:
        """Give an idle slot to who is next: bulk that is due, people, parked bulk, other bulk. False: nobody waits."""
        now = time.monotonic()
        parked = min(self._parked, key=lambda sequence: sequence.waits_since, default=None)
        since = parked.waits_since if parked else self._to_generate.since(Lane.BULK)
        have_people = self._to_generate.count(Lane.INTERACTIVE) > 0
        is_due = have_people and self._ageing.is_due(since, now)
        if have_people and not is_due:
            self._start(Lane.INTERACTIVE)
        elif parked:
            self._resume(parked, now)
        elif self._to_generate.count(Lane.BULK):
            self._start(Lane.BULK)
        else:
            return False
        if is_due:
            self._running[-1].guarded_until = self._ageing.begin(now)
        return True

    def _cheapest_to_park(self) -> Sequence | None:
        """Should its cells be needed, all that it has in them must be computed again: so the one with the fewest. It
        has mostly run the shortest, and is still in its prompt if any is."""
        now = time.monotonic()
        bulk = [sequence for sequence in self._running if sequence.is_bulk and sequence.guarded_until <= now]
        return min(bulk, key=lambda sequence: sequence.resident.n_cached, default=None)

    def _park(self, sequence: Sequence) -> None:
        shelf = self._cells.shelve(sequence.resident)
        sequence.park(shelf, time.monotonic(), self.config.quantum_s)
        self._running.remove(sequence)
        self._parked.append(sequence)

    def _resume(self, sequence: Sequence, now: float) -> None:
        """Give a parked sequence a slot; one must be idle."""
        resident = self._cells.unshelve(sequence.resident, may_reuse=sequence.task.request.cache_prompt)
        assert resident is not None
        sequence.resume(resident, now)
        self._parked.remove(sequence)
        self._seat(sequence)

    def _start(self, lane: Lane) -> None:
        task, since = self._to_generate.pop(lane)
        self._seat(self._place(task, since))

    def _seat(self, sequence: Sequence) -> None:
        self._running.append(sequence)
        self._slots[sequence.slot] = sequence

    def _place(self, task: GenerateTask, since: float) -> Sequence:
        """Give a task a slot; one must be idle."""
        known = task.prompt + task.produced
        tokens = np.zeros(self._n_ctx_slot, dtype=np.int32)
        tokens[: len(known)] = known
        resident = self._cells.place(
            tokens, len(known), may_reuse=task.request.cache_prompt, is_patient=task.lane is Lane.BULK
        )
        assert resident is not None
        sampler = Sampler(task.request.sampling, task.seed, n_vocab=self.model.facts.n_vocab, eog=self.model.eog)
        for token in known:
            sampler.accept(token)
        transcript = self._transcript(task)
        transcript.replay(task.produced)
        now = time.monotonic()
        return Sequence(
            task,
            resident,
            sampler,
            transcript,
            self._limits(task),
            Clock(queue_ms=task.queue_ms + (now - since) * 1e3, started=now),
            resident.slot,
            waits_since=since,
            placed_at=now,
        )

    def _limits(self, task: GenerateTask) -> Limits:
        return Limits(self._n_ctx_slot, task.request.n_predict, self.model.eog)

    def _transcript(self, task: GenerateTask) -> Transcript:
        return Transcript(task.request.stop, self.model.token_bytes)

    def _plan(self) -> Plan[Sequence]:
        """What goes into the next decode. After a failed one its sequences are tried one at a time."""
        while self._suspects:
            suspect = self._suspects.pop()
            if suspect.has_slot:
                return plan_batch([suspect], self._n_batch, self._n_batch)
        if people := self._people():
            return self._plan_beside(people)
        self._yielding.took_turn()
        return plan_batch(
            self._running, self._n_batch, self._n_prefill(self._running, is_hurried=self._have_people_come())
        )

    def _plan_beside(self, people: list[Sequence]) -> Plan[Sequence]:
        """People first, and of bulk what does not hold them up, beginning with who was served the longest ago."""
        is_streaming = any(sequence.is_generating for sequence in people)
        plan = plan_batch(people, self._n_batch, self._n_prefill(people, is_hurried=is_streaming))
        bulk = sorted((sequence for sequence in self._running if sequence.is_bulk), key=lambda each: each.served_at)
        people_ms = self._pace.expected_ms(len(plan.generating), plan.n_prefill)
        room = self._yielding.room(people_ms, is_awaited=any(sequence.is_awaited for sequence in people))
        if room.must_serve and bulk:
            self._yielding.took_turn()
        else:
            self._yielding.passed()
        self._embed_yielding.passed()
        return with_bulk(plan, bulk, room, self._pace, n_batch=self._n_batch, n_prefill=self._max_prefill)

    def _people(self) -> list[Sequence]:
        return [sequence for sequence in self._running if not sequence.is_bulk]

    def _n_prefill(self, sequences: list[Sequence], *, is_hurried: bool) -> int:
        n_generating = sum(sequence.is_generating for sequence in sequences)
        return min(self._pace.prefill_budget(n_generating, is_hurried=is_hurried), self._max_prefill)

    def _have_people_come(self) -> bool:
        """Lately, so that another may well come soon."""
        return time.monotonic() < self._hurried_until

    def _decode(self, plan: Plan[Sequence], pieces: list[Piece]) -> Outcome:
        if not pieces:
            self._meter.pause()
            return Decoded(np.empty((0, 0), dtype=np.float32))
        interrupt = self._interrupt if self._is_worth_interrupting(plan) else None
        self._interrupt.clear()
        if self._has_person_come():
            self._interrupt.set()
        started = time.monotonic()
        outcome = self._context.decode(pieces, interrupt)
        ended = time.monotonic()
        self._meter.decoded(started, ended)
        self._batch = BatchSnapshot(
            step=self._meter.steps,
            generating=tuple(sequence.slot for sequence in plan.generating),
            prefilling=tuple((sequence.slot, n_tokens) for sequence, n_tokens in plan.prefill),
        )
        if isinstance(outcome, Decoded):
            self._pace.observe(len(plan.generating), plan.n_prefill, (ended - started) * 1e3)
        return outcome

    def _is_worth_interrupting(self, plan: Plan[Sequence]) -> bool:
        """Whether it is long, for bulk alone, and a person who comes would have a slot. A state that cannot lose its
        end would be lost as a whole."""
        return (
            self._n_interruptions < MOST_INTERRUPTIONS
            and self._pace.expected_ms(len(plan.generating), plan.n_prefill) >= WORTH_INTERRUPTING_MS
            and self.model.facts.can_rewind
            and all(sequence.is_bulk for sequence, _ in plan.shares)
            and (self._cells.n_idle > 0 or self._cheapest_to_park() is not None)
        )

    def _has_person_come(self) -> bool:
        messages = list(self._inbox)
        return any(isinstance(each, _Submitted) and each.task.lane is Lane.INTERACTIVE for each in messages)

    def _stop(self, stopped: Iterable[Sequence]) -> None:
        """The scribe met a stop string in the last tokens of these; their answers are given."""
        for sequence in stopped:
            sequence.end(Completed(StopType.WORD))

    def _advance(self, plan: Plan[Sequence], pieces: list[Piece], logits: Floats) -> None:
        """The decode succeeded: commit the plan, choose the next token of every sequence that can have one."""
        now = time.monotonic()
        self._max_prefill = self._n_batch
        if any(sequence.is_bulk for sequence, _ in plan.shares):
            self._n_interruptions = 0
        rows: list[Sequence] = []
        for (sequence, n_tokens), piece in zip(plan.shares, pieces, strict=True):
            self._commit(sequence, n_tokens, now)
            if piece.wants_logits:
                rows.append(sequence)
        choosing = [(row, sequence) for row, sequence in enumerate(rows) if sequence.is_choosing]
        if not choosing:
            return
        if len(choosing) < len(rows):
            logits = logits[[row for row, _ in choosing]]
        sequences = [sequence for _, sequence in choosing]
        tokens = choose(
            logits,
            [sequence.sampler for sequence in sequences],
            [sequence.resident.n_tokens for sequence in sequences],
        )
        for sequence, token in zip(sequences, tokens, strict=True):
            self._choose(sequence, token, now)
        self._meter.chose(len(tokens), now)

    def _commit(self, sequence: Sequence, n_tokens: int, now: float) -> None:
        sequence.computed(n_tokens, now)
        if sequence.phase is not Phase.PREFILL:
            return
        self._meter.n_prompt_tokens += n_tokens
        if not sequence.is_told_of:
            self._meter.n_prompt_tokens_cached += sequence.n_reused
            self._tell(sequence, sequence.n_reused, sequence.clock.started)
        if sequence.n_prompt_cached > sequence.n_told:
            self._tell(sequence, sequence.n_prompt_cached, now)
        if sequence.task.request.n_predict == 0 and sequence.is_choosing:
            sequence.clock.prompted = now
            self._end(sequence, Completed(StopType.LIMIT))

    def _tell(self, sequence: Sequence, n_processed: int, at: float) -> None:
        sequence.n_told = n_processed
        self._lines.append(Prefilled(sequence, n_processed, at))

    def _choose(self, sequence: Sequence, token: int, now: float) -> None:
        if token == NO_TOKEN:
            error: SlotstreamError = EngineFailed("no token can be chosen: the model's logits are not numbers")
            if sequence.task.request.sampling.logit_bias:
                error = InvalidRequest("no token can be chosen: all are banned", param="logit_bias")
            self._end(sequence, Failed(error))
            return
        sequence.choose(token, now)
        self._lines.append(Chosen(sequence, token, sequence.ending, now))

    def _make_room(self, plan: Plan[Sequence]) -> None:
        """No cells for this plan: give up what nobody uses, then ask for less, then end the newest
        sequence, of bulk if there is any."""
        if self._cells.drop_oldest_idle():
            return
        if plan.n_prefill > 1:
            self._max_prefill = plan.n_prefill // 2
            return
        newest = max(self._running, key=lambda sequence: (sequence.is_bulk, sequence.clock.started))
        self._end(newest, Failed(EngineFailed("the KV cache is full; a larger context size or fewer slots help")))
        self._cells.forget(newest.resident)

    def _isolate(self, plan: Plan[Sequence], reason: str) -> None:
        """A decode failed: one sequence is at fault, not all. Alone it is ended, else each is tried alone."""
        sequences = self._restore(plan)
        if len(sequences) == 1:
            self._end(sequences[0], Failed(EngineFailed(reason)))
            self._cells.forget(sequences[0].resident)
        else:
            self._suspects = sequences

    def _undo(self, plan: Plan[Sequence]) -> None:
        """A person came in the middle of it. It is planned again when it is bulk's turn."""
        self._n_interruptions += 1
        self._restore(plan)

    def _restore(self, plan: Plan[Sequence]) -> list[Sequence]:
        """Take what a decode left halfway out of the cache. Returns whom it was for."""
        sequences = [sequence for sequence, _ in plan.shares]
        for sequence in sequences:
            self._cells.restore(sequence.resident)
        return sequences

    def _is_turn_to_embed(self) -> bool:
        """In turns with batches, when there is both; but bulk of the one kind waits for people of the other, as far as
        its own turns allow. Sequences under suspicion are cleared first."""
        has_embedded, self._has_embedded = self._has_embedded, False
        if not len(self._to_embed) or self._suspects:
            return False
        has_people, is_for_people = bool(self._people()), self._to_embed.count(Lane.INTERACTIVE) > 0
        if has_people and not is_for_people:
            return self._is_bulk_embedding_due()
        if is_for_people and not has_people and self._running:
            return not self._yielding.is_due()
        return not (self._running and has_embedded)

    def _is_bulk_embedding_due(self) -> bool:
        cost_ms = self._pace.expected_ms(0, len(self._to_embed.first(Lane.BULK).tokens))
        return self._embed_yielding.is_due(self._meter.decode_ms, cost_ms)

    def _embed(self) -> None:
        """A turn of embeddings, of one lane; no other input once somebody has sent something."""
        self._has_embedded = True
        self._meter.pause()
        self._scribe.hand(self._take_lines())
        lane, n_left = self._next_to_embed()
        n_inputs = 0
        while n_left > 0 and self._to_embed.count(lane) and not (n_inputs and self._inbox) and not self._is_stopping:
            task, _ = self._to_embed.pop(lane)
            self._lines.append(Said(task.key, self._embedder.embed(task)))
            self._meter.n_prompt_tokens += len(task.tokens)
            n_left -= len(task.tokens)
            n_inputs += 1
        if lane is Lane.INTERACTIVE:
            self._yielding.passed()
        else:
            self._embed_yielding.took_turn()
        self._batch = BatchSnapshot(step=self._meter.steps, n_embedding_inputs=n_inputs)
        self._stop(self._scribe.collect())

    def _next_to_embed(self) -> tuple[Lane, int]:
        """Whose turn it is, and for how many tokens: as many as a prefill could have, but one input at least. Bulk that
        goes before people, or beside them, has one input."""
        now = time.monotonic()
        is_hurried = self._have_people_come() or bool(self._people())
        n_tokens = self._pace.prefill_budget(len(self._running), is_hurried=is_hurried)
        if not self._to_embed.count(Lane.INTERACTIVE):
            return Lane.BULK, 1 if self._people() else n_tokens
        if self._embed_ageing.is_due(self._to_embed.since(Lane.BULK), now):
            self._embed_ageing.begin(now)
            return Lane.BULK, 1
        return Lane.INTERACTIVE, n_tokens

    def _retire(self) -> None:
        """Free the slots of sequences that ended, whose cells stay, and the shelves of those that were parked."""
        for sequence in _ended(self._running):
            self._cells.release(sequence.resident)
            self._running.remove(sequence)
            self._count(-1)
        for sequence in _ended(self._parked):
            self._cells.clear(sequence.resident)
            self._parked.remove(sequence)
            self._count(-1)

    def _warm_up(self, context: Context) -> None:
        """Touch the weights once, so that the first request does not wait for the disk."""
        context.decode([Piece(0, 0, np.zeros(1, dtype=np.int32), True)])
        context.clear()


def _is_of_job(job_id: str, task: Task) -> bool:
    return task.key.job_id == job_id


def _is_of_attempt(job_id: str, epoch: int, task: Task) -> bool:
    return (task.key.job_id, task.key.epoch) == (job_id, epoch)


def _is_overdue(now: float, task: Task) -> bool:
    return task.deadline is not None and task.deadline < now


def _ended(sequences: Iterable[Sequence]) -> list[Sequence]:
    return [sequence for sequence in sequences if sequence.phase is Phase.ENDED]


_CANCELLED = Failed(Cancelled("the job was cancelled"))
_EXPIRED = Failed(Expired("the job's deadline passed while it ran"))


def _check(config: EngineConfig, n_ctx_slot: int) -> None:
    if config.n_slots > max_sequences():
        raise LoadFailed(f"--parallel is {config.n_slots}, and llama.cpp takes at most {max_sequences()}")
    if config.n_batch < config.n_slots:
        raise LoadFailed(f"--batch-size is {config.n_batch}, and must be at least --parallel, {config.n_slots}")
    if n_ctx_slot < 2:
        raise LoadFailed(f"--ctx-size leaves {n_ctx_slot} tokens to each of {config.n_slots} slots")


def _n_shelves(config: EngineConfig, model: Model) -> int:
    """Ids for the cells of parked sequences: of those there are never more than slots. Where a state cannot be cut,
    each id costs the memory of a whole one, and parked sequences are computed again instead."""
    return min(config.n_slots, max_sequences() - config.n_slots) if model.facts.can_rewind else 0


def _piece(sequence: Sequence, n_tokens: int) -> Piece:
    """The next known tokens of a sequence; logits are wanted of the last known one, if a next token is."""
    resident = sequence.resident
    start = resident.n_cached
    wants_logits = n_tokens == resident.n_pending and sequence.task.request.n_predict != 0
    return Piece(resident.slot, start, resident.tokens[start : start + n_tokens], wants_logits)


def _slot_snapshot(slot: int, sequence: Sequence | None, n_ctx: int) -> SlotSnapshot:
    if sequence is None:
        return SlotSnapshot(id=slot, is_processing=False, n_ctx=n_ctx)
    is_processing = sequence.phase is not Phase.ENDED
    return SlotSnapshot(
        id=slot,
        is_processing=is_processing,
        n_ctx=n_ctx,
        job_id=sequence.task.key.job_id if is_processing else None,
        n_prompt_tokens=sequence.n_prompt,
        n_prompt_tokens_processed=sequence.n_prompt_cached,
        n_prompt_tokens_cache=sequence.n_reused,
        n_decoded=sequence.n_decoded if is_processing else 0,
        n_remain=sequence.n_remain if is_processing else -1,
    )
