"""Who is alive: workers with their slots, and the models that were ever served. Knows no queue.

A worker that stops announcing itself is gone when its key expires; nobody needs to notice its death.
"""

from __future__ import annotations

import time
from typing import Any, Literal, TypeVar

import structlog
from pydantic import ValidationError, field_serializer

from shared.bus.connect import Sender
from shared.bus.keys import Keys
from shared.bus.script import ask
from shared.jobs import Generation
from shared.wire import Wire

MODEL_KEPT_S = 86400
"""Without any worker: its name still means it, and jobs for it wait. As long as results are kept."""

T = TypeVar("T", bound=Wire)

log = structlog.get_logger(__name__)


class SlotState(Wire):
    """One slot as `/slots` shows it. Token counts are of the job it works on."""

    id: int
    is_processing: bool
    job_id: str | None = None
    n_ctx: int
    n_prompt_tokens: int = 0
    n_prompt_tokens_processed: int = 0
    n_prompt_tokens_cache: int = 0
    n_decoded: int = 0
    n_remain: int = -1
    has_new_line: bool = False
    asked: Generation | None = None
    """How the text is to be made that is there, or was last, with nobody's words in it; None before the first."""

    @field_serializer("asked")
    def _shortened(self, asked: Generation | None) -> dict[str, Any] | None:
        """Most ask for little, and all slots are told of twice a second."""
        return None if asked is None else asked.model_dump(mode="json", exclude_defaults=True)


class AdapterCard(Wire):
    """A LoRA adapter that a worker has loaded; its id is its place among them."""

    path: str
    scale: float
    """Of requests that name none."""
    task_name: str = ""
    prompt_prefix: str = ""
    """What the file says of itself, if anything."""


class ModelCard(Wire):
    """What a client may know of a served model; the counts are the GGUF's own. It is announced twice a second: what is
    longer than a line is for `GetProperties` to ask."""

    name: str
    aliases: tuple[str, ...] = ()
    """Other names that mean it."""
    path: str
    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_params: int
    size: int
    vocab_type: int = 0
    architecture: str = ""
    ftype: str = ""
    """How most of it is stored, in llama.cpp's words: `Q4_K - Medium`."""
    quantization: str = ""
    """The same in the word that files are called by: `Q4_K_M`."""
    modified_at: float = 0.0
    """When its file was changed last, Unix seconds."""
    bos_token: str = ""
    eos_token: str = ""
    description: str = ""
    can_generate: bool = True
    pooling: str = ""
    """Of embeddings: none, mean, cls, last, or rank for a model that reranks; empty while it is not known."""
    has_vision: bool = False
    can_infill: bool = False
    can_call: bool = False
    """Its chat template was made to offer functions."""
    can_reason: bool = False
    """It thinks aloud before it answers, or can be told to."""
    has_slot_files: bool = False
    adapters: tuple[AdapterCard, ...] = ()
    adapters_set_at: float = 0.0
    """When their scales were last set, Unix seconds; 0 while they are those it was started with. A worker that starts
    adopts the latest of its peers. So whoever sets them everywhere asks those too that are still loading: what they
    are sent meanwhile comes after what they adopt."""


class Recent(Wire):
    """What a worker did in the last minute, in the times that it took: added up over all its slots."""

    prompt_tokens: int = 0
    prompt_s: float = 0.0
    predicted_tokens: int = 0
    """Without first ones, whose time is that of their prompts."""
    predicted_s: float = 0.0


class WorkerState(Wire):
    """What a worker says of itself every few seconds."""

    id: str
    model: ModelCard
    status: Literal["loading", "ready", "draining", "failed"]
    """`failed`: it could not start, and is gone; this is left for those who wait for it."""
    progress: float = 1.0
    """Of loading, 0 to 1."""
    stage: str = ""
    """What it does while it loads, where that is more than reading the model's file."""
    failure: str = ""
    """Why it failed, in a sentence."""
    started_at: float
    """Unix seconds."""
    slots: tuple[SlotState, ...]
    n_slots: int
    n_waiting: int = 0
    """Sequences and inputs that it has taken on and could not start yet."""
    n_parked: int = 0
    """Sequences that gave their slot or their cells to others."""
    host: str
    pid: int
    build: str
    tokens_per_second: float = 0.0
    recent: Recent = Recent()
    n_cells: int = 0
    """Of its cache: all slots together have so many tokens in it at most."""
    n_cells_used: int = 0
    batch: int = 0
    """Rows of the last decode."""
    decode_ms: float = 0.0
    """Time in a decode, smoothed."""
    gap_ms: float = 0.0
    """The worker's own time between two decodes, the median of the last few hundred."""
    stores: tuple[str, ...] = ()
    """Marks of the store of files that it reads (`annex.py`)."""


class Presence:
    def __init__(self, keys: Keys, link: Sender) -> None:
        self._keys = keys
        self._link = link

    async def announce(self, state: WorkerState, ttl_s: float = 10) -> None:
        """Shows a worker for `ttl_s` seconds, and its model for a day. Raises BusUnavailable."""
        now = time.time()
        ttl_ms = round(ttl_s * 1000)
        name = state.model.name
        # What a worker that has not loaded its model says of it is little: it must not replace what another knew.
        only_new = () if state.status in ("ready", "draining") else ("NX",)
        await ask(
            self._link,
            [
                ("SET", self._keys.worker(state.id), state.to_json(), "PX", ttl_ms),
                # Only an index: who is alive is decided by the key above. It is pruned by a clock that may be wrong,
                # hence the hour.
                ("ZADD", self._keys.workers, now, state.id),
                ("ZREMRANGEBYSCORE", self._keys.workers, "-inf", now - max(3600.0, 2 * ttl_s)),
                ("EXPIRE", self._keys.workers, 3600 + round(2 * ttl_s)),
                ("SET", self._keys.model(name), state.model.to_json(), "EX", MODEL_KEPT_S, *only_new),
                ("ZADD", self._keys.served, now, name),
                ("ZREMRANGEBYSCORE", self._keys.served, "-inf", now - 2 * MODEL_KEPT_S),
                ("EXPIRE", self._keys.served, 2 * MODEL_KEPT_S),
            ],
            tries=1,
        )

    async def leave(self, worker_id: str) -> None:
        """Takes a worker out of sight at once. Raises BusUnavailable."""
        await ask(self._link, [("DEL", self._keys.worker(worker_id)), ("ZREM", self._keys.workers, worker_id)])

    async def workers(self) -> list[WorkerState]:
        """The living, sorted by id. Raises BusUnavailable."""
        [ids] = await ask(self._link, [("ZRANGE", self._keys.workers, 0, -1)])
        names = sorted(each.decode() for each in ids)
        states = await ask(self._link, [("GET", self._keys.worker(name)) for name in names]) if names else []
        return [worker for state in states if state is not None and (worker := _readable(WorkerState, state))]

    async def models(self) -> dict[str, ModelCard]:
        """All models that were served within a day, by name, each as its last worker described it. Raises
        BusUnavailable."""
        [names] = await ask(self._link, [("ZRANGE", self._keys.served, 0, -1)])
        found = [name.decode() for name in names]
        cards = await ask(self._link, [("GET", self._keys.model(name)) for name in found]) if found else []
        return {
            name: card
            for name, text in zip(found, cards, strict=True)
            if text is not None and (card := _readable(ModelCard, text))
        }


def _readable(kind: type[T], text: bytes) -> T | None:
    """None for what a newer version says and we cannot read: nobody may fall over a neighbour that is newer."""
    try:
        return kind.from_json(text)
    except ValidationError as error:
        log.debug("somebody speaks another version", kind=kind.__name__, error=str(error))
        return None
