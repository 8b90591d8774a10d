"""Keeps a worker's leases alive, from a thread and a connection of its own. Knows no asyncio and no engine.

A decode that holds the interpreter, or an event loop that is busy, must not lose leases; a decode loop that hangs must.
So the thread asks `is_alive` before it renews, and a lease that could not be renewed for its whole length by the local
clock counts as lost, whatever the server might still think.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import structlog
from redis import Redis
from redis.exceptions import NoScriptError, RedisError

from shared.bus.address import server_of
from shared.bus.blocking import BlockingClients
from shared.bus.claims import Lease
from shared.bus.keys import Keys, part
from shared.bus.script import script
from shared.jobs import partition_of
from shared.settings import BusSettings

BEATS_IN_A_LEASE = 5

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Held:
    lease: Lease
    renewed_at: float
    """Monotonic seconds, of when the renewal was sent: the server cannot have counted from earlier."""
    is_cancel_told: bool = False


class LeaseKeeper:
    """Says that `worker_id` lives, also when it holds nothing: a worker that is heard has not died with its jobs.

    `on_cancel` gets a job's id and `on_lost` a lease, once each, on the keeper's thread; they must not block.

    A lost lease is dropped by itself. `hold` and `drop` may be called from any thread.
    """

    def __init__(
        self,
        settings: BusSettings,
        worker_id: str,
        *,
        is_alive: Callable[[], bool],
        on_cancel: Callable[[str], None],
        on_lost: Callable[[Lease], None],
    ) -> None:
        self._keys = Keys(settings.namespace, settings.partitions)
        self._worker = part(worker_id)
        self._lease_s = settings.lease_s
        self._beat_s = settings.lease_s / BEATS_IN_A_LEASE
        self._clients = BlockingClients(server_of(settings), f"lease-{os.getpid()}", timeout_s=2 * self._beat_s)
        self._is_alive = is_alive
        self._on_cancel = on_cancel
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        """By job id; under the lock."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Renews no more; what is still held runs out by itself."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._clients.close()

    def hold(self, lease: Lease) -> None:
        """From now on. Call it at once after the claim."""
        with self._lock:
            self._held[lease.job_id] = _Held(lease, time.monotonic())

    def drop(self, job_id: str) -> None:
        """No more; unknown ids are fine."""
        with self._lock:
            self._held.pop(job_id, None)

    def _run(self) -> None:
        due = 0.0
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._beat_s
            try:
                self.beat()
            except Exception:  # a thread that ends in silence would lose every lease
                log.exception("a round of renewals failed")

    def beat(self) -> None:
        """One round: says that the worker lives, renews what is held, and tells what was lost. The thread's work."""
        with self._lock:
            held = list(self._held.values())
        if self._is_alive():
            self._renew(held)
        self._give_up_overdue(held)

    def _renew(self, held: list[_Held]) -> None:
        """All of a partition in one call. A server that does not answer is waited for once, not once a partition."""
        by_partition: dict[int, list[_Held]] = {partition: [] for partition in range(self._keys.partitions)}
        for each in held:
            by_partition[partition_of(each.lease.job_id)].append(each)
        silent: set[Redis | None] = set()
        for partition, group in by_partition.items():
            client: Redis | None = None
            try:
                client = self._clients.of(self._keys.beats(partition))
                if client not in silent:
                    self._renew_in(partition, group, client)
            except (RedisError, OSError) as error:
                log.warning("leases were not renewed", partition=partition, n_leases=len(group), error=str(error))
                silent.add(client)
                if client is None:
                    break  # no node says who has what, and to ask again for each partition takes too long
        if silent:
            # After a failover the name leads to the new primary, and a connection that is kept to the old one.
            self._clients.forget()

    def _renew_in(self, partition: int, group: list[_Held], client: Redis) -> None:
        sent_at = time.monotonic()
        for each, verdict in zip(group, self._verdicts(partition, group, client), strict=True):
            if verdict == b"lost":
                self._lose(each)
                continue
            if verdict == b"ended":
                self._forget(each)
                continue
            each.renewed_at = sent_at
            if verdict == b"cancel" and not each.is_cancel_told:
                each.is_cancel_told = True
                self._on_cancel(each.lease.job_id)

    def _verdicts(self, partition: int, group: list[_Held], client: Redis) -> list[bytes]:
        renew = script("renew")
        leases = [each.lease for each in group]
        call = renew.call(
            [self._keys.beats(partition), *(self._keys.job(lease.job_id) for lease in leases)],
            [
                self._keys.prefix(partition),
                self._worker,
                round(self._lease_s * 1000),
                *(lease.token for lease in leases),
            ],
        )
        try:
            return client.execute_command(*call)  # type: ignore[no-any-return, no-untyped-call]
        except NoScriptError:
            client.execute_command(*renew.load)  # type: ignore[no-untyped-call]
            return client.execute_command(*call)  # type: ignore[no-any-return, no-untyped-call]

    def _give_up_overdue(self, held: list[_Held]) -> None:
        now = time.monotonic()
        for each in held:
            if now - each.renewed_at >= self._lease_s:
                self._lose(each)

    def _lose(self, lost: _Held) -> None:
        if self._forget(lost):
            self._on_lost(lost.lease)

    def _forget(self, held: _Held) -> bool:
        """False: it was dropped meanwhile, or claimed anew."""
        job_id = held.lease.job_id
        with self._lock:
            if self._held.get(job_id) is not held:
                return False
            del self._held[job_id]
        return True
