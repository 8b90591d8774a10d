"""Vectors and scores of inputs, beside generation.

`inputs` says what an input becomes and how long it may be, `embedder` computes, `togetherness` finds out whether inputs
may share a decode, and `norm` is what vectors are divided by.
"""

from worker.engine.embedding.embedder import Embedder

__all__ = ["Embedder"]
