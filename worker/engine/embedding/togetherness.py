"""Whether inputs in one decode come to what each comes to alone.

It is found out and not known: it hangs on the weights, on llama.cpp's kernels and on the machine. Neighbours shift a
sum by a rounding, 1e-7 of it. With 32-bit weights it stays at that. Where activations are rounded to 8 or 16 bits
along the way (quantized and half weights, BERT's GELU, which llama.cpp looks up in a table of 16-bit numbers, flash
attention) a few of them fall to the other side, and a vector of length 1 moves by 3e-5 (MiniLM, 32 bits), 1e-4 (16
bits), 6e-3 (8 bits) or 1e-2 (SmolLM2, 4 bits).
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from worker.engine.embedding.norm import normalized
from worker.engine.llama import Context, DecodeFailed, Floats, Ids, Piece

ALIKE = 1e-6
"""A tenth of what is promised, since a sample cannot show the worst."""
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)
"""Of the inputs that are tried, in tokens."""
N_NUMBERS = 200_000
"""That are looked at, counting those of a token in one layer: so few fall to the other side that some inputs of a small
model may show nothing of it."""
MOST_SAMPLES = 32


def changes_nothing(context: Context, n_vocab: int, n_most: int) -> bool:
    """Whether samples of inputs, of `n_most` tokens in all, come to the same in one decode as alone. Leaves the
    context's cache empty."""
    random = np.random.default_rng(1)
    lengths = [length for length, total in zip(LENGTHS, accumulate(LENGTHS), strict=True) if total <= n_most]
    n_samples = min(MOST_SAMPLES, 1 + N_NUMBERS // (max(1, sum(lengths)) * context.n_embd))
    samples = ([random.integers(0, n_vocab, length, dtype=np.int32) for length in lengths] for _ in range(n_samples))
    return all(_come_to_the_same(context, sample) for sample in samples)


def _come_to_the_same(context: Context, sample: list[Ids]) -> bool:
    pieces = [Piece(seq_id, 0, tokens, False) for seq_id, tokens in enumerate(sample)]
    together = _embedded(context, pieces)
    alone = [rows for piece in pieces for rows in _embedded(context, [piece])]
    return len(together) == len(alone) == len(pieces) and all(map(_are_alike, together, alone))


def _are_alike(one: Floats, other: Floats) -> bool:
    return bool((np.abs(one - other) <= ALIKE).all())  # which NaN is not


def _embedded(context: Context, pieces: list[Piece]) -> list[Floats]:
    """Rows of each with length 1, or scores as they are; nothing where it fails."""
    context.clear()
    rows = context.embed(pieces)
    context.clear()
    if isinstance(rows, DecodeFailed):
        return []
    return [np.array([normalized(row, 2) for row in each]) if each.shape[1] > 1 else each for each in rows]
