"""Keeps child processes running. Knows neither roles nor settings: only commands, exit codes and signals.

A child that ends is started again, later and later while it goes on ending. The exit codes 2 and 3 mean that it cannot
work as it was told to (a bad setting, a model that cannot be loaded): nothing is gained by another try, so everything
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

T = TypeVar("T")

CONFIG_EXIT_CODE, LOAD_EXIT_CODE = 2, 3
TRIES_BEFORE_READY = 5
STEADY_S = 30.0
"""A child that ran for so long is started again as if it had never ended before."""

LAST_WORD_S = 2.0
"""For children that were told twice to stop: a worker needs a step of its engine and a few words with the queue."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Command(NamedTuple):
    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path | None = None
    """File for what it writes; None is the terminal."""
    stop_s: float = 15.0
    """Seconds from SIGTERM to SIGKILL."""
    stage: int = 0
    """Those of a lower stage have ended before the next are stopped."""


class ChildRefused(Exception):
    """A child cannot work. The message is its own last sentence, or says that this stands on the terminal."""

    def __init__(self, message: str, exit_code: int = CONFIG_EXIT_CODE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        """For whoever started the children to end with too."""


@dataclass(slots=True, eq=False)
class _Child:
    command: Command
    process: Process | None = None
    keeper: asyncio.Task[None] | None = None

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def is_running(self) -> bool:
        """Also while the event loop stands still, which would hear of an end."""
        if self.process is None or self.process.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False


class Supervisor:
    """Runs commands from `async with` to its end, which stops them stage by stage."""

    def __init__(
        self,
        commands: Sequence[Command],
        *,
        say: Callable[[str], None],
        first_delay_s: float = 0.5,
        longest_delay_s: float = 30.0,
    ) -> None:
        self._children = [_Child(command) for command in commands]
        self._say = say
        self._first_delay_s, self._longest_delay_s = first_delay_s, longest_delay_s
        self._is_ready = False
        self._is_stopping = False
        self._refusal: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._refusal = asyncio.get_running_loop().create_future()
        for child in self._children:
            child.keeper = asyncio.create_task(self._keep(child), name=f"keep {child.command.name}")
            child.keeper.add_done_callback(self._note_end)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        except BaseException:
            self.kill()
            raise

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` while the children live. Raises ChildRefused as soon as one cannot."""
        assert self._refusal is not None, "not entered"
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._refusal), return_when=asyncio.FIRST_COMPLETED)
            if self._refusal.done():
                self._refusal.result()
            return await task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    def mark_ready(self) -> None:
        """From now on a child that ends is started again for ever; before, it has a few tries."""
        self._is_ready = True

    def restart(self) -> None:
        """Have all children end and start again, with their commands' environments as they are then."""
        for child in self._children:
            child.signal(signal.SIGTERM)

    async def stop(self) -> None:
        self._is_stopping = True
        for stage in sorted({child.command.stage for child in self._children}):
            children = [child for child in self._children if child.command.stage == stage]
            for child in children:
                child.signal(signal.SIGTERM)
            await asyncio.gather(*(self._wait_for_end(child) for child in children))

    def leave(self) -> None:
        """End everything within moments, by whoever is told twice to stop. Blocks.

        The first stage hears it again, upon which a worker gives back what it has. Killed with its jobs it would count
        as one that they killed, and the third time they would be given up.
        """
        self._is_stopping = True
        stage = min((child.command.stage for child in self._children), default=0)
        first = [child for child in self._children if child.command.stage == stage]
        for child in first:
            child.signal(signal.SIGTERM)
        patient_until = time.monotonic() + LAST_WORD_S
        while time.monotonic() < patient_until and any(child.is_running() for child in first):
            time.sleep(0.02)
        self.kill()

    def kill(self) -> None:
        """End everything now, without waiting."""
        self._is_stopping = True
        for child in self._children:
            child.signal(signal.SIGKILL)

    async def _wait_for_end(self, child: _Child) -> None:
        keeper = child.keeper
        if keeper is None:
            return
        if child.process is None or child.process.returncode is not None:
            keeper.cancel()  # it waits for its next try
        done, _ = await asyncio.wait((keeper,), timeout=child.command.stop_s)
        if not done:
            self._say(f"{child.command.name} did not stop in {child.command.stop_s:.0f} s and is killed")
            child.signal(signal.SIGKILL)
            await asyncio.wait((keeper,))

    async def _keep(self, child: _Child) -> None:
        name = child.command.name
        clock = asyncio.get_running_loop().time
        delay_s, n_tries = self._first_delay_s, 0
        while not self._is_stopping:
            started = clock()
            child.process = await _start(child.command)
            code = await child.process.wait()
            if self._is_stopping:
                return
            if code in (CONFIG_EXIT_CODE, LOAD_EXIT_CODE):
                raise ChildRefused(_reason(child.command), code)
            if clock() - started > STEADY_S:
                delay_s, n_tries = self._first_delay_s, 0
            n_tries += 1
            if not self._is_ready and n_tries == TRIES_BEFORE_READY:
                raise ChildRefused(f"{name} ended {n_tries} times before it was ready{_hint(child.command)}")
            self._say(f"{name} ended ({_describe(code)}); starting it again in {delay_s:g} s")
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, self._longest_delay_s)

    def _note_end(self, keeper: asyncio.Task[None]) -> None:
        assert self._refusal is not None
        if keeper.cancelled() or self._refusal.done():
            return
        if error := keeper.exception():
            self._refusal.set_exception(error)
            self._refusal.exception()  # looked at here, so that asyncio does not complain when nobody waits


async def _start(command: Command) -> Process:
    parent = os.getpid()

    def die_with_parent() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the line above

    with contextlib.ExitStack() as files:
        output = files.enter_context(command.log.open("ab")) if command.log else None
        return await asyncio.create_subprocess_exec(
            *command.argv,
            env=dict(command.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,  # Ctrl-C is for us: we say who stops when
            preexec_fn=die_with_parent,
        )


def _reason(command: Command) -> str:
    if command.log is None:
        return f"{command.name} cannot start; it said why above"
    return last_line(command.log) or f"{command.name} cannot start{_hint(command)}"


def _hint(command: Command) -> str:
    return f" (see {command.log})" if command.log else ""


def last_line(log: Path) -> str:
    """The last line in a log that is not blank, at most 500 characters of it."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
