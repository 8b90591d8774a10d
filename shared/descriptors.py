"""How many files and connections this process may have open."""

from __future__ import annotations

import resource

OTHER_FILES = 64
"""Descriptors besides the connections that are asked for: Redis, files, logs."""


def make_room_for(n_connections: int) -> None:
    """As many descriptors as the system lets this process have, if that many are needed: shells give 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = n_connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
