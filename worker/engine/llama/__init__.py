"""llama.cpp as typed values: the only package that imports `llama_cpp`, and the only one that holds native pointers.

`Model` may be used from any thread. A `Context` belongs to the thread that decodes. What is expected of a decode
(no room, a bad batch) comes back as an outcome; what makes a start impossible is raised as `LoadFailed`.

Every call is guarded here or before: token ids by `Model.has_tokens`, for a whole task in `launch` and `embedding`;
ids of sequences by the context; positions and the size of a batch by `cells` and `plan`, which know no client; texts
go with their length.
"""

from shared.modelfile import LoadFailed
from worker.engine.llama.adapter import LoadedAdapters
from worker.engine.llama.backend import Floats, Ids, max_sequences
from worker.engine.llama.batch import Piece, Rows
from worker.engine.llama.context import (
    Context,
    Decoded,
    DecodeFailed,
    Interrupted,
    OpenContext,
    Outcome,
    OutOfCells,
)
from worker.engine.llama.facts import FillTokens, ModelFacts
from worker.engine.llama.interrupt import Interrupt
from worker.engine.llama.loading import LoadAbandoned, LoadWatch, surviving_aborts
from worker.engine.llama.model import Model
from worker.engine.llama.params import CACHE_TYPES, ContextParams
from worker.engine.llama.projector import Pixels, Projector, Slice, View
from worker.engine.llama.state import NO_STATE, Bytes, StateRefused
from worker.engine.llama.templates import apply_builtin_template, builtin_templates

__all__ = [
    "CACHE_TYPES",
    "NO_STATE",
    "Bytes",
    "Context",
    "ContextParams",
    "DecodeFailed",
    "Decoded",
    "FillTokens",
    "Floats",
    "Ids",
    "Interrupt",
    "Interrupted",
    "LoadAbandoned",
    "LoadFailed",
    "LoadWatch",
    "LoadedAdapters",
    "Model",
    "ModelFacts",
    "OpenContext",
    "OutOfCells",
    "Outcome",
    "Piece",
    "Pixels",
    "Projector",
    "Rows",
    "Slice",
    "StateRefused",
    "View",
    "apply_builtin_template",
    "builtin_templates",
    "max_sequences",
    "surviving_aborts",
]
