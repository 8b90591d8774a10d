"""A model from a plain URL: fetched whole, once, and gone on with after any accident."""

from __future__ import annotations

import asyncio
import hashlib
import resource
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr
from yarl import URL

from tests.worker.download.servers import Fault, Files, gguf
from worker.download.cache import Cache
from worker.download.failures import DownloadFailed
from worker.download.source import FromUrl, Terms

PATH = "models/tiny-Q8_0.gguf"


@pytest.fixture
def content(files: Files) -> bytes:
    files.contents[PATH] = gguf()
    files.etags[PATH] = '"v1"'
    return files.contents[PATH]


def source(files: Files, path: str = PATH, sha256: str = "") -> FromUrl:
    return FromUrl.of(str(files.url(path)), sha256)


async def fetch(what: FromUrl, terms: Terms) -> Path:
    return (await what.files(terms, lambda _: None)).model


async def refusal(what: FromUrl, terms: Terms) -> str:
    with pytest.raises(DownloadFailed) as caught:
        await fetch(what, terms)
    return str(caught.value)


def part_of(terms: Terms, files: Files, path: str = PATH) -> Path:
    return terms.cache.of_url(files.url(path)).part


async def test_a_model_is_fetched_once_and_looked_at_the_next_time(files: Files, content: bytes, terms: Terms) -> None:
    path = await fetch(source(files), terms)
    assert path.read_bytes() == content
    assert path.name == "tiny-Q8_0.gguf"
    assert await fetch(source(files), terms) == path
    assert [visit.method for visit in files.visits] == ["GET", "HEAD"]
    assert not part_of(terms, files).exists()


async def test_progress_goes_from_nothing_to_all(files: Files, content: bytes, terms: Terms) -> None:
    heard: list[float] = []
    await source(files).files(terms, heard.append)
    assert heard[0] == 0.0
    assert heard[-1] == 1.0
    assert heard == sorted(heard)
    assert len(heard) > 3


@pytest.mark.parametrize("fault", [Fault(cut_after=1_000_000), Fault(status=503), Fault(status=429)])
async def test_what_fails_in_passing_is_tried_again(files: Files, content: bytes, terms: Terms, fault: Fault) -> None:
    files.faults = [fault]
    assert (await fetch(source(files), terms)).read_bytes() == content
    assert len(files.visits) == 2


async def test_a_connection_that_breaks_again_and_again_gets_there_as_long_as_it_brings_something(
    files: Files, content: bytes, terms: Terms
) -> None:
    files.faults = [Fault(cut_after=250_000)] * 11
    assert (await fetch(source(files), terms)).read_bytes() == content
    starts = [int(text[6:-1]) for text in files.ranges if text]
    assert len(starts) == 11
    assert starts == sorted(set(starts)), "each went on from further on"


async def test_a_server_that_brings_nothing_is_given_up(files: Files, content: bytes, terms: Terms) -> None:
    files.faults = [Fault(status=500)] * 10
    assert await refusal(source(files), terms) == "127.0.0.1 answers with status 500; gave up after 4 attempts"


async def test_a_server_that_asks_for_time_gets_it(files: Files, content: bytes, terms: Terms) -> None:
    files.faults = [Fault(status=503, headers={"Retry-After": "1"})]
    started = time.monotonic()
    await fetch(source(files), replace(terms, patience=replace(terms.patience, most_s=0.3)))
    assert time.monotonic() - started >= 0.3, "and no more than we have"


async def test_a_later_start_goes_on_where_an_earlier_one_ended(files: Files, content: bytes, terms: Terms) -> None:
    files.faults = [Fault(cut_after=1_000_000), *[Fault(status=500)] * 4]
    await refusal(source(files), terms)
    n_kept = part_of(terms, files).stat().st_size
    assert 0 < n_kept <= 1_000_000
    assert (await fetch(source(files), terms)).read_bytes() == content
    assert files.ranges[-1] == f"bytes={n_kept}-"
    assert files.gets[-1].headers["If-Range"] == '"v1"'


@pytest.mark.parametrize("etag", ['"v2"', ""])
async def test_a_file_that_has_changed_meanwhile_starts_over(
    files: Files, content: bytes, terms: Terms, etag: str
) -> None:
    files.faults = [Fault(cut_after=1_000_000), *[Fault(status=500)] * 4]
    await refusal(source(files), terms)
    files.contents[PATH], files.etags[PATH] = gguf(seed=1), etag
    assert (await fetch(source(files), terms)).read_bytes() == gguf(seed=1)


@pytest.mark.parametrize("etag", ['W/"v1"', ""])
async def test_where_nothing_says_that_it_is_the_same_file_the_part_is_not_used(
    files: Files, content: bytes, terms: Terms, etag: str
) -> None:
    files.etags[PATH] = etag
    files.faults = [Fault(cut_after=1_000_000)]
    assert (await fetch(source(files), terms)).read_bytes() == content
    assert files.ranges == [None, None]


async def test_a_server_without_ranges_sends_all_again(files: Files, content: bytes, terms: Terms) -> None:
    files.has_ranges = False
    files.faults = [Fault(cut_after=1_000_000)]
    assert (await fetch(source(files), terms)).read_bytes() == content


async def test_another_part_than_was_asked_for_is_not_taken(files: Files, content: bytes, terms: Terms) -> None:
    files.faults = [Fault(cut_after=1_000_000), Fault(skew=1000)]
    assert (await fetch(source(files), terms)).read_bytes() == content
    assert files.ranges[-1] is None


async def test_a_part_that_is_the_whole_is_taken_as_such(files: Files, content: bytes, terms: Terms) -> None:
    part = part_of(terms, files)
    part.parent.mkdir(parents=True)
    part.write_bytes(content)
    part.with_name(f"{part.name}.etag").write_text('"v1"')
    assert (await fetch(source(files), terms)).read_bytes() == content
    assert files.ranges == [f"bytes={len(content)}-"]


async def test_a_file_that_has_changed_on_the_server_is_fetched_anew(
    files: Files, content: bytes, terms: Terms
) -> None:
    await fetch(source(files), terms)
    files.contents[PATH], files.etags[PATH] = gguf(seed=1), '"v2"'
    path = await fetch(source(files), terms)
    assert path.read_bytes() == gguf(seed=1)
    await fetch(source(files), terms)
    assert len(files.gets) == 2


@pytest.mark.parametrize("etag", ['W/"v1"', ""])
async def test_a_file_is_not_fetched_anew_for_want_of_a_good_etag(
    files: Files, content: bytes, terms: Terms, etag: str
) -> None:
    files.etags[PATH] = etag
    await fetch(source(files), terms)
    await fetch(source(files), terms)
    assert len(files.gets) == 1


@pytest.mark.parametrize("status", [404, 403, 500])
async def test_what_is_here_serves_when_the_server_does_not(
    files: Files, content: bytes, terms: Terms, status: int
) -> None:
    path = await fetch(source(files), terms)
    files.faults = [Fault(status=status)] * 2
    assert await fetch(source(files), terms) == path


async def test_offline_asks_nobody(files: Files, content: bytes, terms: Terms) -> None:
    offline = replace(terms, is_offline=True)
    assert "is not in" in await refusal(source(files), offline)
    assert files.visits == []
    path = await fetch(source(files), terms)
    files.visits.clear()
    assert await fetch(source(files), offline) == path
    assert files.visits == []


async def test_a_checksum_is_held_to_whatever_else_is_right(files: Files, content: bytes, terms: Terms) -> None:
    right = hashlib.sha256(content).hexdigest()
    said = await refusal(source(files, sha256="0" * 64), terms)
    assert right in said
    assert "0" * 64 in said
    assert not part_of(terms, files).exists()
    path = await fetch(source(files, sha256=right), terms)
    path.write_bytes(gguf(seed=1))
    assert (await fetch(source(files, sha256=right), terms)).read_bytes() == content, "also what was here already"


async def test_a_spoilt_part_is_found_out_and_fetched_again(files: Files, content: bytes, terms: Terms) -> None:
    part = part_of(terms, files)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"GGUF" + b"x" * 1000)
    what = source(files, sha256=hashlib.sha256(content).hexdigest())
    assert (await fetch(what, terms)).read_bytes() == content
    assert files.ranges == ["bytes=1004-", None]


async def test_a_web_page_is_no_model(files: Files, terms: Terms) -> None:
    files.contents[PATH] = b"<html>Log in first" + b"." * 5_000_000
    assert await refusal(source(files), terms) == "what 127.0.0.1 sends as tiny-Q8_0.gguf is no GGUF file"
    assert not part_of(terms, files).exists()


@pytest.mark.parametrize("content", [b"", b"GG"])
async def test_next_to_nothing_is_no_model(files: Files, terms: Terms, content: bytes) -> None:
    files.contents[PATH] = content
    assert "is no GGUF file" in await refusal(source(files), terms)


async def test_a_file_that_is_not_there_is_said_at_once(files: Files, terms: Terms) -> None:
    assert await refusal(source(files), terms) == f"127.0.0.1/{PATH} is not there"
    assert len(files.visits) == 1


async def test_all_parts_of_a_model_are_fetched(files: Files, terms: Terms) -> None:
    for n in (1, 2):
        files.contents[f"m-0000{n}-of-00002.gguf"] = gguf(1000, seed=n)
    heard: list[float] = []
    what = source(files, "m-00002-of-00002.gguf?download=true")
    path = (await what.files(terms, heard.append)).model
    assert path.name == "m-00001-of-00002.gguf"
    assert path.read_bytes() == gguf(1000, seed=1)
    assert path.with_name("m-00002-of-00002.gguf").read_bytes() == gguf(1000, seed=2)
    assert {visit.query_string for visit in files.visits} == {"download=true"}
    assert heard == sorted(heard)
    assert what.name == "m"


async def test_two_at_once_fetch_it_once_and_both_show_progress(files: Files, content: bytes, terms: Terms) -> None:
    heard: list[float] = []
    paths = await asyncio.gather(fetch(source(files), terms), source(files).files(terms, heard.append))
    assert paths[0] == paths[1].model
    assert len(files.gets) == 1
    assert heard


async def test_a_full_disk_keeps_what_has_come(files: Files, content: bytes, terms: Terms) -> None:
    # What a process may write stands in for what a disk can hold: the same call fails in the same way.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, hard))
    try:
        said = await refusal(source(files), terms)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "has no room" in said
    assert str(terms.cache.folder) in said
    assert part_of(terms, files).stat().st_size == 1_500_000
    assert (await fetch(source(files), terms)).read_bytes() == content
    assert files.ranges == [None, "bytes=1500000-"]


async def test_a_file_larger_than_the_disk_is_not_begun(files: Files, terms: Terms) -> None:
    files.contents[PATH] = b""
    files.faults = [Fault(status=200, headers={"Content-Length": str(10**17)})]
    assert "100000000000 MB are needed" in await refusal(source(files), terms)


async def test_a_folder_that_cannot_be_made_is_one_sentence(files: Files, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((DownloadFailed, OSError), match="file"):
        await fetch(source(files), Terms(Cache(tmp_path / "file" / "cache")))


async def test_the_token_is_not_for_any_host(files: Files, content: bytes, terms: Terms) -> None:
    elsewhere = replace(terms, token=SecretStr("hf_secret"), endpoint=URL("http://127.0.0.2"))
    await fetch(source(files), elsewhere)
    assert "Authorization" not in files.visits[0].headers


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "passwd.gguf"),
        ("a/..%2F.hidden.gguf", "hidden.gguf"),
        ("a/m%00ü.gguf", "m__.gguf"),
        ("a/" + "x" * 400, "x" * 150 + ".gguf"),
        ("", "model.gguf"),
        ("a/", "a.gguf"),
        ("a/m.gguf?x=/../../y", "m.gguf"),
    ],
)
def test_no_url_leads_out_of_the_cache(cache: Cache, path: str, name: str) -> None:
    place = cache.of_url(URL(f"http://h/{path}"))
    assert place.target.name == name
    assert place.target.resolve().is_relative_to(cache.folder.resolve() / "urls")
    assert place.lock.resolve().is_relative_to(cache.folder.resolve() / ".locks")


@pytest.mark.parametrize("url", ["", "m.gguf", "file:///m.gguf", "ftp://h/m.gguf", "http://", "http://[::1"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        FromUrl.of(url)


def test_a_checksum_is_of_one_file() -> None:
    with pytest.raises(ValueError, match="several parts"):
        FromUrl.of("http://h/m-00001-of-00002.gguf", "0" * 64)


async def test_a_host_that_is_not_there_is_one_sentence(terms: Terms) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    said = await refusal(FromUrl.of(f"http://127.0.0.1:{port}/m.gguf"), terms)
    assert said == "127.0.0.1 cannot be reached: Connection refused; gave up after 4 attempts"


async def test_whoever_gets_now_more_now_less_and_never_further_gives_up(
    files: Files, content: bytes, terms: Terms
) -> None:
    files.has_ranges = False
    files.faults = [Fault(cut_after=n_bytes) for n_bytes in (200_000, 100_000) * 9]
    assert "gave up after 4 attempts" in await refusal(source(files), terms)
    assert len(files.gets) <= 8, "cuts are not to the byte"


async def test_a_connection_that_breaks_off_is_said_so(files: Files, content: bytes, terms: Terms) -> None:
    files.faults = [Fault(cut_after=0)] * 9
    assert "broke the connection off; gave up after 4 attempts" in await refusal(source(files), terms)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("/" + PATH, "redirects without end"),
        ("file:///etc/passwd", "redirects to nowhere"),
        ("", "redirects to nowhere"),
        ("http://[::1", "redirects to nowhere"),
        ("http://h:99999/m.gguf", "redirects to nowhere"),
    ],
)
async def test_a_redirect_that_leads_nowhere_is_one_sentence(
    files: Files, terms: Terms, location: str, said: str
) -> None:
    files.faults = [Fault(status=302, headers={"Location": location})] * 20
    assert said in await refusal(source(files, "elsewhere.gguf"), terms)
