"""Files of clients as all who need one find it: filed, or still growing while its batch runs; and how one goes.

Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.batches import batches_of_file, segment_pieces
from shared.bus import Bus
from shared.errors import UnknownFile
from shared.files import FileRecord, Purpose
from shared.store import Store


async def file_of(bus: Bus, tenant: str, file_id: str) -> FileRecord:
    """Raises UnknownFile for another tenant's file exactly as for none."""
    if record := await bus.files.record(file_id, tenant):
        return record
    # Its batch may come to its end between the one look and the other: then it is filed.
    if found := await _growing(bus, tenant, file_id) or await bus.files.record(file_id, tenant):
        return found
    raise UnknownFile("There is no such file")


async def remove(bus: Bus, store: Store, records: Sequence[FileRecord]) -> None:
    """Deletes the bytes of files that nobody is told of any more, and then their records. Doing it again changes
    nothing. Raises StoreUnavailable and BusUnavailable: then it is done later, by whoever keeps the store."""
    await store.delete(piece.name for record in records for piece in record.pieces)
    for record in records:
        await bus.files.drop(record)


async def _growing(bus: Bus, tenant: str, file_id: str) -> FileRecord | None:
    """What the batch of such a file has collected so far, if it is one's and that still runs."""
    try:
        owners = batches_of_file(file_id)
    except ValueError:
        return None
    for index, (batch_id, what) in enumerate(zip(owners, ("output", "error"), strict=True)):
        batch = await bus.batches.record(batch_id, tenant)
        if batch is None or batch.status.is_ended:
            continue
        pieces = [segment_pieces(batch_id, segment)[index] for segment in await bus.batches.segments(batch_id)]
        return FileRecord(
            id=file_id,
            tenant=tenant,
            filename=f"{batch_id}_{what}.jsonl",
            purpose=Purpose.BATCH_OUTPUT,
            created_at=batch.created_at,
            pieces=tuple(piece for piece in pieces if piece.n_bytes),
            is_growing=True,
        )
    return None
