"""A slot as `/slots` of May 2024 told of it."""

from __future__ import annotations

from typing import Any


def slot(today: dict[str, Any]) -> dict[str, Any]:
    """Its next token is an object, not a list of one."""
    (next_token,) = today["next_token"]
    return today | {"next_token": next_token}
