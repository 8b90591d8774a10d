"""The yardstick: a bare `llama_decode` loop over the same prompts, slots, batch and threads.

No queue, no text, no sampling but an argmax: what is left is what llama.cpp needs on this machine at this moment. Runs
as a process of its own, `python -m bench.raw SPEC.json`, and prints one JSON line.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Workload(NamedTuple):
    """Prompts as token ids; each is continued by exactly `n_predict` tokens."""

    model: str
    prompts: list[list[int]]
    n_predict: int
    n_slots: int
    n_ctx: int
    n_batch: int
    n_ubatch: int
    threads: int


def run(load: Workload) -> dict[str, float]:
    """Decode all of it; the seconds leave out loading and one warm-up decode."""
    import llama_cpp as ll  # noqa: PLC0415 - its threads read their variables once, when it is loaded

    ll.llama_backend_init()
    params = ll.llama_model_default_params()
    model = ll.llama_model_load_from_file(load.model.encode(), params)
    options = ll.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = load.n_ctx, load.n_batch, load.n_ubatch
    options.n_seq_max, options.n_threads, options.n_threads_batch = load.n_slots, load.threads, load.threads
    options.kv_unified = True
    context = ll.llama_init_from_model(model, options)
    n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
    memory = ll.llama_get_memory(context)
    batch = ll.llama_batch_init(load.n_batch, 0, 1)

    def decode(rows: list[tuple[int, int, int, bool]]) -> None:
        for i, (token, position, slot, has_logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = slot, has_logits
        batch.n_tokens = len(rows)
        if ll.llama_decode(context, batch):
            raise SystemExit("llama_decode failed")

    decode([(load.prompts[0][0], 0, 0, True)])
    ll.llama_memory_clear(memory, True)
    waiting = list(reversed(load.prompts))
    slots: dict[int, list[int]] = {}  # slot -> [next position, last token, tokens left]
    generated = steps = 0
    started = time.perf_counter()
    while waiting or slots:
        rows = [(last, position, slot, True) for slot, (position, last, _) in slots.items()]
        for slot in range(load.n_slots):
            if slot not in slots and waiting and len(rows) + len(waiting[-1]) <= load.n_batch:
                prompt = waiting.pop()
                ll.llama_memory_seq_rm(memory, slot, -1, -1)
                rows += [(token, i, slot, i == len(prompt) - 1) for i, token in enumerate(prompt)]
                slots[slot] = [len(prompt) - 1, 0, load.n_predict]
        decode(rows)
        outputs = [slot for _, _, slot, has_logits in rows if has_logits]
        logits = ll.llama_get_logits(context)
        matrix = np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (len(outputs), n_vocab))
        for slot, token in zip(outputs, matrix.argmax(axis=1), strict=True):
            slots[slot] = [slots[slot][0] + 1, int(token), slots[slot][2] - 1]
            generated += 1
            if not slots[slot][2]:
                del slots[slot]
        steps += 1
    seconds = time.perf_counter() - started
    ll.llama_batch_free(batch)
    ll.llama_free(context)
    ll.llama_model_free(model)
    return {"seconds": seconds, "generated": generated, "steps": steps}


if __name__ == "__main__":
    from worker.threads import NATIVE_ENVIRONMENT

    for name, value in NATIVE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    print(json.dumps(run(Workload(**json.loads(Path(sys.argv[1]).read_text())))))
