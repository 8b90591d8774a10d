"""Turns of llama.cpp's samplers and of our engine with many slots, on one tiny model.

Runs as a process of its own, `python -m bench.turns SLOTS TURNS`, and prints one JSON line of milliseconds.
"""

from __future__ import annotations

import ctypes
import json
import queue
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import llama_cpp

from shared.events import Answer, Failure
from shared.jobs import Generation, Sampling
from tests.models import tiny_model
from worker.engine import Engine, EngineConfig, EngineEvent, GenerateTask, SequenceKey
from worker.threads import choose_threads

N_PROMPT, N_PREDICT = 8, 120
N_REPEATED = 15
"""Times that the chains are applied in a turn, for a median: another process may come between once."""
SAMPLINGS = {"greedy": Sampling(temperature=0.0, ignore_eos=True), "default": Sampling(ignore_eos=True)}


class NativeChains:
    """A context with the logits of many rows, and llama.cpp's default chain for each."""

    def __init__(self, path: Path, n_rows: int) -> None:
        llama_cpp.llama_log_set(_SILENT, None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(bytes(path), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_seq_max, options.kv_unified = 64 * n_rows, n_rows, n_rows, True
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        self._chains = [_default_chain(seed) for seed in range(n_rows)]
        batch = llama_cpp.llama_batch_init(n_rows, 0, 1)
        for row in range(n_rows):
            batch.token[row], batch.pos[row], batch.n_seq_id[row] = 1000 + row, 0, 1
            batch.seq_id[row][0], batch.logits[row] = row, True
        batch.n_tokens = n_rows
        assert llama_cpp.llama_decode(self._context, batch) == 0
        llama_cpp.llama_batch_free(batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for chain in self._chains:
            llama_cpp.llama_sampler_free(chain)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def sample_ms(self) -> float:
        """Median time for a token for each row."""
        return statistics.median(self._sample_once_ms() for _ in range(N_REPEATED))

    def _sample_once_ms(self) -> float:
        started = time.perf_counter()
        for row, chain in enumerate(self._chains):
            llama_cpp.llama_sampler_sample(chain, self._context, row)
        return (time.perf_counter() - started) * 1e3


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _SILENT(_level: int, _text: bytes, _user: ctypes.c_void_p) -> None:
    """What llama.cpp says while it loads."""


def _default_chain(seed: int) -> Any:
    """That of llama-server when a request names nothing."""
    asked = Sampling()
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for sampler in (
        llama_cpp.llama_sampler_init_top_k(asked.top_k),
        llama_cpp.llama_sampler_init_top_p(asked.top_p, asked.min_keep),
        llama_cpp.llama_sampler_init_min_p(asked.min_p, asked.min_keep),
        llama_cpp.llama_sampler_init_temp(asked.temperature),
        llama_cpp.llama_sampler_init_dist(seed),
    ):
        llama_cpp.llama_sampler_chain_add(chain, sampler)
    return chain


def gap_ms(path: Path, n_slots: int, sampling: Sampling) -> float:
    """Median time between two decodes while all slots generate."""
    ended: queue.SimpleQueue[Answer | Failure] = queue.SimpleQueue()

    def keep(events: Sequence[tuple[SequenceKey, EngineEvent]]) -> None:
        for _, event in events:
            if isinstance(event, Answer | Failure):
                ended.put(event)

    n_threads, n_ctx = choose_threads(), (N_PROMPT + N_PREDICT) * n_slots
    config = EngineConfig(path, n_ctx=n_ctx, n_slots=n_slots, n_threads=n_threads, n_threads_batch=n_threads)
    engine = Engine(config, keep)
    engine.start()
    try:
        for slot in range(n_slots):
            first = 1000 + N_PROMPT * slot
            prompt = tuple(range(first, first + N_PROMPT))
            request = Generation(n_predict=N_PREDICT, sampling=sampling)
            engine.submit(GenerateTask(SequenceKey(str(slot), 0), prompt, request, seed=slot))
        for _ in range(n_slots):
            answer = ended.get(timeout=120)
            assert isinstance(answer, Answer), answer
        return engine.snapshot().gap_ms_p50
    finally:
        engine.stop()


def main(n_slots: int, n_turns: int) -> None:
    path = tiny_model()
    turns: dict[str, list[float]] = {"native": [], **{kind: [] for kind in SAMPLINGS}}
    with NativeChains(path, n_slots) as chains:
        for _ in range(n_turns):
            turns["native"].append(chains.sample_ms())
            for kind, sampling in SAMPLINGS.items():
                turns[kind].append(gap_ms(path, n_slots, sampling))
    print(json.dumps(turns))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
