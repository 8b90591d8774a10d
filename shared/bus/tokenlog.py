"""The log of what a job said, and how it is followed from any number on. Knows nothing of who follows, or why.

The log is the truth; the channel beside it only says sooner what the log will say anyway. A reader subscribes, waits
for the confirmation, reads the log after its cursor, then takes what the channel brings and drops what it has seen. On
a gap, on an overflow, after a lost connection and after a quiet moment it reads the log again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import structlog

from shared.bus.annex import Annex
from shared.bus.claims import TOKENS
from shared.bus.connect import Reply, Sender
from shared.bus.keys import Keys
from shared.bus.script import ask
from shared.bus.subscriber import Inbox, Listener
from shared.errors import BusUnavailable, StoreUnavailable, UnknownFile, UnknownJob, Unreadable
from shared.events import Accepted, Event, Failure, Finished, Progress, Tokens
from shared.wire import Wire

QUIET_S, LONGEST_QUIET_S = 1.5, 6.0
"""Silence after which the log is read again, and what that grows to while nothing new is found."""

PATIENCE_S = 30.0
"""For a server that is away, and for a job that was expected and does not come."""

RETRY_S = 0.25

BUFFER = 64
"""Messages that a reader may be behind before it is sent to the log."""

LARGE = 256 * 1024
"""Bytes of a result from which on it is taken apart in a thread: up to there it is a matter of some milliseconds."""

PAGE = 128
"""Entries that are read from the log at once: what a slow reader has in memory."""

log = structlog.get_logger(__name__)


class LogEvent(NamedTuple):
    number: int | None
    """Of `Tokens`, and one more than theirs of `Finished`; None for what the log does not keep."""
    event: Event


class _Message(Wire):
    """What `append.lua` and `ending.lua` say on a job's channel."""

    id: str = ""
    events: tuple[Tokens, ...] = ()
    accepted: Accepted | None = None
    progress: Progress | None = None
    end: str | None = None


class TokenLog:
    def __init__(self, keys: Keys, link: Sender, subscriber: Listener, annex: Annex) -> None:
        self._keys = keys
        self._link = link
        self._subscriber = subscriber
        self._annex = annex

    @asynccontextmanager
    async def follow(self, job_id: str, *, after: int = 0, expects: bool = False) -> AsyncIterator[Reader]:
        """A reader of everything that the job says after event `after`.

        `expects`: the job is about to be enqueued. Raises UnknownJob (when not expected), BusUnavailable and
        StoreUnavailable.
        """
        try:
            channel = self._keys.live(job_id)
        except ValueError:
            raise UnknownJob(f"There is no job {job_id!r}.") from None
        async with self._subscriber.listen([channel], limit=BUFFER) as inbox:
            reader = Reader(self._keys, self._link, self._annex, inbox, job_id, after=after, is_expected=expects)
            if not expects:
                await reader.catch_up()
            yield reader

    async def read(self, job_id: str) -> list[tuple[int, Tokens]]:
        """All tokens in the log with their numbers: what a new attempt continues from. Raises BusUnavailable."""
        [entries] = await ask(self._link, [("XRANGE", self._keys.log(job_id), "-", "+")])
        return [each for entry in entries for each in _numbered(entry)]


class Reader:
    """Yields what a job says, tokens with strictly consecutive numbers, and last its ending. For one task.

    `next` may be cancelled at any time and loses nothing by it.
    """

    def __init__(
        self, keys: Keys, link: Sender, annex: Annex, inbox: Inbox, job_id: str, *, after: int, is_expected: bool
    ) -> None:
        self._link = link
        self._annex = annex
        self._inbox = inbox
        self._job_id = job_id
        self._job, self._log = keys.job(job_id), keys.log(job_id)
        self._cursor = after
        self._last_id = ""
        """Of the last log entry that was seen."""
        self._ready: list[LogEvent] = []
        self._is_stale = False
        """The log may have more than the channel brought."""
        self._is_expected = is_expected
        """It may not be there yet; ends with the first sign of it."""
        self._is_accepted = False
        self._is_over = False
        now = asyncio.get_running_loop().time()
        self._created_at = self._answered_at = now
        self._news_at = now
        self._quiet_s = QUIET_S

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> LogEvent:
        event = await self.next()
        assert event is not None
        return event

    async def next(self, timeout_s: float | None = None) -> LogEvent | None:
        """What comes next, or None when nothing came in time.

        Raises StopAsyncIteration after the ending, UnknownJob when the job has vanished, BusUnavailable or
        StoreUnavailable when the server or the store has been away for half a minute.
        """
        if self._is_over:
            raise StopAsyncIteration
        loop = asyncio.get_running_loop()
        until = None if timeout_s is None else loop.time() + timeout_s
        while not self._ready:
            await self._look(until)
            if not self._ready and until is not None and loop.time() >= until and not self._has_mail:
                return None
        event = self._ready.pop(0)
        self._is_over = isinstance(event.event, Finished)
        return event

    @property
    def _has_mail(self) -> bool:
        return bool(self._inbox.messages) or self._inbox.missed

    async def _look(self, until: float | None) -> None:
        """One turn of: the log when it is due, else the channel, else waiting for either, until a time at most."""
        if self._inbox.missed:
            self._inbox.missed, self._is_stale = False, True
        if self._is_stale:
            await self._catch_up_patiently(until)
        elif self._inbox.messages:
            self._take(_Message.from_json(self._inbox.messages.pop(0)[1]))
        else:
            now = asyncio.get_running_loop().time()
            quiet_until = self._news_at + self._quiet_s
            if now >= quiet_until:
                self._is_stale = True
                self._news_at, self._quiet_s = now, min(LONGEST_QUIET_S, 2 * self._quiet_s)
            else:
                await self._inbox.wait((quiet_until if until is None else min(until, quiet_until)) - now)

    def _take(self, message: _Message) -> None:
        self._is_expected = False
        self._hear()
        if message.accepted:
            self._accept(message.accepted)
        if message.progress:
            self._ready.append(LogEvent(None, message.progress))
        if message.events:
            first = int(message.id.partition("-")[2])
            if first > self._cursor + 1:
                self._is_stale = True
            elif first + len(message.events) > self._cursor + 1:
                self._last_id = message.id
                self._extend(enumerate(message.events, first))
        if message.end:
            self._is_stale = True  # its result is in the record

    async def _catch_up_patiently(self, until: float | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self.catch_up()
        except (BusUnavailable, StoreUnavailable):
            if loop.time() - self._answered_at > PATIENCE_S:
                raise
            pause_s = RETRY_S if until is None else min(RETRY_S, max(0.0, until - loop.time()))
            await asyncio.sleep(pause_s)

    async def catch_up(self) -> None:
        """A page of what the log has after the cursor, and the ending if nothing else is left."""
        start = f"({self._last_id}" if self._last_id else "-"
        # Both at one moment: else a job might end between the look at its log and the look at its record.
        replies = await ask(
            self._link,
            [
                ("MULTI",),
                ("XRANGE", self._log, start, "+", "COUNT", PAGE),
                ("HMGET", self._job, "status", "accepted", "result", "end_event"),
                ("EXEC",),
            ],
        )
        entries, (status, accepted, result, end_event) = replies[-1]
        is_whole = len(entries) < PAGE
        # Before anything is noted: who is cancelled while it waits has read nothing.
        finished = await self._finished(result) if is_whole and result is not None else None
        self._is_stale = not is_whole
        self._answered_at = asyncio.get_running_loop().time()
        if status is None:
            self._miss_job()
            return
        self._is_expected = False
        if accepted is not None:
            self._accept(Accepted.from_json(accepted))
        if not self._take_entries(entries, is_rest=start != "-"):
            return
        if finished is not None and not self._is_stale:
            self._ready.append(LogEvent(int(end_event), finished))
        if self._ready:
            self._hear()

    def _take_entries(self, entries: list[Reply], *, is_rest: bool) -> bool:
        """False when the rest of a log does not follow what was seen: then it is to be read from its start.

        A server that lost its last second may hand out an epoch again, and cut the same words into other entries.
        """
        for entry in entries:
            numbered = list(_numbered(entry))
            if is_rest and numbered and numbered[0][0] > self._cursor + 1:
                self._last_id, self._is_stale = "", True
                return False
            self._last_id = entry[0].decode()
            self._extend(numbered)
        return True

    def _miss_job(self) -> None:
        if not self._is_expected or self._answered_at - self._created_at > PATIENCE_S:
            raise UnknownJob(f"There is no job {self._job_id!r}.")

    def _accept(self, accepted: Accepted) -> None:
        if not self._is_accepted:
            self._is_accepted = True
            self._ready.append(LogEvent(None, accepted))

    def _extend(self, numbered: Iterable[tuple[int, Tokens]]) -> None:
        for number, event in numbered:
            if number > self._cursor:
                self._cursor = number
                self._ready.append(LogEvent(number, event))

    async def _finished(self, result: bytes) -> Finished:
        """Taken apart in a thread where that takes more than some milliseconds."""
        try:
            text = await self._annex.fetch(result)
        except UnknownFile as error:
            log.warning("a result is gone from the store", job_id=self._job_id, reason=error.message)
            failure = Failure.of(Unreadable("What is stored of the job cannot be read."))
            return Finished(status="failed", failure=failure)
        return Finished.from_json(text) if len(text) < LARGE else await asyncio.to_thread(Finished.from_json, text)

    def _hear(self) -> None:
        self._news_at = asyncio.get_running_loop().time()
        self._quiet_s = QUIET_S


def _numbered(entry: Reply) -> Iterator[tuple[int, Tokens]]:
    """The events of a log entry with their numbers; none for the mark of an attempt and for the ending."""
    entry_id, fields = entry
    if fields[0] == b"n":
        first = int(entry_id.partition(b"-")[2])
        yield from enumerate(TOKENS.validate_json(fields[3]), first)
