"""What earlier attempts at a job have said, as its log has it: a new attempt goes on behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.events import ChosenLogprob, Tokens


@dataclass(slots=True)
class Past:
    """Of one sequence."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[ChosenLogprob] = field(default_factory=list)
    memory: tuple[float, ...] = ()
    """The sampler's, behind the last id."""

    def add(self, tokens: Tokens) -> None:
        self.ids += tokens.ids
        self.logprobs += tokens.logprobs
        self.memory = tokens.memory


def pasts_of(log: Iterable[Tokens]) -> dict[int, Past]:
    """By sequence; those that have said nothing are left out."""
    pasts: defaultdict[int, Past] = defaultdict(Past)
    for tokens in log:
        pasts[tokens.index].add(tokens)
    return dict(pasts)
