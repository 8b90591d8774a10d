"""Writes down what the decode thread did as events, in a thread of its own, while the next decode runs.

The decode thread hands over the lines of one step, decodes, and collects: between `hand` and `collect` the
transcripts belong to the scribe. Text is made here, and so what ends it is found here: a stop string, a line that is
not indented, a time limit that waits for a line's end. The decode thread learns of it one step late and drops the token
that was decoded meanwhile.

Knows nothing of batches or cells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple, Self

from shared.events import Answer, Failure, Progress, Score, SlotReport, StopType, Timings, Tokens, Vector
from worker.engine.logprobs import logprob_of
from worker.engine.overflow import Shift
from worker.engine.sampling import Choice
from worker.engine.sequence import Completed, Discarded, Ending, Failed
from worker.engine.sequence import Sequence as Generating
from worker.engine.task import GenerateTask, SequenceKey
from worker.engine.transcript import Transcript, Utterance
from worker.engine.vision.images import IMAGE_MARK

EngineEvent = Progress | Tokens | Answer | Vector | Score | SlotReport | Failure
"""All but Progress and Tokens end their sequence; nothing follows them."""

OnEvents = Callable[[Sequence[tuple[SequenceKey, EngineEvent]]], None]

Detokenize = Callable[[Sequence[int]], str]


class Prefilled(NamedTuple):
    """So much of a prompt is in the cache."""

    sequence: Generating
    n_processed: int
    at: float


class Chosen(NamedTuple):
    """A token was chosen; the last one of its sequence comes with the ending."""

    sequence: Generating
    choice: Choice
    memory: tuple[float, ...]
    """Of the sampler, behind it."""
    ending: Ending | None
    at: float


class Ended(NamedTuple):
    """A sequence ended without a token."""

    sequence: Generating
    ending: Ending
    at: float


class Said(NamedTuple):
    """An event that needs no writing."""

    key: SequenceKey
    event: EngineEvent


Line = Prefilled | Chosen | Ended | Said


class Found(NamedTuple):
    """What ended a sequence was found in what it said. Its answer has been given."""

    sequence: Generating
    ending: Completed


class Scribe:
    """Use as a context manager. `hand` and `collect` are for the decode thread, in turns."""

    def __init__(self, detokenize: Detokenize, on_events: OnEvents) -> None:
        self._detokenize = detokenize
        self._on_events = on_events
        self._inbox: SimpleQueue[Sequence[Line] | None] = SimpleQueue()
        self._outbox: SimpleQueue[list[Found] | BaseException] = SimpleQueue()
        self._is_writing = False
        self._thread = threading.Thread(target=self._run, name="scribe", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inbox.put(None)
        self._thread.join()

    def hand(self, lines: Sequence[Line]) -> None:
        """Have these written. Returns at once; `collect` must follow before the next."""
        assert not self._is_writing
        if lines:
            self._is_writing = True
            self._inbox.put(lines)

    def collect(self) -> list[Found]:
        """Wait until they are written. Returns the sequences whose end was found meanwhile.

        Raises what broke the scribe or the callback: the decode thread must not go on without them.
        """
        if not self._is_writing:
            return []
        self._is_writing = False
        result = self._outbox.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def _run(self) -> None:
        while (lines := self._inbox.get()) is not None:
            try:
                self._outbox.put(self._write(lines))
            except Exception as error:  # the border of this thread: raised again by `collect`
                self._outbox.put(error)

    def _write(self, lines: Sequence[Line]) -> list[Found]:
        page = _Page()
        for line in lines:
            match line:
                case Said(key, event):
                    page.add(key, event)
                case Prefilled(sequence, n_processed, at):
                    page.add(sequence.task.key, _progress(sequence, n_processed, at))
                case Chosen():
                    self._write_choice(page, line)
                case Ended(sequence, ending, at) if not sequence.transcript.is_closed:
                    if not isinstance(ending, Discarded):
                        page.say(sequence.task.key, sequence.transcript.flush())
                    self._write_ending(page, sequence, ending, at)
        if page.events:
            self._on_events(page.events)
        return page.found

    def _write_choice(self, page: _Page, line: Chosen) -> None:
        sequence, ending = line.sequence, line.ending
        key, transcript = sequence.task.key, sequence.transcript
        # The end of a generation has no text, and nobody is told how likely it was.
        is_eos = isinstance(ending, Completed) and ending.stop_type is StopType.EOS
        logprob = None if is_eos else logprob_of(line.choice, transcript.token_bytes)
        utterance = transcript.push(line.choice.token, logprob, is_last=isinstance(ending, Completed))
        timings = _timings(sequence, line.at) if sequence.task.request.timings_per_token else None
        page.say(key, utterance, line.memory, timings)
        if transcript.stop_type is not None:
            ending = Completed(transcript.stop_type)
            page.found.append(Found(sequence, ending))
        elif ending is None and _is_out_of_time(sequence, line.at):
            page.say(key, transcript.flush(), line.memory, timings)
            ending = Completed(StopType.LIMIT)
            page.found.append(Found(sequence, ending))
        if ending is not None:
            self._write_ending(page, sequence, ending, line.at)

    def _write_ending(self, page: _Page, sequence: Generating, ending: Ending, at: float) -> None:
        sequence.transcript.is_closed = True
        match ending:
            case Completed():
                page.add(sequence.task.key, self._answer(sequence, ending, at))
            case Failed(error):
                page.add(sequence.task.key, Failure.of(error))
            case Discarded():
                pass

    def _answer(self, sequence: Generating, ending: Completed, at: float) -> Answer:
        return answer(
            sequence.task,
            sequence.transcript,
            ending,
            _timings(sequence, at),
            self._detokenize,
            shift=sequence.shift,
            id_slot=sequence.slot,
        )


def _timings(sequence: Generating, at: float) -> Timings:
    clock = sequence.clock
    prompted = clock.prompted or at
    return Timings(
        queue_ms=clock.queue_ms,
        cache_n=sequence.n_reused,
        prompt_n=sequence.n_prompt - sequence.n_reused,
        prompt_ms=(prompted - clock.started) * 1e3,
        predicted_n=len(sequence.transcript.ids),
        predicted_ms=(at - prompted) * 1e3,
    )


def _is_out_of_time(sequence: Generating, at: float) -> bool:
    """As llama.cpp's README has it: measured from the first token on, and only once there was a new line. An attempt
    that another one continues has its time anew."""
    limit_ms = sequence.task.request.t_max_predict_ms
    return limit_ms > 0 and sequence.transcript.has_new_line and (at - sequence.clock.prompted) * 1e3 > limit_ms


def answer(
    task: GenerateTask,
    transcript: Transcript,
    ending: Completed,
    timings: Timings,
    detokenize: Detokenize,
    *,
    shift: Shift | None,
    id_slot: int = -1,
) -> Answer:
    """All that a sequence said."""
    n_tokens = len(task.prompt) + len(transcript.ids)
    has_shifted = shift is not None and shift.has_happened(n_tokens)
    n_known = n_tokens if shift is None else shift.n_left(n_tokens)
    return Answer(
        index=task.key.index,
        text=transcript.text,
        ids=tuple(transcript.ids),
        prompt=_prompt_text(task, detokenize),
        prompt_tokens=len(task.prompt),
        n_ctx=task.request.n_ctx or 0,
        n_cached=n_known - 1 if transcript.ids else n_known,  # the last token was sampled but never decoded
        stop_type=ending.stop_type,
        stopping_word=transcript.stopping_word,
        truncated=ending.is_truncated or task.is_truncated or has_shifted,
        has_new_line=transcript.has_new_line,
        id_slot=id_slot,
        seed=task.seed,
        banned=task.banned,
        logprobs=transcript.logprobs,
        timings=timings,
        reply=task.reply,
    )


def _prompt_text(task: GenerateTask, detokenize: Detokenize) -> str:
    """With a mark where an image stands, as llama.cpp has it."""
    texts: list[str] = []
    start = 0
    for image in task.images:
        texts += [detokenize(task.prompt[start : image.start]), IMAGE_MARK]
        start = image.end
    return "".join([*texts, detokenize(task.prompt[start:])])


def _progress(sequence: Generating, n_processed: int, at: float) -> Progress:
    return Progress(
        index=sequence.task.key.index,
        total=sequence.n_prompt,
        cache=sequence.n_reused,
        processed=n_processed,
        time_ms=(at - sequence.clock.started) * 1e3,
    )


class _Page:
    """What comes of the lines of one step."""

    def __init__(self) -> None:
        self.events: list[tuple[SequenceKey, EngineEvent]] = []
        self.found: list[Found] = []

    def add(self, key: SequenceKey, event: EngineEvent) -> None:
        self.events.append((key, event))

    def say(
        self,
        key: SequenceKey,
        utterance: Utterance | None,
        memory: tuple[float, ...] = (),
        timings: Timings | None = None,
    ) -> None:
        if utterance is not None:
            text, ids, logprobs = utterance
            told = Tokens(index=key.index, ids=ids, text=text, logprobs=logprobs, memory=memory, timings=timings)
            self.add(key, told)
