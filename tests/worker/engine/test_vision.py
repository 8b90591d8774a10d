"""Prompts with images, from pixels to text, on tiny projectors of three kinds."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.models import BYTE_EOS, ProjectorKind, write_byte_model, write_projector, write_two_dimensional_model
from tests.worker.engine.harness import EXACT, Recorded, config
from tests.worker.engine.looking import Part, looking, native_greedy, picture, projector_of

KINDS: tuple[ProjectorKind, ...] = ("mlp", "gemma3", "qwen2vl_merger")
N_ROWS = {"mlp": 16, "gemma3": 4, "qwen2vl_merger": 12}
"""Of a picture."""


class Eye(NamedTuple):
    kind: ProjectorKind
    model: Path
    projector: Path
    engine: Recorded


@pytest.fixture(scope="module", params=KINDS)
def eye(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Eye]:
    folder, kind = tmp_path_factory.mktemp("models"), request.param
    write_model = write_two_dimensional_model if kind == "qwen2vl_merger" else write_byte_model
    model, projector = write_model(folder / "model.gguf"), write_projector(folder / "projector.gguf", kind)
    with Recorded(config(model, projector=projector_of(projector), **EXACT)) as engine:
        yield Eye(kind, model, projector, engine)


@pytest.mark.parametrize(
    "parts",
    [
        ("see: ", picture(1), " what?"),
        (picture(2), "what?"),
        ("what? ", picture(3), "."),
        ("one ", picture(1), picture(2), " two ", picture(1, 20, 90), "?"),
    ],
    ids=["between", "first", "before a byte", "several"],
)
def test_a_text_is_the_one_that_llamacpp_comes_to(eye: Eye, parts: tuple[Part, ...]) -> None:
    [answer] = eye.engine.run(looking(eye.engine, secrets.token_hex(4), *parts, n_predict=32, cache_prompt=False))
    assert list(answer.ids) == native_greedy(eye.model, eye.projector, parts, 32, BYTE_EOS)
