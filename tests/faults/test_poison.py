"""A job that kills every worker that has it. Fault 19 of docs/faults.md."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus.keys import Keys
from tests.faults.server import Server
from tests.faults.test_workers import place, stack, start_workers
from tests.stack import Stack, ask, check_gapless, follow, make_job

__all__ = ["place", "stack"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

POISON = 7777
"""A token in whose presence these workers die as of a fault in native code."""

MORTAL = f"""
import os, signal, sys
from worker.engine import Engine
from worker.__main__ import main
submit = Engine.submit
def submit_or_die(engine, task):
    if {POISON} in task.prompt:
        os.kill(os.getpid(), signal.SIGSEGV)
    submit(engine, task)
Engine.submit = submit_or_die
sys.exit(main())
"""


@pytest.mark.slow
async def test_19_a_job_that_kills_its_workers_takes_three_of_them_and_no_neighbour(
    stack: Stack, place: tuple[Stack, Server]
) -> None:
    workers = await start_workers(stack, 4, program=MORTAL, parallel=4, ctx_size=4096)
    neighbours = [await make_job(stack, ask(n_predict=300, seed=n)) for n in range(8)]
    poison = await make_job(stack, ask() | {"prompt": [1, POISON]}, priority="interactive")
    (_, job), *ended = await asyncio.gather(*(follow(stack, job_id) for job_id in (poison, *neighbours)))
    assert (job["status"], job["attempts"]) == ("failed", 3)
    assert "3 workers died" in job["error"]["message"]
    for tokens, neighbour in ended:
        check_gapless(tokens)
        assert neighbour["status"] == "succeeded"
    assert sum(worker.process.poll() is None for worker in workers) == 1
    prefix = Keys(stack.bus_settings.namespace, 1).prefix(0)
    dead = place[1].client.xrange(f"{prefix}dead")
    assert [fields[b"job"].decode() for _, fields in dead] == [poison]
