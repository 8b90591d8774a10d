"""Tiny models, written once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import (
    write_byte_model,
    write_encoder_model,
    write_judging_model,
    write_recurrent_model,
    write_reranker_model,
    write_sliding_model,
)


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights; ids are bytes, so that any text is a prompt and text is often no UTF-8."""
    return write_byte_model(tmp_path_factory.mktemp("models") / "bytes.gguf")


@pytest.fixture(scope="session")
def recurrent_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokens, and one state for a whole sequence."""
    return write_recurrent_model(tmp_path_factory.mktemp("models") / "recurrent.gguf")


@pytest.fixture(scope="session")
def sliding_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokens, and a window in every other layer, of 16 tokens."""
    return write_sliding_model(tmp_path_factory.mktemp("models") / "sliding.gguf")


@pytest.fixture(scope="session")
def encoder_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokens, and nothing to generate with."""
    return write_encoder_model(tmp_path_factory.mktemp("models") / "encoder.gguf")


@pytest.fixture(scope="session")
def reranker_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a classifier."""
    return write_reranker_model(tmp_path_factory.mktemp("models") / "reranker.gguf")


@pytest.fixture(scope="session")
def judging_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that generates, and has a classifier over its last token."""
    return write_judging_model(tmp_path_factory.mktemp("models") / "judge.gguf")
