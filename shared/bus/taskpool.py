"""The connections that arq works over. Its own have no timeouts, so that a half-open one hangs it for ever, and no
retries: its worker falls with the first of them that breaks.

Knows nothing of arq.
"""

from __future__ import annotations

from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from shared.bus.address import parse, server_of
from shared.bus.connect import REPLY_TIMEOUT_S, connection_pool
from shared.settings import ConfigError, TasksSettings

RETRIES = 3
"""Of a command whose connection broke, also of one whose reply is late."""


def task_pool(settings: TasksSettings, *, name: str) -> ConnectionPool:
    """Not connected yet; whoever takes it disconnects it. Raises ConfigError when the URL is none of ours."""
    own = settings.tasks_redis_url
    address = parse(own, "--tasks-redis-url") if own else server_of(settings)
    if address.is_cluster:
        raise ConfigError("--tasks-redis-url: must name one server, since arq can do nothing with a Cluster")
    # All that arq says may be said twice. A server that restarts takes longer than this: then its worker falls.
    retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES)
    return connection_pool(address, name, socket_timeout=REPLY_TIMEOUT_S, retry=retry, retry_on_error=[OSError])
