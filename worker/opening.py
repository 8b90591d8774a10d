"""From a worker's settings to an engine that decodes: what is checked first, where the model is, how the load gets on.

What is wrong is one sentence. Knows no bus and no jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import structlog

from shared.settings import WorkerSettings
from worker.chat import Dialect, Template, TemplateChoice, template_of
from worker.download import Order, found
from worker.engine import Engine, EngineConfig, LoadFailed
from worker.rules import SystemPrompt

LOOK_EVERY_S = 0.2
ABANDON_S = 3.0
"""How long a load that is not wanted any more may take to end. It does so at the next tensor; not while a file is read
by the system, nor while the first token is computed."""
FETCHING = 0.9
"""The part of a start that fetching a model is; then it is loaded."""
STEPS = 4
"""How often a load is told of in the log."""

STAGE = "it is being fetched"

Tell = Callable[[float], None]
"""Hears how far something is, 0 to 1."""


class TellStage(Protocol):
    """The same, and what is done, where that is more than reading a file."""

    def __call__(self, progress: float, stage: str = "") -> None: ...


log = structlog.get_logger(__name__)


class StillLoading(Exception):
    """A load was given up and does not end: only leaving the process helps."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What the settings want, checked as far as it can be without a model."""

    order: Order
    config: EngineConfig
    system_prompt: SystemPrompt
    template: TemplateChoice

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """ConfigError."""
        return cls(
            Order.of(settings),
            EngineConfig.from_settings(settings),
            SystemPrompt.read(settings.system_prompt_file),
            TemplateChoice.of(settings),
        )

    async def fetched(self, settings: WorkerSettings, tell: TellStage) -> Self:
        """The same with all files here, fetched if need be. ConfigError, LoadFailed."""
        if self.order.is_elsewhere:
            tell(0.0, STAGE)
        files = await self.order.files(
            on_progress=lambda share: tell(FETCHING * share, STAGE),
            on_trouble=lambda why: tell(0.0, f"{STAGE}; {why}"),
        )
        return replace(self, config=EngineConfig.from_settings(found(settings, files)))


def names_of(settings: WorkerSettings) -> tuple[str, ...]:
    """What clients call the model. ConfigError when none is named."""
    return settings.names or (Order.of(settings).name,)


async def load(engine: Engine, intent: Intent, tell: Tell) -> Template:
    """Start the engine; the template for its model. LoadFailed.

    Cancelled, the engine is not started, or was stopped again; StillLoading when that cannot be had.
    """
    started = time.monotonic()
    log.info("loading", model=str(intent.config.model))
    loading = _in_a_thread_of_its_own(engine.start)
    try:
        await _told_of(loading, engine, tell)
    except asyncio.CancelledError:
        await _give_up(loading, engine)
        raise
    facts = engine.model.facts
    try:
        template = intent.template.open(facts.bos_token, facts.eos_token) or template_of(facts)
    except ValueError as error:
        await asyncio.to_thread(engine.stop)
        raise _cannot_chat(error) from None
    log.info(
        "ready",
        slots=intent.config.n_slots,
        n_ctx_slot=engine.n_ctx_slot,
        threads=intent.config.n_threads,
        load_s=round(time.monotonic() - started, 1),
    )
    log.debug("threads wait", policy=os.environ.get("OMP_WAIT_POLICY", "default"))
    return template


async def learn(dialect: Dialect) -> None:
    """Try out what the template writes: beside the event loop, which announces the worker meanwhile. LoadFailed.

    Cancelled, it ends by itself and is not waited for.
    """
    learning = _in_a_thread_of_its_own(dialect.learn)
    await asyncio.wait((learning,))
    try:
        learning.result()
    except ValueError as error:
        raise _cannot_chat(error) from None


def _cannot_chat(error: ValueError) -> LoadFailed:
    return LoadFailed(f"the model cannot chat, name another template with --chat-template: {error}")


def _in_a_thread_of_its_own(call: Callable[[], None]) -> asyncio.Future[None]:
    """Not in the loop's pool: a load that hangs would be waited for at the end of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        failure: BaseException | None = None
        try:
            call()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=run, name="load", daemon=True).start()
    return done


async def _told_of(loading: asyncio.Future[None], engine: Engine, tell: Tell) -> None:
    """Raises LoadFailed also where llama.cpp would have ended the process."""
    told = 0
    while not loading.done():
        await asyncio.wait((loading,), timeout=LOOK_EVERY_S)
        if fault := engine.loading.fault:
            raise LoadFailed(f"llama.cpp gives the model up: {fault}")
        progress = engine.loading.progress
        tell(progress)
        if (step := int(progress * STEPS)) > told and not loading.done():
            told = step
            log.info("loading", percent=round(progress * 100))
    loading.result()


async def _give_up(loading: asyncio.Future[None], engine: Engine) -> None:
    engine.loading.abandon()
    await asyncio.wait((loading,), timeout=ABANDON_S)
    if not loading.done():
        raise StillLoading
    if loading.exception() is None:
        await asyncio.to_thread(engine.stop)
