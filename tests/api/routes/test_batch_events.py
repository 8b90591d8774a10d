"""The events of a batch, against a real queue and store; what is written of it is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from pydantic import SecretStr

from api.batches.tail import LOOK_EVERY_S, PIECE, BatchEvents, Part, Records
from shared.batches import Batch, Segment, segment_pieces
from shared.bus import Bus
from shared.errors import StoreUnavailable
from shared.settings import ApiSettings
from shared.store import Store
from tests.api.conftest import Api, serve
from tests.api.scripted_tasks import ScriptedTasks, record
from tests.api.sse_lines import Event, events


@pytest.fixture
async def batch_id(bus: Bus) -> str:
    batch_id = bus.batches.new_id()
    batch = Batch(
        id=batch_id,
        tenant="default",
        endpoint="*",
        input_file_id="file-0_0",
        completion_window="1h",
        window_s=3600,
    )
    await bus.batches.create(batch)
    return batch_id


class Listener:
    """A reader of a batch's events, who is told them as they come."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.heard: list[str] = []

    async def until(self, is_there: Callable[[list[Event]], Any]) -> list[Event]:
        """All events up to the first with which something holds of them."""
        async with asyncio.timeout(20):
            while self.heard[-1:] != [""] or not is_there(events(self.heard)):
                self.heard.append(await anext(self._lines))
        return events(self.heard)

    async def rest(self) -> list[Event]:
        async with asyncio.timeout(20):
            self.heard += [line async for line in self._lines]
        return events(self.heard)


@asynccontextmanager
async def listening(api: Api, batch_id: str, after: int = 0, **headers: str) -> AsyncIterator[Listener]:
    path = f"/v1/batches/{batch_id}/events?starting_after={after}"
    async with api.client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Listener(response.aiter_lines())


async def all_events(api: Api, batch_id: str, after: int = 0) -> list[Event]:
    async with listening(api, batch_id, after) as listener:
        return await listener.rest()


def lines_of(heard: Iterable[Event]) -> list[tuple[str | None, Any]]:
    return [(event.id, event.data["custom_id"]) for event in heard if event.name == "line"]


def progress_of(heard: Iterable[Event]) -> list[Any]:
    return [event.data for event in heard if event.name == "progress"]


async def test_lines_are_told_as_they_are_written_and_then_the_end(
    api: Api, tasks: ScriptedTasks, batch_id: str
) -> None:
    async with listening(api, batch_id) as listener:
        [first] = await listener.until(lambda heard: heard)
        assert (first.id, first.name, first.data["status"]) == (None, "progress", "validating")
        await tasks.begin(batch_id, 3, bad=[record("bad", status=400)])
        assert lines_of(await listener.until(lines_of)) == [("1", "bad")]
        await tasks.write(batch_id, [record("a")], [record("b", status=400)])
        heard = await listener.until(lambda heard: len(lines_of(heard)) == 3)
        assert lines_of(heard) == [("1", "bad"), ("2", "a"), ("3", "b")]
        await tasks.write(batch_id, [record("c")])
        batch = await tasks.end(batch_id)
        heard = await listener.rest()
    assert lines_of(heard)[3:] == [("4", "c")]
    assert (heard[-1].id, heard[-1].name, heard[-1].data["status"]) == ("5", "done", "completed")
    assert heard[-1].data["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    assert batch.output_file_id and heard[-1].data["output_file_id"] == batch.output_file_id
    [bad, *_] = [event.data for event in heard if event.name == "line"]
    assert bad == record("bad", status=400)


async def test_progress_tells_how_many_are_done_and_how_long_the_rest_takes(
    api: Api, tasks: ScriptedTasks, batch_id: str
) -> None:
    await tasks.begin(batch_id, 4, bad=[record("bad")])
    async with listening(api, batch_id) as listener:
        [first] = progress_of(await listener.until(progress_of))
        assert first["request_counts"] == {"total": 5, "completed": 0, "failed": 1}
        assert (first["in_flight"], first["eta_s"], first["lines_per_s"]) == (4, None, None)
        await tasks.write(batch_id, [record("a")], [record("b")])
        *_, last = progress_of(await listener.until(lambda heard: len(progress_of(heard)) == 2))
    assert last["request_counts"] == {"total": 5, "completed": 1, "failed": 2}
    assert (last["in_flight"], last["usage"]["output_tokens"]) == (2, 1)
    assert last["lines_per_s"] > 0 and last["eta_s"] == pytest.approx(2 / last["lines_per_s"], rel=0.01)
    assert last["tokens_per_s"] == pytest.approx(last["lines_per_s"] / 2, rel=0.01)


async def written(tasks: ScriptedTasks, batch_id: str) -> None:
    """Seven records in four segments, of which one has none that failed and one none that succeeded."""
    await tasks.begin(batch_id, 6, bad=[record("1")])
    await tasks.write(batch_id, [record("2"), record("3")], [record("4")])
    await tasks.write(batch_id, [record("5")])
    await tasks.write(batch_id, [], [record("6"), record("7")])
    await tasks.end(batch_id)


@pytest.mark.parametrize("after", range(9))
async def test_a_reader_goes_on_behind_any_event_of_a_batch_that_has_ended(
    api: Api, tasks: ScriptedTasks, batch_id: str, after: int
) -> None:
    await written(tasks, batch_id)
    if after >= 8:
        response = await api.client.get(f"/v1/batches/{batch_id}/events", headers={"Last-Event-ID": str(after)})
        assert (response.status_code, response.content) == (204, b"")
        return
    *lines, done = await all_events(api, batch_id, after)
    assert lines_of(lines) == [(str(number), str(number)) for number in range(after + 1, 8)]
    assert (done.id, done.name) == ("8", "done")


async def test_a_reader_ahead_of_a_batch_that_runs_hears_its_end(api: Api, tasks: ScriptedTasks, batch_id: str) -> None:
    await tasks.begin(batch_id, 2)
    async with listening(api, batch_id, 50) as listener:
        await listener.until(progress_of)
        await tasks.write(batch_id, [record("a"), record("b")])
        await tasks.end(batch_id)
        heard = await listener.rest()
    assert lines_of(heard) == [] and (heard[-1].id, heard[-1].name) == ("3", "done")


async def test_a_batch_that_failed_in_validation_ends_its_events(api: Api, tasks: ScriptedTasks, batch_id: str) -> None:
    await tasks.reject(batch_id)
    [done] = await all_events(api, batch_id)
    assert (done.id, done.name, done.data["status"]) == ("1", "done", "failed")
    assert done.data["errors"]["data"][0]["code"] == "empty"


async def test_records_larger_than_what_is_read_at_once_come_through_whole(
    api: Api, tasks: ScriptedTasks, batch_id: str
) -> None:
    sizes = [3 * PIECE, 1, PIECE, 0, 2 * PIECE + 17]
    records = [record(str(place), text="x" * size) for place, size in enumerate(sizes, 1)]
    await tasks.begin(batch_id, len(sizes))
    await tasks.write(batch_id, records[:4], records[4:])
    await tasks.end(batch_id)
    for after in (0, 1, 3, 4):
        *lines, done = await all_events(api, batch_id, after)
        assert [event.data for event in lines] == records[after:]
        assert [event.id for event in lines] == [str(number) for number in range(after + 1, 6)]
        assert done.name == "done"


@pytest.mark.parametrize("garbage", ["", "x", "-1", "1.0", "9" * 30])
async def test_a_cursor_that_is_no_number_is_refused(api: Api, batch_id: str, garbage: str) -> None:
    path = f"/v1/batches/{batch_id}/events"
    for response in (
        await api.client.get(path, headers={"Last-Event-ID": garbage}),
        await api.client.get(path, params={"starting_after": garbage}),
    ):
        assert response.status_code == 400
        assert response.json()["error"]["param"] in ("Last-Event-ID", "starting_after")


async def test_the_header_counts_before_the_parameter(api: Api, tasks: ScriptedTasks, batch_id: str) -> None:
    await written(tasks, batch_id)
    async with listening(api, batch_id, 0, **{"Last-Event-ID": "6"}) as listener:
        assert lines_of(await listener.rest()) == [("7", "7")]


async def test_a_look_at_the_headers_opens_no_stream(api: Api, batch_id: str) -> None:
    response = await api.client.head(f"/v1/batches/{batch_id}/events")
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"].startswith("text/event-stream")


async def test_silence_is_filled_with_comments(settings: ApiSettings, tasks: ScriptedTasks, batch_id: str) -> None:
    lively = settings.model_copy(update={"keep_alive_s": 0.1})
    async with serve(lively) as api, listening(api, batch_id) as listener:
        await listener.until(lambda _: listener.heard.count(": keep-alive") >= 2)
        await tasks.reject(batch_id)
        assert [event.name for event in await listener.rest()] == ["progress", "done"]


async def test_a_reader_goes_on_at_another_api_process(
    api: Api, settings: ApiSettings, tasks: ScriptedTasks, batch_id: str
) -> None:
    await tasks.begin(batch_id, 3)
    await tasks.write(batch_id, [record("a"), record("b")])
    async with listening(api, batch_id) as listener:
        *_, last = await listener.until(lines_of)
    await tasks.write(batch_id, [record("c")])
    await tasks.end(batch_id)
    async with serve(settings) as other:
        assert lines_of(await all_events(other, batch_id, int(last.id or 0)))[-1] == ("3", "c")


async def test_a_batch_whose_records_are_gone_says_so(
    api: Api, bus: Bus, tasks: ScriptedTasks, store: Store, batch_id: str
) -> None:
    await tasks.begin(batch_id, 1)
    await tasks.write(batch_id, [record("a")])
    batch = await tasks.end(batch_id)
    [segment] = await bus.batches.segments(batch.id)
    await store.delete([segment_pieces(batch.id, segment)[0].name])
    [error] = await all_events(api, batch_id)
    assert (error.id, error.name, error.data["error"]["type"]) == (None, "error", "not_found_error")
    assert "the batch's results" in error.data["error"]["message"]


async def test_another_tenant_hears_of_no_batch(settings: ApiSettings, batch_id: str) -> None:
    keyed = settings.model_copy(update={"api_key": (SecretStr("other"),)})
    async with serve(keyed) as api:
        for path in (f"/v1/batches/{batch_id}/events", "/v1/batches/batch_0_0/events", "/v1/batches/x/events"):
            response = await api.client.get(path, headers={"X-Api-Key": "other"})
            assert (response.status_code, response.json()["error"]["message"]) == (404, "There is no such batch")


class FaultyStore(Store):
    """Away at every other call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_away = False

    def read(self, name: str, start: int = 0, stop: int | None = None) -> AsyncGenerator[bytes, None]:
        self._is_away = not self._is_away
        if self._is_away:
            raise StoreUnavailable("it is away")
        return self._store.read(name, start, stop)


async def test_a_store_that_comes_and_goes_loses_no_byte(store: Store) -> None:
    text = b"".join(b"%d\n" % number for number in range(100_000))
    segment = Segment(number=0, n_output=100_000, output_bytes=len(text))
    await store.put(segment_pieces("batch_0_0", segment)[0].name, text)
    records, read = Records(FaultyStore(store), "batch_0_0", 777), b""
    records.extend([segment])
    for _ in range(2 * (len(text) // PIECE + 2)):
        with suppress(StoreUnavailable):
            read += await records.read()
    assert read == b"".join(b"%d\n" % number for number in range(777, 100_000))


async def test_nothing_is_said_in_the_middle_of_a_record(
    bus: Bus, store: Store, tasks: ScriptedTasks, batch_id: str
) -> None:
    long = record("a", text="x" * 2 * PIECE)
    await tasks.begin(batch_id, 2)
    await tasks.write(batch_id, [long])
    batch = await bus.batches.record(batch_id)
    assert batch is not None
    told = BatchEvents(bus.batches, store, batch, 0)
    while not isinstance(heard := await told.next(5), Part):
        pass
    said = told.say(heard)
    assert (told.framing.keep_alive(), told.failed(StoreUnavailable("away"))) == (b"", b"")
    await tasks.write(batch_id, [record("b")])
    await asyncio.sleep(LOOK_EVERY_S)  # so that there would be progress to tell of
    while not said.endswith(b"\n\n"):
        heard = await told.next(5)
        assert isinstance(heard, Part)
        said += told.say(heard)
    assert events(said.decode().split("\n")) == [Event("1", "line", long)]
    assert told.framing.keep_alive() and told.failed(StoreUnavailable("away"))
