"""How many attempts at one endpoint are under way at once: more while they succeed, one when it is in trouble. Pure."""

from __future__ import annotations

WIDEST = 8
MAX_KNOWN = 10_000
"""Endpoints that are remembered. Of the others nothing is known, as after a start."""


class Paces:
    """Of all endpoints. What is new here begins with one attempt, so that receivers that hang hold few connections."""

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}

    def width(self, endpoint_id: str) -> int:
        return self._widths.get(endpoint_id, 1)

    def widen(self, endpoint_id: str) -> None:
        if len(self._widths) >= MAX_KNOWN:
            self._widths.clear()
        self._widths[endpoint_id] = min(2 * self.width(endpoint_id), WIDEST)

    def narrow(self, endpoint_id: str) -> None:
        self._widths.pop(endpoint_id, None)
