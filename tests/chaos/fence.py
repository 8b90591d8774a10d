"""Takes the fence down: the scripts without the comparison of leases and of event numbers.

What is left is what one would write who had not thought of zombies: whoever speaks is the holder, and what it says
goes to the end of the log. A harness that finds nothing wrong with that proves nothing with the fence either.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import shared.bus.script

SCRIPTS = Path(shared.bus.script.__file__).parent / "scripts"

COMPARISONS = {
    "append": (
        "if held ~= lease or status ~= 'running' or first > written + 1 then",
        "epoch, first = redis.call('HGET', job, 'epoch'), written + 1\nif status ~= 'running' then",
    ),
    "finish": (
        "if held ~= lease or was ~= 'running' or first ~= events + 1 then",
        "if was ~= 'running' then",
    ),
    "renew": (
        "if status ~= 'running' or lease ~= ARGV[i + 2] then",
        "if status ~= 'running' then",
    ),
}
"""By script: its comparison, and what stands there without it."""


def write_unfenced(folder: Path) -> None:
    """The scripts without their fence into `folder`."""
    shutil.copytree(SCRIPTS, folder / "scripts")
    for name, (comparison, without) in COMPARISONS.items():
        path = folder / "scripts" / f"{name}.lua"
        text = path.read_text()
        assert text.count(comparison) == 1, f"{name}.lua compares in other words now"
        path.write_text(text.replace(comparison, without))


def use_scripts(folder: Path) -> None:
    """Those in `folder`, for this process from now on."""
    shared.bus.script.script.cache_clear()
    shared.bus.script.files = lambda _: folder
