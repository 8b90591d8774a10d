"""The tasks process: arq's workers, and what gives them work, each started again when it falls.

arq's workers die with their connections; `stand_up_again` is why a restart of Redis needs nobody's hand.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import structlog
import uvloop

from api.fleet import Fleet
from api.images import Images
from api.outgoing import Outgoing
from api.tasks import arqworker, janitor, outbox, storekeeper
from api.tasks.batches.sweep import find_batches, work_on_batches
from api.tasks.insistence import insistently
from api.tasks.webhooks import courier as webhooks
from shared import telemetry
from shared.bus import Bus, open_bus
from shared.bus.taskpool import task_pool
from shared.descriptors import make_room_for
from shared.errors import BusUnavailable
from shared.settings import ConfigError, TasksSettings
from shared.store import Store, open_store

PROG = "slotstream tasks"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
STEADY_S = 30.0
"""Work that went on for so long is started again at once when it falls."""

log = structlog.get_logger(__name__)


def main(argv: Sequence[str]) -> int:
    settings = TasksSettings.from_command_line(
        argv, prog=PROG, description="Works on batches, sends webhooks, and keeps the queue and the store tidy."
    )
    telemetry.configure(settings.log_level, settings.log_format, "tasks")
    logging.getLogger("arq").setLevel(logging.WARNING)  # it tells of every cron job, several times a minute
    try:
        uvloop.run(run(settings))
    except ConfigError as error:
        print(f"{PROG}: {settings.blame(str(error))}", file=sys.stderr)
        return 2
    return 0


async def run(settings: TasksSettings) -> None:
    """Work until SIGTERM or SIGINT. Raises ConfigError when the server, the store or their URLs will not do."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    make_room_for(webhooks.MOST_CALLS)
    async with (
        open_store(settings.store_url.get_secret_value()) as store,
        open_bus(settings, name="tasks", store=store if settings.shared_store_url else None) as bus,
        Outgoing.open(settings.allow_hosts) as outgoing,
        webhooks.open_courier(settings, bus) as courier,
    ):
        work = asyncio.create_task(_work(settings, bus, store, outgoing, courier))
        until_stopped = asyncio.create_task(stopped.wait())
        await asyncio.wait((work, until_stopped), return_when=asyncio.FIRST_COMPLETED)
        until_stopped.cancel()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
    log.info("left")


async def _work(settings: TasksSettings, bus: Bus, store: Store, outgoing: Outgoing, courier: webhooks.Courier) -> None:
    """For ever. Raises ConfigError when a server will not do."""
    task_pool(settings, name="tasks-arq")  # here, or a mistake in its URL would be tried again and again
    await bus.reach()
    housekeeping = arqworker.Trade(cron_jobs=tuple(janitor.cron_jobs(settings.namespace)))
    keep = partial(arqworker.work, settings, housekeeping, {"bus": bus})
    fleet = Fleet(bus)
    on_batches = partial(work_on_batches, settings, bus, store, Images(fleet, outgoing, settings))
    store_trade = storekeeper.trade(settings.namespace)
    keep_store = partial(arqworker.work, settings, store_trade, {"storekeeper": storekeeper.Storekeeper(bus, store)})
    deliver = partial(arqworker.work, settings, webhooks.TRADE, {"courier": courier})
    async with asyncio.TaskGroup() as parts:
        parts.create_task(stand_up_again("looking at workers", fleet.watch))
        parts.create_task(stand_up_again("arq", keep))
        parts.create_task(stand_up_again("store", keep_store))
        parts.create_task(stand_up_again("webhooks", deliver))
        parts.create_task(stand_up_again("webhooks-sweep", partial(courier.sweep, settings)))
        parts.create_task(stand_up_again("outbox", partial(outbox.bridge, bus)))
        parts.create_task(stand_up_again("batches", on_batches))
        parts.create_task(stand_up_again("finding batches", partial(find_batches, settings, bus)))


async def stand_up_again(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` for ever: when it falls, say why and start it again, later and later while it goes on falling."""
    pause_s = FIRST_PAUSE_S
    while True:
        started = time.monotonic()
        try:
            await insistently(work())
        except BusUnavailable as error:
            log.warning("waiting for the server", part=name, reason=error.message)
        except Exception as error:  # the border: whatever it was, housekeeping must go on
            log.warning("fell and is started again", part=name, reason=str(error) or type(error).__name__)
        if time.monotonic() - started > STEADY_S:
            pause_s = FIRST_PAUSE_S
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
