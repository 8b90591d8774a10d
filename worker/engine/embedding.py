"""Embeddings: a context of their own beside generation, opened when the first input comes.

For the decode thread. Knows nothing of slots or batches.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shared.errors import EngineFailed, InvalidRequest, NotSupported, SlotstreamError
from shared.events import Failure, Vector
from worker.engine.config import EngineConfig
from worker.engine.llama import (
    Context,
    ContextParams,
    DecodeFailed,
    Floats,
    Ids,
    LoadFailed,
    Model,
    OpenContext,
    model_pooling,
)
from worker.engine.task import EmbedTask


class Embedder:
    """Turns inputs into vectors, one by one: a result does not depend on its neighbours."""

    def __init__(self, model: Model, config: EngineConfig, open_context: OpenContext = Context.open) -> None:
        self._model = model
        self._config = config
        self._open_context = open_context
        self._context: Context | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._context is not None:
            self._context.close()
            self._context = None

    def check(self, task: EmbedTask) -> SlotstreamError | None:
        """Why an input cannot be embedded, if so."""
        n_tokens, n_ubatch = len(task.tokens), self._config.n_ubatch
        if n_tokens == 0:
            return InvalidRequest("the input has no tokens", param="input")
        if not self._model.has_tokens(task.tokens):
            return InvalidRequest("the input contains invalid tokens", param="input")
        if n_tokens > n_ubatch:
            return InvalidRequest(
                f"the input is too large to process: it has {n_tokens} tokens, and an embedding takes at most "
                f"{n_ubatch} (n_ubatch)",
                param="input",
            )
        return None

    def embed(self, task: EmbedTask) -> Vector | Failure:
        """The vector of an input that `check` let through."""
        try:
            context = self._open()
        except LoadFailed as error:
            return Failure.of(NotSupported(f"this model gives no embeddings: {error}"))
        tokens = np.array(task.tokens, dtype=np.int32)
        values = context.embed(tokens)
        if isinstance(values, DecodeFailed):
            values = self._embed_anew(tokens)
        if isinstance(values, DecodeFailed):
            return Failure.of(EngineFailed(values.reason))
        if not np.isfinite(values).all():
            return Failure.of(EngineFailed("the embedding has values that are not numbers"))
        values = normalized(values) if task.norm == 2 else values
        return Vector.of(task.key.index, values, len(task.tokens))

    def _embed_anew(self, tokens: Ids) -> Floats | DecodeFailed:
        """Once more, in a new context: whether the input was at fault or the context is not known. Every input has the
        context for itself, so nobody else loses anything."""
        self.close()
        try:
            return self._open().embed(tokens)
        except LoadFailed as error:
            return DecodeFailed(str(error))

    def _open(self) -> Context:
        if self._context is None:
            pooling = self._config.pooling or model_pooling(self._model)
            self._context = self._open_context(self._model, ContextParams.to_embed(self._config, pooling))
        return self._context


def normalized(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same direction with Euclidean length 1; zero stays zero."""
    length = np.linalg.norm(values.astype(np.float64))
    return (values / length).astype(np.float32) if length > 0 else values
