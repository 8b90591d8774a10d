"""What is true of a store behind a URL alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from urllib.request import urlopen

import pytest
from structlog.testing import capture_logs

from shared.errors import StoreUnavailable
from shared.settings import ConfigError
from shared.store import open_store
from tests.s3 import BUCKET, url_at


async def test_two_processes_see_each_others_changes_at_once(s3_url: str) -> None:
    async with open_store(s3_url) as one, open_store(s3_url) as other:
        await one.put("files/a", b"1")
        assert [name async for name, _ in other.names()] == ["files/a"]
        await one.put("files/b", b"1")
        await one.delete(["files/a"])
        assert [name async for name, _ in other.names()] == ["files/b"]
        await one.put("files/b", b"22")
        assert await other.size("files/b") == 2


async def test_what_is_broken_off_takes_no_room_there(s3_url: str, s3_endpoint: str) -> None:
    async with open_store(s3_url) as store:
        with pytest.raises(ZeroDivisionError):
            async with store.writing("files/a") as writer:
                await writer.write(b"x" * (11 << 20))
                raise ZeroDivisionError
    assert b"<UploadId>" not in await asyncio.to_thread(uploads, s3_endpoint)


def uploads(endpoint: str) -> bytes:
    """What S3 has of objects that are not whole."""
    with urlopen(f"{endpoint}/{BUCKET}?uploads", timeout=10) as reply:
        listing: bytes = reply.read()
    return listing


async def test_a_server_that_is_away_is_said_in_one_sentence_without_secrets() -> None:
    async with open_store(url_at("http://127.0.0.1:9", BUCKET)) as store:
        started = time.monotonic()
        with (
            capture_logs() as logs,
            pytest.raises(StoreUnavailable, match=r"^The store of files cannot be reached now\.$"),
        ):
            await store.put("files/a", b"x")
        assert time.monotonic() - started < 10
    assert "secret-of-s3" not in str(logs)


async def test_a_bucket_that_is_not_there_is_said_in_one_sentence(s3_endpoint: str) -> None:
    async with open_store(url_at(s3_endpoint, "no-such-bucket/x")) as store:
        with pytest.raises(StoreUnavailable, match="has no such bucket"):
            await store.put("files/a", b"x")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://", "names no bucket"),
        ("s3://key:secret@", "names no bucket"),
        ("nonsense://key:secret@place", "no such kind of store as nonsense://"),
        ("memory://place", "not the same for all processes"),
        ("gs://bucket/prefix", r"gs:// needs a package that is not installed"),
        ("s3://key:secret@bucket?nonsense", "cannot be read as a URL"),
        ("s3://key:secret@[bucket", "cannot be read as a URL"),
    ],
)
async def test_a_url_that_will_not_do_is_one_sentence_that_names_the_setting(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^--store-url: .*{why}") as refused:
        async with open_store(url):
            pass
    assert "secret" not in str(refused.value)


def test_without_the_package_for_s3_it_is_named() -> None:
    program = """
import sys
sys.modules["s3fs"] = None
from shared.settings import ConfigError
from shared.store.remote import Remote
try:
    Remote("s3://bucket")
except ConfigError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "slotstream[s3]" in said.stdout
