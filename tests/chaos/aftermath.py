"""What the server has when all is quiet, read from behind the bus. Values, and how they are got."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis import Redis, ResponseError

from shared.bus.claims import TOKENS
from shared.bus.keys import Keys
from shared.events import Finished, Tokens
from tests.conftest import keys_that_stay

CHUNK = 500
"""Keys looked at in one round trip."""


class Entry(NamedTuple):
    """One entry of a job's log: the mark of an attempt, events, or the end."""

    epoch: int
    first: int
    kind: str
    events: tuple[Tokens, ...] = ()
    end: str = ""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job's hash and log."""

    id: str
    fields: dict[str, str]
    log: list[Entry]

    @property
    def status(self) -> str:
        return self.fields["status"]

    @property
    def finished(self) -> Finished | None:
        return Finished.from_json(self.fields["result"]) if "result" in self.fields else None

    def count(self, name: str) -> int:
        return int(self.fields.get(name, 0))

    @property
    def said(self) -> list[Tokens]:
        return [event for entry in self.log for event in entry.events]


@dataclass(frozen=True, slots=True)
class Aftermath:
    jobs: dict[str, EndedJob]
    dead: list[str]
    """Job ids, one for each row in `dead`."""
    untold: list[tuple[str, str]]
    """(job id, status) of rows still in the outbox."""
    streams: dict[str, tuple[int, int]]
    """By name: entries, and how many of them are pending."""
    loads: dict[str, dict[str, str]]
    """Counters of a model, by key."""
    lanes: list[str]
    """Keys that list lanes, tenants' turns and deadlines, with what they have."""
    stray: list[str]
    """Keys that would stay for ever."""


def read(client: Redis, keys: Keys) -> Aftermath:
    names = sorted(client.scan_iter(match=f"{keys.namespace}:*", count=1000))
    of_partitions = [(keys.prefix(partition), name.decode()) for partition in range(keys.partitions) for name in names]
    kinds: dict[str, list[str]] = {}
    for prefix, name in of_partitions:
        if name.startswith(prefix):
            kinds.setdefault(name.removeprefix(prefix).split(":")[0], []).append(name)
    return Aftermath(
        jobs=_jobs(client, keys, kinds.get("job", ())),
        dead=[row["job"] for name in kinds.get("dead", ()) for row in _rows(client, name)],
        untold=[(row["job"], row["status"]) for name in kinds.get("outbox", ()) for row in _rows(client, name)],
        streams={name: (client.xlen(name), _n_pending(client, name)) for name in kinds.get("q", ())},
        loads={name: _texts(client.hgetall(name)) for name in kinds.get("load", ())},
        lanes=[name for kind in ("lanes", "turn", "due") for name in kinds.get(kind, ())],
        stray=[name.decode() for name in keys_that_stay(client, names)],
    )


def is_quiet(client: Redis, keys: Keys) -> bool:
    """Every job has ended, every ending is told of, and no lane is left."""
    return not any(
        client.exists(keys.due(partition), keys.lanes(partition)) or client.xlen(f"{keys.prefix(partition)}outbox")
        for partition in range(keys.partitions)
    )


def _jobs(client: Redis, keys: Keys, names: Iterable[str]) -> dict[str, EndedJob]:
    ids = [name.rsplit(":", 1)[1] for name in names]
    jobs: dict[str, EndedJob] = {}
    for start in range(0, len(ids), CHUNK):
        some = ids[start : start + CHUNK]
        with client.pipeline(transaction=False) as pipeline:
            for job_id in some:
                pipeline.hgetall(keys.job(job_id))
                pipeline.xrange(keys.log(job_id))
            replies = pipeline.execute()
        for job_id, fields, log in zip(some, replies[::2], replies[1::2], strict=True):
            jobs[job_id] = EndedJob(job_id, _texts(fields), [_entry(*row) for row in log])
    return jobs


def _entry(entry_id: bytes, fields: dict[bytes, bytes]) -> Entry:
    epoch, first = map(int, entry_id.split(b"-"))
    if b"e" in fields:
        return Entry(epoch, first, "events", TOKENS.validate_json(fields[b"e"]))
    if b"end" in fields:
        return Entry(epoch, first, "end", end=fields[b"end"].decode())
    return Entry(epoch, first, "attempt")


def _rows(client: Redis, name: str) -> list[dict[str, str]]:
    return [_texts(fields) for _, fields in client.xrange(name)]


def _n_pending(client: Redis, name: str) -> int:
    try:
        return int(client.xpending(name, "workers")["pending"])
    except ResponseError:
        return 0  # no group: nothing was ever delivered


def _texts(fields: dict[bytes, Any]) -> dict[str, str]:
    return {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
