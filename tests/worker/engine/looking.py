"""Pictures for engines, prompts with them, and what llama.cpp itself says to such a prompt."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp

from tests.worker.engine.harness import EXACT, Recorded, task
from worker.engine import GenerateTask, ImageRows, Pixels, Placed
from worker.engine.llama import Context, ContextParams, Decoded, Model, Piece
from worker.engine.options import ProjectorConfig

Part = str | Pixels
"""Of a prompt: its text is bytes of the byte model."""


def picture(seed: int, width: int = 50, height: int = 40) -> Pixels:
    """Noise in large patches, another for each seed."""
    patches = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    rows, columns = np.arange(height) * 5 // height, np.arange(width) * 5 // width
    return patches[rows][:, columns]


def looking(engine: Recorded, job_id: str, *parts: Part, **more: Any) -> GenerateTask:
    """A task whose prompt has pictures between its texts."""
    assert engine.engine.vision is not None
    tokens: list[int] = []
    images: list[Placed] = []
    for part in parts:
        if isinstance(part, str):
            tokens += part.encode()
            continue
        digest = repr(part.shape).encode() + part.tobytes()
        for piece in engine.engine.vision.picture(digest, partial(np.copy, part), 2048, "image 1").parts:
            if isinstance(piece, ImageRows):
                images.append(Placed(len(tokens), piece))
                tokens += [piece.id] * len(piece)
            else:
                tokens += piece
    return task(job_id, tokens, images=tuple(images), **more)


def native_greedy(model_path: Path, projector: Path, parts: Sequence[Part], n_predict: int, banned: int) -> list[int]:
    """The continuation that llama.cpp's own helper comes to, which does images and texts one after the other."""
    with Model.load(model_path) as model, contextlib.ExitStack() as resources:
        params = ContextParams(
            n_ctx=2048, n_batch=512, n_ubatch=512, n_seq_max=1, n_threads=1, n_threads_batch=1, **EXACT
        )
        context = resources.enter_context(Context.open(model, params))
        native = mtmd_cpp.mtmd_context_params_default()
        native.n_threads, native.use_gpu = 1, False
        eye = mtmd_cpp.mtmd_init_from_file(bytes(projector), model.pointer, native)
        resources.callback(mtmd_cpp.mtmd_free, eye)
        mark = mtmd_cpp.mtmd_default_marker()
        content = b"".join(part.encode() if isinstance(part, str) else mark for part in parts)
        pictures = [part for part in parts if not isinstance(part, str)]
        bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * len(pictures))()
        for at, pixels in enumerate(pictures):
            height, width, _ = pixels.shape
            first = np.ascontiguousarray(pixels).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
            bitmaps[at] = mtmd_cpp.mtmd_bitmap_init(width, height, first)
            resources.callback(mtmd_cpp.mtmd_bitmap_free, bitmaps[at])
        chunks = mtmd_cpp.mtmd_input_chunks_init()
        resources.callback(mtmd_cpp.mtmd_input_chunks_free, chunks)
        text = mtmd_cpp.mtmd_input_text(content, len(content), False, True)
        assert mtmd_cpp.mtmd_tokenize(eye, chunks, ctypes.byref(text), bitmaps, len(pictures)) == 0
        position = llama_cpp.llama_pos(0)
        pointer = context._pointer
        done = mtmd_cpp.mtmd_helper_eval_chunks(eye, pointer, chunks, 0, 0, 512, True, ctypes.byref(position))
        assert done == 0
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(pointer, -1), shape=(model.facts.n_vocab,))
        chosen: list[int] = []
        for at in range(position.value, position.value + n_predict):
            logits[banned] = -np.inf
            chosen.append(int(logits.argmax()))
            outcome = context.decode([Piece(0, at, np.array(chosen[-1:], dtype=np.int32), True)])
            assert isinstance(outcome, Decoded)
            logits = outcome.logits[0]
        return chosen


def projector_of(path: Path, **more: Any) -> ProjectorConfig:
    return ProjectorConfig(path, uses_gpu=False, **more)
