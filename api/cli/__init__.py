"""The command `slotstream`: a subcommand for each role, and clients of the HTTP API without a back door."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shared.permanent import permanent


class Subcommand(NamedTuple):
    summary: str
    run: Callable[[Sequence[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments.pop(0) if arguments else "--help"
    if name in ("-h", "--help", "help"):
        print(_help())
        return 0
    if name in ("-V", "--version", "version"):
        print(f"slotstream {importlib.metadata.version('slotstream')}")
        return 0
    if name not in SUBCOMMANDS:
        print(f"slotstream: there is no command {name!r} (see slotstream --help)", file=sys.stderr)
        return 2
    try:
        return SUBCOMMANDS[name].run(arguments)
    except KeyboardInterrupt:
        return 130


def _help() -> str:
    width = max(map(len, SUBCOMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {item.summary}" for name, item in SUBCOMMANDS.items())
    return (
        "usage: slotstream COMMAND [OPTIONS]\n\n"
        "LLM inference as a job queue: an HTTP API, Redis streams and llama.cpp workers.\n\n"
        f"{commands}\n\n"
        "slotstream COMMAND --help shows a command's options; slotstream --version the version."
    )


def _serve(argv: Sequence[str]) -> int:
    with permanent():
        from api.cli.serve import serve  # noqa: PLC0415 - a command loads only what it needs

    return serve(argv)


def _run(argv: Sequence[str]) -> int:
    with permanent():
        from api.cli.run import run  # noqa: PLC0415

    return run(argv)


def _jobs(argv: Sequence[str]) -> int:
    with permanent():
        from api.cli.jobs import jobs  # noqa: PLC0415

    return jobs(argv)


def _becomes(module: str) -> Callable[[Sequence[str]], int]:
    """The role's own process in place of this one: signals and exit codes are its own."""

    def become(argv: Sequence[str]) -> int:
        command = (sys.executable, "-P", "-m", module, *argv)
        os.execv(command[0], command)

    return become


SUBCOMMANDS: dict[str, Subcommand] = {
    "serve": Subcommand("all roles on this machine, with an embedded server", _serve),
    "run": Subcommand("a bulk file in, a results file out; run again to go on", _run),
    "jobs": Subcommand("list, show, follow, cancel and submit jobs of a running service", _jobs),
    "api": Subcommand("the HTTP API alone", _becomes("api")),
    "worker": Subcommand("one worker: one model, many slots", _becomes("worker")),
    "tasks": Subcommand("batches, webhooks and housekeeping: one is needed", _becomes("api.tasks")),
}
