from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api.cli.supervisor import ChildRefused, Command, Supervisor
from tests.api.cli.conftest import environment


class Heard(list[str]):
    """What the supervisor said; a test waits for the next sentence."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def __call__(self, text: str) -> None:
        self.append(text)
        self._changed.set()

    async def next(self) -> str:
        n = len(self)
        async with asyncio.timeout(20):
            while len(self) == n:
                self._changed.clear()
                await self._changed.wait()
        return self[-1]


class Post:
    """A socket on which children tell a test what happened to them."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "post")
        self._letters: asyncio.Queue[str] = asyncio.Queue()

    async def open(self) -> asyncio.AbstractServer:
        return await asyncio.start_unix_server(self._receive, self.path)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._letters.put_nowait((await reader.read()).decode())
        writer.close()

    async def next(self) -> str:
        async with asyncio.timeout(20):
            return await self._letters.get()

    @property
    def prelude(self) -> str:
        return f"""
import os, signal, socket, sys, time
def tell(text):
    with socket.socket(socket.AF_UNIX) as post:
        post.connect({self.path!r})
        post.sendall(str(text).encode())
"""


@pytest.fixture
async def post(tmp_path: Path) -> AsyncIterator[Post]:
    post = Post(tmp_path)
    server = await post.open()
    yield post
    server.close()


def python(name: str, code: str, tmp_path: Path, *, stop_s: float = 10.0, stage: int = 0) -> Command:
    argv = (sys.executable, "-c", code)
    return Command(name, argv, environment(), tmp_path / f"{name}.log", stop_s, stage)


SLEEPER = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.pause()
"""


async def test_a_child_that_crashes_is_started_again_and_said_so(tmp_path: Path) -> None:
    heard = Heard()
    crashing = python("api", "print('up', flush=True); raise SystemExit(5)", tmp_path)
    async with Supervisor([crashing], say=heard, first_delay_s=0.01) as supervisor:
        supervisor.mark_ready()
        first = await heard.next()
        await heard.next()
        assert first == "api ended (exit code 5); starting it again in 0.01 s"
        assert heard[1] == "api ended (exit code 5); starting it again in 0.02 s"
    assert (tmp_path / "api.log").read_text().startswith("up\nup\n")


async def test_a_child_that_is_killed_is_started_again(tmp_path: Path, post: Post) -> None:
    heard = Heard()
    code = post.prelude + "tell(os.getpid())" + SLEEPER
    async with Supervisor([python("worker", code, tmp_path)], say=heard, first_delay_s=0.01):
        first = int(await post.next())
        os.kill(first, signal.SIGKILL)
        assert "worker ended (SIGKILL)" in await heard.next()
        assert int(await post.next()) != first


async def test_a_child_with_a_bad_setting_ends_everything_with_its_sentence(tmp_path: Path) -> None:
    code = "import sys; sys.exit(print('starting') or print('worker: no such model: x.gguf') or 2)"
    bad, good = python("worker", code, tmp_path), python("api", SLEEPER, tmp_path)
    async with Supervisor([bad, good], say=Heard()) as supervisor:
        with pytest.raises(ChildRefused, match=r"^worker: no such model: x\.gguf$"):
            await supervisor.beside(asyncio.Event().wait())


async def test_a_child_that_never_comes_up_is_given_up_before_the_stack_was_ready(tmp_path: Path) -> None:
    crashing = python("api", "raise SystemExit(1)", tmp_path)
    async with Supervisor([crashing], say=Heard(), first_delay_s=0.01) as supervisor:
        with pytest.raises(ChildRefused, match="api ended 5 times before it was ready"):
            await supervisor.beside(asyncio.Event().wait())


async def test_work_beside_children_gives_its_result_and_its_errors(tmp_path: Path) -> None:
    async def work(value: int) -> int:
        if value < 0:
            raise ValueError(value)
        return value

    async with Supervisor([python("api", SLEEPER, tmp_path)], say=Heard()) as supervisor:
        assert await supervisor.beside(work(7)) == 7
        with pytest.raises(ValueError):
            await supervisor.beside(work(-1))


async def test_a_stage_ends_before_the_next_is_stopped(tmp_path: Path, post: Post) -> None:
    code = """
def leave(*_):
    tell("NAME ends")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
tell("NAME is up")
signal.pause()
"""
    commands = [
        python(name, post.prelude + code.replace("NAME", name), tmp_path, stage=stage)
        for name, stage in [("tasks", 1), ("worker", 0), ("api", 1)]
    ]
    async with Supervisor(commands, say=Heard()):
        assert {await post.next() for _ in commands} == {"worker is up", "api is up", "tasks is up"}
    assert await post.next() == "worker ends"
    assert {await post.next(), await post.next()} == {"api ends", "tasks ends"}


async def test_a_child_that_will_not_stop_is_killed(tmp_path: Path, post: Post) -> None:
    heard = Heard()
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell('up')\nwhile True: signal.pause()"
    async with Supervisor([python("worker", post.prelude + code, tmp_path, stop_s=0.1)], say=heard):
        await post.next()
    assert heard == ["worker did not stop in 0 s and is killed"]


async def test_a_child_that_waits_for_its_next_try_does_not_delay_the_end(tmp_path: Path) -> None:
    heard = Heard()
    crashing = python("api", "raise SystemExit(1)", tmp_path)
    async with asyncio.timeout(20), Supervisor([crashing], say=heard, first_delay_s=600):
        await heard.next()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
async def test_children_die_with_a_supervisor_that_was_killed(post: Post) -> None:
    child = post.prelude + "tell(os.getpid())\ntime.sleep(600)"
    code = f"""
import asyncio, sys
from api.cli.supervisor import Command, Supervisor
async def main():
    async with Supervisor([Command("api", (sys.executable, "-c", {child!r}), {{}})], say=print):
        await asyncio.Event().wait()
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=environment())
    watched = os.pidfd_open(int(await post.next()))
    process.kill()
    await process.wait()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, ended.set)  # readable once its process has ended
    try:
        async with asyncio.timeout(20):
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(watched)
        os.close(watched)


async def test_who_is_told_twice_to_stop_may_give_back_what_it_has_before_it_is_killed(
    tmp_path: Path, post: Post
) -> None:
    code = """
def leave(*_):
    global n_told
    n_told += 1
    tell(f"told {n_told}")
    if n_told == 2:
        sys.exit(0)
n_told = 0
signal.signal(signal.SIGTERM, leave)
tell("up")
while True: signal.pause()
"""
    async with Supervisor([python("worker", post.prelude + code, tmp_path)], say=Heard()) as supervisor:
        await post.next()
        stopping = asyncio.create_task(supervisor.stop())
        assert await post.next() == "told 1"
        supervisor.leave()
        assert await post.next() == "told 2"
        await stopping


async def test_who_does_not_leave_when_told_twice_is_killed_soon(
    tmp_path: Path, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.cli.supervisor.LAST_WORD_S", 0.2)
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell('up')\nwhile True: signal.pause()"
    async with Supervisor([python("worker", post.prelude + code, tmp_path)], say=Heard()) as supervisor:
        await post.next()
        began = asyncio.get_running_loop().time()
        supervisor.leave()
        await supervisor.stop()
        assert asyncio.get_running_loop().time() - began < 5
