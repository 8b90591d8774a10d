"""Endings that somebody must be told of: rows that the scripts write with an ending, read here until acknowledged.

A row is handed out again until it is acknowledged, to whoever asks: what is made of it must bear being made twice.
Knows nothing of who is told, or how.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple
from urllib.parse import unquote

import structlog

from shared.batches import Batch, BatchStatus
from shared.bus.connect import Sender
from shared.bus.keys import Keys
from shared.bus.script import ask
from shared.jobs import JobStatus
from shared.webhooks import Webhook

Entry = tuple[bytes, list[bytes]]
"""As the server gives it: an id, and names and values in turn."""

log = structlog.get_logger(__name__)


class OutboxRow(NamedTuple):
    partition: int
    row_id: str
    """Its place in the partition's outbox; with the partition, the row's identity."""
    kind: Literal["job", "batch"]
    id: str
    """Of the job or of the batch that ended."""
    status: JobStatus | BatchStatus
    tenant: str = ""
    """Empty in a row of an older version, which says no more than the id."""
    endpoint: str = ""
    """The path that it asks."""
    webhook: Webhook | None = None

    @property
    def at(self) -> float:
        """When it ended, in Unix seconds on the bus's clock."""
        return int(self.row_id.partition("-")[0]) / 1000


class Outbox:
    def __init__(self, keys: Keys, link: Sender) -> None:
        self._keys = keys
        self._link = link

    async def read(self, count: int = 100) -> list[OutboxRow]:
        """The oldest rows of each partition, `count` of each at most. Raises BusUnavailable."""
        partitions = range(self._keys.partitions)
        commands = [("XRANGE", self._key(partition), "-", "+", "COUNT", count) for partition in partitions]
        replies = await ask(self._link, commands)
        entries = [(partition, entry) for partition, found in zip(partitions, replies, strict=True) for entry in found]
        rows = [_row(partition, entry) for partition, entry in entries]
        if unreadable := [entry for entry, row in zip(entries, rows, strict=True) if row is None]:
            await self._drop(unreadable)
        return [row for row in rows if row is not None]

    async def acknowledge(self, rows: Sequence[OutboxRow]) -> None:
        """Have the rows not come again. Raises BusUnavailable: then they may."""
        if rows:
            await ask(self._link, [("XDEL", self._key(row.partition), row.row_id) for row in rows])

    async def _drop(self, entries: Sequence[tuple[int, Entry]]) -> None:
        """What nobody can read would be read for ever, and nothing behind it."""
        for partition, (row_id, _) in entries:
            log.error("unreadable row of the outbox dropped", partition=partition, row=row_id.decode())
        await ask(self._link, [("XDEL", self._key(partition), row_id) for partition, (row_id, _) in entries])

    def _key(self, partition: int) -> str:
        return f"{self._keys.prefix(partition)}outbox"


def _row(partition: int, entry: Entry) -> OutboxRow | None:
    """None for what was not written by us."""
    row_id, flat = entry
    try:
        fields = {name.decode(): text.decode() for name, text in zip(flat[::2], flat[1::2], strict=True)}
        if "batch" in fields:
            given = Batch.from_json(fields["given"])
            return OutboxRow(
                partition,
                row_id.decode(),
                "batch",
                fields["batch"],
                BatchStatus(fields["status"]),
                tenant=given.tenant,
                endpoint=given.endpoint,
                webhook=given.webhook,
            )
        webhook = fields.get("webhook")
        return OutboxRow(
            partition,
            row_id.decode(),
            "job",
            fields["job"],
            JobStatus(fields["status"]),
            tenant=unquote(fields.get("tenant", "")),
            endpoint=fields.get("endpoint", ""),
            webhook=Webhook.from_json(webhook) if webhook else None,
        )
    except (KeyError, ValueError):
        return None
