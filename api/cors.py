"""Which pages of other origins may read what is answered. Knows no key and no route."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence

from starlette.datastructures import MutableHeaders

PREFLIGHT = {
    "Access-Control-Allow-Credentials": "true",
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "*",
}
"""What is told before a request that a page may not simply send."""

EXPOSED = "X-Request-Id, X-Job-Id, X-Incomplete, Retry-After, Content-Disposition, Content-Range, ETag"
ANY, LOCAL = "*", "localhost"
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class Cors:
    """Origins whose pages may. `*` is all, and `localhost` those of this machine, whatever their port."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    def mark(self, headers: MutableHeaders, origin: str) -> None:
        """Adds to an answer's headers what its reader's browser wants to know. `origin`: its page's, if any."""
        if not origin:
            return
        headers.add_vary_header("Origin")
        if self._allows(origin):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = EXPOSED

    def _allows(self, origin: str) -> bool:
        if ANY in self._origins or origin in self._origins:
            return True
        return LOCAL in self._origins and _host_of(origin) in _LOCAL_HOSTS


def _host_of(origin: str) -> str | None:
    try:
        return urllib.parse.urlsplit(origin).hostname
    except ValueError:
        return None
