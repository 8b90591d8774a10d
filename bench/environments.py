"""Virtual environments for the queues that we are measured beside: they want other versions of what we have.

Each is made when it is first needed, in `build/peers`, where `make clean` finds it.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "build" / "peers"
PACKAGES = {
    "saq": ("saq==0.26.4", "redis==7.4.1", "typing-extensions"),
    "taskiq": ("taskiq==0.13.0", "taskiq-redis==1.2.4", "redis==8.1.0"),
    "dramatiq": ("dramatiq==2.2.1", "redis==8.1.0"),
}
"""What is not ours to have anyway; each also gets the parser and the event loop that we use."""
FOR_ALL = ("hiredis==3.5.0", "uvloop")


class Missing(NamedTuple):
    """There is no such environment, and why."""

    reason: str


def interpreter(name: str) -> Path | Missing:
    """The Python with the packages of a queue, installed now if need be; our own for what we have ourselves."""
    if name not in PACKAGES:
        return Path(sys.executable)
    folder = FOLDER / name
    python, is_made = folder / "bin" / "python", folder / "made-of"
    wanted = "\n".join((*PACKAGES[name], *FOR_ALL))
    if is_made.exists() and is_made.read_text() == wanted:
        return python
    print(f"installing {name} for comparison", file=sys.stderr, flush=True)
    try:
        venv.create(folder, clear=True, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted.split("\n")]
        subprocess.run(install, check=True, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        return Missing(_why(error))
    is_made.write_text(wanted)
    return python


def _why(error: Exception) -> str:
    said = (getattr(error, "stderr", None) or str(error)).strip()
    return f"not installed: {said.splitlines()[-1] if said else type(error).__name__}"
