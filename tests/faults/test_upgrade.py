"""Two versions of the program at one queue. Fault 25 of docs/faults.md."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.bus.script import script
from tests.faults.server import Server
from tests.faults.test_workers import place, stack, start_workers, until_running
from tests.stack import Stack, ask, check_gapless, follow, make_job

__all__ = ["place", "stack"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def newer(tmp_path: Path) -> Iterator[Path]:
    """A copy of the program whose scripts are others, by their hashes."""
    for package in ("shared", "worker"):
        shutil.copytree(ROOT / package, tmp_path / package)
    for text in (tmp_path / "shared/bus/scripts").glob("*.lua"):
        text.write_text(text.read_text() + "-- of a newer version\n")
    yield tmp_path


@pytest.mark.slow
async def test_25_two_versions_share_a_queue_and_the_newer_takes_over(
    stack: Stack, place: tuple[Stack, Server], newer: Path
) -> None:
    [old] = await start_workers(stack, 1)
    [new] = await start_workers(stack, 1, python_path=newer)
    new.signal(signal.SIGSTOP)  # so that the old one has begun before it takes its share
    jobs = [await make_job(stack, ask(n_predict=500, seed=n)) for n in range(8)]
    readers = [asyncio.create_task(follow(stack, job)) for job in jobs]
    await until_running(stack, 2)
    new.signal(signal.SIGCONT)
    await until_running(stack, 3)
    old.signal(signal.SIGTERM)
    assert await old.wait() == 0
    for tokens, job in await asyncio.gather(*readers):
        check_gapless(tokens)
        assert (job["status"], job["attempts"]) == ("succeeded", 1)
        assert "".join(text for _, text in tokens) == job["result"]["content"]
    assert new.process.poll() is None
    own = [script(name).sha for name in ("claim", "append", "release")]
    assert place[1].client.script_exists(*own) == [True] * 3
    assert n_scripts(place[1]) > 2 * len(own), "the newer ran scripts of its own"


def n_scripts(server: Server) -> int:
    return int(server.client.info("memory")["number_of_cached_scripts"])
