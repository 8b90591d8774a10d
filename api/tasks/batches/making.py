"""What a line of the plan becomes: a job, or what is to be said of a request that can be none.

A body is read here for the first time, as the path's own route would read it. Knows no queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

import structlog

from api.images import Images
from api.schemas.ask import Ask
from api.schemas.dialect import DIALECTS
from api.schemas.strict import bad_field
from api.tasks.batches.plan import PlannedLine, PlanText, read_plan_text
from api.tasks.batches.weighing import OVERHEAD, weight_of
from shared.batches import Batch, line_job_id
from shared.bus import FedLine, Refusal
from shared.errors import Rejected, SlotstreamError, Unavailable
from shared.events import Failure
from shared.jobs import Job, Lane

LARGE = 256 * 1024
"""Bytes of a line from which on it is taken apart in a thread: up to there it is a matter of some milliseconds."""

_BESIDE = ThreadPoolExecutor(1, "large-line")
"""One for all: large lines wait for each other, so that the event loop has one rival for the interpreter at most."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Made(NamedTuple):
    line: FedLine
    weight: int
    """Bytes that it takes while it is on its way."""


class Maker:
    def __init__(self, images: Images) -> None:
        self._images = images

    async def make(self, batch: Batch, text: PlanText, deadline_s: float) -> Made:
        """Raises Unavailable when it cannot be said yet: no worker has ever served a model, or the server is away."""
        n_bytes = text.stop - text.start
        planned = await beside(n_bytes, partial(read_plan_text, text.text))
        job_id = line_job_id(batch.id, planned.number)
        try:
            ask = await beside(n_bytes, partial(ask_of_line, batch, planned))
            model = await self._images.fleet.resolve(ask.model)
            placed = await self._images.place(ask, model)
        except Unavailable:
            raise
        except Exception as error:  # the border: whatever it is, it is of this line alone
            refusal = Refusal(job_id, Failure.of(_said(batch, planned, error)).to_json())
            return Made(FedLine(None, text.start, text.stop, refusal), n_bytes + OVERHEAD)
        job = Job(
            id=job_id,
            model=model,
            request=placed.request,
            lane=Lane.BULK,
            tenant=batch.tenant,
            deadline_s=deadline_s,
            endpoint=planned.url,
            compat=batch.compat,
            batch=batch.id,
        )
        card = self._images.fleet.models.get(model)
        return Made(FedLine(job, text.start, text.stop), weight_of(job.request, n_bytes, card.n_embd if card else 0))


def ask_of_line(batch: Batch, planned: PlannedLine) -> Ask:
    """Raises what the path's reader raises."""
    ask = DIALECTS[batch.compat].readers[planned.url](planned.body)
    if ask.webhook:
        raise bad_field("webhook", "a batch may have one, its lines have none")
    return ask


def _said(batch: Batch, planned: PlannedLine, error: Exception) -> SlotstreamError:
    """What a client is told of it: a fault of ours stays in the log."""
    if isinstance(error, Rejected):
        return error
    log.error("a line cannot be read", batch=batch.id, line=planned.number, exc_info=error)
    return SlotstreamError("Internal server error")


async def beside(n_bytes: int, work: Callable[[], T]) -> T:
    """What `work` makes of so many bytes, in a thread when they are many."""
    if n_bytes < LARGE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_BESIDE, work)
