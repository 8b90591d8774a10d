"""A vision projector: what turns an image into rows that a model reads in place of tokens. llama.cpp's `mtmd`.

`mtmd` decides what becomes of an image (its size, its slices, the tokens around them); nothing here knows a model by
name. Knows nothing of files of images, of caches or of prompts.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp
from numpy.typing import NDArray

from shared.modelfile import LoadFailed, check_kind
from worker.closing import Closing
from worker.engine.llama import backend
from worker.engine.llama.backend import Floats, Ids
from worker.engine.llama.model import Model
from worker.engine.options import ProjectorConfig

Pixels = NDArray[np.uint8]
"""(height, width, 3): red, green, blue."""


class Slice(NamedTuple):
    """A part of an image that becomes rows."""

    n_rows: int
    n_positions: int
    places: Ids | None
    """(4, rows) for M-RoPE: positions when the image begins at 0."""
    steps: Ids | None
    """How much each grows when it begins one later."""


class View:
    """An image made ready to be encoded. Valid while it is held open."""

    def __init__(self, projector: Any, model: Model, chunks: Any) -> None:
        self._projector = projector
        self._model = model
        self._chunks = [
            mtmd_cpp.mtmd_input_chunks_get(chunks, index) for index in range(mtmd_cpp.mtmd_input_chunks_size(chunks))
        ]
        self.parts = tuple(map(self._part, self._chunks))
        """Slices, and the tokens before, between and behind them."""

    @property
    def has_tokens(self) -> bool:
        """Whether the model has all tokens that the projector wants around an image."""
        return all(isinstance(part, Slice) or self._model.has_tokens(part) for part in self.parts)

    def encode(self, index: int) -> Floats | None:
        """The rows of the slice that is this part: (rows, width of the model's input); None when it fails. Takes long,
        and releases the GIL. One at a time for each projector."""
        part = self.parts[index]
        assert isinstance(part, Slice)
        if mtmd_cpp.mtmd_encode_chunk(self._projector, self._chunks[index]) != 0:
            return None
        values = mtmd_cpp.mtmd_get_output_embd(self._projector)
        width = llama_cpp.llama_model_n_embd_inp(self._model.pointer)
        rows: Floats = np.ctypeslib.as_array(values, shape=(part.n_rows, width)).copy()
        return rows

    def _part(self, chunk: Any) -> tuple[int, ...] | Slice:
        if mtmd_cpp.mtmd_input_chunk_get_type(chunk) == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_TEXT:
            n_tokens = ctypes.c_size_t()
            tokens = mtmd_cpp.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n_tokens))
            return tuple(tokens[: n_tokens.value]) if tokens else ()
        n_rows = mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk)
        places = steps = None
        if mtmd_cpp.mtmd_decode_use_mrope(self._projector):
            places = _places(chunk, n_rows, 0)
            steps = _places(chunk, n_rows, 1) - places
        return Slice(n_rows, mtmd_cpp.mtmd_input_chunk_get_n_pos(chunk), places, steps)


class Projector(Closing):
    """A loaded projector that fits a model. `view` may be called from any thread, encoding from one at a time."""

    def __init__(self, pointer: Any, model: Model) -> None:
        self._pointer = pointer
        self._model = model
        self.is_causal = not mtmd_cpp.mtmd_decode_use_non_causal(pointer, None)
        """Whether a row of an image sees only those before it."""

    @classmethod
    def load(cls, model: Model, config: ProjectorConfig) -> Self:
        """LoadFailed when it is missing, no projector, one for sound, or one for another model."""
        check_kind(config.path, "--mmproj", "projector")
        backend.forget_errors()
        mtmd_cpp.mtmd_log_set(backend.on_log, ctypes.c_void_p(0))
        native = mtmd_cpp.mtmd_context_params_default()
        native.use_gpu = config.uses_gpu
        native.print_timings = False
        native.n_threads = config.n_threads
        native.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[config.flash_attention]
        native.image_min_tokens = config.n_min_tokens
        native.image_max_tokens = config.n_max_tokens
        pointer = mtmd_cpp.mtmd_init_from_file(bytes(config.path), model.pointer, native)
        if not pointer:
            raise LoadFailed(f"--mmproj: {config.path} is no projector for this model: {_reason()}")
        projector = cls(pointer, model)
        if not mtmd_cpp.mtmd_support_vision(pointer):
            projector.close()
            raise LoadFailed(f"--mmproj: {config.path} takes no images")
        with projector.view(np.zeros((64, 64, 3), dtype=np.uint8)) as view:
            is_usable = view is not None and view.has_tokens
        if not is_usable:
            projector.close()
            raise LoadFailed(f"--mmproj: {config.path} wants tokens around an image that this model does not have")
        return projector

    def close(self) -> None:
        if self._pointer:
            mtmd_cpp.mtmd_free(self._pointer)
            self._pointer = None

    @contextlib.contextmanager
    def view(self, pixels: Pixels) -> Iterator[View | None]:
        """What becomes of an image, before it is encoded: how many rows it takes, and what stands around them. None
        when the projector cannot make anything of it."""
        height, width, _ = pixels.shape
        pixels = np.ascontiguousarray(pixels)
        with contextlib.ExitStack() as resources:
            bitmap = mtmd_cpp.mtmd_bitmap_init(width, height, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
            resources.callback(mtmd_cpp.mtmd_bitmap_free, bitmap)
            chunks = mtmd_cpp.mtmd_input_chunks_init()
            resources.callback(mtmd_cpp.mtmd_input_chunks_free, chunks)
            mark = mtmd_cpp.mtmd_default_marker()
            text = mtmd_cpp.mtmd_input_text(mark, len(mark), False, True)
            bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * 1)(bitmap)
            code = mtmd_cpp.mtmd_tokenize(self._pointer, chunks, ctypes.byref(text), bitmaps, 1)
            yield View(self._pointer, self._model, chunks) if code == 0 else None


_FAULT = re.compile(r"failed to load model '.*': (?:\w+: )?(?P<reason>.+)")
_MISMATCH = re.compile(r"text model \(n_embd = (?P<wanted>\d+)\) and mmproj \(n_embd = (?P<had>\d+)\)")


def _reason() -> str:
    """Why llama.cpp took none."""
    said = "\n".join(backend.errors())
    if found := _MISMATCH.search(said):
        return f"it makes rows of {found['had']} values, and the model takes {found['wanted']}"
    if found := _FAULT.search(said):
        return found["reason"].strip()
    return "it has no encoder of images"


def _places(chunk: Any, n_rows: int, start: int) -> Ids:
    """In the order of the dimensions in which the model's batches have them."""
    image = mtmd_cpp.mtmd_input_chunk_get_tokens_image(chunk)
    places = (mtmd_cpp.mtmd_image_tokens_get_decoder_pos(image, start, row) for row in range(n_rows))
    return np.array([(place.t, place.y, place.x, place.z) for place in places], dtype=np.int32).T
