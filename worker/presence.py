"""Says who this worker is, how it does and what it has done, for `/health`, `/slots`, `/metrics` and whoever looks for
workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import structlog

from shared.bus import AdapterCard, Bus, ModelCard, Recent, SlotState, WorkerState
from shared.errors import BusUnavailable
from shared.jobs import Generation, Sampling
from shared.work import Work
from worker.chat import Dialect
from worker.engine import Adapters, Defaults, Engine, EngineSnapshot, SlotSnapshot

EVERY_S = 0.5
TTL_S = 10.0
FAILURE_TTL_S = 60.0
"""How long it is known why a worker could not start."""
RECENT_S = 60.0
BUILD = f"llama-cpp-python {version('llama-cpp-python')}"

log = structlog.get_logger(__name__)

Status = Literal["loading", "ready", "draining", "failed"]


class Announcer:
    """Keeps this worker's entry fresh. The entry runs out by itself when the worker dies."""

    def __init__(self, bus: Bus, worker_id: str, names: tuple[str, ...], path: str, n_slots: int) -> None:
        """`names` are what clients call the model, `path` is what it is loaded from."""
        self.worker_id = worker_id
        self._presence, self._tally, self._annex = bus.presence, bus.tally, bus.annex
        self._recent = Window()
        self._slots = Slots()
        self._n_slots = n_slots
        self._card = ModelCard(
            name=readable(names[0]),
            aliases=tuple(map(readable, names[1:])),
            path=readable(path),
            n_ctx=0,
            n_ctx_train=0,
            n_vocab=0,
            n_embd=0,
            n_params=0,
            size=0,
        )
        self._adapters = Adapters()
        self._started_at = time.time()
        self._status: Status = "loading"
        self._progress, self._stage = 0.0, ""
        self._failure = ""
        self._changed = asyncio.Event()
        self._snapshot: Callable[[], EngineSnapshot] = EngineSnapshot

    @property
    def name(self) -> str:
        """The model's, in the queue."""
        return self._card.name

    def loading(self, progress: float, stage: str = "") -> None:
        """How far it is, 0 to 1, and what it does, if that is more than reading a file. It never goes back: a model
        that was fetched is loaded then, from the beginning."""
        self._progress, self._stage = max(self._progress, progress), readable(stage)

    def failed(self, why: str) -> None:
        """It cannot start. The last that is said of it, and kept for those who wait."""
        self._status, self._failure = "failed", readable(why)

    def ready(self, engine: Engine, dialect: Dialect, *, has_slot_files: bool = False) -> None:
        """The model is loaded: this is what it is, and how its slots do."""
        self._card = _card(self._card, engine, dialect).model_copy(update={"has_slot_files": has_slot_files})
        self._adapters = engine.adapters
        self._adapters.on_change = partial(asyncio.get_running_loop().call_soon_threadsafe, self._changed.set)
        self._snapshot, self._status, self._progress = engine.snapshot, "ready", 1.0
        self._changed.set()

    def draining(self) -> None:
        self._status = "draining"
        self._changed.set()

    async def run(self) -> None:
        """Announce until cancelled, at each change at once; then say goodbye."""
        try:
            while True:
                self._changed.clear()
                try:
                    await self._announce()
                except BusUnavailable as error:
                    log.debug("not announced", reason=error.message)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), EVERY_S)
        finally:
            await self._leave()

    async def _announce(self) -> None:
        """What it is comes first: the other does not replace anything, and waits for the next time."""
        snapshot = self._snapshot()
        await self._presence.announce(self._state(snapshot), ttl_s=TTL_S)
        await self._say_what_was_done(snapshot)

    async def _leave(self) -> None:
        try:
            await asyncio.wait_for(self._say_goodbye(), 1.0)
        except (BusUnavailable, TimeoutError):
            log.debug("left without a word: the entry runs out by itself")

    async def _say_goodbye(self) -> None:
        if self._status == "failed":
            await self._presence.announce(self._state(self._snapshot()), ttl_s=FAILURE_TTL_S)
            return
        await self._say_what_was_done(self._snapshot())
        await self._presence.leave(self.worker_id)

    async def _say_what_was_done(self, snapshot: EngineSnapshot) -> None:
        if snapshot.work.n_decodes:
            await self._tally.say(self.worker_id, self.name, snapshot.work)

    def _state(self, snapshot: EngineSnapshot) -> WorkerState:
        return WorkerState(
            id=self.worker_id,
            model=_with_scales(self._card, self._adapters.defaults),
            status=self._status,
            progress=round(self._progress, 4),
            stage=self._stage if self._status == "loading" else "",
            failure=self._failure,
            started_at=self._started_at,
            slots=tuple(map(self._slots.state, snapshot.slots)),
            n_slots=self._n_slots,
            n_waiting=snapshot.n_waiting,
            n_parked=snapshot.n_parked,
            host=platform.node(),
            pid=os.getpid(),
            build=BUILD,
            tokens_per_second=round(snapshot.tokens_per_second, 2),
            recent=self._recent.since(snapshot.work, time.monotonic()),
            n_cells=snapshot.n_cells,
            n_cells_used=snapshot.n_cells_used,
            batch=snapshot.batch.n_rows,
            decode_ms=round(snapshot.decode_ms, 3),
            gap_ms=round(snapshot.gap_ms_p50, 3),
            stores=tuple(sorted(self._annex.marks)),
        )


class Slots:
    """What is told of them. What their requests ask for is worked out once for each: 64 at a time, twice a second,
    would be noticed between decodes."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[Generation, Generation]] = {}
        """By slot: the request that was there when this was last asked, and what all may see of it."""

    def state(self, slot: SlotSnapshot) -> SlotState:
        return SlotState(
            id=slot.id,
            is_processing=slot.is_processing,
            job_id=slot.job_id,
            n_ctx=slot.n_ctx,
            n_prompt_tokens=slot.n_prompt_tokens,
            n_prompt_tokens_processed=slot.n_prompt_tokens_processed,
            n_prompt_tokens_cache=slot.n_prompt_tokens_cache,
            n_decoded=slot.n_decoded,
            n_remain=slot.n_remain,
            has_new_line=slot.has_new_line,
            asked=None if slot.request is None else self._shown(slot.id, slot.request),
        )

    def _shown(self, slot: int, request: Generation) -> Generation:
        known, shown = self._asked.get(slot, (None, None))
        if known is not request or shown is None:
            shown = without_words(request)
            self._asked[slot] = request, shown
        return shown


def without_words(request: Generation) -> Generation:
    """How a text is to be made, for all to see: none of what its author wrote, be it a stop string or a bias."""
    usual = Sampling()
    words = {name: getattr(usual, name) for name in ("penalty_prompt", "logit_bias", "dry_sequence_breakers")}
    # What is copied was checked when the job was read.
    return Generation.model_construct(
        n_predict=request.n_predict,
        n=request.n,
        sampling=request.sampling.model_copy(update=words),
        cache_prompt=request.cache_prompt,
        n_keep=request.n_keep,
        n_discard=request.n_discard,
        truncate=request.truncate,
        shift=request.shift,
        t_max_predict_ms=request.t_max_predict_ms,
        n_indent=request.n_indent,
        n_probs=request.n_probs,
        post_sampling_probs=request.post_sampling_probs,
        timings_per_token=request.timings_per_token,
        lora=request.lora,
    )


class Window:
    """What was done in the last minute: the difference to what had been done by then."""

    def __init__(self) -> None:
        self._known: deque[tuple[float, Work]] = deque([(0.0, Work())])

    def since(self, work: Work, now: float) -> Recent:
        """`work` is all that was done until `now`, monotonic seconds."""
        self._known.append((now, work))
        while len(self._known) > 1 and self._known[1][0] <= now - RECENT_S:
            self._known.popleft()
        done = work - self._known[0][1]
        return Recent(
            prompt_tokens=done.n_prompt_tokens,
            prompt_s=done.prompt_s,
            predicted_tokens=max(0, done.n_predicted_tokens - done.n_begun),  # read in the middle of a step
            predicted_s=done.predicted_s,
        )


def readable(text: str) -> str:
    """With U+FFFD for bytes that are no UTF-8: a file's name may have such, and JSON has no place for them."""
    return os.fsencode(text).decode(errors="replace")


def _card(announced: ModelCard, engine: Engine, dialect: Dialect) -> ModelCard:
    facts = engine.model.facts
    return ModelCard(
        name=announced.name,
        aliases=announced.aliases,
        path=readable(str(facts.path)),
        n_ctx=engine.n_ctx_slot,
        n_ctx_train=facts.n_ctx_train,
        n_vocab=facts.n_vocab,
        n_embd=facts.n_embd,
        n_params=facts.n_params,
        size=facts.size,
        vocab_type=facts.vocab_type,
        architecture=facts.architecture,
        ftype=facts.ftype,
        quantization=facts.quantization,
        modified_at=_modified_at(facts.path),
        bos_token=facts.bos_token,
        eos_token=facts.eos_token,
        description=facts.description,
        can_generate=engine.can_generate,
        pooling=engine.input_rules.pooling,
        has_vision=engine.vision is not None,
        can_infill=engine.can_generate and facts.fill.is_whole,
        can_call=engine.can_generate and dialect.calls is not None,
        can_reason=engine.can_generate and dialect.reasoning is not None,
        adapters=tuple(
            AdapterCard(path=readable(str(path)), scale=0.0, task_name=said.task_name, prompt_prefix=said.prompt_prefix)
            for path, said in zip(engine.adapters.paths, engine.model.adapters.facts, strict=True)
        ),
    )


def _modified_at(path: Path) -> float:
    """0 when it is not there any more: a model that is loaded needs no name for its file."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _with_scales(card: ModelCard, defaults: Defaults) -> ModelCard:
    """As they are now."""
    if not card.adapters:
        return card
    adapters = zip(card.adapters, defaults.scales, strict=True)
    return card.model_copy(
        update={
            "adapters": tuple(adapter.model_copy(update={"scale": scale}) for adapter, scale in adapters),
            "adapters_set_at": defaults.set_at,
        }
    )
