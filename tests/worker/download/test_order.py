"""What a worker's settings ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shared.settings import ConfigError, WorkerSettings
from tests.worker.download.conftest import SOON
from tests.worker.download.servers import Fault, Files, HubServer, gguf
from worker.download import ModelFiles, Order


def order(tmp_path: Path, **settings: object) -> Order:
    return Order.of(WorkerSettings(cache_dir=tmp_path, **settings))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"model": "folder/m-Q8_0.gguf"}, "m-Q8_0"),
        ({"model": "folder/m-Q8_0-00001-of-00003.gguf"}, "m-Q8_0"),
        ({"model_url": "https://h/folder/m-Q8_0.gguf?download=true"}, "m-Q8_0"),
        ({"model_url": "https://h/m-Q8_0-00002-of-00003.gguf"}, "m-Q8_0"),
        ({"hf_repo": "someone/some.model-GGUF"}, "someone/some.model-GGUF"),
        ({"hf_repo": "someone/some.model-GGUF:Q8_0"}, "someone/some.model-GGUF:Q8_0"),
    ],
)
def test_the_model_has_a_name_before_it_is_here(tmp_path: Path, settings: dict[str, str], name: str) -> None:
    assert order(tmp_path, **settings).name == name


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "which model"),
        ({"hf_repo": "model"}, "--hf-repo: model is no repository; it must be USER/MODEL"),
        ({"hf_repo": "a/b", "hf_file": "../c"}, "^--hf-file: ../c is no file"),
        ({"hf_repo": "a/b", "hf_revision": "../c"}, "^--hf-revision: ../c is no revision"),
        ({"model_url": "m.gguf"}, "--model-url: a URL must begin with"),
        ({"model": "m.gguf", "mmproj_url": "ftp://h/m"}, "--mmproj-url: a URL must begin with"),
        ({"hf_repo": "a/b", "hf_endpoint": "hub"}, "--hf-endpoint: a URL must begin with"),
        ({"hf_repo": "a/b", "hf_endpoint": "http://[h"}, "--hf-endpoint: "),
        ({"hf_repo": "a/b", "hf_endpoint": "http://h:99999"}, "--hf-endpoint: "),
        ({"hf_repo": "a/b", "hf_token": "one\ntwo"}, "--hf-token: a token has neither spaces"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anybody_is_asked(
    tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        order(tmp_path, **settings)


def test_a_token_is_taken_without_the_line_break_of_its_file(tmp_path: Path) -> None:
    token = order(tmp_path, hf_repo="a/b", hf_token="hf_secret\n").terms.token
    assert token is not None and token.get_secret_value() == "hf_secret"


async def test_a_file_of_this_machine_is_left_where_it_is(tmp_path: Path) -> None:
    assert await order(tmp_path, model="m.gguf").files() == ModelFiles(Path("m.gguf"))


async def test_a_projector_of_its_own_stands_for_the_repository_s(tmp_path: Path, hub: HubServer, files: Files) -> None:
    hub.put("m-Q8_0.gguf", gguf())
    hub.put("mmproj-F16.gguf", gguf(seed=1))
    files.contents["mine.gguf"] = gguf(seed=2)
    heard: list[float] = []
    found = await order(
        tmp_path, hf_repo="someone/some-model", hf_endpoint=str(hub.endpoint), mmproj_url=str(files.url("mine.gguf"))
    ).files(heard.append)
    assert found.projector is not None
    assert found.projector.read_bytes() == gguf(seed=2)
    assert len(hub.files.visits) == 1
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


async def test_it_is_told_why_something_is_tried_again(tmp_path: Path, files: Files) -> None:
    files.contents["m.gguf"] = gguf()
    files.faults = [Fault(status=503)]
    wanted = order(tmp_path, model_url=str(files.url("m.gguf")))
    heard: list[str] = []
    await replace(wanted, terms=replace(wanted.terms, patience=SOON)).files(on_trouble=heard.append)
    assert heard == ["127.0.0.1 answers with status 503"]


@pytest.mark.parametrize(
    ("settings", "is_elsewhere"),
    [
        ({"model": "m.gguf"}, False),
        ({"model_url": "https://h/m.gguf"}, True),
        ({"hf_repo": "a/b"}, True),
        ({"model": "m.gguf", "mmproj_url": "https://h/p.gguf"}, True),
    ],
)
def test_it_is_known_what_may_have_to_be_fetched(tmp_path: Path, settings: dict[str, str], is_elsewhere: bool) -> None:
    assert order(tmp_path, **settings).is_elsewhere is is_elsewhere
