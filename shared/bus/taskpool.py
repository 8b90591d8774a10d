"""The connections that arq works over. Its own have no timeouts: a half-open one would hang it for ever.

Knows nothing of arq.
"""

from __future__ import annotations

from redis.asyncio.connection import ConnectionPool

from shared.bus.address import parse, server_of
from shared.bus.connect import REPLY_TIMEOUT_S, connection_pool
from shared.settings import ConfigError, TasksSettings


def task_pool(settings: TasksSettings, *, name: str) -> ConnectionPool:
    """Not connected yet; whoever takes it disconnects it. Raises ConfigError when the URL is none of ours."""
    own = settings.tasks_redis_url
    address = parse(own, "--tasks-redis-url") if own else server_of(settings)
    if address.is_cluster:
        raise ConfigError("--tasks-redis-url: must name one server, since arq can do nothing with a Cluster")
    return connection_pool(address, name, socket_timeout=REPLY_TIMEOUT_S)
