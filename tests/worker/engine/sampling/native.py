"""llama.cpp's own samplers, as a judge: what they leave of a row, and what they choose."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import llama_cpp
import numpy as np

from shared.jobs import SamplerKind, Sampling
from worker.engine.sampling import Floats


class Left(NamedTuple):
    """What a chain leaves of a row."""

    shares: dict[int, float]
    """Probability by id; what cannot be chosen is not in it."""
    chosen: int
    """-1 when no sampler of the chain chooses."""


class NativeChain:
    """The chain that llama.cpp's server makes of a request, without its last draw.

    `vocab` is a native pointer, which DRY needs for its breakers.
    """

    def __init__(self, sampling: Sampling, n_vocab: int, n_ctx: int, vocab: Any = None) -> None:
        self._chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        for part in self._parts(sampling, n_vocab, n_ctx, vocab):
            llama_cpp.llama_sampler_chain_add(self._chain, part)

    def _parts(self, sampling: Sampling, n_vocab: int, n_ctx: int, vocab: Any) -> list[Any]:
        seed, keep = 1, sampling.min_keep
        if sampling.mirostat:
            tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
            return [
                llama_cpp.llama_sampler_init_temp(sampling.temperature),
                llama_cpp.llama_sampler_init_mirostat(n_vocab, seed, tau, eta, 100)
                if sampling.mirostat == 1
                else llama_cpp.llama_sampler_init_mirostat_v2(seed, tau, eta),
            ]
        n_last = n_ctx if sampling.repeat_last_n < 0 else sampling.repeat_last_n
        n_dry = n_ctx if sampling.dry_penalty_last_n < 0 else sampling.dry_penalty_last_n
        texts = [text.encode() for text in sampling.dry_sequence_breakers]
        makers = {
            SamplerKind.PENALTIES: lambda: llama_cpp.llama_sampler_init_penalties(
                n_vocab, n_last, sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty
            ),
            SamplerKind.DRY: lambda: llama_cpp.llama_sampler_init_dry(
                vocab,
                sampling.dry_multiplier,
                sampling.dry_base,
                sampling.dry_allowed_length,
                n_dry,
                (ctypes.c_char_p * len(texts))(*texts),
                len(texts),
            ),
            SamplerKind.TOP_N_SIGMA: lambda: llama_cpp.llama_sampler_init_top_n_sigma(sampling.top_n_sigma),
            SamplerKind.TOP_K: lambda: llama_cpp.llama_sampler_init_top_k(sampling.top_k),
            SamplerKind.TYPICAL_P: lambda: llama_cpp.llama_sampler_init_typical(sampling.typical_p, keep),
            SamplerKind.TOP_P: lambda: llama_cpp.llama_sampler_init_top_p(sampling.top_p, keep),
            SamplerKind.MIN_P: lambda: llama_cpp.llama_sampler_init_min_p(sampling.min_p, keep),
            SamplerKind.XTC: lambda: llama_cpp.llama_sampler_init_xtc(
                sampling.xtc_probability, sampling.xtc_threshold, keep, seed
            ),
            SamplerKind.TEMPERATURE: lambda: llama_cpp.llama_sampler_init_temp_ext(
                sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent
            ),
        }
        parts = [makers[kind]() for kind in sampling.samplers if kind in makers]
        if SamplerKind.ADAPTIVE_P in sampling.samplers:
            target, decay = sampling.adaptive_target, sampling.adaptive_decay
            parts.append(llama_cpp.llama_sampler_init_adaptive_p(target, decay, seed))
        return parts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        llama_cpp.llama_sampler_free(self._chain)

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            llama_cpp.llama_sampler_accept(self._chain, token)

    def logits(self, row: Floats) -> Floats:
        """All logits of a row, of a chain that drops none."""
        left, _ = self._applied(row)
        assert len(left) == len(row)
        logits: Floats = left["logit"][np.argsort(left["id"])]
        return logits

    def apply(self, row: Floats) -> Left:
        left, chosen = self._applied(row)
        possible = left[left["logit"] > -1e30]
        return Left(shares_of(possible["id"].tolist(), possible["logit"]), chosen)

    def _applied(self, row: Floats) -> tuple[np.ndarray[Any, Any], int]:
        data = np.zeros(len(row), dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        data["id"], data["logit"] = np.arange(len(row)), row
        pointer = ctypes.cast(data.ctypes.data, ctypes.POINTER(llama_cpp.llama_token_data))
        array = llama_cpp.llama_token_data_array(data=pointer, size=len(row), selected=-1, sorted=False)
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(array))
        offset = (ctypes.cast(array.data, ctypes.c_void_p).value - data.ctypes.data) // data.itemsize
        left = data[offset : offset + array.size]
        return left, int(left["id"][array.selected]) if array.selected >= 0 else -1


def shares_of(ids: Sequence[int], logits: Floats) -> dict[int, float]:
    weights = np.exp(logits.astype(np.float64) - logits.max(initial=-np.inf)) if len(ids) else logits
    return dict(zip(ids, (weights / weights.sum()).tolist(), strict=True))
