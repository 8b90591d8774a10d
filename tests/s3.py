"""A server of S3 on loopback, with a bucket, and the store's URL for it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from moto.server import ThreadedMotoServer

BUCKET = "things"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    urlopen(Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=10).close()
    yield endpoint
    server.stop()


@pytest.fixture
def s3_url(s3_endpoint: str) -> str:
    """Of a part of the bucket in which there is nothing."""
    return url_at(s3_endpoint, f"{BUCKET}/{secrets.token_hex(4)}")


def url_at(endpoint: str, place: str) -> str:
    return f"s3://testing:secret-of-s3@{place}?endpoint_url={endpoint}&region=us-east-1"
