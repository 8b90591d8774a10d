"""Tries constraints in a process of its own, where one can take neither the interpreter nor the memory of a worker.

    python -m worker.grammar.trial

Reads pickles: first the lexicon, which it answers when it is ready, then constraints, of which each gets a `Verdict`. A
constraint that takes too much ends this process, as does the end of its input.
"""

from __future__ import annotations

import pickle
import random
import resource
import signal
import sys
import time

import numpy as np

from shared.jobs import Constraint
from worker.grammar.examiner import READY, Verdict
from worker.grammar.gbnf import BadGrammar
from worker.grammar.lark import lark_of
from worker.grammar.lexicon import Lexicon
from worker.grammar.reply import ReplyGrammar, reply_lark

TIME_S = 1.0
"""Of the processor, for one constraint: fifty thousand alternatives take half of it."""
MEMORY_BYTES = 3 << 30
"""Of addresses, of which half are taken before anything is tried."""
N_STEPS = 8
"""Tokens of a text that are tried: what is far too complex fails at once."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # for the worker, which closes our input when it ends
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    lexicon: Lexicon = pickle.load(sys.stdin.buffer)
    _say(READY)
    while True:
        try:
            constraint: Constraint | ReplyGrammar = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, TIME_S)  # nobody handles its signal, so it ends native code too
        began = time.process_time()
        verdict = tried(constraint, lexicon)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(verdict._replace(took_s=time.process_time() - began))


def _say(verdict: Verdict) -> None:
    pickle.dump(verdict, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def tried(constraint: Constraint | ReplyGrammar, lexicon: Lexicon) -> Verdict:
    """Read it, make a matcher of it, and begin some text with that."""
    try:
        lark = _lark(constraint, lexicon)
    except BadGrammar as error:
        return Verdict(reason=str(error))
    matcher = lexicon.matcher(lark)
    if matcher.is_error():
        return Verdict(reason=_reason(matcher.get_error()))
    chance = random.Random(0)
    for step in range(N_STEPS):
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        if matcher.is_error() and "NoExtension" in matcher.get_error() and step == 0:
            return Verdict(reason="no text satisfies it")
        if not matcher.is_error():
            matcher.consume_token(int(chance.choice(np.flatnonzero(bits))))
        if matcher.is_error():
            return Verdict(reason=f"it is too complex: {_reason(matcher.get_error())}")
        if matcher.is_stopped():
            break
    return Verdict(lark=lark)


def _lark(constraint: Constraint | ReplyGrammar, lexicon: Lexicon) -> str:
    return lark_of(constraint) if isinstance(constraint, Constraint) else reply_lark(constraint, lexicon.controls)


def _reason(error: str) -> str:
    """One line of what llguidance says, without places in a text that the client never wrote and options it has not."""
    line = error.split("\n", 1)[0].split(" <state>", 1)[0].split(". Enable ", 1)[0]
    if line.startswith("at "):
        line = line.partition("): ")[2]
    detail = error.partition("\nerror: ")[2].split("\n", 1)[0]  # of a regular expression
    return f"invalid regular expression: {detail}" if detail else line.removeprefix("failed to compile JSON schema: ")


if __name__ == "__main__":
    main()
