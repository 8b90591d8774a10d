"""Batches on the bus: made, read, listed, cancelled; what is done with them in between is in `batchsteps`.

A batch is a hash in the partition that its id names, and so is all else of it. Everything has its time from its making
on: a batch that nobody ever looks at goes by itself, long after its window is over.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import NamedTuple

from shared.batches import Batch, error_file_id, output_file_id
from shared.bus.batchrecord import FIELDS_IN_LIST, TRIES, given_of, read_batch
from shared.bus.batchsteps import BatchSteps
from shared.bus.keys import part, partition_for
from shared.bus.places import NEWEST, Place, older, place_of
from shared.bus.script import ask, run, script
from shared.errors import IdempotencyConflict, UnknownBatch
from shared.ids import Kind, new_id, partition_in

KEPT_S = 30 * 86400.0
"""After its window, of a batch that has not ended: so long may nobody be there to work on it."""

KEY_WAS_USED = "The idempotency key was used with another body."


class BatchReceipt(NamedTuple):
    batch_id: str
    is_new: bool
    """False: it had been made before."""


class BatchPage(NamedTuple):
    """Some of a tenant's batches, newest first, each with the first few of its faults."""

    records: list[Batch]
    has_more: bool


class Remains(NamedTuple):
    """What may be in the store of a batch that has ended, under `batches/<id>/`. What its files are made of is theirs,
    as long as these are there."""

    batch_id: str
    has_output_file: bool
    has_error_file: bool


class Batches(BatchSteps):
    def new_id(self, idempotency_key: str | None = None, tenant: str = "default") -> str:
        """An id in the partition where a batch with this key must be; without a key, in any."""
        if idempotency_key is None:
            return new_id(Kind.BATCH, random.randrange(self._keys.partitions))
        return new_id(Kind.BATCH, partition_for(f"{part(tenant)}:{idempotency_key}", self._keys.partitions))

    async def create(
        self, batch: Batch, *, idempotency_key: str | None = None, fingerprint: str = "", repeats: bool = False
    ) -> BatchReceipt:
        """Makes a batch with an id of `new_id`; its times are set here. With `repeats` a batch of the same fingerprint
        that the tenant made in the last ten minutes is the answer.

        Saying the same again changes nothing, so a lost reply does no harm. Raises IdempotencyConflict (the key has
        made a batch of another fingerprint) and BusUnavailable.
        """
        partition = partition_in(batch.id, Kind.BATCH)
        if repeats and (earlier := await self._made_of(batch.tenant, fingerprint)):
            return BatchReceipt(earlier, False)
        prefix = self._keys.prefix(partition)
        names = (
            self._keys.batches(partition, batch.tenant),
            f"{prefix}attention",
            f"{prefix}remains",
            self._keys.batch_made_of(partition, batch.tenant, fingerprint),
            *((self._keys.batch_idempotency(partition, batch.tenant, idempotency_key),) if idempotency_key else ()),
        )
        arguments = (
            batch.id,
            part(batch.tenant),
            given_of(batch),
            round(batch.window_s * 1000),
            round(KEPT_S * 1000),
            fingerprint,
            "1" if repeats else "0",
        )
        answer, owner = await self._say("create", batch.id, names, arguments)
        if answer == b"conflict":
            raise IdempotencyConflict(KEY_WAS_USED)
        return BatchReceipt(owner.decode(), answer == b"new")

    async def made_before(
        self, tenant: str, *, idempotency_key: str | None = None, fingerprint: str = "", repeats: bool = False
    ) -> str | None:
        """The id of the batch that `create` would find made before; None when it would make one. For who can judge some
        of what is asked only as long as it is new. Raises IdempotencyConflict and BusUnavailable."""
        if idempotency_key is not None:
            partition = partition_in(self.new_id(idempotency_key, tenant), Kind.BATCH)
            [made] = await ask(self._link, [("GET", self._keys.batch_idempotency(partition, tenant, idempotency_key))])
            owner, _, of = (made or b"").decode().partition(" ")
            if owner and await self.record(owner) is not None:
                if of != fingerprint:
                    raise IdempotencyConflict(KEY_WAS_USED)
                return owner
        return await self._made_of(tenant, fingerprint) if repeats else None

    async def page(self, tenant: str, *, limit: int = 20, after: str | None = None) -> BatchPage:
        """A tenant's batches, newest first, beginning behind `after`. Raises UnknownBatch when that is no batch of the
        tenant, and BusUnavailable."""
        before = await self._place(tenant, after) if after is not None else NEWEST
        indexes = [self._keys.batches(each, tenant) for each in range(self._keys.partitions)]
        records: list[Batch] = []
        while (n_lacking := limit + 1 - len(records)) > 0:
            places = await older(self._link, indexes, before, n_lacking)
            if places:
                commands = [("HMGET", self._keys.batch(place.id), *FIELDS_IN_LIST) for place in places]
                found = map(read_batch, await ask(self._link, commands))
                records += [batch for batch in found if batch is not None]
                before = places[-1]
            if len(places) < n_lacking:
                break  # others have gone
        return BatchPage(records[:limit], len(records) > limit)

    async def cancel(self, batch_id: str) -> Batch:
        """Has no more lines fed, and those at work ended; a batch whose lines are all collected, or that has ended,
        stays as it is. Returns what is known of it afterwards. Raises UnknownBatch and BusUnavailable."""
        record = None
        with suppress(ValueError):
            await self._say("cancel", batch_id, (), (self._keys.prefix_of_batch(batch_id), batch_id))
            record = await self.record(batch_id)
        if record is None:
            raise UnknownBatch(f"There is no batch {batch_id!r}.")
        return record

    async def overdue(self, limit: int = 100) -> list[Remains]:
        """Batches that have ended, or that nobody will end any more, and of which something may be in the store that is
        part of no file. Each is named until it is forgotten. Raises BusUnavailable."""
        which = script("batches/overdue")
        calls = [
            which.call((f"{self._keys.prefix(partition)}remains",), (limit,))
            for partition in range(self._keys.partitions)
        ]
        found = [row.decode() for rows in await run(self._link, which, calls, tries=TRIES) for row in rows][:limit]
        names = [
            f"{self._keys.prefix_of_batch(batch_id)}file:{file_id}"
            for batch_id in found
            for file_id in (output_file_id(batch_id), error_file_id(batch_id))
        ]
        there = await ask(self._link, [("EXISTS", name) for name in names]) if names else []
        outputs, errors = there[::2], there[1::2]
        return [
            Remains(batch_id, bool(output), bool(error))
            for batch_id, output, error in zip(found, outputs, errors, strict=True)
        ]

    async def forget(self, batch_id: str) -> None:
        """Nothing of it is left in the store that is not part of a file. Raises BusUnavailable."""
        await ask(self._link, [("ZREM", f"{self._keys.prefix_of_batch(batch_id)}remains", batch_id)])

    async def _made_of(self, tenant: str, fingerprint: str) -> str | None:
        """The newest batch of this fingerprint, in any partition."""
        if not fingerprint:
            return None
        names = [self._keys.batch_made_of(each, tenant, fingerprint) for each in range(self._keys.partitions)]
        ids = [found.decode() for found in await ask(self._link, [("GET", name) for name in names]) if found]
        batches = [batch for batch_id in ids if (batch := await self.record(batch_id)) is not None]
        return max(batches, key=lambda batch: batch.created_at).id if batches else None

    async def _place(self, tenant: str, batch_id: str) -> Place:
        place = None
        with suppress(ValueError):
            partition = partition_in(batch_id, Kind.BATCH)
            if partition < self._keys.partitions:
                place = await place_of(self._link, self._keys.batches(partition, tenant), batch_id)
        if place is None:
            raise UnknownBatch(f"There is no batch {batch_id!r}.")
        return place
