"""Jobs as text for people, or as JSON for programs. Knows nothing of how they are asked for.

Answers go to stdout, remarks to stderr. What a model or another client wrote cannot steer the terminal.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli.events import Event
from api.cli.jobservice import JobView
from api.cli.progress import duration

EXIT_NO = 1
WIDE = 1000
"""Columns of what is no terminal: nothing is to be cut there."""

STYLES = {"succeeded": "green", "failed": "red", "expired": "red", "cancelled": "yellow", "running": "cyan"}

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Printer(Protocol):
    def list(self, jobs: Sequence[JobView]) -> None: ...

    def show(self, job: JobView) -> None: ...

    def cancelled(self, job: JobView) -> None: ...

    def event(self, event: Event) -> None: ...

    def ended(self, job: JobView) -> None:
        """After the last event."""

    def submitted(self, job: JobView, *, is_awaited: bool) -> None: ...

    def awaited_event(self, event: Event) -> None: ...

    def awaited(self, job: JobView, *, has_spoken: bool) -> None: ...

    def miss(self, job_id: str) -> int:
        """There is no such job; the exit code."""

    def refuse(self, why: str) -> int:
        """The service said no; the exit code."""


def printer_of(prog: str, *, is_json: bool) -> Printer:
    return JsonPrinter(prog) if is_json else TextPrinter(prog)


class _Remarks:
    """What stays out of the answer."""

    def __init__(self, prog: str) -> None:
        self._prog = prog

    def miss(self, job_id: str) -> int:
        return self.refuse(f"there is no job {job_id!r}")

    def refuse(self, why: str) -> int:
        self._remark(why)
        return EXIT_NO

    def _remark(self, text: str) -> None:
        print(f"{self._prog}: {printable(text)}", file=sys.stderr, flush=True)


class JsonPrinter(_Remarks):
    """One object a line, as the API said it."""

    def list(self, jobs: Sequence[JobView]) -> None:
        for job in jobs:
            self.show(job)

    def show(self, job: JobView) -> None:
        _write_json(job.model_dump())

    def cancelled(self, job: JobView) -> None:
        self.show(job)

    def event(self, event: Event) -> None:
        _write_json({"id": event.number, "event": event.name, "data": json.loads(event.data)})

    def ended(self, job: JobView) -> None:
        """The last event was the job."""

    def submitted(self, job: JobView, *, is_awaited: bool) -> None:
        if not is_awaited:
            self.show(job)

    def awaited_event(self, event: Event) -> None:
        """The job at its end has it all."""

    def awaited(self, job: JobView, *, has_spoken: bool) -> None:
        self.show(job)


class TextPrinter(_Remarks):
    """Tables and text; in colour on a terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._console = Console(highlight=False, markup=False, emoji=False)
        if not self._console.is_terminal:
            self._console.width = WIDE
        self._is_at_start_of_line = True
        self._others: dict[int, list[str]] = {}
        """What the answers but the first have said, by index: it would mingle with what that says."""

    def list(self, jobs: Sequence[JobView]) -> None:
        if not jobs:
            self._remark("no jobs")
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("ID", "STATUS", "PRIORITY", "MADE", "ENDPOINT"):
            table.add_column(name, no_wrap=True)
        table.add_column("")
        for job in jobs:
            cells = (job.priority, _time(job.created_at), job.endpoint, summary(job))
            table.add_row(job.id, _status(job), *(Text(printable(cell)) for cell in cells))
        self._print(table)

    def show(self, job: JobView) -> None:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in _facts(job):
            table.add_row(name, _status(job) if name == "status" else Text(printable(value)))
        self._print(table)
        if job.result is not None:
            self._answer(f"\n{answer_text(job.result)}\n")

    def cancelled(self, job: JobView) -> None:
        if job.status == "cancelled":
            print(f"{job.id} is cancelled")
        elif job.is_ended:
            print(f"{job.id} had ended before: {job.status}")
        else:
            print(f"{job.id} is {job.status} and ends as soon as its worker hears of it")

    def event(self, event: Event) -> None:
        if event.name != "token":
            return
        token = json.loads(event.data)
        if index := token.get("index", 0):
            self._others.setdefault(index, []).append(token["text"])
        else:
            self._answer(token["text"])

    def ended(self, job: JobView) -> None:
        self._end_line()
        for _, texts in sorted(self._others.items()):
            self._answer(f"\n{''.join(texts)}")
            self._end_line()
        self._remark(f"{job.id} {job.status}: {summary(job)}")

    def submitted(self, job: JobView, *, is_awaited: bool) -> None:
        if is_awaited:
            self._remark(job.id)
        else:
            print(job.id)

    def awaited_event(self, event: Event) -> None:
        self.event(event)

    def awaited(self, job: JobView, *, has_spoken: bool) -> None:
        if not has_spoken and job.result is not None:
            self._answer(answer_text(job.result))
        self.ended(job)

    def _print(self, table: Table) -> None:
        """Not by the console itself: it would pad lines, and exit when a reader has left."""
        with self._console.capture() as captured:
            self._console.print(table)
        for line in captured.get().splitlines():
            print(line.rstrip())
        sys.stdout.flush()

    def _end_line(self) -> None:
        if not self._is_at_start_of_line:
            self._answer("\n")

    def _answer(self, text: str) -> None:
        """Raw into files and pipes, harmless on a terminal."""
        if text:
            sys.stdout.write(printable(text) if self._console.is_terminal else text)
            sys.stdout.flush()
            self._is_at_start_of_line = text.endswith("\n")


def summary(job: JobView) -> str:
    """What there is to say of a job's state in a few words."""
    if job.status == "queued":
        place = f"position {job.position}" if job.position is not None else "waiting"
        if job.waiting_for:
            return f"{place}, waiting for {job.waiting_for}"
        return place if job.eta_s is None else f"{place}, about {duration(job.eta_s)}"
    if job.status == "running":
        since = _passed(job.started_at, int(time.time()))
        return f"attempt {job.attempts}, {since}" if job.attempts > 1 else since
    if isinstance(job.error, dict):
        return str(job.error.get("message", ""))
    return ", ".join(filter(None, (_usage(job.usage), _passed(job.started_at, job.ended_at))))


def answer_text(result: Any) -> str:
    """The words of an answer of any family, of several one below the other; for what has none, its JSON."""
    answers = result["choices"] if isinstance(result, dict) and "choices" in result else result
    texts = [_words(answer) for answer in (answers if isinstance(answers, list) else [answers])]
    words = [text for text in texts if text is not None]
    return "\n\n".join(words) if words and len(words) == len(texts) else json.dumps(result, ensure_ascii=False)


def _words(answer: Any) -> str | None:
    match answer:
        case {"content": str(text)} | {"text": str(text)} | {"message": {"content": str(text)}}:
            return text
    return None


def printable(text: str) -> str:
    """Without what a terminal would obey."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _facts(job: JobView) -> list[tuple[str, str]]:
    facts = [
        ("id", job.id),
        ("status", job.status),
        ("endpoint", job.endpoint),
        ("model", job.model),
        ("priority", job.priority),
        ("made", _time(job.created_at)),
        ("started", _time(job.started_at)),
        ("ended", _time(job.ended_at)),
        ("deadline", _time(job.deadline_at)),
        ("attempts", str(job.attempts)),
        ("metadata", ", ".join(f"{name}={value}" for name, value in job.metadata.items())),
        ("so far" if not job.is_ended else "outcome", summary(job)),
    ]
    return [(name, value) for name, value in facts if value]


def _status(job: JobView) -> Text:
    return Text(printable(job.status), style=STYLES.get(job.status, ""))


def _usage(usage: Any) -> str:
    match usage:
        case {"prompt_tokens": int(prompt), "completion_tokens": int(generated)}:
            return f"{prompt} prompt and {generated} generated tokens"
        case {"prompt_tokens": int(prompt)}:
            return f"{prompt} prompt token{'s' * (prompt != 1)}"
    return ""


def _time(seconds: int | None) -> str:
    """In the time of this place."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _passed(since: int | None, until: int | None) -> str:
    return "" if since is None or until is None else duration(max(0, until - since))


def _write_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)
