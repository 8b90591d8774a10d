"""Images (C46): refused by a model that sees none, and seen by one that does."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from tests.end_to_end.asking import answer, post, refusal
from tests.stack import Stack, follow, make_job

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"


def png(color: tuple[int, int, int]) -> str:
    """In base64."""
    file = io.BytesIO()
    Image.new("RGB", (40, 40), color).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def png_header(width: int, height: int) -> str:
    """A file that claims to be that large and has no pixel, in base64."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return base64.b64encode(file).decode()


RED, BLUE = png((255, 0, 0)), png((0, 0, 255))
TRUNCATED = base64.b64encode(base64.b64decode(RED)[:-30]).decode()


def data_url(file: str) -> str:
    return f"data:image/png;base64,{file}"


def shows(*urls: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    message = {"role": "user", "content": [{"type": "text", "text": "see"}, *parts]}
    return {"model": "tiny", "messages": [message], "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}


def tagged(prompt: Any, *files: str, **more: Any) -> dict[str, Any]:
    images = [{"id": number, "data": file} for number, file in enumerate(files, 1)]
    return {
        "model": "tiny",
        "prompt": prompt,
        "image_data": images,
        "n_predict": 8,
        "temperature": 0,
        "ignore_eos": True,
        "return_tokens": True,
        **more,
    }


C46 = [
    data_url(RED),
    "data:,",
    data_url("!!!"),
    data_url(TRUNCATED),
    data_url(png_header(30_000, 30_000)),
    "http://127.0.0.1:6379/",
    "http://169.254.169.254/latest/meta-data/",
    "file:///etc/passwd",
]


@pytest.mark.parametrize("url", C46, ids=lambda url: url[:30])
async def test_c46_a_text_model_refuses_every_image(served: Stack, url: str) -> None:
    for body in (shows(url), shows(url, stream=True)):
        response = await post(served, CHAT, body)
        assert response.status_code in (400, 501)
    job = await post(served, "/v1/jobs", {"endpoint": CHAT, "body": shows(url)})
    assert job.status_code in (400, 501)


async def test_c46_a_text_model_refuses_tagged_images_and_tags_of_none(served: Stack) -> None:
    assert (await post(served, "/completion", tagged("[img-1]", RED))).status_code == 501
    assert "invalid image index: 2" in (await refusal(served, tagged("[img-2]", RED)))["message"]
    own = {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [RED]}}
    assert (await post(served, "/completion", own)).status_code == 501
    assert (await answer(served, tagged("[img-1] is text", n_predict=1)))["tokens_predicted"] == 1


async def words(stack: Stack, body: dict[str, Any]) -> list[int]:
    return list((await answer(stack, body))["tokens"])


async def test_what_is_said_of_an_image_depends_on_it_and_on_its_place(specialists: Stack) -> None:
    red = await words(specialists, tagged("see [img-1] well", RED))
    assert red == await words(specialists, tagged("see [img-1] well", RED))
    others = [
        await words(specialists, tagged("see [img-1] well", BLUE)),
        await words(specialists, tagged("see well [img-1]", RED)),
        await words(specialists, tagged("see [img-1][img-2] well", RED, BLUE)),
        await words(specialists, tagged("see [img-2][img-1] well", RED, BLUE)),
    ]
    assert len({tuple(each) for each in [red, *others]}) == 5


async def test_all_ways_to_show_an_image_show_it(specialists: Stack) -> None:
    by_tag = await words(specialists, tagged("see [img-7] well", *[BLUE] * 6, RED))
    own = {"prompt_string": "see <__media__> well", "multimodal_data": [RED]}
    assert await words(specialists, tagged(own)) == by_tag
    body = tagged(["see [img-1] well", "none", own], RED)
    answers = (await post(specialists, "/completion", body)).json()
    assert answers[0]["tokens"] == answers[2]["tokens"] == by_tag
    _, job = await follow(specialists, await make_job(specialists, body))
    assert [each["tokens"] for each in job["result"]] == [each["tokens"] for each in answers]


async def test_a_chat_sees_its_images_in_their_order(specialists: Stack) -> None:
    async def said(*urls: str) -> str:
        answered = await answer(specialists, shows(*urls), CHAT)
        return str(answered["choices"][0]["message"]["content"])

    both = await said(data_url(RED), data_url(BLUE))
    assert both == await said(data_url(RED), data_url(BLUE)) != await said(data_url(BLUE), data_url(RED))
    shown = await answer(specialists, shows(data_url(RED)), "/apply-template")
    assert shown["prompt"].count("see<__media__>") == 1


async def test_c46_a_model_that_sees_refuses_what_is_no_image_and_goes_on(specialists: Stack) -> None:
    for url in C46[1:]:
        error = await refusal(specialists, shows(url), CHAT)
        assert error["type"] == "invalid_request_error", url
    assert await words(specialists, tagged("[img-1]", RED))
