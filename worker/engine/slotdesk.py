"""Takes, puts back and drops what slots have in the cache, between two decodes, when nobody is in them.

For the decode thread; the length may be read from any. Knows nothing of files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from shared.errors import EngineFailed, InvalidRequest, NotReady
from shared.events import Failure, SlotReport
from worker.engine.admission import Admission
from worker.engine.cells import Cells, Prefix, Resident, Standing
from worker.engine.llama import NO_STATE, Context, StateRefused
from worker.engine.task import DropState, PutState, SequenceKey, SlotState, SlotTask, TakeState

Ended = tuple[SequenceKey, SlotReport | Failure]


class _Waiting(NamedTuple):
    task: SlotTask
    since: float
    """Monotonic seconds."""


class SlotDesk:
    def __init__(self, context: Context, cells: Cells, admission: Admission) -> None:
        self._context = context
        self._cells = cells
        self._admission = admission
        self._waiting: list[_Waiting] = []
        self._restored: dict[int, Resident] = {}
        """What was put into each slot last."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, task: SlotTask, since: float) -> None:
        self._waiting.append(_Waiting(task, since))

    def remove(self, is_going: Callable[[SlotTask], bool]) -> list[SlotTask]:
        """Take out tasks that wait."""
        going = [task for task, _ in self._waiting if is_going(task)]
        self._waiting = [each for each in self._waiting if not is_going(each.task)]
        return going

    def serve(self) -> list[Ended]:
        """Do what can be done now. Those of one slot are served in their order: whom the first waits for, the others
        wait for too."""
        ended: list[Ended] = []
        left: list[_Waiting] = []
        for each in self._waiting:
            task, since = each
            is_free = self._admission.holder(task.slot) is None and not self._admission.is_awaited(task.slot, since)
            if not is_free:
                left.append(each)
            elif said := self._do(task):
                ended.append((task.key, said))
        self._waiting = left
        return ended

    def _do(self, task: SlotTask) -> SlotReport | Failure | None:
        """None when somebody else says the end."""
        started = time.monotonic()
        match task:
            case TakeState(slot=slot, keep=keep):
                state = self._take(slot)
                if isinstance(state, Failure):
                    return state
                error = keep(state, (time.monotonic() - started) * 1e3)
                return Failure.of(error) if error else None
            case PutState(slot=slot, state=state):
                if failure := self._put(slot, state):
                    return failure
                ms = task.ms + (time.monotonic() - started) * 1e3
                return SlotReport(n_tokens=len(state.tokens), n_bytes=task.n_bytes, ms=ms)
            case DropState(slot=slot):
                return SlotReport(n_tokens=self._drop(slot), ms=(time.monotonic() - started) * 1e3)
        raise AssertionError(task)

    def _take(self, slot: int) -> SlotState | Failure:
        resident = self._last_of(slot)
        if resident.spans:
            return Failure.of(InvalidRequest("Unable to save slot: it holds an image, which no file can keep"))
        n_tokens = resident.n_cached
        state = self._context.take_state(resident.seq_id) if n_tokens else NO_STATE
        if state is None:
            return Failure.of(EngineFailed("Unable to save slot: llama.cpp did not give its state"))
        tokens = resident.tokens[:n_tokens].copy()
        return SlotState(tokens, state, resident.scales, min(resident.n_pure, n_tokens))

    def _put(self, slot: int, saved: SlotState) -> Failure | None:
        before = self._cells.of_slot(slot)
        if len(saved.tokens):
            if not self._make_room(len(saved.tokens)):
                return Failure.of(NotReady("Unable to restore slot: there is no room for it beside what runs"))
            tokens = saved.tokens.copy()
            resident = Resident(tokens, len(tokens), scales=saved.scales, slot=slot, n_pure=saved.n_pure)
            try:
                self._cells.bring_in(resident, saved.state)
            except StateRefused as refused:
                return Failure.of(InvalidRequest(f"Unable to restore slot: {refused}"))
            self._restored[slot] = resident
        for resident in before:
            self._cells.evict(resident)
        return None

    def _last_of(self, slot: int) -> Resident:
        """Who was there last, whatever is left of it in the cache: not one before it of which there is more."""
        sequence, restored = self._admission.slots[slot], self._restored.get(slot)
        candidates = [sequence.resident] if sequence else []
        return max([*candidates, *([restored] if restored else [])], key=lambda each: each.stamp, default=Resident())

    def _drop(self, slot: int) -> int:
        """Returns how many tokens it had: those before it mostly had the same."""
        n_tokens = self._last_of(slot).n_cached
        for resident in self._cells.of_slot(slot):
            self._cells.evict(resident)
        return n_tokens

    def _make_room(self, n_tokens: int) -> bool:
        """Free so many cells of those who are idle, if there are as many."""
        holders = (each for each in self._cells.residents if each.standing is not Standing.IDLE)
        if self._cells.n_within_reach(holders, Prefix()) < n_tokens:
            return False
        while (n_missing := n_tokens - self._cells.n_free) > 0:
            if not self._cells.give_up_idle(n_missing):
                return False
        return True
