"""Where a user's programs keep what must outlive them. Knows none of it."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path | None:
    """slotstream's own in the user's state folder, whether or not it is there; None when there is no home."""
    base = os.environ.get("XDG_STATE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "slotstream"
    try:
        return Path.home() / ".local" / "state" / "slotstream"
    except RuntimeError:
        return None
