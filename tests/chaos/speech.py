"""What a scripted job says: a function of its id, so that everybody can tell a right word from a wrong one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from shared.events import Tokens

N_VOCAB = 50_000


def speech(job_id: str, n_tokens: int) -> list[Tokens]:
    """The events of a job that generates so many tokens. Some carry two, as held-back text does."""
    ids = [token(job_id, n) for n in range(n_tokens)]
    events: list[Tokens] = []
    start = 0
    while start < n_tokens:
        end = min(n_tokens, start + (2 if ids[start] % 5 == 0 else 1))
        events.append(Tokens(ids=tuple(ids[start:end]), text=text(ids[start:end])))
        start = end
    return events


def token(job_id: str, n: int) -> int:
    digest = hashlib.blake2s(f"{job_id}/{n}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) % N_VOCAB


def text(ids: Sequence[int]) -> str:
    return "".join(f"{each} " for each in ids)
