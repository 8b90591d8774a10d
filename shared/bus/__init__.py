"""The bus between the API and the workers: one Redis or Valkey. Nobody else imports `redis`.

async with open_bus(settings, name="api") as bus:
    async with bus.log.follow(job.id, expects=True) as reader:  # subscribe first: a channel keeps nothing
        await bus.queue.enqueue(job)
        async for number, event in reader: ...
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from shared.bus.address import server_of
from shared.bus.annex import Annex
from shared.bus.batches import Batches, BatchPage, BatchReceipt, Remains
from shared.bus.batchsteps import MAX_COLLECTED, EndedLine, Fed, FedLine, Refusal, Unfed
from shared.bus.claims import Chunk, Claimed, Lease, Verdict, Wake, Wanted
from shared.bus.cluster import ClusterLink, ClusterSubscriber
from shared.bus.connect import Link, Sender, connection_factory, distrust
from shared.bus.embedded import EmbeddedServer
from shared.bus.endpoints import EndpointChange, EndpointPage
from shared.bus.files import FilePage, Files
from shared.bus.holds import Due, Hold
from shared.bus.jobrecords import JobPage
from shared.bus.keys import Keys
from shared.bus.lease import LeaseKeeper
from shared.bus.outbox import Outbox, OutboxRow
from shared.bus.presence import AdapterCard, ModelCard, Presence, Recent, SlotState, WorkerState
from shared.bus.queue import Queue, Receipt
from shared.bus.script import ask
from shared.bus.subscriber import Listener, Subscriber
from shared.bus.tally import Tally
from shared.bus.tokenlog import LogEvent, Reader, TokenLog
from shared.bus.webhooks import DeliveryPage, Replayed, Webhooks
from shared.errors import BusUnavailable
from shared.settings import BusSettings, ConfigError
from shared.store import Store

__all__ = [
    "ADVICE",
    "MAX_COLLECTED",
    "AdapterCard",
    "Annex",
    "BatchPage",
    "BatchReceipt",
    "Batches",
    "Bus",
    "Chunk",
    "Claimed",
    "DeliveryPage",
    "Due",
    "EmbeddedServer",
    "EndedLine",
    "EndpointChange",
    "EndpointPage",
    "Fed",
    "FedLine",
    "FilePage",
    "Files",
    "Hold",
    "JobPage",
    "Lease",
    "LeaseKeeper",
    "LogEvent",
    "ModelCard",
    "Outbox",
    "OutboxRow",
    "Presence",
    "Queue",
    "Reader",
    "Receipt",
    "Recent",
    "Refusal",
    "Remains",
    "Replayed",
    "SlotState",
    "Tally",
    "TokenLog",
    "Unfed",
    "Verdict",
    "Wake",
    "Wanted",
    "Webhooks",
    "WorkerState",
    "open_bus",
]

OLDEST_SERVER = (7, 0)
"""Redis's version; Valkey reports one that it is compatible with."""

ADVICE = "start Redis or Valkey there, name another with --redis-url, or use `slotstream serve`, which brings its own"
"""For who starts a role without a server."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""Between two looks for a server that is not there yet."""

log = structlog.get_logger(__name__)


class Bus:
    def __init__(self, settings: BusSettings, link: Sender, subscriber: Listener, store: Store | None = None) -> None:
        keys = self._keys = Keys(settings.namespace, settings.partitions)
        self._link = link
        self.presence = Presence(keys, link)
        self.annex = Annex(keys, link, self.presence, store)
        self.queue = Queue(settings, keys, link, subscriber, self.annex)
        self.log = TokenLog(keys, link, subscriber, self.annex)
        self.tally = Tally(keys, link)
        self.batches = Batches(settings, keys, link, self.annex)
        self.outbox = Outbox(keys, link)
        self.files = Files(keys, link)
        self.webhooks = Webhooks(settings, keys, link)

    async def ping(self) -> None:
        """Returns when the server answers. Raises BusUnavailable."""
        for node in await self._link.nodes():
            await ask(node, [("PING",)], tries=1)

    async def identity(self) -> str:
        """What tells this queue from all others, and from what it was before its data were lost. Raises
        BusUnavailable."""
        return await self.annex.identity()

    async def reach(self) -> None:
        """Waits for the server, however long: a role may well start before it. Raises ConfigError as `check_server`."""
        pause_s, advice = FIRST_PAUSE_S, {"advice": ADVICE}
        while True:
            try:
                return await self.check_server()
            except BusUnavailable as error:
                log.warning("waiting for the server", setting="--redis-url", reason=error.message, **advice)
            advice = {}  # once is enough
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def check_server(self) -> None:
        """Raises ConfigError when jobs would not be safe on this server, BusUnavailable when it does not answer."""
        try:
            replies = [(await ask(node, [("INFO",)]))[0] for node in await self._link.nodes()]
        except BusUnavailable as error:
            if reason := distrust(error):
                raise ConfigError(
                    f"--redis-url: the server's certificate is not trusted ({reason}); name its CA's file with"
                    " ?ssl_ca_certs="
                ) from None
            raise
        for reply in replies:
            _check_facts(dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line))
        await self._check_layout()

    async def _check_layout(self) -> None:
        """All must see the same partitions, or jobs would wait where no worker looks. The first to come decides."""
        [agreed] = await ask(self._link, [("GET", self._keys.layout)])  # first: a full server takes no SET
        if agreed is None:
            [_, agreed] = await ask(
                self._link, [("SET", self._keys.layout, self._keys.partitions, "NX"), ("GET", self._keys.layout)]
            )
        if agreed is not None and int(agreed) != self._keys.partitions:
            raise ConfigError(
                f"--partitions: is {self._keys.partitions}, but this queue was made with {agreed.decode()}; to change"
                f" it, let the queue run empty, stop everything and delete the key {self._keys.layout}"
            )


def _check_facts(facts: Mapping[str, str]) -> None:
    version = tuple(int(number) for number in facts["redis_version"].split(".")[:2])
    if version < OLDEST_SERVER:
        raise ConfigError(f"--redis-url: the server is Redis {facts['redis_version']}, and 7.0 is needed")
    policy = facts["maxmemory_policy"]
    if policy != "noeviction":
        raise ConfigError(
            f"--redis-url: the server has maxmemory-policy {policy!r}, under which it throws jobs away when its "
            "memory is full; set maxmemory-policy to noeviction"
        )


@asynccontextmanager
async def open_bus(settings: BusSettings, *, name: str, store: Store | None = None) -> AsyncIterator[Bus]:
    """A bus for one process; `name` is shown in the server's CLIENT LIST, `store` is for what is too large for it.
    Connects when it is first used, and again by itself whenever it must. Raises ConfigError when the URL is none of
    ours."""
    server = server_of(settings)
    async with AsyncExitStack() as stack:
        if server.is_cluster:
            nodes = await stack.enter_async_context(ClusterLink(server, name))
            bus = Bus(settings, nodes, await stack.enter_async_context(ClusterSubscriber(nodes)), store)
        else:
            connect = connection_factory(server, name)
            link = await stack.enter_async_context(Link(connect))
            bus = Bus(settings, link, await stack.enter_async_context(Subscriber(connect)), store)
        await stack.enter_async_context(bus.annex.open())
        yield bus
