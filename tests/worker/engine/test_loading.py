"""How a file becomes a model: each option reaches llama.cpp, and what cannot be loaded is one sentence."""

from __future__ import annotations

import ctypes
import gc
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from shared.overrides import MetadataOverride
from shared.settings import WorkerSettings
from tests.models import write_split
from worker.engine import EngineConfig
from worker.engine.llama import Context, ContextParams, LoadAbandoned, LoadFailed, LoadWatch, Model, Piece
from worker.engine.llama.loading import ModelParams
from worker.engine.options import LoadOptions, Positions

PARAMS = ContextParams(n_ctx=256, n_batch=64, n_ubatch=64, n_seq_max=4, n_threads=1, n_threads_batch=1)


def piece(n: int) -> Piece:
    return Piece(0, 0, (np.arange(n, dtype=np.int32) % 26 + 65).astype(np.int32), True)


def options(**settings: Any) -> LoadOptions:
    return EngineConfig.from_settings(WorkerSettings(model="x.gguf", **settings)).load


def overrides(*texts: str) -> LoadOptions:
    return LoadOptions(overrides=tuple(map(MetadataOverride.parse, texts)))


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"n_gpu_layers": 7}, "n_gpu_layers", 7),
        ({"n_gpu_layers": "all"}, "n_gpu_layers", -1),
        ({"split_mode": "row"}, "split_mode", 2),
        ({"main_gpu": 3}, "main_gpu", 3),
        ({}, "load_mode", -1),
        ({"mmap": False}, "load_mode", 0),
        ({"mlock": True, "mmap": False}, "load_mode", 2),
        ({"mlock": True}, "load_mode", 3),
        ({"load_mode": "dio"}, "load_mode", 4),
        ({"check_tensors": True}, "check_tensors", True),
    ],
)
def test_each_option_reaches_the_load(settings: dict[str, Any], field: str, value: object) -> None:
    assert getattr(ModelParams(options(**settings), LoadWatch()).native, field) == value


def test_lists_reach_the_load_and_live_as_long_as_its_parameters() -> None:
    params = ModelParams(
        options(
            tensor_split="3/1",
            override_tensor=r"blk\.0\.=CPU",
            n_cpu_moe=1,
            override_kv=["a=int:-5", "b=bool:true", "c=str:x", "d=float:0.5"],
            device="none",
        ),
        LoadWatch(),
    )
    gc.collect()
    native = params.native
    assert native.tensor_split[:3] == [3, 1, 0]
    found = [(each.key, each.tag) for each in native.kv_overrides[:5]]
    assert found == [(b"a", 0), (b"b", 2), (b"c", 3), (b"d", 1), (b"", 0)]
    first, second, third, fourth = (each.value for each in native.kv_overrides[:4])
    assert (first.val_i64, second.val_bool, third.val_str, fourth.val_f64) == (-5, True, b"x", 0.5)
    patterns = ctypes.cast(native.tensor_buft_overrides, ctypes.POINTER(ctypes.c_char_p))
    assert patterns[0] == rb"blk\.0\."
    assert patterns[2] == rb"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    assert patterns[4] is None
    assert ctypes.cast(native.devices, ctypes.POINTER(ctypes.c_void_p))[0] is None


def test_metadata_is_read_as_it_was_overridden(byte_model: Path) -> None:
    told = overrides("llama.context_length=int:4096", "tokenizer.ggml.eos_token_id=int:65")
    with Model.load(byte_model, told) as model:
        assert (model.facts.n_ctx_train, model.facts.eos) == (4096, 65)
        assert model.facts.metadata["llama.context_length"] == "4096"


@pytest.mark.parametrize("mode", ["none", "mmap", "mlock", "mmap+mlock", "dio"])
def test_a_model_is_the_same_however_it_is_read(byte_model: Path, mode: Any) -> None:
    with Model.load(byte_model, LoadOptions(load_mode=mode, checks_tensors=True)) as model:
        assert model.detokenize(model.tokenize("abc", add_special=False, parse_special=False)) == "abc"


def test_mlock_keeps_the_model_in_memory(byte_model: Path) -> None:
    def locked_kb() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmLck"))

    before = locked_kb()
    with Model.load(byte_model, LoadOptions(load_mode="mmap+mlock")):
        assert locked_kb() > before
    assert locked_kb() == before


def test_types_of_the_cache_make_it_smaller(byte_model: Path) -> None:
    def state_bytes(**types: Any) -> int:
        with Model.load(byte_model) as model, Context.open(model, replace(PARAMS, **types)) as context:
            context.warm_up()
            outcome = context.decode([piece(40)])
            assert hasattr(outcome, "logits")
            return int(llama_cpp.llama_state_seq_get_size(context._pointer, 0))

    full, small = state_bytes(), state_bytes(cache_type_k="q8_0", cache_type_v="q4_0")
    assert 0.3 * full < small < 0.5 * full


def test_positions_reach_the_context_and_change_what_is_computed(byte_model: Path) -> None:
    def logits(positions: Positions) -> Any:
        with Model.load(byte_model) as model, Context.open(model, replace(PARAMS, positions=positions)) as context:
            outcome: Any = context.decode([piece(40)])
            return outcome.logits.copy()

    plain = logits(Positions())
    assert logits(Positions(scaling="none")) == pytest.approx(plain, abs=1e-4)
    for changed in (Positions(freq_base=100.0), Positions(scaling="linear", freq_scale=0.25)):
        assert abs(logits(changed) - plain).max() > 1e-2
    native = replace(
        PARAMS,
        positions=Positions("yarn", 5e5, 0.5, 512, 0.75, 1.5, 30.0, 2.0),
    ).to_native()
    assert (native.rope_scaling_type, native.rope_freq_base, native.rope_freq_scale) == (2, 5e5, 0.5)
    assert (native.yarn_orig_ctx, native.yarn_ext_factor, native.yarn_attn_factor) == (512, 0.75, 1.5)
    assert (native.yarn_beta_fast, native.yarn_beta_slow) == (30.0, 2.0)


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({}, "swa_full", False),
        ({"swa_full": True}, "swa_full", True),
        ({}, "offload_kqv", True),
        ({"kv_offload": False}, "offload_kqv", False),
        ({"rope_scale": 4.0}, "rope_freq_scale", 0.25),
        ({"cache_type_k": "bf16"}, "type_k", 30),
    ],
)
def test_each_setting_reaches_the_context(settings: dict[str, Any], field: str, value: object) -> None:
    config = EngineConfig.from_settings(WorkerSettings(model="x.gguf", **settings))
    assert getattr(ContextParams.to_generate(config, 256, 4).to_native(), field) == value


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (LoadOptions(devices=("CUDA7",)), "--device: there is no 'CUDA7'; there is the CPU alone"),
        (LoadOptions(tensor_split=(1.0,) * 17), "--tensor-split names 17 shares, and llama.cpp takes at most 16"),
        (LoadOptions(placements=(("blk", "CUDA7"),)), "--override-tensor: there is no buffer 'CUDA7'; there is CPU"),
        (LoadOptions(placements=(("blk(", "CPU"),)), "regular expression"),
        (LoadOptions(split_mode="tensor"), "needs >= 1 devices"),
        (overrides("llama.context_length=str:x"), "--override-kv: bad metadata override type for key 'llama.context"),
        (overrides("general.architecture=str:nothing"), "unknown model architecture: 'nothing'"),
    ],
)
def test_an_option_that_cannot_be_is_one_sentence(byte_model: Path, told: LoadOptions, said: str) -> None:
    with pytest.raises(LoadFailed) as failure:
        Model.load(byte_model, told)
    assert said in str(failure.value) and "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda whole: whole[:5], "failed to read header"),
        (lambda whole: whole[:-1], "not within the file bounds, model is corrupted or incomplete"),
        (lambda whole: whole.replace(b"llama", b"lemma"), "unknown model architecture: 'lemma'"),
        (lambda whole: whole[:4] + b"\x63" + whole[5:], "GGUF file is version 99"),
        (lambda whole: whole.replace(b"blk.1.ffn_up", b"blk.1.ffn_xx"), "tensor 'blk.1.ffn_up.weight' not found"),
        (lambda whole: whole.replace(b"gpt2", b"gpt9"), "unknown tokenizer: 'gpt9'"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_one_sentence(byte_model: Path, tmp_path: Path, wrong: Any, said: str) -> None:
    path = tmp_path / "wrong.gguf"
    path.write_bytes(wrong(byte_model.read_bytes()))
    with pytest.raises(LoadFailed) as failure:
        Model.load(path)
    assert str(failure.value).startswith(f"llama.cpp cannot load {path}: ")
    assert said in str(failure.value) and "\n" not in str(failure.value)


def test_a_split_model_is_loaded_by_its_first_part_and_no_other(tmp_path: Path) -> None:
    first, *others = write_split(tmp_path / "split.gguf")
    with Model.load(first) as model:
        assert model.facts.n_params > 1000
    with pytest.raises(LoadFailed, match=f"is a later part of a model; name the first, {first}"):
        Model.load(others[0])
    others[-1].unlink()
    with pytest.raises(LoadFailed, match=f"cannot read the model {others[-1]}: no such file"):
        Model.load(first)
    others[-1].write_text("something else")
    with pytest.raises(LoadFailed, match=f"{others[-1]} is not a GGUF file"):
        Model.load(first)
    shutil.copy(others[0], others[-1])
    with pytest.raises(LoadFailed, match="invalid split file idx"):
        Model.load(first)


def test_a_load_tells_how_far_it_is_and_ends_when_nobody_wants_it(byte_model: Path) -> None:
    told: list[float] = []

    class Watch(LoadWatch):
        def heed(self, progress: float) -> bool:
            told.append(progress)
            if len(told) == 3 and is_impatient:
                self.abandon()
            return super().heed(progress)

    is_impatient = False
    with Model.load(byte_model, watch=(watch := Watch())):
        assert told == sorted(told) and told[-1] == watch.progress == 1.0
        assert len(told) > 10
    told.clear()
    is_impatient = True
    with pytest.raises(LoadAbandoned):
        Model.load(byte_model, watch=Watch())
    assert len(told) == 3
    with Model.load(byte_model) as model:
        assert model.facts.n_vocab == 258, "the one that was given up left something behind"
