"""Follows a batch: the records of its lines as they come to stand in segments, how it gets on meanwhile, and its end.

A reader costs a piece of the store's bytes at a time, however large the batch, a segment or one record is: records go
through as bytes, and are never taken apart. Where it goes on after a fault is a number of bytes in an object.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from api import sse
from api.batches.pace import Pace, Rate
from api.context import LEFT, Context
from api.framing import Framing
from api.problems import body_of
from api.relay import Departure, Stream
from api.schemas.batches import batch_json, progress_json
from shared.batches import Batch, Segment, segment_pieces
from shared.bus import Batches
from shared.errors import BusUnavailable, StoreUnavailable, UnknownBatch, UnknownFile
from shared.files import Piece
from shared.store import Store

GONE = "There is no such batch"
RESULTS_GONE = "A part of the batch's results is gone: its files were deleted, or have expired"

PIECE = 256 * 1024
"""Bytes that are read at once."""

LOOK_EVERY_S = 1.0
"""At how the batch stands."""

PATIENCE_S = 30.0
"""For a server or a store that is away."""
RETRY_S = 0.25


class Part(NamedTuple):
    """Bytes of records, one behind the other; they may begin and end within one."""

    raw: bytes


class Standing(NamedTuple):
    """How a batch was found, and at which rate it gets on."""

    batch: Batch
    rate: Rate | None


class Records:
    """The bytes of a batch's records behind the `after`th, in the order of their numbers, as far as segments are known.

    `read` may be called again when it failed, and goes on where it was.
    """

    def __init__(self, store: Store, batch_id: str, after: int) -> None:
        self._store = store
        self._batch_id = batch_id
        self._left_out = after
        """Records that are not wanted, of those in segments that are not known yet."""
        self._ahead: deque[_Object] = deque()
        self.n_segments = 0

    def extend(self, segments: Sequence[Segment]) -> None:
        """Those that come next."""
        for segment in segments:
            assert segment.number == self.n_segments, "segments have no gaps"
            self.n_segments += 1
            pieces = segment_pieces(self._batch_id, segment)
            for piece, n_records in zip(pieces, (segment.n_output, segment.n_error), strict=True):
                if n_records > self._left_out:
                    self._ahead.append(_Object(piece, self._left_out))
                self._left_out = max(0, self._left_out - n_records)

    async def read(self) -> bytes:
        """The next bytes; none when nothing is left. Raises StoreUnavailable, and UnknownFile when they are gone."""
        while self._ahead:
            head = self._ahead[0]
            stop = min(head.offset + PIECE, head.piece.n_bytes)
            try:
                raw = b"".join([part async for part in self._store.read(head.piece.name, head.offset, stop)])
            except UnknownFile:  # of which the reader knows nothing: it asked for no file
                raise UnknownFile(RESULTS_GONE) from None
            if len(raw) < stop - head.offset:
                raise UnknownFile(RESULTS_GONE)
            head.offset = stop
            if stop == head.piece.n_bytes:
                self._ahead.popleft()
            if wanted := head.wanted(raw):
                return wanted
        return b""


@dataclass(slots=True)
class _Object:
    """One with records, as far as it was read."""

    piece: Piece
    n_left_out: int
    """Records, of those to come, that are not wanted."""
    offset: int = 0

    def wanted(self, raw: bytes) -> bytes:
        """Of the next bytes, what stands behind all records that are not wanted."""
        start = 0
        while self.n_left_out:
            end = raw.find(b"\n", start)
            if end < 0:
                return b""
            self.n_left_out -= 1
            start = end + 1
        return raw[start:]


class BatchEvents:
    """One batch, both as what is followed and as how it looks: one numbered event for each record, and one for the end.

    An event's id stands behind its data: what is cut within a record has none, and is sent again.
    """

    def __init__(self, batches: Batches, store: Store, batch: Batch, after: int) -> None:
        self.framing = Framing(sse.HEADERS, lambda: b"" if self._is_within else sse.KEEP_ALIVE)
        self.is_over = False
        self._batches = batches
        self._batch = batch
        self._records = Records(store, batch.id, after)
        self._pace = Pace(batch)
        self._number = after
        """Of the last record whose end was said."""
        self._is_within = False
        """The beginning of a record was said, and not its end: nothing else may be said now."""
        self._is_ended = False
        """It was found to have ended, so that all of its segments are known."""
        self._told: Any = None
        """What was said last of how it stands."""
        self._look_at = self._heard_at = time.monotonic()

    async def next(self, timeout_s: float) -> Part | Standing | None:
        until = time.monotonic() + timeout_s
        while True:
            heard = await self._next_patiently()
            now = time.monotonic()
            if heard is not None or now >= until:
                return heard
            await asyncio.sleep(max(0.0, min(self._look_at, until) - now))

    def say(self, heard: Part | Standing) -> bytes:
        match heard:
            case Part(raw):
                return self._lines(raw)
            case Standing(batch, rate) if self.is_over:
                return sse.event(batch.n_records + 1, "done", batch_json(batch, rate))
            case Standing(batch, rate):
                return sse.notice("progress", progress_json(batch, rate))

    def end(self) -> bytes:
        return b""

    def failed(self, error: Exception) -> bytes:
        """A batch that is gone says so. Else nothing that could be taken for its end: the reader comes again with the
        last id it has."""
        if self._is_within:
            return b""
        if isinstance(error, UnknownBatch | UnknownFile):
            return sse.notice("error", body_of(error, with_param=True))
        return b": interrupted\n\n"

    async def _next_patiently(self) -> Part | Standing | None:
        try:
            heard = await self._next()
        except (BusUnavailable, StoreUnavailable):
            if time.monotonic() > self._heard_at + PATIENCE_S:
                raise
            await asyncio.sleep(RETRY_S)
            return None
        self._heard_at = time.monotonic()
        return heard

    async def _next(self) -> Part | Standing | None:
        """What there is to say now."""
        if not self._is_ended and time.monotonic() >= self._look_at and (standing := await self._look()):
            return standing
        if raw := await self._records.read():
            return Part(raw)
        self.is_over = self._is_ended
        return Standing(self._batch, None) if self.is_over else None

    async def _look(self) -> Standing | None:
        """Finds out how it stands, and what has been written. To be said when it has changed, and not ended."""
        batch, known = await self._batches.record(self._batch.id), self._records.n_segments
        if batch is None:
            raise UnknownBatch(GONE)
        # The record first: what it counts stands in segments that are there by then.
        segments = await self._batches.segments(batch.id, known) if batch.n_segments > known else []
        self._records.extend(segments)
        self._batch, self._is_ended = batch, batch.status.is_ended
        self._look_at, now = time.monotonic() + LOOK_EVERY_S, time.time()
        self._pace.note(batch, now)
        stands = progress_json(batch, None)
        if self._is_ended or self._is_within or stands == self._told:
            return None
        self._told = stands
        return Standing(batch, self._pace.rate(now))

    def _lines(self, raw: bytes) -> bytes:
        *ended, begun = raw.split(b"\n")
        said = []
        for record in ended:
            self._number += 1
            said.append(b"%s%s\nid: %d\n\n" % (self._opening(), record, self._number))
            self._is_within = False
        if begun:
            said.append(self._opening() + begun)
            self._is_within = True
        return b"".join(said)

    def _opening(self) -> bytes:
        return b"" if self._is_within else b"event: line\ndata: "


class EventsResponse:
    """A batch's events from a number on, until it ends or the reader goes."""

    def __init__(self, context: Context, batch: Batch, after: int) -> None:
        self._events = BatchEvents(context.bus.batches, context.store, batch, after)
        self._keep_alive_s = context.settings.keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"][LEFT] = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with Departure(receive):
            await Stream(self._events, {}, self._keep_alive_s).run(self._events, send)
