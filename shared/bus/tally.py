"""What the workers of each model have done in all: totals that outlive those who made them. Knows no jobs.

A worker says all that it has done since its start, again and again: what was said twice, since a reply was lost, counts
once. What it did after it said so last is lost with it when it is killed, half a second's work at most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from shared.bus.connect import Sender
from shared.bus.keys import Keys
from shared.bus.presence import MODEL_KEPT_S
from shared.bus.script import ask, run, script
from shared.work import COUNTS, Work

_KINDS: dict[str, Callable[[float], Any]] = {field.name: type(getattr(Work(), field.name)) for field in fields(Work)}


class Tally:
    def __init__(self, keys: Keys, link: Sender) -> None:
        self._keys = keys
        self._link = link

    async def say(self, worker_id: str, model: str, work: Work) -> None:
        """All that a worker has done. Its totals are kept for a day behind the last word. Raises BusUnavailable."""
        done = json.dumps({name: getattr(work, name) for name in COUNTS})
        tally = script("tally")
        call = tally.call((self._keys.totals(model),), (worker_id, done, work.n_tokens_most, MODEL_KEPT_S))
        await run(self._link, tally, [call])

    async def totals(self, models: Sequence[str]) -> list[Work]:
        """Of each of these models. Raises BusUnavailable."""
        commands = [("HMGET", self._keys.totals(model), *_KINDS) for model in models]
        return [_work(reply) for reply in await ask(self._link, commands)] if commands else []


def _work(counts: list[bytes | None]) -> Work:
    return Work(**{name: kind(float(count or 0)) for (name, kind), count in zip(_KINDS.items(), counts, strict=True)})
