"""The Lua scripts: read from their files, run by their hash. Knows nothing of what they do.

A script names the shared pieces that it uses in a line `-- uses: clock ending`; they come from `scripts/lib`, with what
they use themselves, and are put in front of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from redis.exceptions import NoScriptError

from shared.bus.connect import Command, Reply, Sender, is_refusal, persist, unavailable

_USES = re.compile(r"^-- uses: (.+)$", re.MULTILINE)


class Script(NamedTuple):
    text: str
    sha: str

    def call(self, keys: Sequence[str], arguments: Sequence[str | bytes | int | float]) -> Command:
        return ("EVALSHA", self.sha, len(keys), *keys, *arguments)

    @property
    def load(self) -> Command:
        return ("SCRIPT", "LOAD", self.text)


@lru_cache
def script(name: str) -> Script:
    """The script `scripts/<name>.lua`, with the pieces that it uses."""
    folder = files(__package__) / "scripts"
    own = (folder / f"{name}.lua").read_text(encoding="utf-8")
    shebang, rest = own.split("\n", 1)
    text = "\n".join([shebang, *_pieces(own).values(), rest])
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _pieces(text: str) -> dict[str, str]:
    """What a script or a piece uses, by name, each behind what it needs itself."""
    used = _USES.search(text)
    pieces: dict[str, str] = {}
    for name in used[1].split() if used else ():
        piece = (files(__package__) / "scripts" / "lib" / f"{name}.lua").read_text(encoding="utf-8")
        pieces |= _pieces(piece) | {name: piece}
    return pieces


async def run(link: Sender, which: Script, calls: Sequence[Command], *, tries: int = 1) -> list[Reply]:
    """The replies to some calls of one script, made in order in one round trip.

    With `tries` above 1 all calls are made again when no reply came, so each must be safe to repeat. They are also made
    again, all and in order, when the server had lost the script: what ran the first time must not mind.
    Raises BusUnavailable, also when the server refuses for now (memory full, read only, loading).
    """

    async def attempt() -> list[Reply]:
        replies = await link.send(calls)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            # In front of each: they may go to several nodes.
            replies = (await link.send([command for call in calls for command in (which.load, call)]))[1::2]
        return checked(replies)

    replies: list[Reply] = await persist(attempt, tries)
    return replies


async def ask(link: Sender, commands: Sequence[Command], *, tries: int = 4) -> list[Reply]:
    """The replies to plain commands, made in one round trip, repeated when none came: for reads. Errors as in `run`."""

    async def attempt() -> list[Reply]:
        return checked(await link.send(commands))

    replies: list[Reply] = await persist(attempt, tries)
    return replies


def checked(replies: list[Reply]) -> list[Reply]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise unavailable(reply) if is_refusal(reply) else reply
    return replies
