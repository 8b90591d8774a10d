"""The connections that arq works over. Its own have no timeouts: a half-open one would hang it for ever.

Knows nothing of arq.
"""

from __future__ import annotations

from redis.asyncio.connection import ConnectionPool

from shared.bus.connect import CONNECT_TIMEOUT_S, REPLY_TIMEOUT_S
from shared.settings import BusSettings, ConfigError


def task_pool(settings: BusSettings, *, name: str) -> ConnectionPool:
    """Not connected yet; whoever takes it disconnects it. Raises ConfigError when the URL is none of ours."""
    url = settings.redis_url.get_secret_value()
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    try:
        return ConnectionPool.from_url(
            url,
            client_name=name,
            socket_timeout=REPLY_TIMEOUT_S,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            **keepalive,
        )
    except ValueError as error:
        raise ConfigError(f"--redis-url: {error}") from None
