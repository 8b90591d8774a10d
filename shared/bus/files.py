"""Files that clients sent, and those that batches made: what is known of each, until its bytes have gone.

The bytes are in a store, which this does not know. A file is known only while all of them are there: whoever makes one
writes them first and files it then, and whoever deletes one has it forgotten first, its bytes deleted and its record
dropped last. So a crash leaves bytes that nobody knows, or a record that is still due, and never a file with a hole.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from shared.bus.connect import Reply, Sender
from shared.bus.keys import Keys, part
from shared.bus.places import NEWEST, OLDEST, Place, older, place_of, younger
from shared.bus.script import ask, run, script
from shared.errors import UnknownFile
from shared.files import FileRecord, Purpose
from shared.ids import Kind, new_id, partition_in

TRIES = 4
"""For what may be said twice."""

PAGE_STEP = 1000
"""Files that a listing looks at in one round."""

Order = Literal["asc", "desc"]
"""By age: `desc` begins with the youngest."""


class FilePage(NamedTuple):
    records: list[FileRecord]
    has_more: bool


class Files:
    """All methods raise BusUnavailable."""

    def __init__(self, keys: Keys, link: Sender) -> None:
        self._keys = keys
        self._link = link

    def new_id(self) -> str:
        """In any partition."""
        return new_id(Kind.FILE, random.randrange(self._keys.partitions))

    async def create(self, record: FileRecord, life_s: float) -> FileRecord:
        """Has a file known whose bytes are in the store, for that many seconds. Returns it with its times, which are
        the bus's. Doing it again changes nothing."""
        create, prefix = script("files/create"), self._keys.prefix_of_kind(record.id, Kind.FILE)
        arguments = (prefix, record.id, part(record.tenant), _written(record), round(life_s * 1000))
        [row] = await run(self._link, create, [create.call((self._keys.file(record.id),), arguments)], tries=TRIES)
        return _read(row)

    async def record(self, file_id: str, tenant: str | None = None) -> FileRecord | None:
        """None when there is none, or it is gone; with `tenant`, also when it is another's."""
        [record] = await self._records([file_id])
        return record if record is not None and tenant in (None, record.tenant) else None

    async def page(
        self,
        tenant: str,
        *,
        purpose: Purpose | None = None,
        order: Order = "desc",
        limit: int = 10_000,
        after: str | None = None,
    ) -> FilePage:
        """A tenant's files by their age, beginning behind the file `after`. Raises UnknownFile when that is none of the
        tenant's."""
        is_rising = order == "asc"
        place = await self._place(tenant, after) if after is not None else OLDEST if is_rising else NEWEST
        indexes = [self._keys.files(each, tenant) for each in range(self._keys.partitions)]
        found: list[FileRecord] = []
        while len(found) <= limit:
            places = await (younger if is_rising else older)(self._link, indexes, place, PAGE_STEP)
            records = await self._records([each.id for each in places])
            found += [record for record in records if record is not None and purpose in (None, record.purpose)]
            if len(places) < PAGE_STEP:
                break
            place = places[-1]
        return FilePage(found[:limit], len(found) > limit)

    async def delete(self, file_id: str, tenant: str) -> FileRecord | None:
        """Has nobody told of the file any more. Returns it once: its bytes are to be deleted, and then it is to be
        dropped. None when there is no such file of the tenant."""
        if (record := await self.record(file_id, tenant)) is None:
            return None
        delete = script("files/delete")
        call = delete.call(self._keys_of(record), (file_id, secrets.token_hex(8)))
        [row] = await run(self._link, delete, [call], tries=TRIES)
        return _read(row) if row else None

    async def overdue(self, most: int) -> list[FileRecord]:
        """Files that are gone and whose bytes are not, as far as is known; `most` of each partition."""
        due = script("files/due")
        calls = [
            due.call((self._keys.due_files(each),), (self._keys.prefix(each), most))
            for each in range(self._keys.partitions)
        ]
        return [_read(row) for rows in await run(self._link, due, calls, tries=TRIES) for row in rows]

    async def drop(self, record: FileRecord) -> None:
        """The bytes of a file that is gone have been deleted: so is its record."""
        drop = script("files/drop")
        await run(self._link, drop, [drop.call(self._keys_of(record), (record.id,))], tries=TRIES)

    async def objects(self, file_ids: Sequence[str]) -> set[str]:
        """The objects of the store that these files consist of, also those of files that are gone but not dropped."""
        keys = [key for file_id in file_ids if (key := self._key(file_id))]
        rows = await ask(self._link, [("HGET", key, "record") for key in keys]) if keys else []
        return {piece.name for row in rows if row for piece in FileRecord.from_json(row).pieces}

    async def _records(self, file_ids: Sequence[str]) -> list[FileRecord | None]:
        read = script("files/read")
        keys = [self._key(file_id) for file_id in file_ids]
        calls = [read.call((key,), ()) for key in keys if key]
        rows = iter(await run(self._link, read, calls, tries=TRIES) if calls else [])
        return [_read(row) if key and (row := next(rows)) else None for key in keys]

    async def _place(self, tenant: str, file_id: str) -> Place:
        place = None
        with suppress(ValueError):
            if self._keys.file(file_id):
                index = self._keys.files(partition_in(file_id, Kind.FILE), tenant)
                place = await place_of(self._link, index, file_id)
        if place is None:
            raise UnknownFile("There is no such file.")
        return place

    def _key(self, file_id: str) -> str | None:
        try:
            return self._keys.file(file_id)
        except ValueError:
            return None

    def _keys_of(self, record: FileRecord) -> tuple[str, str, str]:
        partition = partition_in(record.id, Kind.FILE)
        return (
            self._keys.file(record.id),
            self._keys.files(partition, record.tenant),
            self._keys.due_files(partition),
        )


def _written(record: FileRecord) -> str:
    return record.model_copy(update={"created_at": 0.0, "expires_at": None}).to_json()


def _read(row: Sequence[Reply]) -> FileRecord:
    text, created_ms, expires_ms = row
    times = {"created_at": int(created_ms) / 1000, "expires_at": int(expires_ms) / 1000}
    return FileRecord.from_json(text).model_copy(update=times)
