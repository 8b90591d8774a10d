"""What the clients were promised and saw, and what was done to the system meanwhile. Values only."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.bus import OutboxRow
from shared.events import Event, Finished, Tokens
from tests.chaos.orders import Order
from tests.chaos.speech import speech


class Heard(NamedTuple):
    """What a reader was given: words, or the ending."""

    number: int | None
    text: str
    status: str | None = None


@dataclass(slots=True)
class Session:
    """One reader from its coming to its going."""

    job_id: str
    after: int
    heard: list[Heard] = field(default_factory=list)

    def hear(self, number: int | None, event: Event) -> None:
        match event:
            case Tokens():
                self.heard.append(Heard(number, event.text))
            case Finished():
                self.heard.append(Heard(number, "", event.status))

    @property
    def last_number(self) -> int:
        return max((each.number or 0 for each in self.heard), default=self.after)

    @property
    def has_ended(self) -> bool:
        return bool(self.heard) and self.heard[-1].status is not None


class Promise(NamedTuple):
    """An enqueue that was acknowledged."""

    order: Order
    job_id: str


class Witness(NamedTuple):
    """Somebody was told that a job had ended."""

    job_id: str
    status: str
    by: str


@dataclass(slots=True)
class Fault:
    name: str
    target: str
    at_s: float
    until_s: float | None = None


class Attempt(NamedTuple):
    """A job came into the engine of a worker."""

    pid: int
    job_id: str
    mark: int


class Exit(NamedTuple):
    """A worker process ended."""

    pid: int
    code: int
    was_asked: bool
    """To leave in good order."""


@dataclass(slots=True)
class History:
    started_at: float = 0.0
    offered: dict[str, Order] = field(default_factory=dict)
    """Every job id that was ever sent in an enqueue."""
    promises: list[Promise] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    witnesses: list[Witness] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    """Jobs that somebody asked to cancel."""
    rows: set[OutboxRow] = field(default_factory=set)
    """Endings that the outbox told of; a row may be told again."""
    faults: list[Fault] = field(default_factory=list)
    harmed: set[int] = field(default_factory=set)
    """Workers that were killed, or kept from speaking for longer than a lease."""
    attempts: list[Attempt] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """What went wrong for a client that no fault explains."""

    def start(self) -> None:
        self.started_at = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() - self.started_at

    def script(self, job_id: str) -> list[Tokens]:
        """All that a job says if nobody stops it."""
        return speech(job_id, self.offered[job_id].n_tokens)

    def begin_session(self, job_id: str, after: int) -> Session:
        session = Session(job_id, after)
        self.sessions.append(session)
        return session
