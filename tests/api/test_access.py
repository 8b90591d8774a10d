"""Who may come in, and what every answer carries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders

from api.app import ROUTES
from api.cors import Cors
from api.keys import Keys, keys_of
from api.port.connection import MAX_HEAD
from shared.errors import Unauthenticated
from shared.settings import ApiSettings, ConfigError
from tests.api.conftest import Api, serve
from tests.api.raw import connected
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


PROBES = ("/health", "/v1/health", "/ready", "/live")
PATHS = sorted({route.path for route in ROUTES})
SPELLINGS = ("{}", "{}/", "/{}", "{}?x=1", "/v1/..{}", "/health/..{}", "http://elsewhere{}", "{}%2f", "/.{}", "{};x")


async def test_c49_every_path_but_the_probes_needs_a_key(guarded: Api) -> None:
    assert set(PROBES) < set(PATHS) and len(PATHS) > 30
    for path in PATHS:
        for method in ("GET", "POST", "HEAD", "DELETE", "PUT", "TRACE"):
            response = await guarded.client.request(method, path)
            if path in PROBES:
                assert response.status_code in (200, 405)
            else:
                assert response.status_code == 401, (method, path)
                assert method == "HEAD" or response.json()["error"]


async def test_c49_no_odd_spelling_opens_a_path(guarded: Api) -> None:
    odd = [spelling.format(path) for path in PATHS for spelling in SPELLINGS]
    odd += [path.upper() for path in PATHS] + ["/%68ealth/x", "/docs", "/openapi.json", "/no", "/", "*"]
    async with connected(guarded.url) as raw:
        for path in odd:
            raw.send(f"GET {path.replace('{', '').replace('}', '')} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answer = await raw.answer()
            is_probe = path.partition("?")[0].removeprefix("http://elsewhere") in PROBES
            assert answer.status == (200 if is_probe else 401), path
            assert is_probe or b"Invalid API Key" in answer.content


async def test_c49_with_a_key_an_odd_spelling_is_not_found(guarded: Api) -> None:
    async with connected(guarded.url) as raw:
        for path in ("//slots", "/slots/", "/SLOTS", "/v1/../slots", "/health/../slots", "/%2fslots", "/slots%2f", "*"):
            raw.send(f"GET {path} HTTP/1.1\r\nX-Api-Key: {KEY}\r\n\r\n".encode())
            answer = await raw.answer()
            assert (answer.status, answer.error["message"]) == (404, "File Not Found"), path


@pytest.mark.parametrize(
    "header",
    [
        f"Authorization: Bearer {KEY}\r\nAuthorization: Bearer {KEY}",
        f"Authorization: Bearer {KEY}\tx",
        f"Authorization: Bearer\t{KEY}",
        f"Authorization: Bearer {KEY[:-1]}",
        f"Authorization: Bearer  {KEY}",
        "Authorization: Bearer",
        "Authorization:",
        f"Cookie: key={KEY}",
    ],
)
async def test_c21_a_wrong_key_is_refused_over_the_wire(guarded: Api, header: str) -> None:
    async with connected(guarded.url) as raw:
        raw.send(f"GET /slots HTTP/1.1\r\n{header}\r\n\r\n".encode())
        answer = await raw.answer()
    assert (answer.status, answer.error["message"]) == (401, "Invalid API Key")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("end", [b"\n\r\n\r\n", b"\r\r\n\r\n", b"\x00\r\n\r\n", b"\x7f\r\n\r\n"])
async def test_c21_a_key_with_what_no_header_may_have_opens_nothing(guarded: Api, end: bytes) -> None:
    async with connected(guarded.url) as raw:
        raw.send(f"GET /slots HTTP/1.1\r\nAuthorization: Bearer {KEY}".encode() + end)
        assert (await raw.answer()).status in (400, 401)


async def test_c21_spaces_around_a_header_are_not_of_the_key(guarded: Api) -> None:
    async with connected(guarded.url) as raw:
        raw.send(f"GET /slots HTTP/1.1\r\nAuthorization: \t Bearer {KEY} \t\r\n\r\n".encode())
        assert (await raw.answer()).status == 200


async def test_a_file_brings_more_keys(settings: ApiSettings, worker: ScriptedWorker, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"\ufeff# ours\n one \n\n{OTHER}\r\n#off\n")
    more = {"api_key": (SecretStr(KEY),), "api_key_file": file}
    async with serve(settings.model_copy(update=more)) as api:
        for key, status in ((KEY, 200), ("one", 200), (OTHER, 200), ("#off", 401), ("off", 401), ("", 401)):
            response = await api.client.get("/slots", headers={"X-Api-Key": key.encode()})
            assert response.status_code == status, key


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"# none\n\n", "has no key in it"), (b"\xff\xfe", "is not UTF-8 text"), (None, "no such file")],
)
def test_a_file_without_a_key_opens_no_door(
    settings: ApiSettings, tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"--api-key-file: .*{said}"):
        keys_of(settings.model_copy(update={"api_key_file": file}))


async def test_below_a_prefix_is_all_and_beside_it_nothing(settings: ApiSettings, worker: ScriptedWorker) -> None:
    keyed = settings.model_copy(update={"api_prefix": "/llm/v2", "api_key": (SecretStr(KEY),)})
    async with serve(keyed) as api, connected(api.url) as raw:
        for path, status, with_key in (
            ("/llm/v2/health", 200, 200),
            ("/health", 401, 404),
            ("/llm/v2/slots", 401, 200),
            ("/slots", 401, 404),
            ("/llm/v2slots", 401, 404),
            ("/llm/v2", 401, 404),
            ("/llm/v2/llm/v2/health", 401, 404),
            ("/llm%2fv2/slots", 401, 200),
        ):
            for header, expected in (("", status), (f"X-Api-Key: {KEY}\r\n", with_key)):
                raw.send(f"GET {path} HTTP/1.1\r\n{header}\r\n".encode())
                assert (await raw.answer()).status == expected, (path, header)
        of_openai, of_ollama = [(await api.client.get(path)).json()["error"] for path in ("/v1/models", "/api/tags")]
        assert of_openai["param"] is None and of_ollama == "Invalid API Key", "each family is refused in its own form"
        api.client.headers["X-Api-Key"] = KEY
        body = {"prompt": "say a"}
        assert (await api.client.post("/completion", json=body)).json()["content"] == "a"
        job = (await api.client.post("/v1/jobs", json={"endpoint": "/completion", "body": body})).json()
        assert (await api.client.get(f"/v1/jobs/{job['id']}")).json()["endpoint"] == "/completion"
        assert "param" in (await api.client.get("/v1/no")).json()["error"]
        # So are they who are refused before any route is looked at: by their key, or by their HTTP.
        for wrong in (f"X-Api-Key: {OTHER}", "X: " + "x" * MAX_HEAD):
            raw.send(f"GET /llm/v2/v1/models HTTP/1.1\r\n{wrong}\r\n\r\n".encode())
            assert "param" in (await raw.answer()).error


@pytest.mark.parametrize(
    ("origins", "allowed", "refused"),
    [
        ("*", "http://page null https://a.b:1", ""),
        ("localhost", "http://localhost:3000 https://127.0.0.1 http://[::1]:8", "http://localhost.evil x http://["),
        ("https://a.b https://c.d:8", "https://a.b https://c.d:8", "http://a.b https://c.d https://a.b.c null"),
    ],
)
def test_an_origin_is_echoed_where_its_page_may_read(origins: str, allowed: str, refused: str) -> None:
    for origin in f"{allowed} {refused}".split():
        headers = MutableHeaders()
        Cors(origins.split()).mark(headers, origin)
        assert headers.get("access-control-allow-origin") == (origin if origin in allowed.split() else None)
        assert headers["vary"] == "Origin"


async def test_c05_c09_c59_a_page_may_read_errors_and_streams_too(guarded: Api) -> None:
    page = {"Origin": "http://page"}
    keyed = page | {"X-Api-Key": KEY}
    answers = [
        await guarded.client.get("/slots", headers=page),
        await guarded.client.get("/no", headers=keyed),
        await guarded.client.put("/slots", headers=keyed),
        await guarded.client.post("/completion", headers=keyed, content=b'{"prompt": NaN}'),
        await guarded.client.post("/completion", headers=keyed, content=b"x" * 30_000),
        await guarded.client.post("/completion", headers=keyed, json={"prompt": "say a", "stream": True}),
    ]
    assert [answer.status_code for answer in answers] == [401, 404, 405, 400, 413, 200]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == "http://page"
        assert answer.headers["server"] == "slotstream"
        assert answer.headers["date"]


async def test_c15_f_fast_connects_and_disconnects_leave_nothing(
    api: Api, worker: ScriptedWorker, settings: ApiSettings
) -> None:
    body = b'{"prompt":"hold a|b","stream":true}'
    ask = b"POST /completion HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    await api.client.post("/completion", json={"prompt": "say a"})
    with redis.Redis.from_url(settings.redis_url.get_secret_value(), decode_responses=True) as server:
        before = len(server.client_list())
        for place in range(50):
            async with connected(api.url) as raw:
                raw.send(ask[: [0, 10, len(ask) - 5, len(ask)][place % 4]])
                if place % 8 == 7:
                    await raw.reader.readuntil(b"\r\n\r\n")
        state = api.server.server_state
        async with asyncio.timeout(10):
            while state.connections or state.tasks:  # noqa: ASYNC110 - the server sets no event
                await asyncio.sleep(0.01)
        await worker.is_idle()
        async with asyncio.timeout(10):
            while server.pubsub_channels(f"{settings.namespace}:*live*"):  # noqa: ASYNC110 - nor does this one
                await asyncio.sleep(0.01)
        assert len(server.client_list()) <= before
    assert worker.cancelled and all(cancelled.is_set() for cancelled in worker.cancelled.values())


async def test_a_stream_keeps_nothing_of_the_routes_that_led_to_it(api: Api, worker: ScriptedWorker) -> None:
    body = {"prompt": "hold a|b", "stream": True}
    async with api.client.stream("POST", "/completion", json=body) as response:
        await anext(response.aiter_lines())
        waiting = [" ".join(files_of(task)) for task in asyncio.all_tasks()]
        streaming = [files for files in waiting if "api/access.py" in files and "api/relay.py" in files]
        assert len(streaming) == 1 and "routing.py" not in streaming[0]
        worker.go.set()


def files_of(task: asyncio.Task[Any]) -> Iterator[str]:
    """Where the code stands that a task waits in."""
    waits: Any = task.get_coro()
    while waits is not None and hasattr(waits, "cr_code"):
        yield waits.cr_code.co_filename
        waits = waits.cr_await


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
