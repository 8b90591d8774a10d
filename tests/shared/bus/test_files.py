"""What is known of files: from when, for how long, in which order, and by whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.bus import Bus, open_bus
from shared.bus import files as bus_files
from shared.errors import BusUnavailable, UnknownFile
from shared.files import FileRecord, Piece, Purpose, object_of
from shared.settings import BusSettings
from tests.shared.bus.conftest import Behind, eventually
from tests.shared.bus.test_lost_replies import Cutter, cutter

__all__ = ["cutter"]

DAY_S = 86400.0


def a_file(bus: Bus, **fields: Any) -> FileRecord:
    file_id = fields.pop("id", None) or bus.files.new_id()
    known = {
        "tenant": "t",
        "filename": "é😀.jsonl",
        "purpose": Purpose.BATCH,
        "created_at": 0.0,
        "pieces": (Piece(name=object_of(file_id), n_bytes=5),),
    }
    return FileRecord(id=file_id, **(known | fields))


async def filed(bus: Bus, life_s: float = DAY_S, **fields: Any) -> FileRecord:
    return await bus.files.create(a_file(bus, **fields), life_s)


async def let_time_pass(behind: Behind, record: FileRecord) -> None:
    """As if the file's time were over."""
    await behind.client.hset(behind.keys.file(record.id), "expires_ms", 1)
    await behind.client.zadd(behind.keys.due_files(0), {record.id: 1})


@pytest.fixture
async def wide_bus(bus_settings: BusSettings) -> Any:
    async with open_bus(bus_settings.model_copy(update={"partitions": 5}), name="test") as opened:
        yield opened


async def test_a_file_is_known_with_the_times_of_the_bus(bus: Bus) -> None:
    asked = a_file(bus, created_at=5.0, expires_at=6.0)
    record = await bus.files.create(asked, 3600.0)
    assert record == asked.model_copy(update={"created_at": record.created_at, "expires_at": record.expires_at})
    assert (record.expires_at or 0) - record.created_at == pytest.approx(3600)
    assert record.created_at > 1e9
    assert await bus.files.record(record.id) == await bus.files.record(record.id, "t") == record


@pytest.mark.parametrize("file_id", ["", "x", "file-0_zz", "file-0_" + "a" * 24, "file-99_" + "a" * 24, "job_0_x\n"])
async def test_what_was_never_filed_is_unknown(bus: Bus, file_id: str) -> None:
    assert await bus.files.record(file_id) is None
    assert await bus.files.delete(file_id, "t") is None


async def test_another_tenants_file_is_as_good_as_none(bus: Bus) -> None:
    record = await filed(bus)
    assert await bus.files.record(record.id, "other") is None
    assert await bus.files.delete(record.id, "other") is None
    assert (await bus.files.page("other")).records == []
    with pytest.raises(UnknownFile):
        await bus.files.page("other", after=record.id)
    assert await bus.files.record(record.id, "t") == record


async def test_what_is_filed_twice_is_filed_once(cutter: tuple[Cutter, Bus]) -> None:
    cut, bus = cutter
    asked = a_file(bus)
    cut.n_to_cut = 1
    record = await bus.files.create(asked, DAY_S)
    assert cut.n_cuts == 1
    assert await bus.files.create(asked, 2 * DAY_S) == record
    assert (await bus.files.page("t")).records == [record]


async def test_who_deletes_a_file_is_told_so_though_the_reply_was_lost(cutter: tuple[Cutter, Bus]) -> None:
    cut, bus = cutter
    record = await filed(bus)
    await bus.files.record(record.id)
    cut.n_to_cut = 1
    try:
        gone = await bus.files.delete(record.id, "t")
    except BusUnavailable:
        gone = await bus.files.delete(record.id, "t")
    assert gone is not None
    assert gone.pieces == record.pieces
    assert await bus.files.delete(record.id, "t") is None


async def test_a_deleted_file_is_gone_at_once_and_due_until_it_is_dropped(bus: Bus, behind: Behind) -> None:
    record = await filed(bus)
    assert await bus.files.overdue(10) == []
    assert await bus.files.delete(record.id, "t") is not None
    assert await bus.files.record(record.id) is None
    assert (await bus.files.page("t")).records == []
    [due] = await bus.files.overdue(10)
    assert (due.id, due.pieces) == (record.id, record.pieces)
    assert await bus.files.objects([record.id]) == {object_of(record.id)}
    await bus.files.drop(due)
    assert await bus.files.overdue(10) == []
    assert await bus.files.objects([record.id]) == set()
    assert not await behind.client.exists(behind.keys.file(record.id))


async def test_of_two_that_delete_a_file_at_once_one_is_told(bus: Bus) -> None:
    record = await filed(bus)
    told = await asyncio.gather(*(bus.files.delete(record.id, "t") for _ in range(10)))
    assert len([each for each in told if each is not None]) == 1


async def test_a_file_is_gone_when_its_time_is_over(bus: Bus) -> None:
    record = await filed(bus, life_s=0.3)

    async def is_due() -> bool:
        return [due.id for due in await bus.files.overdue(10)] == [record.id]

    await eventually(is_due)
    assert await bus.files.record(record.id) is None
    assert await bus.files.delete(record.id, "t") is None
    assert (await bus.files.page("t")).records == []


async def test_a_file_that_is_there_cannot_be_dropped(bus: Bus) -> None:
    record = await filed(bus)
    await bus.files.drop(record)
    assert await bus.files.record(record.id) == record


async def test_a_record_that_went_by_itself_is_not_due_for_ever(bus: Bus, behind: Behind) -> None:
    record = await filed(bus)
    await let_time_pass(behind, record)
    await behind.client.delete(behind.keys.file(record.id))
    assert await bus.files.overdue(10) == []
    assert await behind.client.zcard(behind.keys.due_files(0)) == 0


async def test_files_are_listed_by_age_in_either_order_over_all_partitions(wide_bus: Bus) -> None:
    made = [(await filed(wide_bus, filename=str(number))).id for number in range(12)]
    youngest = await wide_bus.files.page("t")
    assert not youngest.has_more
    by_age = [(record.created_at, record.id) for record in youngest.records]
    assert by_age == sorted(by_age, reverse=True)
    assert {record.id for record in youngest.records} == set(made)
    oldest = await wide_bus.files.page("t", order="asc")
    assert oldest.records == youngest.records[::-1]


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("step", [2, 1000])
async def test_pages_join_without_a_gap(
    wide_bus: Bus, order: bus_files.Order, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_files, "PAGE_STEP", step)
    await asyncio.gather(*(filed(wide_bus) for _ in range(10)))
    whole = [record.id for record in (await wide_bus.files.page("t", order=order)).records]
    paged: list[str] = []
    has_more, after = True, None
    while has_more:
        records, has_more = await wide_bus.files.page("t", order=order, limit=3, after=after)
        paged += [record.id for record in records]
        after = paged[-1]
    assert len(paged) == 10
    assert paged == whole


async def test_a_page_has_one_purpose_if_one_is_asked_for(bus: Bus) -> None:
    for purpose in (Purpose.BATCH, Purpose.EVALS, Purpose.BATCH, Purpose.EVALS):
        await filed(bus, purpose=purpose)
    records, has_more = await bus.files.page("t", purpose=Purpose.EVALS, limit=1)
    assert [record.purpose for record in records] == [Purpose.EVALS]
    assert has_more
    records, has_more = await bus.files.page("t", purpose=Purpose.EVALS, limit=2)
    assert len(records) == 2
    assert not has_more
    assert (await bus.files.page("t", purpose=Purpose.VISION)).records == []
