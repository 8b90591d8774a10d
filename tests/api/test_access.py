"""Who may come in, and what every answer carries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.datastructures import Headers

from api.app import ROUTES
from api.keys import Keys
from shared.errors import Unauthenticated
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker

KEY, OTHER = "sesame", "ключ"


@pytest.fixture
async def guarded(settings: ApiSettings, worker: ScriptedWorker) -> AsyncIterator[Api]:
    keys = (SecretStr(KEY), SecretStr(OTHER))
    async with serve(settings.model_copy(update={"api_key": keys, "max_body_mb": 0.01})) as served:
        yield served


def tenant(*headers: tuple[str, str | bytes]) -> str:
    """The tenant that these headers name, as they would come over the wire."""
    raw = [(n.lower().encode(), v.encode("latin-1") if isinstance(v, str) else v) for n, v in headers]
    return Keys((SecretStr(KEY), SecretStr(OTHER))).tenant_of(Headers(raw=raw))


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer ")],
        [("Authorization", f"Bearer  {KEY}")],
        [("Authorization", f"Basic {KEY}")],
        [("Authorization", KEY)],
        [("Authorization", f"Bearer {KEY[:-1]}")],
        [("Authorization", f"Bearer {KEY}x")],
        [("Authorization", f"Bearer {KEY}\n")],
        [("Authorization", "Bearer ключевой".encode())],
        [("Authorization", b"Bearer \xff\xfe")],
        [("Authorization", f"Bearer {KEY}"), ("Authorization", f"Bearer {KEY}")],
        [("Authorization", "Bearer x"), ("X-Api-Key", KEY)],
        [("X-Api-Key", "x")],
        [("X-Api-Key", "")],
        [("X-Api-Key", KEY), ("X-Api-Key", KEY)],
    ],
    ids=str,
)
def test_a_wrong_key_opens_nothing(headers: list[tuple[str, str | bytes]]) -> None:
    with pytest.raises(Unauthenticated, match="Invalid API Key"):
        tenant(*headers)


@pytest.mark.parametrize(
    "header",
    [
        ("Authorization", f"Bearer {KEY}"),
        ("Authorization", f"bearer {KEY}"),
        ("Authorization", f"BEARER {KEY}"),
        ("X-Api-Key", KEY),
        ("Authorization", f"Bearer {OTHER}".encode()),
    ],
    ids=str,
)
def test_a_right_key_names_its_tenant(header: tuple[str, str | bytes]) -> None:
    assert tenant(header).startswith("key-")


def test_each_key_is_a_tenant_whose_name_does_not_tell_it() -> None:
    one, two = tenant(("X-Api-Key", KEY)), tenant(("X-Api-Key", OTHER.encode()))
    assert one != two and KEY not in one
    assert Keys(()).tenant_of(Headers()) == "default"


async def test_a_wrong_key_is_an_error_object(guarded: Api) -> None:
    for value in (b"Bearer x", b"Bearer \xff\xfe", "Bearer ключ".encode("cp1251"), b"Basic x"):
        response = await guarded.client.get("/v1/models", headers={"Authorization": value})
        assert response.status_code == 401
        error = response.json()["error"]
        assert (error["code"], error["type"]) == (401, "authentication_error")
    right = await guarded.client.get("/v1/models", headers={"Authorization": f"bearer {KEY}"})
    assert right.status_code == 200


async def test_every_path_but_the_probes_needs_a_key(guarded: Api) -> None:
    for path in sorted({route.path for route in ROUTES}):
        for method in ("GET", "POST", "HEAD", "DELETE"):
            response = await guarded.client.request(method, path)
            if path in ("/health", "/v1/health", "/ready", "/live"):
                assert response.status_code in (200, 405)
            else:
                assert response.status_code == 401, (method, path)


async def test_no_odd_spelling_opens_a_path(guarded: Api) -> None:
    paths = ["//slots", "/slots/", "/SLOTS", "/v1/../slots", "/health/../slots", "/docs", "/openapi.json", "/no", "/"]
    for path in [*paths, "/health/", "/health%2f", "/%68ealth/x"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(guarded.url).port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 401 "), path


async def test_an_unknown_path_is_llamacpps_error(api: Api) -> None:
    response = await api.client.get("/no/such")
    assert response.status_code == 404
    assert response.json() == {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}


async def test_a_preflight_is_answered_on_every_path_without_a_key(guarded: Api) -> None:
    for path in ("/completion", "/no/such", "/health"):
        response = await guarded.client.options(path, headers={"Origin": "http://page"})
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "http://page"
        assert response.headers["access-control-allow-credentials"] == "true"
        assert "POST" in response.headers["access-control-allow-methods"]
        assert response.headers["access-control-allow-headers"] == "*"


async def test_every_answer_echoes_its_origin_and_has_a_request_id(guarded: Api) -> None:
    for path in ("/health", "/no/such", "/v1/models"):
        response = await guarded.client.get(path, headers={"Origin": "http://page", "X-Request-Id": "mine-1"})
        assert response.headers["access-control-allow-origin"] == "http://page"
        assert response.headers["vary"] == "Origin"
        assert response.headers["x-request-id"] == "mine-1"
        plain = await guarded.client.get(path)
        assert "access-control-allow-origin" not in plain.headers
        assert plain.headers["x-request-id"].startswith("req_")


async def test_an_odd_request_id_is_replaced(api: Api) -> None:
    odd: list[Any] = ["", "a b", "x" * 200, "ü".encode()]
    for value in odd:
        response = await api.client.get("/health", headers={"X-Request-Id": value})
        assert response.headers["x-request-id"].startswith("req_")


async def test_a_body_too_large_is_refused_by_its_length(guarded: Api) -> None:
    response = await guarded.client.post("/completion", content=b"x" * 20_000, headers={"X-Api-Key": KEY})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == 413


async def test_a_body_too_large_is_refused_while_it_comes_in(guarded: Api) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 1000

    response = await guarded.client.post("/completion", content=endless(), headers={"X-Api-Key": KEY})
    assert response.status_code == 413


async def test_json_is_json_whatever_its_type_says(api: Api) -> None:
    body = json.dumps({"prompt": "say é"}, ensure_ascii=False).encode()
    for kind in ("text/plain", "application/json; charset=latin-1", "nonsense"):
        response = await api.client.post("/completion", content=body, headers={"Content-Type": kind})
        assert response.json()["content"] == "é"


async def test_a_client_that_expects_a_go_ahead_gets_it(api: Api) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(api.url).port)
    body = b'{"prompt":"say a"}'
    writer.write(
        b"POST /completion HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n"
        + b"Content-Length: %d\r\n\r\n" % len(body)
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 100")
    writer.write(body)
    assert b'"content":"a"' in await reader.read()
    writer.close()
