"""Has lines of the plan go on their way, as many as there is room for. Knows nothing of what becomes of them."""

from __future__ import annotations

import time
from contextlib import aclosing

from api.fleet import Fleet
from api.tasks.batches.making import Made, Maker
from api.tasks.batches.plan import read_on
from api.tasks.batches.weighing import MAX_WEIGHT, Weights
from shared.batches import Batch
from shared.bus import Bus, Hold
from shared.errors import Unavailable
from shared.store import Store

AT_ONCE, BYTES_AT_ONCE = 32, 1_000_000
"""Lines that go together: while they are made, nothing else is done here, and for as long as they are written the
server does nothing else."""

TURN_S = 1.0
"""After which others have their turn."""

IN_FLIGHT = 256
"""Lines of a batch that are on their way when nobody says how many. They last while tasks are started anew, and another
batch of the same tenant waits for them."""
FOR_A_SLOT = 2
"""Of these, at least: one at work, and the next."""

LEAST_DEADLINE_S = 0.01


class Feeding:
    def __init__(self, bus: Bus, store: Store, maker: Maker, fleet: Fleet, most: int | None) -> None:
        """`most`: lines of a batch that are on their way; None: as many as suit the fleet."""
        self._bus, self._store, self._maker, self._fleet, self._given_most = bus, store, maker, fleet, most
        self.weights = Weights()

    @property
    def most(self) -> int:
        return self._given_most or max(IN_FLIGHT, FOR_A_SLOT * len(self._fleet.slots()))

    async def run(self, hold: Hold, batch: Batch, now: float) -> float | None:
        """Returns the seconds after which more can go in any case; None: when some of those on their way are there, or
        there are no more. `now` is the bus's. Raises UnknownFile, StoreUnavailable and BusUnavailable."""
        most = self.most
        if batch.n_fed == batch.n_planned or batch.n_in_flight >= most:
            return None
        weight = self.weights.of(batch, await self._bus.batches.flights(batch.id))
        made: list[Made] = []
        n_lines = batch.n_in_flight
        until = time.monotonic() + TURN_S
        async with aclosing(read_on(self._store, batch.id, batch.plan_offset)) as texts:
            async for text in texts:
                try:
                    line = await self._maker.make(batch, text, max(LEAST_DEADLINE_S, batch.expires_at - now))
                except Unavailable as error:
                    wait_s = await self._feed(hold, made)
                    return error.retry_after_s if wait_s is None else wait_s
                if n_lines and weight + line.weight > MAX_WEIGHT:
                    break
                made.append(line)
                n_lines, weight = n_lines + 1, weight + line.weight
                if n_lines >= most:
                    break
                if len(made) >= AT_ONCE or sum(each.weight for each in made) > BYTES_AT_ONCE:
                    if (wait_s := await self._feed(hold, made)) is not None:
                        return wait_s
                    made = []
                    if time.monotonic() > until:
                        return 0.0
        return await self._feed(hold, made)

    async def _feed(self, hold: Hold, made: list[Made]) -> float | None:
        """Returns the seconds after which the next can go, None for at once."""
        if not made:
            return None
        fed = await self._bus.batches.feed(hold, [each.line for each in made])
        jobs = [each for each in made[: fed.n_fed] if each.line.job]
        self.weights.add(hold.batch_id, {each.line.job.id: each.weight for each in jobs if each.line.job})
        if fed.n_fed == len(made):
            return None
        return fed.retry_after_s or 0.0  # without: it is stopped, or somebody else's, as the next look at it shows
