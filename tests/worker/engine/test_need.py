"""What a context takes at the least, and that what cannot be had is refused before it is tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worker import memory
from worker.engine import EngineConfig
from worker.engine.llama import Context, ContextParams, LoadFailed, Model, ModelFacts
from worker.engine.llama.need import CELL_BYTES, need_of
from worker.engine.options import LoadOptions

PARAMS = ContextParams(n_ctx=100_000, n_batch=64, n_ubatch=1, n_seq_max=4, n_threads=1, n_threads_batch=1)


@pytest.fixture(scope="module")
def model(byte_model: Path) -> Iterator[Model]:
    with Model.load(byte_model) as loaded:
        yield loaded


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("types", [{}, {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}])
def test_it_is_about_what_llama_cpp_takes(model: Model, types: dict[str, Any]) -> None:
    """So many cells that the values' memory is the system's own; the notes of cells may be in what was freed before."""
    params = replace(PARAMS, n_ctx=400_000, **types)
    before = resident_bytes()
    with Context.open(model, params):
        taken = resident_bytes() - before
    assert 0.75 * taken < need_of(model.facts, params) < 1.3 * taken


def cache_bytes(facts: ModelFacts, has_full_windows: bool = False, **metadata: Any) -> int:
    """Of one cell, without what is counted for any."""
    changed = {f"{facts.architecture}.{name.replace('__', '.')}": str(value) for name, value in metadata.items()}
    facts = replace(facts, metadata=facts.metadata | changed, n_embd=0)
    params = replace(PARAMS, n_ctx=1000, n_ubatch=0, has_full_windows=has_full_windows)
    return round(need_of(facts, params) / 1000 - CELL_BYTES)


def test_what_metadata_says_of_layers_and_heads_is_counted(model: Model) -> None:
    """2 layers with 2 heads of 32 values, for K and for V, of 2 bytes."""
    facts = model.facts
    assert cache_bytes(facts, attention__key_length=32, attention__value_length=32) == 2 * 2 * 2 * 32 * 2
    widths: dict[str, Any] = {"attention__key_length": 32, "attention__value_length": 32}
    assert cache_bytes(facts, attention__head_count_kv=1, **widths) == 256
    assert cache_bytes(facts, attention__head_count_kv="[1, 0]", **widths) == 128
    assert cache_bytes(facts, attention__shared_kv_layers=1, **widths) == 256
    assert cache_bytes(facts, attention__kv_lora_rank=16, **widths) == 256, "values of their own are not kept"


def test_what_is_not_known_for_sure_counts_nothing(model: Model) -> None:
    widths: dict[str, Any] = {"attention__key_length": 32, "attention__value_length": 32}
    sliding = replace(model.facts, n_swa=16)
    assert cache_bytes(sliding, **widths) == 0
    assert cache_bytes(sliding, has_full_windows=True, **widths) == 512
    assert cache_bytes(sliding, attention__sliding_window_pattern="[true, false]", **widths) == 256
    assert cache_bytes(replace(model.facts, is_hybrid=True), **widths) == 0
    assert cache_bytes(replace(model.facts, is_hybrid=True), full_attention_interval=2, **widths) == 256
    assert cache_bytes(model.facts, attention__compress_ratios="[4, 4]", **widths) == 0
    assert cache_bytes(model.facts, block_count="many", attention__head_count="?") == 0


def test_models_without_a_cache_need_none(recurrent_model: Path, encoder_model: Path) -> None:
    for path in (recurrent_model, encoder_model):
        with Model.load(path) as model:
            assert need_of(model.facts, replace(PARAMS, n_ctx=10**9, n_ubatch=0)) == 0


@pytest.mark.parametrize(
    ("absurd", "said"),
    [
        ({"n_ctx": 10**9}, "--ctx-size: 1000000000 cells, and --ubatch-size: 1 tokens at once, take at least"),
        ({"n_ctx": 10**9, "n_ctx_flag": "--kv-unified-per-slot"}, "--kv-unified-per-slot: 1000000000 cells"),
        ({"n_ubatch": 10**9, "n_ctx_flag": "--ubatch-size"}, "--ubatch-size: 1000000000 tokens at once take at least"),
        ({"n_ctx": 2**31}, "--ctx-size makes 2147483648 cells, and llama.cpp counts to 2147483647"),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_it_takes_and_what_there_is(
    model: Model, absurd: dict[str, Any], said: str
) -> None:
    before = resident_bytes()
    with pytest.raises(LoadFailed) as failure:
        Context.open(model, replace(PARAMS, **absurd))
    assert str(failure.value).startswith(said)
    assert resident_bytes() - before < 2**24


def test_a_context_for_vectors_names_what_made_it_large(byte_model: Path) -> None:
    config = EngineConfig(model=byte_model, n_ubatch=64)
    flags = [ContextParams.to_embed(config, "last", n_cells=n, n_ids=1).n_ctx_flag for n in (0, 4096)]
    assert flags == ["--ubatch-size", "--ctx-size"]


def test_a_model_that_must_be_in_memory_is_refused_where_it_cannot_be(
    byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 1000)
    for mode in ("none", "mlock", "mmap+mlock", "dio"):
        with pytest.raises(LoadFailed, match=rf"--load-mode {mode.replace('+', '.')}, and 0 MB are free: map it"):
            Model.load(byte_model, LoadOptions(load_mode=mode))  # type: ignore[arg-type]
    with Model.load(byte_model) as mapped, pytest.raises(LoadFailed, match="are free"):
        Context.open(mapped, PARAMS)
    monkeypatch.setattr(memory, "free_bytes", lambda: None)
    with Model.load(byte_model, LoadOptions(load_mode="none")) as model:
        Context.open(model, PARAMS).close()
