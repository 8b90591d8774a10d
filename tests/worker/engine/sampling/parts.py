"""Rows of logits, and samplings of every kind that llama.cpp knows, too."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from shared.jobs import DEFAULT_SAMPLERS, SamplerKind, Sampling
from worker.engine.sampling import Floats

NATIVE = [kind for kind in DEFAULT_SAMPLERS if kind is not SamplerKind.DRY]  # DRY has a test of its own

orders = st.just(DEFAULT_SAMPLERS) | st.permutations(NATIVE).flatmap(
    lambda kinds: st.integers(0, len(kinds)).map(lambda n: tuple(kinds[:n]))
)
samplings = st.builds(
    Sampling,
    samplers=orders,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7]),
    dynatemp_range=st.sampled_from([0.0, 0.0, 0.4, 2.0]),
    dynatemp_exponent=st.sampled_from([1.0, 0.5, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 40, 300, 100_000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0, 2.0]),
    typical_p=st.sampled_from([1.0, 1.0, 0.2, 0.9]),
    top_n_sigma=st.sampled_from([-1.0, -1.0, 0.5, 2.0]),
    xtc_probability=st.sampled_from([0.0, 1.0]),
    xtc_threshold=st.sampled_from([0.01, 0.1, 0.3, 0.6]),
    min_keep=st.sampled_from([0, 0, 1, 5, 60]),
    repeat_last_n=st.sampled_from([0, 3, 64, -1]),
    repeat_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.2, -0.3]),
)


def row_of(seed: int, n_vocab: int, spread: float) -> Floats:
    return (np.random.default_rng(seed).standard_normal(n_vocab) * spread).astype(np.float32)
