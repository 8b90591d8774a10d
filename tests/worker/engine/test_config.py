from pathlib import Path
from typing import Any

import pytest

from shared.settings import ConfigError, WorkerSettings
from tests.models import demo_model_path
from worker.engine import EngineConfig
from worker.threads import choose_threads


def test_settings_become_plain_values_with_defaults_resolved() -> None:
    config = EngineConfig.from_settings(WorkerSettings(model="demo", parallel=3, batch_size=64, ubatch_size=512))
    assert config.model == demo_model_path()
    assert (config.n_slots, config.n_batch, config.n_ubatch) == (3, 64, 64)
    assert config.n_threads == config.n_threads_batch == choose_threads()


def test_a_batch_gets_as_many_threads_as_a_decode_unless_told_otherwise() -> None:
    assert EngineConfig.from_settings(WorkerSettings(model="m.gguf", threads=3)).n_threads_batch == 3
    config = EngineConfig.from_settings(WorkerSettings(model="m.gguf", threads=3, threads_batch=5))
    assert (config.model, config.n_threads, config.n_threads_batch) == (Path("m.gguf"), 3, 5)


def test_no_model_is_a_sentence_that_names_the_flag() -> None:
    with pytest.raises(ConfigError, match="which model"):
        EngineConfig.from_settings(WorkerSettings())


@pytest.mark.parametrize(("ctx_size", "n_ctx", "n_ctx_slot"), [(0, 4000, 1000), (2048, 2048, 1000)])
def test_a_slot_may_be_longer_than_its_share_of_the_cells(ctx_size: int, n_ctx: int, n_ctx_slot: int) -> None:
    settings = WorkerSettings(model="m.gguf", parallel=4, kv_unified_per_slot=1000, ctx_size=ctx_size)
    config = EngineConfig.from_settings(settings)
    assert (config.n_ctx, config.n_ctx_slot) == (n_ctx, n_ctx_slot)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, (False, None)),
        ({"pooling": "none"}, (False, "none")),
        ({"embedding": True, "pooling": "cls"}, (True, "cls")),
        ({"rerank": True}, (True, "rank")),
    ],
)
def test_a_worker_embeds_beside_generation_or_does_nothing_else(
    flags: dict[str, Any], expected: tuple[bool, str | None]
) -> None:
    config = EngineConfig.from_settings(WorkerSettings(model="m.gguf", **flags))
    assert (config.embeds_only, config.pooling) == expected


def test_adapters_are_counted_through_with_the_scales_that_they_start_with() -> None:
    settings = WorkerSettings(model="m.gguf", lora="a.gguf, b.gguf", lora_scaled="c.gguf:0.5,/x:y/d.gguf:-2")
    assert EngineConfig.from_settings(settings).adapters == (
        (Path("a.gguf"), 1.0),
        (Path("b.gguf"), 1.0),
        (Path("c.gguf"), 0.5),
        (Path("/x:y/d.gguf"), -2.0),
    )
    unapplied = settings.model_copy(update={"lora_init_without_apply": True})
    assert [adapter.scale for adapter in EngineConfig.from_settings(unapplied).adapters] == [0.0] * 4


@pytest.mark.parametrize("text", ["a.gguf", "a.gguf:", ":1.0", "a.gguf:x", "a.gguf:nan", "a.gguf:1e39"])
def test_a_scaled_adapter_that_has_no_scale_is_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--lora-scaled: '.*' is not a file and its scale, PATH:SCALE"):
        EngineConfig.from_settings(WorkerSettings(model="m.gguf", lora_scaled=text))


def test_a_projector_is_used_unless_it_is_switched_off() -> None:
    settings = WorkerSettings(model="m.gguf", mmproj=Path("p.gguf"), threads=5, image_max_tokens=64, flash_attn="off")
    projector = EngineConfig.from_settings(settings).projector
    assert projector is not None
    assert (projector.path, projector.n_threads, projector.flash_attention) == (Path("p.gguf"), 2, "off")
    assert (projector.n_min_tokens, projector.n_max_tokens) == (-1, 64)
    assert EngineConfig.from_settings(settings.model_copy(update={"mmproj_auto": False})).projector is None


@pytest.mark.parametrize(
    ("more", "about"),
    [
        ({"grp_attn_n": 2}, "--mmproj and --grp-attn-n exclude each other"),
        ({"image_min_tokens": 9, "image_max_tokens": 8}, "--image-max-tokens is 8, less than --image-min-tokens, 9"),
    ],
)
def test_what_does_not_go_with_a_projector_is_a_sentence(more: dict[str, int], about: str) -> None:
    with pytest.raises(ConfigError, match=about):
        EngineConfig.from_settings(WorkerSettings(model="m.gguf", mmproj=Path("p.gguf"), **more))  # type: ignore[arg-type]
