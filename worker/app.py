"""A worker from start to end: load, pull, publish; and on SIGTERM finish, give back, leave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import structlog

from shared.bus import Bus, LeaseKeeper, Queue, open_bus
from shared.errors import BusUnavailable
from shared.settings import ConfigError, WorkerSettings
from shared.store import Store, open_store
from worker.agreement import agree
from worker.engine import Engine, EngineConfig, LoadFailed, OnEvents
from worker.handover import Handover
from worker.held import HeldJobs
from worker.intake import Registrar
from worker.opening import Intent, StillLoading, learn, load, names_of
from worker.presence import Announcer
from worker.publisher import Publisher
from worker.puller import Hands, Puller, Station
from worker.rules import Rules
from worker.slotfiles import SlotFiles, SlotFolder

STALL_S = 120.0
"""A busy engine without a finished step for this long hangs; a prefill step of a slow CPU takes some seconds."""
WATCH_EVERY_S = 1.0
LEAVE_S = 2.0
"""To say that it leaves."""

log = structlog.get_logger(__name__)

T = TypeVar("T")


class EngineDied(Exception):
    """The decode thread ended or hangs. The process must go: its jobs come back by their leases."""


async def run(settings: WorkerSettings, make_engine: Callable[[EngineConfig, OnEvents], Engine] = Engine) -> None:
    """Work until SIGTERM or SIGINT. ConfigError or LoadFailed when it cannot start, EngineDied when it cannot go on."""
    worker_id = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"
    signals = StopSignals()
    try:
        async with _store(settings) as store, open_bus(settings, name=worker_id, store=store) as bus:
            path = settings.origin.text if settings.origin else ""
            announcer = Announcer(bus, worker_id, names_of(settings), path, settings.parallel)
            async with _beside(announcer.run()):
                try:
                    await _work(settings, bus, announcer, signals, make_engine)
                except (ConfigError, LoadFailed) as error:
                    announcer.failed(settings.blame(str(error)))
                    raise
    except ToldToLeave:
        pass
    except StillLoading:
        log.info("left")
        os._exit(0)
    log.info("left")


@contextlib.asynccontextmanager
async def _store(settings: WorkerSettings) -> AsyncIterator[Store | None]:
    """The one that it shares with whoever makes its jobs, if it was told of one. Raises ConfigError."""
    if settings.shared_store_url is None:
        yield None
        return
    async with open_store(settings.shared_store_url) as store:
        yield store


async def _work(
    settings: WorkerSettings,
    bus: Bus,
    announcer: Announcer,
    signals: StopSignals,
    make_engine: Callable[[EngineConfig, OnEvents], Engine],
) -> None:
    intent = Intent.of(settings)
    slot_folder = SlotFolder(settings.slot_save_path) if settings.slot_save_path else None
    await signals.before_first(bus.reach())
    intent = await signals.before_first(intent.fetched(settings, announcer.loading))
    publisher = Publisher(bus.queue, held := HeldJobs(), announcer.worker_id)
    engine = make_engine(intent.config, publisher.post)
    slot_files = SlotFiles(slot_folder, engine, publisher.post) if slot_folder else None
    template = await signals.before_first(load(engine, intent, announcer.loading))
    try:
        await agree(bus.presence, engine.adapters, announcer.name)
        registrar = Registrar(
            engine.model,
            Rules.of(settings, intent.system_prompt, engine),
            engine.grammars,
            engine.adapters,
            engine.vision,
            template=template,
            slot_files=slot_files,
        )
        await signals.before_first(learn(registrar.dialect))
        announcer.ready(engine, registrar.dialect, has_slot_files=slot_files is not None)
        keeper = LeaseKeeper(
            settings,
            announcer.worker_id,
            is_alive=lambda: not _is_stalled(engine),
            on_cancel=_in_loop(publisher.cancel),
            on_lost=_in_loop(publisher.lose),
        )
        publisher.attach(engine, keeper)
        hands = Hands(engine, held, publisher, keeper)
        puller = Puller(
            bus.queue,
            bus.log,
            hands,
            registrar,
            Station(announcer.worker_id, announcer.name, intent.config.n_slots, settings.lease_s),
        )
        handover = Handover(bus.presence, hands, announcer.worker_id, on_given=puller.demand.rest)
        with keeper:
            async with _beside(_watch(engine)), _beside(publisher.run(), publisher.close):
                async with (
                    _beside(puller.listen()),
                    _beside(puller.run(), puller.close),
                    _beside(handover.run()),
                ):
                    await signals.wait()
                    announcer.draining()
                await _say_that_we_leave(bus.queue, announcer.worker_id, announcer.name)
                log.info("draining", jobs=len(held), grace_s=settings.grace_s)
                await signals.or_again(held.wait_empty(), settings.grace_s)
                for job in held:
                    publisher.give_back(job)
    finally:
        await asyncio.to_thread(engine.stop)
        if slot_files:
            await asyncio.to_thread(slot_files.close)


class ToldToLeave(Exception):
    """A signal came before there was anything to leave in good order."""


class StopSignals:
    """SIGTERM and SIGINT: the first asks to leave in good order, the next to leave now."""

    def __init__(self) -> None:
        self._first, self._second = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._hear)

    def _hear(self) -> None:
        (self._second if self._first.is_set() else self._first).set()

    async def before_first(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` while nothing is held that could be lost. The first signal cancels it, and is ToldToLeave."""
        task, told = asyncio.ensure_future(work), asyncio.ensure_future(self._first.wait())
        await asyncio.wait((task, told), return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            if task.cancelled():
                raise ToldToLeave
        return task.result()

    async def wait(self) -> None:
        await self._first.wait()

    async def or_again(self, work: Coroutine[Any, Any, None], timeout_s: float) -> None:
        """Until `work` is done, its time is over, or a second signal came."""
        tasks = {asyncio.create_task(work), asyncio.create_task(self._second.wait())}
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


async def _say_that_we_leave(queue: Queue, worker_id: str, name: str) -> None:
    """What was meant for us alone and is not here yet must not wait for us. Others find out by our silence if this
    fails."""
    try:
        await asyncio.wait_for(queue.leave(worker_id, name), LEAVE_S)
    except (BusUnavailable, TimeoutError):
        log.debug("nobody knows that we leave")


async def _watch(engine: Engine) -> None:
    """A dead or hung decode thread ends the process: nothing here could mend it."""
    while True:
        await asyncio.sleep(WATCH_EVERY_S)
        if not engine.snapshot().is_alive:
            raise EngineDied("the decode thread has ended")
        if _is_stalled(engine):
            log.critical("the decode thread hangs", stall_s=STALL_S)
            # A hung native call can be neither joined nor freed; only leaving helps.
            os._exit(70)


def _is_stalled(engine: Engine) -> bool:
    snapshot = engine.snapshot()
    return snapshot.is_busy and time.monotonic() - snapshot.progress_at > STALL_S


def _in_loop(call: Callable[[T], None]) -> Callable[[T], None]:
    """`call`, made on this event loop whatever thread asks."""
    loop = asyncio.get_running_loop()

    def ask(subject: T) -> None:
        loop.call_soon_threadsafe(call, subject)

    return ask


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None], stop: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """Run `work` beside the block. Its failure ends the block; the block's end cancels it, or asks it to `stop`.

    What talks to the bus is asked, not cancelled: a claim or an append cut off between request and reply would leave
    work that nobody knows of.
    """
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            try:
                yield
            finally:
                (stop or task.cancel)()
    except BaseExceptionGroup as failures:
        # A group has one member here unless the block fell with the work, and then the work's failure is the cause.
        raise failures.exceptions[0] from None
