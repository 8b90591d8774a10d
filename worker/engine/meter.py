"""How the loop does: our time between decodes, llama.cpp's time in them, tokens by the second, and what was done in
all. Knows numbers only.

Written by the decode thread; the properties may be read from any thread.
"""

from __future__ import annotations

import statistics
from collections import deque

from shared.work import Work

WINDOW_S = 5.0
SMOOTHING = 0.1


class Meter:
    def __init__(self) -> None:
        self.steps = 0
        self.gap_ms = 0.0
        self.decode_ms = 0.0
        self.work = Work()
        self._gaps: deque[float] = deque(maxlen=512)
        self._chosen: deque[tuple[float, int]] = deque(maxlen=4096)
        self._decoded_at: float | None = None

    def pause(self) -> None:
        """The loop had nothing to do: the time until the next decode is nobody's."""
        self._decoded_at = None

    def decoded(self, started: float, ended: float) -> None:
        """A decode ran between these monotonic seconds."""
        self.steps += 1
        if self._decoded_at is not None:
            gap_ms = (started - self._decoded_at) * 1e3
            self._gaps.append(gap_ms)
            self.gap_ms += SMOOTHING * (gap_ms - self.gap_ms) if self.gap_ms else gap_ms
        decode_ms = (ended - started) * 1e3
        self.decode_ms += SMOOTHING * (decode_ms - self.decode_ms) if self.decode_ms else decode_ms
        self._decoded_at = ended

    def computed(self, n_slots: int) -> None:
        """A decode succeeded in which so many slots had a part."""
        self.work.n_decodes += 1
        self.work.n_busy_slots += n_slots

    def prompted(self, n_tokens: int, took_s: float) -> None:
        """More of a prompt is in the cache, or of an input was embedded."""
        self.work.n_prompt_tokens += n_tokens
        self.work.prompt_s += took_s

    def began(self, queue_ms: float) -> None:
        """A sequence came to its first token, having waited so long for its slot."""
        self.work.n_begun += 1
        self.work.queue_s += queue_ms / 1e3

    def predicted(self, took_s: float) -> None:
        """The next token of a sequence was chosen, so long after the one before."""
        self.work.n_predicted_tokens += 1
        self.work.predicted_s += took_s

    def chose(self, n_tokens: int, now: float) -> None:
        """So many tokens were chosen in this step."""
        self._chosen.append((now, n_tokens))

    @property
    def gap_ms_p50(self) -> float:
        gaps = list(self._gaps)
        return statistics.median(gaps) if gaps else 0.0

    def tokens_per_second(self, now: float) -> float:
        """Over the last seconds, idle ones included."""
        return sum(n for at, n in list(self._chosen) if now - at <= WINDOW_S) / WINDOW_S
