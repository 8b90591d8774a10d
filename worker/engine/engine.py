"""The loop that decodes. One thread, from start to stop; everything else reaches it through its inbox.

Knows no asyncio, no queue, no JSON. Who gets a slot is for `admission` to say, what is computed next for `schedule`.
Text and events are the scribe's; llama.cpp is behind `llama`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from shared.errors import Cancelled, EngineFailed, Expired, InvalidRequest
from shared.events import Failure, StopType
from shared.jobs import Lane
from worker.engine.adapters import Adapters
from worker.engine.assembly import assemble
from worker.engine.config import EngineConfig
from worker.engine.constraint import Grammars
from worker.engine.faults import Trial
from worker.engine.inbox import Cancel, Discard, Inbox, Submit
from worker.engine.lanes import Ageing, Lanes
from worker.engine.llama import (
    Context,
    Decoded,
    DecodeFailed,
    Floats,
    Interrupted,
    LoadWatch,
    Model,
    OpenContext,
    Outcome,
    OutOfCells,
    Piece,
    surviving_aborts,
)
from worker.engine.meter import Meter
from worker.engine.plan import Pace, Plan
from worker.engine.recovery import Recovery
from worker.engine.sampling import NO_TOKEN, Choice, choose
from worker.engine.schedule import Schedule
from worker.engine.scribe import Chosen, Ended, EngineEvent, Found, Line, OnEvents, Prefilled, Said, Scribe
from worker.engine.sequence import Completed, Discarded, Ending, Failed, Phase, Sequence
from worker.engine.slotdesk import SlotDesk
from worker.engine.snapshot import BatchSnapshot, EngineSnapshot, SlotSnapshot
from worker.engine.task import EmbedTask, GenerateTask, SlotTask, Task
from worker.engine.vision import Vision

__all__ = ["Engine", "EngineEvent", "OnEvents"]

OVERDUE_EVERY_S = 0.05
"""How often deadlines are looked at."""
WORTH_INTERRUPTING_MS = 50.0
"""A decode of bulk that a person interrupts is lost work: shorter ones are waited for."""
MOST_INTERRUPTIONS = 3
"""In a row: bulk goes on however often people come."""


class Engine:
    """Runs tasks. `submit`, `cancel`, `discard`, `snapshot` and `free_slots` are for any thread.

    `on_events` is called from a thread of the engine, at most once per step and never twice at a time, with all that
    happened in order; it must not block.
    """

    def __init__(self, config: EngineConfig, on_events: OnEvents, *, open_context: OpenContext = Context.open) -> None:
        self.config = config
        self._open_context = open_context
        self._on_events = on_events
        self._inbox = Inbox()
        self.loading = LoadWatch()
        """How far `start` is, and a way to have it end; for any thread."""
        self._is_stopping = False
        self._resources = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._model: Model | None = None
        self.adapters = Adapters(config.adapters)
        """What requests get of them; the files are read by `start`. For any thread."""
        self._meter = Meter()
        self._count_lock = threading.Lock()
        self._n_generating = 0  # tasks to generate that have not ended: under the lock
        # Below: written by the decode thread only. Others read `_batch`, `_progress_at` and `_is_resting` as they are.
        self._to_embed: Lanes[EmbedTask] = Lanes()
        self._lines: list[Line] = []
        self._n_interruptions = 0
        self._overdue_at = 0.0
        self._batch = BatchSnapshot()
        self._progress_at = time.monotonic()
        self._is_resting = True

    def start(self) -> None:
        """Load the model, then decode. LoadFailed and LoadAbandoned, after which nothing is left to stop."""
        with contextlib.ExitStack() as resources, surviving_aborts(self.loading):
            parts = assemble(self.config, self._open_context, self.loading, resources)
            self._resources = resources.pop_all()
        self._model, self._context, self._cells = parts.model, parts.context, parts.cells
        self._launcher, self._admission = parts.launcher, parts.admission
        self._embedder, self._grammars, self._vision = parts.embedder, parts.grammars, parts.vision
        self.input_rules, self.can_generate = parts.embedder.rules, parts.context.can_generate
        self._n_ctx_slot = parts.n_ctx_slot
        self._desk = SlotDesk(parts.context, parts.cells, parts.admission)
        self._running = self._admission.running  # the list itself, which admission alone writes
        self._schedule = Schedule(
            self._context.n_batch,
            Ageing(self.config.age_s, self.config.quantum_s),
            has_adapters=len(self.adapters) > 0,
        )
        self._pace = Pace(self._context.n_batch)
        self._input_pace = Pace(self.input_rules.n_at_once)
        self._recovery = Recovery(self._context, self._cells, self._fail)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current decode and free everything. What has not ended stays unsaid."""
        self._is_stopping = True
        self._inbox.wake()
        if self._thread.ident is not None:
            self._thread.join()
        self._resources.close()

    @property
    def model(self) -> Model:
        """For its facts and its vocabulary; there from `start` on."""
        assert self._model is not None, "the engine has not been started"
        return self._model

    @property
    def grammars(self) -> Grammars:
        """Where constraints are compiled, off the decode thread; there from `start` on."""
        return self._grammars

    @property
    def vision(self) -> Vision | None:
        """Where images become rows, off the decode thread; there from `start` on, if the model has a projector."""
        return self._vision

    @property
    def n_ctx_slot(self) -> int:
        """Longest that a sequence can get, in tokens: a prompt must be shorter."""
        return self._n_ctx_slot

    def submit(self, task: Task) -> None:
        """Take on a task. More may be submitted than there are slots: they wait, interactive ones first."""
        if isinstance(task, GenerateTask):
            self._count(1)
        self._inbox.send(Submit(task, time.monotonic()))

    def cancel(self, job_id: str) -> None:
        """End all sequences of a job with a failure `cancelled`, before the next decode."""
        self._inbox.send(Cancel(job_id))

    def discard(self, job_id: str, attempt: int = 0) -> None:
        """Drop all sequences of one attempt at a job without a word: it belongs to another now."""
        self._inbox.send(Discard(job_id, attempt))

    def free_slots(self) -> int:
        """How many more tasks would start at once."""
        with self._count_lock:
            return max(0, self.config.n_slots - self._n_generating)

    def snapshot(self) -> EngineSnapshot:
        """The state at this moment. Takes no lock, so counts of one slot may be a step apart."""
        meter, batch = self._meter, self._batch
        slots = (SlotSnapshot.of(slot, each, self._n_ctx_slot) for slot, each in enumerate(self._admission.slots))
        return EngineSnapshot(
            slots=tuple(slots),
            n_waiting=self._admission.n_waiting + len(self._to_embed) + len(self._desk) + len(self._inbox),
            n_parked=self._admission.n_parked,
            n_parked_for_any=self._admission.n_parked_for_any,
            stuck=self._admission.stuck(),
            batch=batch,
            steps=meter.steps,
            progress_at=self._progress_at,
            is_busy=not self._is_resting,
            is_alive=self._thread.is_alive(),
            gap_ms=meter.gap_ms,
            gap_ms_p50=meter.gap_ms_p50,
            decode_ms=meter.decode_ms,
            tokens_per_second=meter.tokens_per_second(time.monotonic()),
            work=replace(meter.work),
            n_cells=self._cells.n_cells,
            n_cells_used=self._cells.n_cells - self._cells.n_free,
        )

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
                    self._inbox.wait()
                    self._progress_at = time.monotonic()
                    self._is_resting = False

    def _has_work(self) -> bool:
        has_tasks = len(self._to_embed) or len(self._desk) or not self._admission.is_idle
        return bool(self._inbox or self._lines or has_tasks)

    def step(self) -> None:
        """One turn: listen, admit, compute while the text of the last turn is written, retire."""
        self._listen()
        trial = self._recovery.next_trial(self._running)
        self._retire()
        self._lines += [Said(key, event) for key, event in self._desk.serve()]
        self._admission.admit()
        if trial is None and self._is_turn_to_embed():
            self._embed()
        else:
            self._generate(trial)
        self._retire()

    def _is_turn_to_embed(self) -> bool:
        return self._schedule.is_turn_to_embed(self._to_embed, self._running, self._input_pace, self._meter.decode_ms)

    def _generate(self, trial: Trial[Sequence] | None) -> None:
        """A turn of sequences, of those on trial if there are any: plan, decode, choose."""
        self._shift()
        plan = self._schedule.plan_trial(trial) if trial else self._schedule.plan(self._running, self._pace)
        plan = self._with_room(plan)
        pieces = [self._piece(sequence, n_tokens) for sequence, n_tokens in plan.shares]
        self._scribe.hand(self._take_lines())  # the last thing before a decode, which leaves the scribe the GIL
        outcome = self._decode(plan, pieces)
        self._stop(self._scribe.collect())
        match outcome:
            case Decoded(logits):
                self._advance(plan, pieces, logits)
            case OutOfCells() if self._cells.n_free >= plan.n_tokens:
                self._recovery.failed(plan, "llama.cpp found no room, although there is some")
            case OutOfCells():
                self._make_room(plan)
            case DecodeFailed(reason):
                self._recovery.failed(plan, reason)
            case Interrupted():
                self._undo(plan)

    def _shift(self) -> None:
        """Make room for the next token of those whose context is full, and who go on all the same."""
        for sequence in self._running:
            if sequence.is_full:
                assert sequence.shift is not None
                self._cells.shift(sequence.resident, sequence.shift.n_kept, sequence.shift.n_gone)

    def _take_lines(self) -> list[Line]:
        lines, self._lines = self._lines, []
        return lines

    def _listen(self) -> None:
        """Take in what others sent, in order, and end what is overdue."""
        for message in self._inbox.take():
            match message:
                case Submit(task, at):
                    self._take_on(task, at)
                case Cancel():
                    self._end_all(message.is_meant, _CANCELLED)
                case Discard():
                    self._end_all(message.is_meant, Discarded())
        now = time.monotonic()
        if now >= self._overdue_at:
            self._overdue_at = now + OVERDUE_EVERY_S
            self._end_all(partial(_is_overdue, now), _EXPIRED)

    def _take_on(self, task: Task, at: float) -> None:
        if isinstance(task, SlotTask):
            self._desk.add(task, at)
            return
        if task.lane is Lane.INTERACTIVE:
            self._schedule.hurry(at)
        if isinstance(task, EmbedTask):
            self._take_on_embedding(task, at)
        elif error := self._launcher.check(task):
            self._finish(task, Failure.of(error))
        elif answer := self._launcher.answer_at_once(task):
            self._finish(task, answer)
        else:
            self._admission.add(task, at)

    def _take_on_embedding(self, task: EmbedTask, at: float) -> None:
        if error := self._embedder.check(task):
            self._lines.append(Said(task.key, Failure.of(error)))
        else:
            self._to_embed.add(task, at)

    def _finish(self, task: GenerateTask, event: EngineEvent) -> None:
        """End a task that has no slot."""
        self._lines.append(Said(task.key, event))
        self._count(-1)

    def _end_all(self, is_going: Callable[[Task], bool], ending: Failed | Discarded) -> None:
        """End every sequence whose task is going, whether it waits, runs or is parked."""
        unplaced = self._admission.remove(is_going)
        self._count(-len(unplaced))
        waiting: list[Task] = [*unplaced, *self._to_embed.remove(is_going), *self._desk.remove(is_going)]
        self._embedder.forget(is_going)
        for task in waiting:
            if isinstance(ending, Failed):
                self._lines.append(Said(task.key, Failure.of(ending.error)))
        for sequence in self._admission.sequences():
            if is_going(sequence.task):
                self._end(sequence, ending)

    def _end(self, sequence: Sequence, ending: Ending) -> None:
        """End a sequence between two tokens."""
        if sequence.phase is not Phase.ENDED:
            sequence.end(ending)
            self._lines.append(Ended(sequence, ending, time.monotonic()))

    def _piece(self, sequence: Sequence, n_tokens: int) -> Piece:
        """The next known tokens of a sequence, or rows of its image; logits are wanted of the last known one, if a next
        token is."""
        resident = sequence.resident
        start, end = resident.n_cached, resident.n_cached + n_tokens
        wants_logits = n_tokens == resident.n_pending and sequence.task.request.n_predict != 0
        rows = None
        if (image := sequence.image) is not None:
            rows = image.rows.rows(start - image.start, end - image.start, resident.spans.position(image.start))
        return Piece(resident.seq_id, self._cells.position(resident), resident.tokens[start:end], wants_logits, rows)

    def _fail(self, sequence: Sequence, reason: str) -> None:
        self._end(sequence, Failed(EngineFailed(reason)))

    def _decode(self, plan: Plan[Sequence], pieces: list[Piece]) -> Outcome:
        if not pieces:
            self._meter.pause()
            return Decoded(np.empty((0, 0), dtype=np.float32))
        interrupt = self._inbox.interrupt_for_people() if self._is_worth_interrupting(plan) else None
        self._context.adapt(next(sequence.scales for sequence, _ in plan.shares))
        started = time.monotonic()
        outcome = self._context.decode(pieces, interrupt)
        ended = time.monotonic()
        self._meter.decoded(started, ended)
        self._batch = BatchSnapshot.of(plan, self._meter.steps)
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
            and self._admission.has_slot_for_person()
        )

    def _stop(self, found: Iterable[Found]) -> None:
        """The scribe found the end of these in what they said last; their answers are given."""
        for sequence, ending in found:
            sequence.end(ending)

    def _advance(self, plan: Plan[Sequence], pieces: list[Piece], logits: Floats) -> None:
        """The decode succeeded: commit the plan, choose the next token of every sequence that can have one."""
        now = time.monotonic()
        self._schedule.decoded()
        if pieces and pieces[0].rows is None:
            self._meter.computed(len(pieces))
        if any(sequence.is_bulk for sequence, _ in plan.shares):
            self._n_interruptions = 0
        rows: list[Sequence] = []
        for (sequence, n_tokens), piece in zip(plan.shares, pieces, strict=True):
            self._commit(sequence, n_tokens, now)
            if piece.wants_logits:
                rows.append(sequence)
        self._recovery.passed(plan)
        choosing = [(row, sequence) for row, sequence in enumerate(rows) if sequence.is_choosing]
        if not choosing:
            return
        if len(choosing) < len(rows):
            logits = logits[[row for row, _ in choosing]]
        sequences = [sequence for _, sequence in choosing]
        choices = choose(
            logits,
            [sequence.sampler for sequence in sequences],
            [sequence.n_prompt + sequence.n_decoded for sequence in sequences],
        )
        spoiled: list[Sequence] = []
        n_chosen = 0
        for row, sequence, choice in zip(logits, sequences, choices, strict=True):
            if choice.token != NO_TOKEN:
                self._choose(sequence, choice, now)
                n_chosen += 1
            elif (row < np.inf).all():  # which NaN is not
                self._end(sequence, _without_choice(sequence))
            else:
                spoiled.append(sequence)
        if spoiled:
            self._recovery.spoiled(spoiled, has_sound=len(spoiled) < len(choices))
        self._meter.chose(n_chosen, now)

    def _commit(self, sequence: Sequence, n_tokens: int, now: float) -> None:
        self._cells.computed(sequence.resident, n_tokens)
        sequence.served(now)
        self._meter.work.n_tokens_most = max(self._meter.work.n_tokens_most, sequence.n_cached)
        if sequence.phase is not Phase.PREFILL:
            return
        self._meter.prompted(n_tokens, sequence.clock.lap(now))
        if not sequence.is_told_of:
            self._meter.work.n_prompt_tokens_cached += sequence.n_reused
            self._tell(sequence, sequence.n_reused, sequence.clock.started)
        if sequence.n_prompt_cached > sequence.n_told:
            self._tell(sequence, sequence.n_prompt_cached, now)
        if sequence.task.request.n_predict == 0 and sequence.is_choosing:
            sequence.clock.prompted = now
            self._end(sequence, Completed(StopType.LIMIT))

    def _tell(self, sequence: Sequence, n_processed: int, at: float) -> None:
        sequence.n_told = n_processed
        self._lines.append(Prefilled(sequence, n_processed, at))

    def _choose(self, sequence: Sequence, choice: Choice, now: float) -> None:
        if sequence.is_awaited:
            self._meter.began(sequence.clock.queue_ms)
        self._meter.predicted(sequence.clock.lap(now))
        sequence.choose(choice.token, now)
        self._lines.append(Chosen(sequence, choice, sequence.sampler.memory, sequence.ending, now))

    def _with_room(self, plan: Plan[Sequence]) -> Plan[Sequence]:
        """What of a plan there are cells for, after all have given theirs up who rank behind."""
        while (n_missing := plan.n_tokens - self._cells.n_free) > 0 and self._admission.make_room(n_missing):
            plan = plan.of(lambda sequence: sequence.has_slot)
        return plan

    def _make_room(self, plan: Plan[Sequence]) -> None:
        """No cells for what one sequence alone wants, since all others have given theirs up: ask for less, then end
        it."""
        if plan.can_shrink:
            self._schedule.plan_less(plan.n_prefill)
            return
        for sequence, _ in plan.shares:
            self._end(sequence, Completed(StopType.LIMIT, is_truncated=True))

    def _undo(self, plan: Plan[Sequence]) -> None:
        """A person came in the middle of it. It is planned again when it is bulk's turn."""
        self._n_interruptions += 1
        self._recovery.restore(plan)

    def _embed(self) -> None:
        """A turn of inputs, of one lane; no more of them once somebody has sent something."""
        self._meter.pause()
        lane, n_left = self._schedule.next_to_embed(self._to_embed, self._running, self._input_pace)
        n_inputs = 0
        while n_left > 0 and self._to_embed.count(lane) and not (n_inputs and self._inbox) and not self._is_stopping:
            tasks = self._embedder.gather(self._to_embed, lane, n_left)
            n_left -= self._embed_once(tasks)
            n_inputs += len(tasks)
        self._schedule.embedded(lane)
        self._batch = BatchSnapshot(step=self._meter.steps, n_embedding_inputs=n_inputs)

    def _embed_once(self, tasks: list[EmbedTask]) -> int:
        """One decode of inputs, while it is told what became of those before. Returns how many tokens it took."""
        self._scribe.hand(self._take_lines())
        started = time.monotonic()
        done = self._embedder.embed(tasks)
        took_s = time.monotonic() - started
        n_tokens = min(sum(len(task.tokens) for task in tasks), self.input_rules.n_at_once)
        self._input_pace.observe(0, n_tokens, took_s * 1e3)
        self._meter.computed(len(tasks))
        self._meter.prompted(sum(len(task.tokens) for task, result in done if not isinstance(result, Failure)), took_s)
        self._stop(self._scribe.collect())
        for task, result in done:
            self._to_embed.drop(task)
            self._lines.append(Said(task.key, result))
        return n_tokens

    def _retire(self) -> None:
        """Free the slots of sequences that ended."""
        self._count(-self._admission.retire())


def _is_overdue(now: float, task: Task) -> bool:
    return task.deadline is not None and task.deadline < now


_CANCELLED = Failed(Cancelled("the job was cancelled"))
_EXPIRED = Failed(Expired("the job's deadline passed while it ran"))
_ALL_BANNED = Failed(InvalidRequest("no token can be chosen: all are banned", param="logit_bias"))


def _without_choice(sequence: Sequence) -> Ending:
    """How a sequence ends of whose next tokens all are ruled out."""
    constraint = sequence.sampler.constraint
    if constraint is None:
        return _ALL_BANNED
    if (failure := constraint.failure) is not None:
        return Failed(failure)
    return Completed(StopType.EOS) if constraint.is_over else _ALL_BANNED  # over: the model has no token for an end
