"""Endings that somebody must be told of: rows that the scripts write with an ending, read here until acknowledged.

A row is handed out again until it is acknowledged, to whoever asks: what is made of it must bear being made twice.
Knows nothing of who is told, or how.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from shared.batches import BatchStatus
from shared.bus.connect import Sender
from shared.bus.keys import Keys
from shared.bus.script import ask
from shared.jobs import JobStatus


class OutboxRow(NamedTuple):
    partition: int
    row_id: str
    """Its place in the partition's outbox; with the partition, the row's identity."""
    kind: Literal["job", "batch"]
    id: str
    """Of the job or of the batch that ended."""
    status: JobStatus | BatchStatus


class Outbox:
    def __init__(self, keys: Keys, link: Sender) -> None:
        self._keys = keys
        self._link = link

    async def read(self, count: int = 100) -> list[OutboxRow]:
        """The oldest rows of each partition, `count` of each at most. Raises BusUnavailable."""
        partitions = range(self._keys.partitions)
        commands = [("XRANGE", self._key(partition), "-", "+", "COUNT", count) for partition in partitions]
        replies = await ask(self._link, commands)
        return [
            _row(partition, entry) for partition, entries in zip(partitions, replies, strict=True) for entry in entries
        ]

    async def acknowledge(self, rows: Sequence[OutboxRow]) -> None:
        """Have the rows not come again. Raises BusUnavailable: then they may."""
        if rows:
            await ask(self._link, [("XDEL", self._key(row.partition), row.row_id) for row in rows])

    def _key(self, partition: int) -> str:
        return f"{self._keys.prefix(partition)}outbox"


def _row(partition: int, entry: tuple[bytes, list[bytes]]) -> OutboxRow:
    row_id, flat = entry
    fields = {name.decode(): text.decode() for name, text in zip(flat[::2], flat[1::2], strict=True)}
    if "batch" in fields:
        return OutboxRow(partition, row_id.decode(), "batch", fields["batch"], BatchStatus(fields["status"]))
    return OutboxRow(partition, row_id.decode(), "job", fields["job"], JobStatus(fields["status"]))
