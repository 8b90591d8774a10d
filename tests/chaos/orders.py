"""What is asked, drawn from a seed. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from shared.jobs import Lane

TENANTS = ("ann", "bob", "çiğdem & co")
NEVER_S = 600.0
"""A deadline that no run comes to."""


@dataclass(frozen=True, slots=True)
class Order:
    """One job that somebody wants, and what that somebody will do."""

    number: int
    at_s: float
    """When, counted from the start of the run."""
    tenant: str
    lane: Lane
    n_tokens: int
    is_durable: bool
    deadline_s: float
    idempotency_key: str | None
    n_asks: int
    """With a key: how many clients ask for it at about the same time, each with a job of its own."""
    n_readers: int
    cancel_after_s: float | None
    is_abandoned: bool
    """Its client goes away in the middle of asking, and nobody cares for it any more."""
    is_poison: bool
    """Every worker that begins it dies."""
    is_choosy: bool = False
    """It is for one worker alone, that was there when it was asked for."""


def draw(seed: int, n_orders: int, duration_s: float, least_tokens: int = 0) -> list[Order]:
    luck = random.Random(f"orders {seed}")
    times = sorted(luck.uniform(0, duration_s) for _ in range(n_orders))
    return [_order(luck, number, at_s, least_tokens) for number, at_s in enumerate(times)]


def _order(luck: random.Random, number: int, at_s: float, least_tokens: int) -> Order:
    is_keyed = luck.random() < 0.25
    is_abandoned = not is_keyed and luck.random() < 0.05
    return Order(
        number=number,
        at_s=at_s,
        tenant=luck.choice(TENANTS),
        lane=luck.choice(tuple(Lane)),
        n_tokens=max(
            least_tokens, luck.choice((0, 1, luck.randrange(2, 30), luck.randrange(2, 30), luck.randrange(30, 150)))
        ),
        is_durable=luck.random() < 0.5,
        deadline_s=luck.uniform(0.02, 1.5) if luck.random() < 0.07 else NEVER_S,
        idempotency_key=f"key {number}" if is_keyed else None,
        n_asks=luck.randrange(1, 4) if is_keyed else 1,
        n_readers=luck.choice((0, 1, 1, 2)),
        cancel_after_s=luck.expovariate(5) if luck.random() < 0.12 else None,
        is_abandoned=is_abandoned,
        is_poison=luck.random() < 0.005,
        is_choosy=luck.random() < 0.2,
    )
