"""What was computed, counted: by an engine since its start, by the workers of a model since the first of them."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Work:
    """Counts that only grow. One thread writes them; others may see one a step before another.

    Where nobody fell with it, sums over the answers are the same numbers: `prompt_n`, `cache_n`, `predicted_n` and
    their times in `timings`, and `prompt_tokens` of what was embedded or ranked.
    """

    n_prompt_tokens: int = 0
    """Computed."""
    n_prompt_tokens_cached: int = 0
    """Reused."""
    prompt_s: float = 0.0
    """From their slot to their first token, of all sequences together, however many were at it side by side; and in
    decodes of inputs."""
    n_predicted_tokens: int = 0
    predicted_s: float = 0.0
    """Behind first tokens, of all sequences together."""
    n_decodes: int = 0
    n_busy_slots: int = 0
    """Over all decodes, the slots that had a part in each."""
    n_tokens_most: int = 0
    """In the cache for one sequence: the most that there were."""
    n_begun: int = 0
    """Sequences that came to their first token."""
    queue_s: float = 0.0
    """That these had waited for their slots."""

    def __sub__(self, earlier: Work) -> Work:
        """What was done since. `n_tokens_most` is no count: it stays."""
        differences = {name: getattr(self, name) - getattr(earlier, name) for name in COUNTS}
        return Work(**differences, n_tokens_most=self.n_tokens_most)

    def __add__(self, other: Work) -> Work:
        sums = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        return Work(**sums, n_tokens_most=max(self.n_tokens_most, other.n_tokens_most))


COUNTS = tuple(field.name for field in fields(Work) if field.name != "n_tokens_most")
"""All but the one that is a maximum."""
