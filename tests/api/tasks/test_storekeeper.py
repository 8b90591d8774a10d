"""What is taken out of the store, and what never is."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis
from structlog.testing import capture_logs

from api.tasks.storekeeper import OWNER, SPARED_S, Storekeeper
from shared.batches import Segment, error_file_id, output_file_id, plan_object, segment_pieces
from shared.bus import Bus, open_bus
from shared.errors import StoreUnavailable
from shared.files import FileRecord, Piece, Purpose, object_of
from shared.settings import BusSettings, TasksSettings
from shared.store import Store, open_store
from tests.api.tasks.conftest import RestartableServer
from tests.api.tasks.test_tasks import tasks_process
from tests.shared.bus.conftest import eventually
from tests.shared.bus.test_batches import held, made

DAY_S = 86400.0
NO_BATCH = "batch_0_" + "a" * 24


@pytest.fixture
async def bus(embedded_settings: BusSettings) -> AsyncIterator[Bus]:
    async with open_bus(embedded_settings, name="test") as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def store(folder: Path) -> AsyncIterator[Store]:
    async with open_store(str(folder)) as opened:
        yield opened


@pytest.fixture
def keeper(bus: Bus, store: Store) -> Storekeeper:
    return Storekeeper(bus, store)


async def filed(bus: Bus, store: Store, life_s: float = DAY_S, *names: str, **fields: Any) -> FileRecord:
    """A file that is in the store, made of these objects, or of its own."""
    file_id = fields.pop("id", None) or bus.files.new_id()
    pieces = tuple(Piece(name=name, n_bytes=1) for name in names or (object_of(file_id),))
    for piece in pieces:
        await store.put(piece.name, b"x")
    given = {"tenant": "t", "filename": "x", "purpose": Purpose.BATCH, "created_at": 0.0} | fields
    return await bus.files.create(FileRecord(id=file_id, pieces=pieces, **given), life_s)


async def names(store: Store) -> set[str]:
    """Of all objects but those that tell one store from another."""
    return {name async for name, _ in store.names() if name != OWNER and not name.startswith("marks/")}


async def sweep_in_two_days(keeper: Storekeeper) -> None:
    await keeper.sweep(time.time() + 2 * SPARED_S)


async def test_a_file_goes_with_its_bytes_when_its_time_is_over(keeper: Storekeeper, bus: Bus, store: Store) -> None:
    young, old = await filed(bus, store), await filed(bus, store, 0.05, "batches/b/1", "batches/b/2")

    async def is_over() -> bool:
        return await bus.files.record(old.id) is None

    await eventually(is_over)
    await keeper.clear()
    assert await names(store) == {object_of(young.id)}
    assert await bus.files.objects([young.id, old.id]) == {object_of(young.id)}


async def test_what_a_deletion_left_goes_later(keeper: Storekeeper, bus: Bus, store: Store) -> None:
    record = await filed(bus, store)
    assert await bus.files.delete(record.id, "t") is not None  # and then its API died
    await keeper.clear()
    assert await names(store) == set()


async def test_a_file_stays_due_while_its_bytes_cannot_be_deleted(
    keeper: Storekeeper, bus: Bus, store: Store, folder: Path
) -> None:
    record = await filed(bus, store)
    assert await bus.files.delete(record.id, "t") is not None
    (folder / "files").rename(folder / "elsewhere")
    (folder / "files").write_text("in the way")
    with pytest.raises(StoreUnavailable):
        await keeper.clear()
    (folder / "files").unlink()
    (folder / "elsewhere").rename(folder / "files")
    await keeper.clear()
    assert await names(store) == set()


async def test_of_a_batch_that_is_done_only_what_its_files_are_made_of_stays(
    keeper: Storekeeper, bus: Bus, store: Store, embedded_settings: BusSettings
) -> None:
    batch = await made(bus)
    hold = await held(bus, batch)
    segment = Segment(number=0, mark=hold.mark, n_error=1, error_bytes=1)
    kept = segment_pieces(batch.id, segment)[1].name
    for name in (kept, plan_object(batch.id), f"batches/{batch.id}/000000-ffff.output"):
        await store.put(name, b"x")
    assert await bus.batches.planned(hold, n_total=1, n_planned=0, segment=segment)
    await sweep_in_two_days(keeper)
    assert len(await names(store)) == 3, "it still runs"
    assert await bus.batches.finalize(hold, "over")
    assert await bus.batches.finish(hold, 10 * DAY_S)
    await sweep_in_two_days(keeper)
    assert len(await names(store)) == 3, "its record says when"

    async with Redis.from_url(embedded_settings.redis_url.get_secret_value()) as client:
        await client.zadd(f"{embedded_settings.namespace}:{{p0}}:remains", {batch.id: 1})
    await keeper.clear()
    assert await names(store) == {kept}
    assert await bus.batches.overdue() == []


async def test_the_sweep_takes_what_no_record_knows(keeper: Storekeeper, bus: Bus, store: Store) -> None:
    known = await filed(bus, store)
    of_batch = [f"batches/{NO_BATCH}/{number}.output" for number in range(2)]
    await filed(bus, store, DAY_S, of_batch[0], id=output_file_id(NO_BATCH))
    await filed(bus, store, DAY_S, of_batch[1], id=error_file_id(NO_BATCH))
    for name in ("files/file-0_" + "b" * 24, "files/x", f"batches/{NO_BATCH}/plan", "batches/odd/x", "batches/x"):
        await store.put(name, b"x")
    for number in range(250):
        await store.put(f"files/file-0_{number:024x}", b"x")
    await store.put("notes/of-somebody-else", b"x")
    await sweep_in_two_days(keeper)
    assert await names(store) == {object_of(known.id), *of_batch, "notes/of-somebody-else"}


async def test_the_sweep_spares_what_may_be_about_to_become_known(
    keeper: Storekeeper, store: Store, folder: Path
) -> None:
    await store.put("files/new", b"x")
    await store.put("files/old", b"x")
    os.utime(folder / "files" / "old", (0, 0))
    await keeper.sweep(time.time())
    assert await names(store) == {"files/new"}


async def test_a_deleted_file_whose_bytes_are_still_there_is_left_to_its_record(
    keeper: Storekeeper, bus: Bus, store: Store
) -> None:
    record = await filed(bus, store)
    assert await bus.files.delete(record.id, "t") is not None
    await sweep_in_two_days(keeper)
    assert await names(store) == {object_of(record.id)}


async def test_nothing_is_swept_from_a_store_of_another_system(
    keeper: Storekeeper, bus: Bus, store: Store, embedded_settings: BusSettings
) -> None:
    record = await filed(bus, store)
    await sweep_in_two_days(keeper)
    other = embedded_settings.model_copy(update={"namespace": f"{embedded_settings.namespace}-2"})
    async with open_bus(other, name="test") as stranger:
        with capture_logs() as logs:
            await sweep_in_two_days(Storekeeper(stranger, store))
    assert await names(store) == {object_of(record.id)}
    assert "another system's" in logs[0]["event"]
    async with Redis.from_url(embedded_settings.redis_url.get_secret_value()) as client:
        await client.delete(f"{other.namespace}:identity")


async def test_nothing_is_swept_when_the_records_were_lost(
    keeper: Storekeeper, bus: Bus, store: Store, embedded_settings: BusSettings
) -> None:
    record = await filed(bus, store)
    await sweep_in_two_days(keeper)
    async with Redis.from_url(embedded_settings.redis_url.get_secret_value()) as client:
        await client.delete(*[key async for key in client.scan_iter(match=f"{embedded_settings.namespace}:*")])
    await sweep_in_two_days(keeper)
    assert await names(store) == {object_of(record.id)}


async def test_the_tasks_process_clears_and_sweeps(server: RestartableServer, folder: Path, store: Store) -> None:
    settings = TasksSettings(redis_url=SecretStr(server.url), store_url=SecretStr(str(folder)))
    await store.put("files/old", b"x")
    os.utime(folder / "files" / "old", (0, 0))
    async with open_bus(settings, name="test") as bus:
        record = await filed(bus, store)
        assert await bus.files.delete(record.id, "t") is not None
        async with tasks_process(settings):

            async def is_empty() -> bool:
                return await names(store) == set()

            await eventually(is_empty, within_s=30)
