"""What one rendering of a template may do and make: so many steps, so much time, and nothing beyond a size.

Steps are what is counted first, since they are the same on every machine; time is for what no count foresees, such as
comparing two large values again and again. Knows no template language.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, islice
from typing import Any, Self, TypeVar

import jinja2

STEPS, STEPS_PER_MESSAGE = 500_000, 10_000
"""An iteration, a call or a filter is a step, and so is a stretch of what is made. Templates of today take 5 to 50 for
a message, and those that look at all messages for each take some thousands."""
SIZE, SIZE_PER_CHARACTER = 4_000_000, 16
"""Of one value: characters, and one for each thing that holds or is no text. JSON has up to 12 for one of a client."""
SECONDS, SECONDS_PER_MESSAGE = 0.6, 0.01
"""Of its thread's own work, so that a busy machine takes nothing from it. Gemma 4's template looks at all earlier
messages for each: 3 s for 1,000 of them."""

STRETCH_BITS = 9
"""Making 512 characters, or copying as many references, is one step. Some templates put their text together in one
variable, which copies all that is there for each message."""
SMALL = 512
"""Characters whose making costs less than counting them."""
LOOK_EVERY = 64
"""Steps between two looks at the clock."""
N_BITS = 4096
"""Of an integer: dividing long ones, and writing them down, takes the square of their length."""
DEPTH = 200
"""Of values in values: what Python compares, hashes or shows by calling itself must not fill the stack."""
N_KNOWN = 256
"""How many weighed values are kept, and kept alive, so that what is made of them is not walked through again."""

TEXT, FIXED, HOLDING = (str, bytes), (list, tuple), (list, tuple, dict)
T = TypeVar("T")


class TooMuch(jinja2.TemplateError):
    """A template does more than any that is written for chats."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the chat template does too much: {what}")


class Budget:
    """Of one rendering, and of one thread."""

    __slots__ = ("_known", "_left", "_look_at", "_until", "largest")

    def __init__(self, n_messages: int = 0, n_characters: int = 0) -> None:
        self.largest = SIZE + SIZE_PER_CHARACTER * n_characters
        self._left = STEPS + STEPS_PER_MESSAGE * n_messages + (self.largest >> STRETCH_BITS)
        self._look_at = self._left - LOOK_EVERY
        self._until = time.thread_time() + SECONDS + SECONDS_PER_MESSAGE * n_messages
        self._known: dict[int, tuple[Any, int, int]] = {}

    @classmethod
    def for_chat(cls, messages: list[dict[str, Any]], *more: Any) -> Self:
        return cls(len(messages), _n_characters((messages, more)))

    def spend(self, steps: int = 1) -> None:
        """TooMuch."""
        self._left -= steps
        if self._left < self._look_at:
            self._look_at = self._left - LOOK_EVERY
            if self._left < 0:
                raise TooMuch("it takes too many steps")
            if time.thread_time() > self._until:
                raise TooMuch("it takes too long")

    def each(self, values: Iterable[T]) -> Iterable[T]:
        """The same values, each of which is a step: paid for before, and of many not much before."""
        if isinstance(values, FIXED) and len(values) <= LOOK_EVERY:
            self.spend(len(values))
            return values
        return chain.from_iterable(self._in_parts(iter(values)))

    def _in_parts(self, values: Iterator[T]) -> Iterator[Iterable[T]]:
        n = 1
        for value in values:
            self.spend(n)
            yield (value,)
            yield islice(values, n - 1)
            n = min(2 * n, LOOK_EVERY)

    def allow(self, size: int) -> None:
        """Ask before something of that size is made. TooMuch."""
        if size > self.largest:
            raise TooMuch("it makes a value that is too large")
        self.spend(max(0, size) >> STRETCH_BITS)

    def made(self, value: T) -> T:
        """The same, if it is not too large. TooMuch."""
        if isinstance(value, TEXT):
            if len(value) > SMALL:
                self.allow(len(value))
        elif isinstance(value, HOLDING):
            self.weight(value)
        elif isinstance(value, int) and value.bit_length() > N_BITS:
            raise TooMuch("it makes a number that is too large")
        return value

    def weight(self, value: Any) -> int:
        """Its size with all that it holds, as often as it holds it. TooMuch."""
        return self._weighed(value)[0]

    def together(self, left: Any, right: Any, both: T) -> T:
        """`both`, that is `left` and `right` one behind the other, without a walk through it. TooMuch."""
        (size, depth), (more, other) = self._weighed(left), self._weighed(right)
        self.spend(len(both) >> STRETCH_BITS)  # type: ignore[arg-type]
        self._keep(both, size + more, max(depth, other))
        return both

    def _weighed(self, value: Any) -> tuple[int, int]:
        known = self._known.get(id(value))
        if known is not None:
            return known[1:]
        size, depth = self._walked(value, 0)
        if isinstance(value, HOLDING):
            self._keep(value, size, depth)
        return size, depth

    def _keep(self, value: Any, size: int, depth: int) -> None:
        if size > self.largest or depth > DEPTH:
            raise TooMuch("it makes a value that is too large")
        if len(self._known) >= N_KNOWN:
            self._known.clear()
        self._known[id(value)] = value, size, depth

    def _walked(self, value: Any, above: int) -> tuple[int, int]:
        if isinstance(value, TEXT):
            return len(value) + 1, 0
        if isinstance(value, FIXED):
            held: Iterable[Any] = value
        elif isinstance(value, dict):
            held = (each for pair in value.items() for each in pair)
        elif isinstance(value, range):
            return len(value), 0
        else:
            return 1 + (value.bit_length() >> 2 if isinstance(value, int) else 0), 0
        if known := self._known.get(id(value)):
            return known[1:]
        if above > DEPTH:
            raise TooMuch("it makes a value that is too deep")
        size, depth = 1, 0
        for each in self.each(held):
            more, below = self._walked(each, above + 1)
            size, depth = size + more, max(depth, below)
            if size > self.largest:
                raise TooMuch("it makes a value that is too large")
        return size, depth + 1


_spent: ContextVar[Budget] = ContextVar("budget")
budget = _spent.get
"""The one of the rendering that this thread does. LookupError outside."""


@contextmanager
def spending(given: Budget) -> Iterator[None]:
    token = _spent.set(given)
    try:
        yield
    finally:
        _spent.reset(token)


def _n_characters(value: Any) -> int:
    """Of all texts in what a client sent, which has no more depth than JSON may have. On the way of each chat: no
    generators, and few calls."""
    n = 0
    for each in value.values() if isinstance(value, dict) else value:
        if type(each) is str:
            n += len(each)
        elif isinstance(each, HOLDING):
            n += _n_characters(each)
    return n
