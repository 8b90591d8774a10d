"""The connections that arq works over. Its own have no timeouts: a half-open one would hang it for ever.

Knows nothing of arq.
"""

from __future__ import annotations

from redis.asyncio.connection import ConnectionPool

from shared.bus.connect import REPLY_TIMEOUT_S, connection_pool
from shared.settings import BusSettings


def task_pool(settings: BusSettings, *, name: str) -> ConnectionPool:
    """Not connected yet; whoever takes it disconnects it. Raises ConfigError when the URL is none of ours."""
    return connection_pool(settings, name, socket_timeout=REPLY_TIMEOUT_S)
