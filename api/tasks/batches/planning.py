"""Makes the plan of a file: which lines can be run, in which order, and what is recorded of those that cannot.

Knows no store and no Redis. It may run in a thread, or as a process of its own (`python -m`), which is given its files
as descriptors: whoever starts it may die, and nothing is left lying about.

What it keeps of a line does not grow with the line: 64 bytes, 48 more while it sorts, and about 100 of its custom id.
"""

from __future__ import annotations

import os
import re
import sys
from array import array
from collections.abc import Container
from typing import BinaryIO

import numpy as np

from api.lines.prefix import N_KEYS, keys_of, prefix_order
from api.lines.reading import BadLine, Line, LineChecker, RawLine, lines_of
from api.lines.record import Subject, unanswered
from api.tasks.batches.plan import identity_of, plan_text
from shared.batches import MAX_FAULTS, LineFault
from shared.wire import Wire

BUFFER = 1 << 20
HEAD = 1 << 16
"""Bytes that are looked at to tell whether a file without a good line is text at all."""

LONGEST_MODEL = 256
"""Characters of its name."""

NICE = 5
"""Nobody waits for a plan as people do for a token, and it may keep a CPU busy for seconds."""

_NUMBER = re.compile(rb'\{"line":([0-9]+),', re.ASCII)


class Rules(Wire):
    batch_id: str
    endpoint: str
    max_line: int
    """Bytes."""
    max_lines: int


class Planned(Wire):
    """What came of a file. Nothing can be run where `n_planned` is 0, and then `faults` begin with why."""

    n_total: int = 0
    n_planned: int = 0
    plan_bytes: int = 0
    error_bytes: int = 0
    faults: tuple[LineFault, ...] = ()
    model: str | None = None
    """Of all lines, when they name the same one."""


def plan_file(source: BinaryIO, plan: BinaryIO, errors: BinaryIO, rules: Rules) -> Planned:
    """Writes the good lines to `plan` and the records of the others to `errors`. `source` stands at its beginning."""
    check = LineChecker(rules.endpoint, longest=rules.max_line)
    facts, bad = _Facts(), _BadLines(errors, rules.batch_id)
    for line in lines_of(source, longest=rules.max_line):
        if line.index == rules.max_lines:
            return _refused("too_many_lines", f"the file has more than {rules.max_lines} lines")
        match check(line):
            case Line() as good:
                facts.add(line, good)
            case BadLine() as fault:
                bad.add(fault)
    if not len(facts):
        return _refused(*_why_none(source, bad.n_lines), more=tuple(bad.faults))
    plan_bytes = 0
    for place in facts.order():
        number, offset, length = facts.numbers[place], facts.offsets[place], facts.lengths[place]
        plan_bytes += plan.write(plan_text(number, os.pread(source.fileno(), length, offset)))
    return Planned(
        n_total=len(facts) + bad.n_lines,
        n_planned=len(facts),
        plan_bytes=plan_bytes,
        error_bytes=bad.n_bytes,
        faults=tuple(bad.faults),
        model=facts.model,
    )


def plan_again(source: BinaryIO, plan: BinaryIO, wanted: Container[int], model: str | None) -> Planned:
    """The same from another plan: of its lines those with the wanted numbers, in the order that they have there."""
    n_planned = plan_bytes = 0
    for text in source:
        found = _NUMBER.match(text)
        if found and int(found[1]) in wanted:
            n_planned += 1
            plan_bytes += plan.write(text)
    if not n_planned:
        return _refused("nothing_to_retry", "no line that failed can be run again")
    return Planned(n_total=n_planned, n_planned=n_planned, plan_bytes=plan_bytes, model=model)


class _Facts:
    """What is kept of each good line until it stands in the plan."""

    def __init__(self) -> None:
        self._keys = array("Q")
        self.offsets, self.lengths, self.numbers = array("q"), array("i"), array("i")
        self._models: set[str | None] = set()
        """No more of them than it takes to see that there are several."""

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, raw: RawLine, line: Line) -> None:
        assert raw.text is not None, "a line that was too long is bad"
        self._keys.extend(keys_of(line.url, line.body))
        self.offsets.append(raw.offset)
        self.lengths.append(len(raw.text))
        self.numbers.append(raw.number)
        if len(self._models) < 2:
            model = line.body.get("model")
            self._models.add(model if isinstance(model, str) else None)

    def order(self) -> list[int]:
        order: list[int] = prefix_order(np.frombuffer(self._keys, np.uint64).reshape(-1, N_KEYS)).tolist()
        return order

    @property
    def model(self) -> str | None:
        """None of a name that is too long to be one: it is told with every look at the batch."""
        model = next(iter(self._models)) if len(self._models) == 1 else None
        return model if model is not None and len(model) <= LONGEST_MODEL else None


class _BadLines:
    """Those that cannot be run: each has its record, and the first ones are listed."""

    def __init__(self, errors: BinaryIO, batch_id: str) -> None:
        self._errors = errors
        self._batch_id = batch_id
        self.n_lines = self.n_bytes = 0
        self.faults: list[LineFault] = []

    def add(self, bad: BadLine) -> None:
        subject = Subject(identity_of(self._batch_id, bad.number), bad.number, bad.custom_id)
        self.n_lines += 1
        self.n_bytes += self._errors.write(unanswered(subject, code=bad.code, message=bad.message) + b"\n")
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(LineFault(code=bad.code, message=bad.message, line=bad.number, param=bad.param))


def _refused(code: str, message: str, more: tuple[LineFault, ...] = ()) -> Planned:
    return Planned(faults=(LineFault(code=code, message=message), *more)[:MAX_FAULTS])


def _why_none(source: BinaryIO, n_lines: int) -> tuple[str, str]:
    head = os.pread(source.fileno(), HEAD, 0)
    if not n_lines:
        return "empty_file", "the file has no lines"
    if b"\0" in head or not _is_text(head):
        return "not_text", "the file is not text in UTF-8"
    return "no_valid_lines", "the file has no line that can be run"


def _is_text(head: bytes) -> bool:
    # The last character may have been cut off.
    return any(_decodes(head[: len(head) - n_cut]) for n_cut in range(min(4, len(head))))


def _decodes(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def main(arguments: list[str]) -> int:
    """The descriptors of a file, of its plan and of the records of its bad lines, and the rules as JSON."""
    os.nice(NICE)
    source, plan, errors = map(int, arguments[:3])
    with (
        os.fdopen(source, "rb", BUFFER) as lines,
        os.fdopen(plan, "wb", BUFFER) as good,
        os.fdopen(errors, "wb", BUFFER) as bad,
    ):
        planned = plan_file(lines, good, bad, Rules.from_json(arguments[3]))
    sys.stdout.write(planned.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
