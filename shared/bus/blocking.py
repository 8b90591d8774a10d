"""Clients for a thread without asyncio. Knows nothing of what is sent."""

from __future__ import annotations

import redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from shared.bus.address import Address, Host
from shared.bus.cluster import owners_in
from shared.bus.connect import blocking_client


class BlockingClients:
    """The client of a lone server, or those of a Cluster's nodes. Whoever meets an error calls `forget`."""

    def __init__(self, server: Address, name: str, timeout_s: float) -> None:
        self._server, self._name, self._timeout_s = server, name, timeout_s
        self._clients: dict[Host | None, redis.Redis] = {}
        self._owners: dict[int, Host] = {}
        self._hosts = list(server.hosts)
        """Who is asked for the owners, the one that answered last first: those who are away cost their whole wait."""

    def of(self, key: str) -> redis.Redis:
        """Of whoever has this key. Raises RedisError and OSError when that cannot be found out."""
        if not self._server.is_cluster:
            return self._client(None)
        if not self._owners:
            self._look()
        owner = self._owners.get(key_slot(key.encode()))
        if owner is None:
            raise RedisError("no node of the cluster has the slot")
        return self._client(owner)

    def forget(self) -> None:
        """Nothing that is connected or known is used again: something has changed."""
        self._owners.clear()
        for client in self._clients.values():
            client.connection_pool.disconnect()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _client(self, host: Host | None) -> redis.Redis:
        if host not in self._clients:
            server = self._server.at(host) if host else self._server
            self._clients[host] = blocking_client(server, self._name, self._timeout_s)
        return self._clients[host]

    def _look(self) -> None:
        fault: Exception = RedisError("the cluster has no nodes")
        for host in self._hosts:
            try:
                reply = self._client(host).execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
            except (RedisError, OSError) as error:
                fault = error
            else:
                self._owners = owners_in(reply, host)
                self._hosts = list(dict.fromkeys([host, *self._owners.values(), *self._server.hosts]))
                return
        raise fault
