"""A batch and its segments: how they are written in Redis, and read from it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Self

from pydantic import TypeAdapter

from shared.batches import MAX_FAULTS, MAX_FAULTS_IN_LIST, Batch, BatchStatus, LineFault, Segment, Usage
from shared.bus.connect import Reply, Sender
from shared.bus.keys import Keys
from shared.bus.script import ask, run, script

TRIES = 4
"""For what may be said twice: all scripts of batches."""

GIVEN = {
    "id",
    "tenant",
    "endpoint",
    "compat",
    "input_file_id",
    "completion_window",
    "window_s",
    "output_life_s",
    "metadata",
    "webhook",
    "retry_of",
}
"""What never changes, in one field."""

_TIMES = (
    "created",
    "in_progress",
    "expires",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)
_COUNTS = ("n_total", "n_planned", "n_fed", "plan_offset", "n_in_flight", "n_completed", "n_failed", "n_segments")
_TOKENS = tuple(Usage.model_fields)
_WORDS = ("given", "status", "model", "faults", "output_file_id", "error_file_id")
FIELDS: tuple[str, ...] = (*_WORDS, *(f"{time}_ms" for time in _TIMES), *_COUNTS, *_TOKENS)
"""Of the hash, as `read_batch` wants them."""
FIELDS_IN_LIST = tuple("first_faults" if field == "faults" else field for field in FIELDS)
"""The same of one of many: all that is wrong with each would be many megabytes."""

_FAULTS: TypeAdapter[tuple[LineFault, ...]] = TypeAdapter(tuple[LineFault, ...])


class WrittenFaults(NamedTuple):
    """JSON: as many as a batch lists, and as many of them as in a list of batches."""

    all: bytes
    first: bytes

    @classmethod
    def of(cls, faults: Sequence[LineFault]) -> Self:
        return cls(*(_FAULTS.dump_json(tuple(faults[:most])) for most in (MAX_FAULTS, MAX_FAULTS_IN_LIST)))


def given_of(batch: Batch) -> str:
    return batch.model_dump_json(include=GIVEN)


@lru_cache(maxsize=16)
def _faults_of(text: str) -> tuple[LineFault, ...]:
    """A thousand take some milliseconds, never change, and come with every look at their batch."""
    return _FAULTS.validate_json(text)


def read_batch(values: Sequence[Reply]) -> Batch | None:
    """From the values of FIELDS or FIELDS_IN_LIST; None when there is no batch."""
    texts = dict(zip(FIELDS, (value and value.decode() for value in values), strict=True))
    if not texts["status"]:
        return None
    times = {f"{time}_at": int(texts[f"{time}_ms"]) / 1000 for time in _TIMES if texts[f"{time}_ms"]}
    return Batch.from_json(texts["given"]).model_copy(
        update={
            **times,
            **{count: int(texts[count]) for count in _COUNTS},
            "status": BatchStatus(texts["status"]),
            "model": texts["model"] or None,
            "faults": _faults_of(texts["faults"]) if texts["faults"] else (),
            "usage": Usage(**{name: int(texts[name]) for name in _TOKENS}),
            "output_file_id": texts["output_file_id"],
            "error_file_id": texts["error_file_id"],
        }
    )


def write_segment(segment: Segment) -> str:
    """Its number is its place in the list."""
    return f"{segment.n_output} {segment.output_bytes} {segment.n_error} {segment.error_bytes} {segment.mark}"


def read_segment(number: int, text: bytes) -> Segment:
    *numbers, mark = text.decode().split(" ")
    n_output, output_bytes, n_error, error_bytes = map(int, numbers)
    return Segment(
        number=number,
        mark=mark,
        n_output=n_output,
        output_bytes=output_bytes,
        n_error=n_error,
        error_bytes=error_bytes,
    )


class BatchRecords:
    def __init__(self, keys: Keys, link: Sender) -> None:
        self._keys = keys
        self._link = link

    async def record(self, batch_id: str, tenant: str | None = None) -> Batch | None:
        """What is known of a batch; None when there is none of that id or of that tenant. Raises BusUnavailable."""
        try:
            key = self._keys.batch(batch_id)
        except ValueError:
            return None
        [values] = await ask(self._link, [("HMGET", key, *FIELDS)])
        batch = read_batch(values)
        return batch if batch is not None and tenant in (None, batch.tenant) else None

    async def segments(self, batch_id: str, start: int = 0) -> list[Segment]:
        """From that number on, in order. Raises BusUnavailable."""
        [rows] = await ask(self._link, [("LRANGE", f"{self._keys.batch(batch_id)}:segments", start, -1)])
        return [read_segment(number, row) for number, row in enumerate(rows, start)]

    async def _say(
        self, name: str, batch_id: str, names: Sequence[str], arguments: Sequence[str | bytes | int | float]
    ) -> Reply:
        """What a script of batches answers; its first key is the batch. Raises BusUnavailable."""
        which = script(f"batches/{name}")
        call = which.call((self._keys.batch(batch_id), *names), arguments)
        [reply] = await run(self._link, which, [call], tries=TRIES)
        return reply
