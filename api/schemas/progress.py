"""How prompts get on, as llama.cpp tells it: first what was in the cache already, then more each time.

A worker tells what there is to tell when it comes to it; an attempt that begins anew tells less than was told before.
"""

from __future__ import annotations

from typing import Any

from api.schemas.answers import timings_json
from shared.events import Progress, Timings


class ProgressReport:
    """Of all answers of a stream. `push` gives what a chunk tells of each step, or no step."""

    def __init__(self, *, has_timings: bool) -> None:
        self._has_timings = has_timings
        self._processed: dict[int, int] = {}
        """Tokens told of, by the index of the answer."""

    def push(self, index: int, progress: Progress) -> list[dict[str, Any]]:
        steps = []
        if index not in self._processed:
            self._processed[index] = progress.cache
            steps.append(progress.model_copy(update={"processed": progress.cache, "time_ms": 0.0}))
        if progress.processed > self._processed[index]:
            self._processed[index] = progress.processed
            steps.append(progress)
        return [self._json(step) for step in steps]

    def _json(self, step: Progress) -> dict[str, Any]:
        told: dict[str, Any] = {
            "prompt_progress": {
                "total": step.total,
                "cache": step.cache,
                "processed": step.processed,
                "time_ms": step.time_ms,
            }
        }
        if self._has_timings:
            n_computed = step.processed - step.cache
            told["timings"] = timings_json(Timings(cache_n=step.cache, prompt_n=n_computed, prompt_ms=step.time_ms))
        return told
