"""Where slotstream keeps what must outlive a process: the embedded server's data and the progress of runs."""

from __future__ import annotations

import os
from pathlib import Path

from shared import home
from shared.settings import ConfigError


def state_folder(chosen: Path | None) -> Path:
    """`chosen`, or `slotstream` in the user's state folder; made when missing, for its owner only.

    Raises ConfigError when it cannot be written.
    """
    folder = (chosen or _default()).expanduser().absolute()
    return make_folder(folder)


def make_folder(folder: Path) -> Path:
    """The folder, made with its parents when missing. Raises ConfigError when it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror} (see --state-dir)") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"the folder {folder} cannot be written (see --state-dir)")
    return folder


def _default() -> Path:
    if folder := home.state_folder():
        return folder
    raise ConfigError("there is no home folder to keep state in; name one with --state-dir")
