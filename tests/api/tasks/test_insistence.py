from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from arq.worker import Worker, func

from api.tasks import arqworker, insistence
from api.tasks.app import stand_up_again
from api.tasks.insistence import insistently
from shared.settings import TasksSettings


class Deaf:
    """Work that hears only the third cancel."""

    def __init__(self) -> None:
        self.is_begun = asyncio.Event()
        self.n_cancels = 0

    async def work(self) -> None:
        self.is_begun.set()
        while self.n_cancels < 3:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            self.n_cancels += 1
        raise asyncio.CancelledError


@pytest.mark.parametrize("stands_up", [False, True])
async def test_what_loses_a_cancel_is_cancelled_again(monkeypatch: pytest.MonkeyPatch, stands_up: bool) -> None:
    monkeypatch.setattr(insistence, "CANCEL_EVERY_S", 0.01)
    deaf = Deaf()
    waiting = asyncio.create_task(stand_up_again("deaf", deaf.work) if stands_up else insistently(deaf.work()))
    async with asyncio.timeout(5):
        await deaf.is_begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert deaf.n_cancels == 3


async def test_who_is_cancelled_again_and_again_leaves_nothing_of_an_arq_worker_behind(
    settings: TasksSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the process would wait for it when it ends, for ever."""
    monkeypatch.setattr(insistence, "CANCEL_EVERY_S", 0.01)
    monkeypatch.setattr(arqworker, "CANCEL_EVERY_S", 0.05)
    deaf = Deaf()
    monkeypatch.setattr(Worker, "main", lambda _: deaf.work())
    others = asyncio.all_tasks()
    trade = arqworker.Trade(functions=(func(asyncio.sleep, name="any"),))
    waiting = asyncio.create_task(insistently(arqworker.work(settings, trade, {})))
    async with asyncio.timeout(5):
        await deaf.is_begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert asyncio.all_tasks() == others


async def test_what_comes_of_work_is_handed_on() -> None:
    async def fails() -> None:
        raise OSError("gone")

    assert await insistently(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(OSError, match="gone"):
        await insistently(fails())
