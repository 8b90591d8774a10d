"""All of the bus at one moment, read directly from the keys, in the words of the model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from redis import Redis, ResponseError

from shared.bus.connect import Reply
from shared.bus.keys import Keys, part
from shared.events import Finished
from shared.jobs import JobStatus
from tests.conftest import keys_that_stay
from tests.shared.bus.model import JobState, Place


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a job stands in its stream."""

    job_id: str
    stream: str
    entry_id: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    jobs: dict[str, JobState]
    counters: Counter[str]
    due: set[str]
    outbox: list[tuple[str, str]]
    dead: list[str]
    staying: list[bytes]
    """Keys that nothing would ever remove."""


def take_snapshot(client: Redis, keys: Keys, model: str, entries: Sequence[Entry], lease_s: float) -> Snapshot:
    """Of partition 0."""
    prefix = keys.prefix(0)
    with client.pipeline() as pipeline:
        for entry in entries:
            pipeline.hgetall(keys.job(entry.job_id))
            pipeline.xrange(keys.log(entry.job_id))
            pipeline.xrange(entry.stream, entry.entry_id, entry.entry_id)
            pipeline.xpending_range(entry.stream, "workers", entry.entry_id, entry.entry_id, 1)
        pipeline.hgetall(f"{prefix}load:{part(model)}")
        pipeline.zrange(f"{prefix}due", 0, -1)
        pipeline.xrange(f"{prefix}outbox")
        pipeline.xrange(f"{prefix}dead")
        pipeline.keys(f"{keys.namespace}:*")
        *replies, load, due, outbox, dead, names = pipeline.execute(raise_on_error=False)
    return Snapshot(
        jobs={
            entry.job_id: _job(*replies[4 * i : 4 * i + 4], lease_ms=lease_s * 1000) for i, entry in enumerate(entries)
        },
        counters=Counter(
            {name.decode(): int(count) for name, count in load.items() if name.startswith(b"queued:") and int(count)}
        ),
        due={job_id.decode() for job_id in due},
        outbox=[(row[b"job"].decode(), row[b"status"].decode()) for _, row in outbox],
        dead=[row[b"job"].decode() for _, row in dead],
        staying=keys_that_stay(client, names),
    )


def _job(record: dict[bytes, bytes], log: Reply, entry: Reply, pending: Reply, lease_ms: float) -> JobState:
    fields = {name.decode(): text.decode() for name, text in record.items()}
    place = _place(entry, pending, lease_ms)
    if not fields:
        return JobState(status=None, place=place)
    return JobState(
        status=JobStatus(fields["status"]),
        place=place,
        lease=fields.get("lease") or None,
        worker=unquote(fields.get("worker", "")),
        epoch=int(fields["epoch"]),
        attempts=int(fields["attempts"]),
        deaths=int(fields["deaths"]),
        is_cancelled="cancel" in fields,
        is_accepted="accepted" in fields,
        n_events=int(fields["events"]),
        log=[line for entry_id, said in log for line in _lines(entry_id.decode(), said)],
        finished=Finished.from_json(fields["result"]) if fields.get("result") else None,
    )


def _place(entry: Reply, pending: Reply, lease_ms: float) -> Place:
    if not entry:
        return Place.GONE
    if not pending or isinstance(pending, ResponseError):  # an error: there is no group
        return Place.WAITING
    return Place.AGED if pending[0]["time_since_delivered"] >= lease_ms else Place.HELD


def _lines(entry_id: str, fields: dict[bytes, bytes]) -> list[tuple[str, str]]:
    """A log entry in the words of the model: one line for each event."""
    if b"e" in fields:
        epoch, _, first = entry_id.partition("-")
        texts = [event["text"] for event in json.loads(fields[b"e"])]
        assert len(texts) == int(fields[b"n"])
        return [(f"{epoch}-{number}", text) for number, text in enumerate(texts, int(first))]
    [(kind, what)] = fields.items()
    return [(entry_id, f"{kind.decode()} {what.decode()}")]
