"""Which tokens a constraint leaves to a sequence: grammars tried once, a matcher for each sequence, and the thread that
works out what may come next while the decode runs. A grammar may wait for its cue, and costs nothing until then.

Masks are worked out by llguidance, natively and for all sequences together. Nothing here knows logits but as a row
to be masked; what grammars look like is for `worker.grammar` to know.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray

from shared.errors import InvalidRequest
from shared.jobs import Constraint
from worker.closing import Closing
from worker.grammar.cue import Cue, Listener
from worker.grammar.examiner import Examiner, Verdict
from worker.grammar.lexicon import Lexicon
from worker.grammar.reply import ReplyGrammar

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

MAX_KNOWN = 64
"""Verdicts that are kept for whoever asks again."""
TRYING_S = 5.0
"""Of the processor, for all schemas of one request's functions, of which one takes some milliseconds."""
PATIENCE_S = 1.0
"""After which a thread that waits for a mask looks whether there is still somebody to give one."""
FEW = 64
"""A row with fewer allowed than one token in so many is filled anew; with more it is capped."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint ready for the sequences of one job. Another job wants its own: copies of a matcher share what
    llguidance learns of the grammar on the way, and the limits of that. A large one costs half a second and megabytes,
    too much for each of many sequences."""

    beginning: LLMatcher
    name: str
    """What the client calls it."""
    cue: Cue | None = None
    """What must have been said before it begins."""
    tokens: Sequence[bytes] = ()
    """Of the vocabulary, by id, to hear that."""


class Grammars(Closing):
    """Compiles constraints, for threads that may wait; the decode thread gets what is compiled."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self._examiner = Examiner(lexicon)
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, constraint: Constraint | ReplyGrammar) -> Grammar:
        """Raises InvalidRequest, with the client's name for what is at fault, in a second or two of the processor; with
        many functions in `TRYING_S` and a second."""
        if isinstance(constraint, ReplyGrammar):
            self._try_parts(constraint)
        verdict = self._verdict(constraint)
        matcher = self._lexicon.matcher(verdict.lark) if not verdict.reason else None
        reason = verdict.reason if matcher is None else matcher.get_error()
        if matcher is None or reason:
            raise _refusal(constraint.name, reason)
        cue = constraint.cue if isinstance(constraint, ReplyGrammar) else None
        return Grammar(matcher, constraint.name, cue, self._lexicon.tokens)

    def _try_parts(self, grammar: ReplyGrammar) -> None:
        """Each schema alone, to name the one that is at fault, and since a trial of the whole may not get that far.

        What counts is the processor's time, known verdicts included: the same functions get the same answer on an idle
        machine and on a busy one, the first time and the second.
        """
        took_s = 0.0
        for part in grammar.parts:
            verdict = self._verdict(part)
            if verdict.reason:
                raise _refusal(part.name, verdict.reason)
            took_s += verdict.took_s
            if took_s > TRYING_S:
                raise _refusal(grammar.name, "they take too much time: name fewer of them, or simpler ones")

    def close(self) -> None:
        self._examiner.close()

    def _verdict(self, constraint: Constraint | ReplyGrammar) -> Verdict:
        key = hashlib.blake2b(pickle.dumps(constraint)).digest()
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        verdict = self._examiner.examine(constraint)
        with self._lock:
            self._known[key] = verdict
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return verdict


def _refusal(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Field '{name}': {reason}", param=name)


class Mask(NamedTuple):
    """What may come behind `n_tokens` of a text. Of `ids` and `caps` one is there; without either nothing may come, or
    anything if it `is_free`."""

    n_tokens: int
    is_over: bool
    """Nothing but an end of the generation may come."""
    ids: Ids | None = None
    """Those that may, when they are few."""
    caps: Floats | None = None
    """(n_vocab): plus infinity for those that may, else minus infinity."""
    failure: str = ""
    """Why it cannot go on: then nothing may come."""
    is_free: bool = False
    """What sounded like the cue was none."""

    def apply(self, row: Floats) -> None:
        if self.is_free:
            return
        if self.caps is not None:
            np.minimum(row, self.caps, out=row)
            return
        kept = None if self.ids is None else row[self.ids]
        row.fill(-np.inf)
        if kept is not None:
            row[self.ids] = kept


class Matcher:
    """Where one sequence stands in its grammar.

    Driven by the decode thread, which waits only for a mask that is not there yet; `follow` and `publish` are for the
    thread of `masks`.
    """

    def __init__(self, grammar: Grammar, masks: Masks) -> None:
        self._name = grammar.name
        self._masks = masks
        self._native = grammar.beginning.deep_copy()
        self._tokens = grammar.tokens
        self._listener = Listener(grammar.cue) if grammar.cue is not None else None  # until the cue is heard
        self._has_cue = grammar.cue is not None
        self._accepted: deque[int] = deque()  # the decode thread appends, the other one takes
        self._n_accepted = 0  # written by the decode thread
        self._n_followed = 0  # written by the other one
        self._mask: Mask | None = None  # written by the other one
        self._is_free = False  # written by the other one
        self._room: Floats | None = None  # for caps
        if self._listener is None:
            masks.ask(self)

    def accept(self, token: int) -> None:
        tokens: tuple[int, ...] = (token,)
        if self._listener is not None:
            tokens = self._listener.push(token, self._tokens[token])
            if not tokens:
                return
            self._listener = None
        self._n_accepted += len(tokens)
        self._accepted.extend(tokens)
        self._masks.ask(self)

    def mask(self, row: Floats) -> None:
        if self._listener is None:
            self._masks.of(self).apply(row)

    @property
    def is_over(self) -> bool:
        return self._listener is None and self._masks.of(self).is_over

    @property
    def failure(self) -> InvalidRequest | None:
        """What to tell the client when no token may come since its grammar is too much for llguidance."""
        if self._listener is not None:
            return None
        failure = self._masks.of(self).failure
        return _refusal(self._name, failure) if failure else None

    def current(self) -> Mask | None:
        """The mask behind all that was accepted, if it is there."""
        mask = self._mask
        return mask if mask is not None and mask.n_tokens == self._n_accepted else None

    def follow(self) -> LLMatcher:
        """Take in what was accepted. Returns what is to be asked for the mask; it may have failed."""
        tokens = [self._accepted.popleft() for _ in range(len(self._accepted))]
        is_first, self._n_followed = self._n_followed == 0, self._n_followed + len(tokens)
        if self._has_cue and is_first and self._native.validate_tokens(tokens) < len(tokens):
            self._is_free = True  # a mark in letters, say, and not in its token
        if not self._is_free:
            self._native.consume_tokens(tokens)
        return self._native

    def publish(self, bits: NDArray[np.uint8], n_vocab: int, eog: Ids) -> None:
        """The answer to what `follow` returned: one bit for each token."""
        if self._is_free:
            self._mask = Mask(self._n_followed, is_over=False, is_free=True)
            return
        if self._native.is_error():
            failure = self._native.get_error().split("\n", 1)[0]
            self._mask = Mask(self._n_followed, is_over=False, failure=failure)
            return
        allowed = np.unpackbits(bits, count=n_vocab, bitorder="little").view(np.bool_)
        n_allowed = np.count_nonzero(allowed)
        is_over = n_allowed == np.count_nonzero(allowed[eog])
        if n_allowed * FEW < n_vocab:
            self._mask = Mask(self._n_followed, is_over, ids=np.flatnonzero(allowed))
            return
        # The mask before was used before the token that led here was accepted, so its room can be used again.
        self._room = np.empty((len(bits), 8), dtype=np.float32) if self._room is None else self._room
        np.take(_CAPS, bits, axis=0, out=self._room, mode="clip")  # the other modes take eight times as long
        self._mask = Mask(self._n_followed, is_over, caps=self._room.reshape(-1)[:n_vocab])


_CAPS = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), np.inf, -np.inf)
_CAPS = _CAPS.astype(np.float32)
"""(256, 8): the caps of eight tokens, by the byte of their bits."""


class Masks(Closing):
    """The thread that works masks out: those of all sequences that wait for one, in one call that leaves Python.

    `n_threads` are those of the call.
    """

    def __init__(self, lexicon: Lexicon, n_threads: int) -> None:
        self._n_bits = lexicon.n_bits
        self._n_vocab = len(lexicon.tokens)
        self._eog = np.array(sorted(lexicon.eog), dtype=np.int64)
        self._executor = LLExecutor(n_threads)
        self._asking: deque[Matcher] = deque()
        self._is_asked = threading.Event()
        self._has_answered = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="masks", daemon=True)
        self._thread.start()

    def ask(self, matcher: Matcher) -> None:
        """It has accepted something. Costs the decode thread a microsecond or two."""
        self._asking.append(matcher)
        if not self._is_asked.is_set():
            self._is_asked.set()

    def of(self, matcher: Matcher) -> Mask:
        """The mask behind all that a matcher accepted, when it is there."""
        if (mask := matcher.current()) is not None:
            return mask
        with self._has_answered:
            while (mask := matcher.current()) is None:
                if not self._has_answered.wait(PATIENCE_S) and not self._thread.is_alive():
                    raise RuntimeError("the thread that works out masks is gone")
        return mask

    def close(self) -> None:
        self._is_closing = True
        self._is_asked.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._is_asked.wait()
            self._is_asked.clear()  # before looking: who asks from here on is seen now or wakes this thread again
            if self._is_closing:
                return
            asking = dict.fromkeys(self._asking.popleft() for _ in range(len(self._asking)))
            if asking:
                self._answer(list(asking))

    def _answer(self, matchers: list[Matcher]) -> None:
        bits = allocate_token_bitmask(len(matchers), self._n_bits)
        natives = [(matcher.follow(), index) for index, matcher in enumerate(matchers)]
        fill_next_token_bitmask_par(self._executor, natives, bits)
        for matcher, row in zip(matchers, bits.view(np.uint8), strict=True):
            matcher.publish(row, self._n_vocab, self._eog)
        with self._has_answered:
            self._has_answered.notify_all()
