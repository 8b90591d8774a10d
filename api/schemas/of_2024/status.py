"""How slots and health were told of in May 2024."""

from __future__ import annotations

from typing import Any


def slot(today: dict[str, Any]) -> dict[str, Any]:
    """Its next token is an object, not a list of one. Why its text ended stood there too: here a slot forgets that."""
    (next_token,) = today["next_token"]
    endings = {"stopped_eos": False, "stopped_word": False, "stopped_limit": False, "stopping_word": ""}
    return today | {"next_token": next_token | endings}


def health(today: dict[str, Any]) -> dict[str, Any]:
    """A full house had a word of its own, also where it was no fault."""
    return today if today["slots_idle"] else today | {"status": "no slot available"}
