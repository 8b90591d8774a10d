"""Requests with images, against a real queue and a scripted worker that sees."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from aiohttp import web
from PIL import Image

from shared.bus import Bus
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker


def png(width: int = 2, height: int = 2) -> str:
    """In base64."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (255, 0, 0)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def png_header(width: int, height: int) -> str:
    """A file that claims to be that large, in base64."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return base64.b64encode(file).decode()


RED, WIDE = png(), png(3, 2)


@pytest.fixture
async def seeing(bus: Bus) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(bus, has_vision=True) as scripted:
        yield scripted


@pytest.fixture
async def sighted(settings: ApiSettings, seeing: ScriptedWorker) -> AsyncIterator[Api]:
    """Fetches nothing."""
    async with serve(settings) as served:
        yield served


@pytest.fixture
async def fetching(settings: ApiSettings, seeing: ScriptedWorker) -> AsyncIterator[Api]:
    """Fetches images, also from this machine."""
    more = {"allow_image_urls": True, "allow_hosts": ("127.0.0.1",), "max_image_mb": 0.01, "max_body_mb": 0.02}
    async with serve(settings.model_copy(update=more)) as served:
        yield served


@pytest.fixture
async def site() -> AsyncIterator[str]:
    """A server whose every path is an image of so many bytes, or of the usual ones; `?once` is gone afterwards."""
    gone = set[str]()

    async def picture(request: web.Request) -> web.Response:
        if request.path in gone:
            return web.Response(status=410)
        if "once" in request.query:
            gone.add(request.path)
        content = base64.b64decode(RED)
        return web.Response(body=content.ljust(int(request.query.get("size", 0)), b"\0"))

    app = web.Application()
    app.router.add_get("/{path:.*}", picture)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    at = web.TCPSite(runner, "127.0.0.1", 0)
    await at.start()
    assert at._server is not None and isinstance(runner.addresses[0], tuple)
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def shows(*urls: str) -> dict[str, Any]:
    """A chat whose user says `see` and shows pictures."""
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "see "}, *parts]}]}


def data_url(file: str) -> str:
    return f"data:image/png;base64,{file}"


async def test_a_worker_gets_images_where_they_stood(sighted: Api) -> None:
    chat = (await sighted.client.post("/v1/chat/completions", json=shows(data_url(RED), data_url(WIDE)))).json()
    assert chat["choices"][0]["message"]["content"] == f"**{RED}{WIDE}"
    tags = {"image_data": [{"id": 5, "data": RED}, {"id": 6, "data": WIDE}]}
    prompts = ["see x [img-6]", "see none", "see [img-5][img-6]"]
    answers = (await sighted.client.post("/completion", json={"prompt": prompts} | tags)).json()
    assert [answer["content"] for answer in answers] == [f"x *{WIDE}", "none", f"**{RED}{WIDE}"]
    prompt = {"prompt_string": "see <__media__>", "multimodal_data": [RED]}
    text = (await sighted.client.post("/v1/completions", json={"prompt": prompt})).json()
    assert text["choices"][0]["text"] == f"*{RED}"


async def test_a_job_with_images_is_answered_like_its_endpoint(sighted: Api, seeing: ScriptedWorker) -> None:
    body = {"prompt": ["see [img-1]", "see b"], "image_data": [{"id": 1, "data": RED}]}
    made = (await sighted.client.post("/v1/jobs", json={"endpoint": "/completion", "body": body})).json()
    await seeing.has_taken(1)
    await seeing.is_idle()
    job = (await sighted.client.get(f"/v1/jobs/{made['id']}")).json()
    assert [answer["content"] for answer in job["result"]] == [f"*{RED}", f"b{RED}"]


async def test_a_key_makes_one_job_of_one_picture_and_no_file_is_kept_with_it(
    sighted: Api, seeing: ScriptedWorker, bus: Bus
) -> None:
    async def make(file: str) -> httpx.Response:
        job = {"endpoint": "/v1/chat/completions", "body": shows(data_url(file))}
        return await sighted.client.post("/v1/jobs", json=job, headers={"Idempotency-Key": "k"})

    made = await make(RED)
    assert [(await make(file)).status_code for file in (RED, WIDE, RED)] == [200, 409, 200]
    await seeing.has_taken(1)
    await seeing.is_idle()
    record = await bus.queue.record(made.json()["id"])
    assert record is not None and record.body is not None and RED not in record.body
    result = (await sighted.client.get(f"/v1/jobs/{record.id}")).json()["result"]
    assert result["choices"][0]["message"]["content"] == f"*{RED}"


BAD_FILES = [
    "!",
    "",
    "AAAA",
    base64.b64encode(b"\x89PNG\r\n\x1a\n").decode(),
    png_header(30_000, 30_000),
    png_header(2**31 - 1, 2**31 - 1),
    base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode(),
]


async def test_what_is_no_image_is_refused_before_it_is_queued(sighted: Api, seeing: ScriptedWorker) -> None:
    for file in BAD_FILES:
        tags = {"prompt": "see [img-1]", "image_data": [{"id": 1, "data": file}]}
        own = {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [file]}}
        for path, body, name in (
            ("/completion", tags, "image_data[0].data"),
            ("/completion", own, "prompt.multimodal_data[0]"),
            ("/v1/chat/completions", shows(data_url(RED), data_url(file)), "messages[0].content[2].image_url.url"),
        ):
            response = await sighted.client.post(path, json=body)
            error = response.json()["error"]
            assert (response.status_code, error["type"]) == (400, "invalid_request_error"), (file, error)
            assert error["message"].startswith(f"Field '{name}': ")
            job = await sighted.client.post("/v1/jobs", json={"endpoint": path, "body": body})
            assert (job.status_code, job.json()["error"]["param"]) == (400, f"body.{name}")
    assert seeing.taken == []


async def test_no_image_is_larger_than_was_set(fetching: Api) -> None:
    large = base64.b64encode(base64.b64decode(RED).ljust(10_001, b"\0")).decode()
    response = await fetching.client.post("/v1/chat/completions", json=shows(data_url(large)))
    assert response.status_code == 400 and "larger than 0.01 MB" in response.text
    often = {"prompt": "[img-1]" * 200, "image_data": [{"id": 1, "data": RED}]}
    response = await fetching.client.post("/completion", json=often)
    assert response.status_code == 400 and "all images together" in response.text


BLIND = [
    ("/v1/chat/completions", shows(data_url(RED))),
    ("/v1/chat/completions", shows("http://127.0.0.1:6379/")),
    ("/apply-template", shows(data_url(RED))),
    ("/completion", {"prompt": "[img-1]", "image_data": [{"id": 1, "data": RED}]}),
    ("/completion", {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [RED]}}),
]


@pytest.mark.parametrize(("path", "body"), BLIND)
async def test_a_model_that_sees_nothing_refuses_images(
    api: Api, worker: ScriptedWorker, path: str, body: dict[str, Any]
) -> None:
    response = await api.client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["type"]) == (501, "not_supported_error")
    assert "image input is not supported" in response.json()["error"]["message"]
    assert worker.taken == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:6379/", "https://example.com/a.png"])
async def test_nothing_is_fetched_unless_it_was_allowed(sighted: Api, seeing: ScriptedWorker, url: str) -> None:
    response = await sighted.client.post("/v1/chat/completions", json=shows(url))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages[0].content[1].image_url.url")
    assert "fetches no images" in error["message"]
    assert seeing.taken == []


async def test_an_image_is_fetched_where_it_was_allowed(fetching: Api, site: str) -> None:
    body = shows(f"{site}/a.png", data_url(WIDE), f"{site}/b.png")
    answer = (await fetching.client.post("/v1/chat/completions", json=body)).json()
    assert answer["choices"][0]["message"]["content"] == f"***{RED}{WIDE}{RED}"


async def test_a_job_that_is_said_again_needs_its_image_no_more(fetching: Api, site: str) -> None:
    key = {"Idempotency-Key": "k"}

    async def make(url: str) -> httpx.Response:
        job = {"endpoint": "/v1/chat/completions", "body": shows(url)}
        return await fetching.client.post("/v1/jobs", json=job, headers=key)

    first, again, other = [await make(f"{site}/{path}") for path in ("a.png?once", "a.png?once", "b.png?once")]
    assert (first.status_code, again.status_code, other.status_code) == (202, 200, 409)
    assert again.json()["id"] == first.json()["id"]


async def test_what_is_fetched_is_bounded_one_by_one_and_together(fetching: Api, site: str) -> None:
    async def refusal(*urls: str) -> str:
        response = await fetching.client.post("/v1/chat/completions", json=shows(*urls))
        assert response.status_code == 400, response.text
        return str(response.json()["error"]["message"])

    assert "larger than 0.01 MB" in await refusal(f"{site}/a?size=10001")
    assert "[2].image_url.url': what" in await refusal(f"{site}/a?size=9000", f"{site}/b?size=9000")
    assert "at most 16 images are fetched" in await refusal(*[f"{site}/a"] * 17)
    assert "may not be asked from here" in await refusal("http://127.0.0.2:6379/")
