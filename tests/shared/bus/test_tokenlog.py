"""Followers see every token once, whenever they come and whatever breaks."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from shared.bus import Bus, Chunk, Lease, LogEvent, Reader, open_bus, tokenlog
from shared.errors import UnknownJob
from shared.events import Accepted, Event, Finished, Progress, Text, Tokens
from shared.settings import BusSettings
from tests.shared.bus.conftest import ANY, Behind, a_job, claimed, eventually, queued, tokens

SUCCEEDED = Finished(status="succeeded")
ACCEPTED = Accepted(prompt_tokens=3, n_ctx=64)


@asynccontextmanager
async def a_running_job(bus: Bus) -> AsyncIterator[Lease]:
    await queued(bus)
    yield (await claimed(bus)).lease


async def write(bus: Bus, lease: Lease, first: int, last: int, *, largest: int = 4) -> None:
    """Events `first` to `last` in chunks of any size, each token's text its number."""
    number = first
    while number <= last:
        size = min(random.randint(1, largest), last + 1 - number)
        texts = [str(n) for n in range(number, number + size)]
        await bus.queue.append([Chunk(lease, number, tokens(*texts))])
        number += size


async def all_of(reader: Reader) -> list[LogEvent]:
    return [each async for each in reader]


def kept(events: list[LogEvent]) -> list[tuple[int, str]]:
    """Numbered events as (number, text or status)."""
    return [(number, said(event)) for number, event in events if number is not None]


def said(event: Event) -> str:
    return event.text if isinstance(event, Tokens) else getattr(event, "status", event.kind)


def numbers(first: int, last: int) -> list[tuple[int, str]]:
    """What a reader must get of a job that said `first` to `last` and then succeeded."""
    return [(n, str(n)) for n in range(first, last + 1)] + [(last + 1, "succeeded")]


@pytest.mark.parametrize("partitions", [1, 4])
async def test_readers_that_join_at_any_moment_see_every_token_once(bus_settings: BusSettings, partitions: int) -> None:
    async with open_bus(bus_settings.model_copy(update={"partitions": partitions}), name="test") as bus:
        n_events = 400
        job = await queued(bus)
        lease = (await claimed(bus)).lease
        written = 0

        async def writer() -> None:
            nonlocal written
            while written < n_events:
                step = min(random.randint(1, 5), n_events - written)
                await write(bus, lease, written + 1, written + step)
                written += step
            assert await bus.queue.finish(lease, SUCCEEDED, n_events + 1)

        async def reader() -> None:
            after = 0
            for _ in range(random.randint(0, 200)):
                await asyncio.sleep(0)
            while True:  # comes and goes, each time from where it was
                async with bus.log.follow(job.id, after=after) as entries:
                    for _ in range(random.randint(1, 150)):
                        number, event = await anext(entries)
                        if number is None:
                            continue
                        assert number == after + 1
                        after = number
                        if isinstance(event, Finished):
                            assert number == n_events + 1
                            return
                        assert said(event) == str(number)

        await asyncio.gather(writer(), *(reader() for _ in range(30)))


async def test_a_reader_survives_the_loss_of_every_connection(bus: Bus, behind: Behind) -> None:
    async with a_running_job(bus) as lease:

        async def writer() -> None:
            for first in range(1, 301, 10):
                await write(bus, lease, first, first + 9)
                await behind.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                if first % 50 == 1:
                    await behind.client.execute_command("CLIENT", "KILL", "TYPE", "normal")
            await bus.queue.finish(lease, SUCCEEDED, 301)

        async with bus.log.follow(lease.job_id) as a, bus.log.follow(lease.job_id, after=100) as b:
            _, of_a, of_b = await asyncio.gather(writer(), all_of(a), all_of(b))
        assert kept(of_a) == numbers(1, 300)
        assert kept(of_b) == numbers(101, 300)


async def test_a_reader_of_a_job_that_is_about_to_be_enqueued_misses_nothing(bus: Bus) -> None:
    job = a_job(bus)
    async with bus.log.follow(job.id, expects=True) as reader:
        assert await reader.next(0.01) is None
        await bus.queue.enqueue(job)
        lease = (await claimed(bus)).lease
        progress = Progress(total=4, cache=0, processed=2, time_ms=1)
        await bus.queue.append([Chunk(lease, 1, progress=progress)])
        await bus.queue.append([Chunk(lease, 1, tokens("1", "2"), accepted=ACCEPTED)])
        await bus.queue.finish(lease, SUCCEEDED, 3)
        events = await all_of(reader)
    assert [event.kind for _, event in events] == ["progress", "accepted", "tokens", "tokens", "finished"]
    assert kept(events) == numbers(1, 2)


async def test_an_acceptance_before_we_came_is_told_once(bus: Bus) -> None:
    async with a_running_job(bus) as lease:
        await bus.queue.append([Chunk(lease, 1, tokens("1"), accepted=ACCEPTED)])
        async with bus.log.follow(lease.job_id, after=1) as reader:
            assert await reader.next(5) == (None, ACCEPTED)
            await bus.queue.append([Chunk(lease, 2, tokens("2"), accepted=ACCEPTED)])
            assert await reader.next(5) == (2, Tokens(ids=(1,), text="2"))


@pytest.mark.parametrize("after", [0, 3, 7, 8, 100])
async def test_an_ended_job_is_told_from_any_number_on(bus: Bus, after: int) -> None:
    async with a_running_job(bus) as lease:
        await write(bus, lease, 1, 7)
        await bus.queue.finish(lease, SUCCEEDED, 8)
    async with bus.log.follow(lease.job_id, after=after) as reader:
        assert kept(await all_of(reader)) == (numbers(after + 1, 7) if after < 7 else [(8, "succeeded")])
        with pytest.raises(StopAsyncIteration):
            await reader.next(0)


async def test_the_record_ends_a_job_whose_log_has_expired(bus: Bus, behind: Behind) -> None:
    async with a_running_job(bus) as lease:
        await write(bus, lease, 1, 7)
        await bus.queue.finish(lease, SUCCEEDED, 8)
    await behind.client.delete(behind.keys.log(lease.job_id))
    async with bus.log.follow(lease.job_id, after=2) as reader:
        assert kept(await all_of(reader)) == [(8, "succeeded")]


async def test_a_slow_reader_overflows_and_catches_up(bus: Bus) -> None:
    async with a_running_job(bus) as lease, bus.log.follow(lease.job_id) as slow:
        assert await slow.next(0) is None
        await write(bus, lease, 1, 5 * tokenlog.BUFFER, largest=1)
        await bus.queue.finish(lease, SUCCEEDED, 5 * tokenlog.BUFFER + 1)
        assert len(slow._inbox.messages) <= tokenlog.BUFFER
        assert kept(await all_of(slow)) == numbers(1, 5 * tokenlog.BUFFER)


async def test_what_the_channel_never_said_is_found_after_a_quiet_moment(bus: Bus, behind: Behind) -> None:
    async with a_running_job(bus) as lease, bus.log.follow(lease.job_id) as reader:
        await behind.client.xadd(behind.keys.log(lease.job_id), {"n": 1, "e": '[{"ids":[5],"text":"1"}]'}, id="1-1")
        await behind.client.hset(behind.keys.job(lease.job_id), "events", 1)
        event = await reader.next(2 * tokenlog.QUIET_S + 5)
        assert event and event.number == 1


async def test_numbers_run_on_over_a_takeover(bus: Bus, behind: Behind) -> None:
    async with a_running_job(bus) as first, bus.log.follow(first.job_id) as early:
        await write(bus, first, 1, 10)
        await behind.let_lease_run_out(first.job_id)
        second = (await claimed(bus, "w2", sweep=True)).lease
        await write(bus, first, 11, 20)  # a zombie's: refused
        await write(bus, second, 11, 30)
        await bus.queue.finish(second, SUCCEEDED, 31)
        async with bus.log.follow(first.job_id, after=5) as late:
            assert kept(await all_of(late)) == numbers(6, 30)
        assert kept(await all_of(early)) == numbers(1, 30)


@pytest.mark.parametrize("how", ["cancel", "reap"])
async def test_an_ending_without_a_worker_is_told(bus: Bus, behind: Behind, how: str) -> None:
    job = await queued(bus)
    async with bus.log.follow(job.id) as reader:
        assert await reader.next(0) is None
        if how == "cancel":
            await bus.queue.cancel(job.id)
        else:
            await behind.let_deadline_pass(job.id)
            await bus.queue.reap()
        [(number, event)] = await all_of(reader)
        assert (number, said(event)) == (1, "cancelled" if how == "cancel" else "expired")


async def test_a_cancelled_wait_loses_nothing(bus: Bus) -> None:
    async with a_running_job(bus) as lease, bus.log.follow(lease.job_id) as reader:
        got: list[LogEvent] = []

        async def impatient() -> None:
            while not got or not isinstance(got[-1].event, Finished):
                wait = asyncio.ensure_future(reader.next())
                for _ in range(random.choice((0, 1, 2, 3, 5, 10, 1000))):
                    await asyncio.sleep(0)
                wait.cancel()
                with suppress(asyncio.CancelledError):
                    event = await wait
                    assert event
                    got.append(event)

        async def writer() -> None:
            await write(bus, lease, 1, 100)
            await bus.queue.finish(lease, SUCCEEDED, 101)

        await asyncio.gather(impatient(), writer())
        assert kept(got) == numbers(1, 100)


@pytest.mark.parametrize("is_large", [False, True])
async def test_only_a_large_result_is_taken_apart_in_a_thread(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    threads: list[threading.Thread] = []

    def taken_apart(text: bytes) -> Finished:
        threads.append(threading.current_thread())
        return Finished.model_validate_json(text)

    monkeypatch.setattr(Finished, "from_json", taken_apart)
    words = "word " * (tokenlog.LARGE // 5 if is_large else 1)
    job = await queued(bus)
    result = Finished(status="succeeded", parts=(Text(text=words),))
    assert await bus.queue.finish((await claimed(bus)).lease, result, 1)
    async with bus.log.follow(job.id) as reader:
        assert await all_of(reader) == [(1, result)]
    assert {thread is not threading.main_thread() for thread in threads} == {is_large}


async def test_a_wait_ends_in_time(bus: Bus) -> None:
    async with a_running_job(bus) as lease, bus.log.follow(lease.job_id) as reader:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await reader.next(0.05) is None
        assert 0.04 < loop.time() - begun < 1


@pytest.mark.parametrize("job_id", ["job_0_unknown", "nonsense", "job_99_beef"])
async def test_a_job_that_never_was_cannot_be_followed(bus: Bus, job_id: str) -> None:
    with pytest.raises(UnknownJob):
        async with bus.log.follow(job_id):
            pass


async def test_a_job_that_vanishes_is_said_to_be_unknown(bus: Bus, behind: Behind) -> None:
    async with a_running_job(bus) as lease, bus.log.follow(lease.job_id) as reader:
        await behind.client.flushall()
        with pytest.raises(UnknownJob):
            await reader.next(2 * tokenlog.QUIET_S + 5)


async def test_readers_share_one_connection_and_leave_no_subscription(bus: Bus, behind: Behind) -> None:
    jobs = [await queued(bus) for _ in range(50)]
    readers = [bus.log.follow(job.id) for job in jobs for _ in range(2)]
    await asyncio.gather(*(reader.__aenter__() for reader in readers))
    channels = await behind.client.pubsub_channels(f"{behind.keys.namespace}:*")
    assert len(channels) == 50
    subscribers = [each for each in await behind.client.client_list() if int(each["sub"]) > 0]
    assert len(subscribers) == 1
    await asyncio.gather(*(reader.__aexit__(None, None, None) for reader in readers))
    await bus.ping()
    assert await behind.client.pubsub_channels(f"{behind.keys.namespace}:*") == []


async def test_a_reader_that_comes_and_goes_at_once_hears_everything(bus: Bus) -> None:
    async with a_running_job(bus) as lease:
        for number in range(1, 60):
            async with bus.log.follow(lease.job_id, after=number - 1) as reader:
                await write(bus, lease, number, number)
                event = await reader.next(1)
                assert event and event.number == number


async def test_the_log_is_what_a_new_attempt_continues_from(bus: Bus) -> None:
    async with a_running_job(bus) as lease:
        said_once = Tokens(index=1, ids=(7, 8), text="é")
        await bus.queue.append([Chunk(lease, 1, (said_once,))])
        assert await bus.log.read(lease.job_id) == [(1, said_once)]
        await bus.queue.claim("w1", "m", ANY)
    assert await bus.log.read("job_0_unknown") == []


async def test_a_log_that_was_cut_into_other_entries_is_read_whole(bus: Bus, behind: Behind) -> None:
    """As after a server lost its last second: the epoch is counted again, and the same words come in other entries."""
    async with a_running_job(bus) as lease:
        log = behind.keys.log(lease.job_id)
        await bus.queue.append([Chunk(lease, 1, tokens("1", "2"))])
        await bus.queue.append([Chunk(lease, 3, tokens("3", "4"))])
        async with bus.log.follow(lease.job_id) as reader:
            assert [(await reader.next(5)).number for _ in range(4)] == [1, 2, 3, 4]  # type: ignore[union-attr]
            await behind.client.xtrim(log, maxlen=0, approximate=False)
            await behind.client.execute_command("XSETID", log, "1-0")
            await behind.client.hset(behind.keys.job(lease.job_id), "events", 0)
            await bus.queue.append([Chunk(lease, 1, tokens("1"))])
            await bus.queue.append([Chunk(lease, 2, tokens("2", "3", "4", "5", "6"))])
            await bus.queue.append([Chunk(lease, 7, tokens("7"))])
            assert await bus.queue.finish(lease, SUCCEEDED, 8)
            await behind.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

            async def has_missed() -> bool:
                return reader._inbox.missed

            await eventually(has_missed)
            assert kept(await all_of(reader)) == [(5, "5"), (6, "6"), (7, "7"), (8, "succeeded")]


async def test_a_long_log_is_read_by_pages(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenlog, "PAGE", 5)
    async with a_running_job(bus) as lease:
        await write(bus, lease, 1, 100)
        async with bus.log.follow(lease.job_id) as reader:
            assert len(reader._ready) < 30
            await bus.queue.finish(lease, SUCCEEDED, 101)
            assert kept(await all_of(reader)) == numbers(1, 100)
