"""Saves slots to files, restores them and erases them, as a request asks for.

Files are read before the engine hears of a task, and written when it has given its copy, in a thread of their own: the
decode thread never waits for a disk. Knows no bus.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

import structlog

from shared.errors import EngineFailed, InvalidRequest, NotReady, SlotstreamError
from shared.events import Failure, SlotReport
from shared.jobs import SlotAction
from worker.engine import DropState, Engine, PutState, SequenceKey, SlotState, SlotTask, TakeState
from worker.slotfiles import record
from worker.slotfiles.folder import SlotFolder
from worker.slotfiles.origin import Origin, origin_of
from worker.slotfiles.record import Destination, Unfit

log = structlog.get_logger(__name__)

Say = Callable[[Sequence[tuple[SequenceKey, SlotReport | Failure]]], None]


MOST_BYTES = 1 << 30
"""Of states outside of the cache: those that are written, and those that wait for their slot."""


class Memory:
    """How much of it states take, at most `MOST_BYTES`; but one always has room, however large. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # whatever the collector frees meanwhile may give room back
        self._n_bytes = 0

    def take(self, n_bytes: int) -> bool:
        with self._lock:
            has_room = self._n_bytes == 0 or self._n_bytes + n_bytes <= MOST_BYTES
            self._n_bytes += n_bytes * has_room
            return has_room

    def release(self, n_bytes: int) -> None:
        with self._lock:
            self._n_bytes -= n_bytes


class SlotFiles:
    """Of one worker. For any thread."""

    def __init__(self, folder: SlotFolder, engine: Engine, say: Say) -> None:
        """`say` is called with the end of what was saved; from any thread, and it does not block."""
        self._folder = folder
        self._engine = engine
        self._say = say
        self._memory = Memory()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="slot-files")

    def close(self) -> None:
        """What is being written is written to its end."""
        self._thread.shutdown(cancel_futures=True)
        self._folder.close()

    @cached_property
    def origin(self) -> Origin:
        """Of all that is saved here."""
        engine = self._engine
        try:
            return origin_of(engine.model.facts, engine.config, engine.adapters.paths)
        except OSError as error:
            raise EngineFailed(f"the model's file cannot be read any more: {error.strerror}") from None

    def task(self, key: SequenceKey, request: SlotAction, deadline: float) -> SlotTask:
        """What the engine is to do. Raises InvalidRequest for a file that cannot be restored here."""
        slot = request.slot % self._engine.config.n_slots
        match request.action:
            case "save":
                return TakeState(key, slot, deadline, keep=partial(self._keep, key, request.filename))
            case "restore":
                return self._restoring(key, slot, request.filename, deadline)
            case "erase":
                return DropState(key, slot, deadline)

    def _restoring(self, key: SequenceKey, slot: int, filename: str, deadline: float) -> PutState:
        started = time.monotonic()
        destination = Destination(self.origin, self._engine.n_ctx_slot)
        with self._folder.reading(filename) as (file, n_bytes):
            if not self._memory.take(n_bytes):
                raise NotReady("Unable to restore slot: too many others wait for theirs")
            try:
                state = record.read(file, n_bytes, destination)
            except Unfit as unfit:
                self._memory.release(n_bytes)
                raise InvalidRequest(f"Unable to restore slot: {unfit}", param="filename") from None
            except OSError as error:
                self._memory.release(n_bytes)
                raise EngineFailed(f"Unable to restore slot: its file cannot be read: {error.strerror}") from None
        weakref.finalize(state, self._memory.release, n_bytes)
        return PutState(key, slot, deadline, state, n_bytes, (time.monotonic() - started) * 1e3)

    def _keep(self, key: SequenceKey, filename: str, state: SlotState, ms: float) -> SlotstreamError | None:
        """On the decode thread."""
        n_bytes = state.state.nbytes
        if not self._memory.take(n_bytes):
            return NotReady("Unable to save slot: too many others are still being written")
        weakref.finalize(state, self._memory.release, n_bytes)
        self._thread.submit(self._write, key, filename, state, ms)
        return None

    def _write(self, key: SequenceKey, filename: str, state: SlotState, ms: float) -> None:
        started = time.monotonic()
        said: SlotReport | Failure
        try:
            n_bytes = record.size_of(state, self.origin)
            self._folder.write(filename, n_bytes, partial(record.write, state=state, origin=self.origin))
            ms += (time.monotonic() - started) * 1e3
            said = SlotReport(n_tokens=len(state.tokens), n_bytes=n_bytes, ms=ms)
        except SlotstreamError as error:
            said = Failure.of(error)
        except Exception:  # the border of this thread: somebody waits for a word
            log.exception("a slot was not saved")
            said = Failure.of(EngineFailed("Unable to save slot"))
        self._say([(key, said)])
