"""A worker that starts agrees with the others of its model on what requests get that name no adapters.

Their scales may have been changed while they ran, as ours at our start have not: what clients set stays in force when
workers are added, or put in the place of others one by one. Only when all have stopped do the flags count again.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from shared.bus import ModelCard, Presence
from shared.errors import BusUnavailable
from worker.engine import Adapters, Defaults
from worker.presence import readable

log = structlog.get_logger(__name__)


async def agree(presence: Presence, adapters: Adapters, name: str) -> None:
    """Take over the scales that were set last, of those who serve the model `name` with the same adapters."""
    if not len(adapters):
        return
    try:
        workers = await presence.workers()
    except BusUnavailable as error:
        log.warning("the scales of other workers' adapters are not known", reason=error.message)
        return
    cards = [worker.model for worker in workers if worker.model.name == name and _are_same(worker.model, adapters)]
    latest = max(cards, key=lambda card: card.adapters_set_at, default=None)
    if latest is not None and latest.adapters_set_at:
        scales = tuple(adapter.scale for adapter in latest.adapters)
        adapters.adopt(Defaults(scales, latest.adapters_set_at))
        log.info("adapters' scales taken over", scales=scales)


def _are_same(card: ModelCard, adapters: Adapters) -> bool:
    """By the names of their files: another machine may have them in another folder."""
    return [Path(adapter.path).name for adapter in card.adapters] == [readable(path.name) for path in adapters.paths]
