"""A model from a hub's repository."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from os import walk
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.worker.download.servers import COMMIT, REPO, Fault, HubServer, gguf
from worker.download.choice import RemoteFile
from worker.download.failures import DownloadFailed
from worker.download.source import FromHub, FromUrl, ModelFiles, Source, Terms

MODEL = "tiny-Q8_0.gguf"


@pytest.fixture
def terms(terms: Terms, hub: HubServer) -> Terms:
    hub.put(MODEL, gguf())
    return replace(terms, endpoint=hub.endpoint)


async def fetch(terms: Terms, what: Source | str = REPO) -> ModelFiles:
    return await (FromHub.of(what) if isinstance(what, str) else what).files(terms, lambda _: None)


async def refusal(terms: Terms, what: Source | str = REPO) -> str:
    with pytest.raises(DownloadFailed) as caught:
        await fetch(terms, what)
    return str(caught.value)


async def test_a_model_lies_where_other_programs_of_the_hub_look_for_it(hub: HubServer, terms: Terms) -> None:
    found = await fetch(terms)
    folder = terms.cache.folder / "models--someone--some-model"
    assert found == ModelFiles(folder / "snapshots" / COMMIT / MODEL)
    assert found.model.read_bytes() == gguf()
    assert found.model.resolve() == (folder / "blobs" / hub.oid(MODEL)).resolve()
    assert (folder / "refs" / "main").read_text() == COMMIT


async def test_what_another_program_has_fetched_is_not_fetched_again(hub: HubServer, terms: Terms) -> None:
    blob = terms.cache.folder / "models--someone--some-model" / "blobs" / hub.oid(MODEL)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(gguf())
    assert (await fetch(terms)).model.read_bytes() == gguf()
    assert hub.files.visits == []


async def test_a_second_start_asks_the_hub_and_fetches_nothing(hub: HubServer, terms: Terms) -> None:
    assert await fetch(terms) == await fetch(terms)
    assert len(hub.files.visits) == 1


async def test_a_quantization_a_file_and_a_commit_can_be_asked_for(hub: HubServer, terms: Terms) -> None:
    hub.put("tiny-F16.gguf", gguf(seed=1))
    assert (await fetch(terms, f"{REPO}:f16")).model.name == "tiny-F16.gguf"
    assert (await fetch(terms, FromHub.of(REPO, file="tiny-F16.gguf"))).model.name == "tiny-F16.gguf"
    assert (await fetch(terms, FromHub.of(REPO, revision=COMMIT))).model.name == MODEL


async def test_all_parts_and_the_projector_come_along(hub: HubServer, terms: Terms) -> None:
    hub.paths.clear()
    for n in (2, 1, 3):
        hub.put(f"Q8_0/m-Q8_0-0000{n}-of-00003.gguf", gguf(1000, seed=n))
    hub.put("mmproj-F16.gguf", gguf(1000, seed=9))
    found = await fetch(terms, f"{REPO}:Q8_0")
    assert found.model.name == "m-Q8_0-00001-of-00003.gguf"
    parts = [found.model.with_name(f"m-Q8_0-0000{n}-of-00003.gguf").read_bytes() for n in (1, 2, 3)]
    assert parts == [gguf(1000, seed=n) for n in (1, 2, 3)]
    assert found.projector is not None
    assert found.projector.read_bytes() == gguf(1000, seed=9)
    assert (await fetch(replace(terms, wants_projector=False), f"{REPO}:Q8_0")).projector is None


async def test_a_listing_is_read_over_all_its_pages(hub: HubServer, terms: Terms) -> None:
    hub.page = 2
    for n in range(5):
        hub.put(f"{n}.gguf", gguf(100, seed=n))
    assert (await fetch(terms, FromHub.of(REPO, file="4.gguf"))).model.name == "4.gguf"


async def test_a_connection_that_breaks_goes_on(hub: HubServer, terms: Terms) -> None:
    hub.faults = [503]
    hub.files.faults = [Fault(cut_after=1_000_000)]
    assert (await fetch(terms)).model.read_bytes() == gguf()
    first, second = hub.files.ranges
    assert first is None
    assert second is not None
    assert int(second[6:-1]) > 0


async def test_a_later_start_goes_on_where_an_earlier_one_ended(hub: HubServer, terms: Terms) -> None:
    hub.files.faults = [Fault(cut_after=1_000_000), *[Fault(status=500)] * 4]
    assert "answers with status 500; gave up after 4 attempts" in await refusal(terms)
    n_kept = terms.cache.of_blob(REPO, RemoteFile(MODEL, oid=hub.oid(MODEL))).part.stat().st_size
    assert 0 < n_kept <= 1_000_000
    assert (await fetch(terms)).model.read_bytes() == gguf()
    assert hub.files.ranges[-1] == f"bytes={n_kept}-"


async def test_what_is_not_what_the_hub_says_is_not_kept(hub: HubServer, terms: Terms) -> None:
    hub.oids[MODEL] = "0" * 64
    assert f"SHA-256 {hub.oid(MODEL)} instead of {'0' * 64}" in await refusal(terms)
    assert list((terms.cache.folder / "models--someone--some-model" / "blobs").iterdir()) == []


async def test_the_token_goes_to_the_hub_and_not_where_it_points(hub: HubServer, terms: Terms) -> None:
    hub.token = "hf_secret"
    await fetch(replace(terms, token=SecretStr("hf_secret")))
    assert hub.files.visits
    assert all("Authorization" not in visit.headers for visit in hub.files.visits)


async def test_the_hub_s_checksum_is_heard_also_at_a_plain_url(hub: HubServer, terms: Terms) -> None:
    url = str(hub.endpoint / REPO / "resolve" / "main" / MODEL)
    hub.files.contents[f"store/{hub.oid(MODEL)}"] = gguf(seed=1)
    assert "another checksum" in await refusal(terms, FromUrl.of(url))
    hub.put(MODEL, gguf())
    assert (await fetch(terms, FromUrl.of(url))).model.read_bytes() == gguf()


@pytest.mark.parametrize(
    ("token", "is_gated", "said"),
    [
        (None, False, "may not be read, or is not there without a token (--hf-token or HF_TOKEN): status 401"),
        (None, True, "is gated, its owner must have let you in without a token"),
        ("wrong", False, "may not be read, or is not there with the token that was given"),
    ],
)
async def test_a_repository_that_is_shut_is_one_sentence(
    hub: HubServer, terms: Terms, token: str | None, is_gated: bool, said: str
) -> None:
    hub.token, hub.is_gated = "right", is_gated
    message = await refusal(replace(terms, token=SecretStr(token) if token else None))
    assert REPO in message
    assert said in message
    assert "wrong" not in message


async def test_what_is_not_there_is_one_sentence(hub: HubServer, terms: Terms) -> None:
    assert "the repository someone/else of 127.0.0.1 is not there" in await refusal(terms, "someone/else")
    assert "has no revision v9" in await refusal(terms, FromHub.of(REPO, revision="v9"))
    assert f"{REPO} has no model Q2_K in GGUF; there are {MODEL}" in await refusal(terms, f"{REPO}:Q2_K")


async def test_what_is_here_serves_when_the_hub_does_not(hub: HubServer, terms: Terms) -> None:
    found = await fetch(terms)
    hub.faults = [500] * 4
    assert await fetch(terms) == found


async def test_of_what_the_hub_has_nothing_is_claimed_when_it_was_not_asked(hub: HubServer, terms: Terms) -> None:
    await fetch(terms)
    here = f"and what is here of {REPO} has no model Q2_K in GGUF; there are {MODEL}"
    assert await refusal(replace(terms, is_offline=True), f"{REPO}:Q2_K") == f"--offline asks no hub, {here}"
    hub.faults = [500] * 4
    said = await refusal(terms, f"{REPO}:Q2_K")
    assert said == f"127.0.0.1 answers with status 500; gave up after 2 attempts, {here}"


@pytest.mark.parametrize("page", ["http://[::1", "http://h:99999/", "file:///etc/passwd"])
async def test_a_list_that_goes_on_nowhere_is_one_sentence(hub: HubServer, terms: Terms, page: str) -> None:
    hub.next_page = page
    assert await refusal(terms) == "127.0.0.1 goes on listing nowhere"


async def test_offline_asks_nobody(hub: HubServer, terms: Terms) -> None:
    offline = replace(terms, is_offline=True)
    assert "is not in" in await refusal(offline)
    assert hub.visits == []
    found = await fetch(terms)
    hub.visits.clear()
    assert await fetch(offline) == found
    assert hub.visits == []


async def test_a_cache_that_cannot_be_written_serves_if_it_has_all(hub: HubServer, terms: Terms) -> None:
    found = await fetch(terms)
    refs = terms.cache.folder / "models--someone--some-model" / "refs"
    (refs / "main").unlink()
    refs.rmdir()
    refs.write_text("no folder can be made here")
    assert await fetch(terms) == found


async def test_two_at_once_fetch_it_once(hub: HubServer, terms: Terms) -> None:
    one, other = await asyncio.gather(fetch(terms), fetch(terms))
    assert one == other
    assert len(hub.files.visits) == 1


async def test_a_hub_s_names_never_lead_out_of_the_cache(hub: HubServer, terms: Terms, tmp_path: Path) -> None:
    hub.put("../../../../evil.gguf", gguf(100))
    hub.put("/evil.gguf", gguf(100))
    assert (await fetch(terms)).model.name == MODEL
    assert "has no file" in await refusal(terms, FromHub(REPO, file="../../../../evil.gguf"))
    assert "evil.gguf" not in {name for _, _, names in walk(tmp_path) for name in names}


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"branches": [{"name": "main"}]}', b"\xff"])
async def test_a_server_that_is_no_hub_is_one_sentence(hub: HubServer, terms: Terms, body: bytes) -> None:
    hub.files.contents[f"api/models/{REPO}/refs"] = body
    assert "does not answer as a model hub does" in await refusal(replace(terms, endpoint=hub.files.url("")))


@pytest.mark.parametrize(
    "text", ["", "model", "a/b/c", "../b", "a/..", "a/.b", "a b/c", "a/b\n", "/b", "a/", "a/-b", "x/" + "a" * 300]
)
def test_what_is_no_repository_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="USER/MODEL"):
        FromHub.of(text)


@pytest.mark.parametrize(("file", "revision"), [("../m.gguf", "main"), ("m.gguf", "../x"), ("m.gguf", "")])
def test_what_leads_out_of_a_repository_is_refused(file: str, revision: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        FromHub.of(REPO, file=file, revision=revision)
