"""Jobs with images, from the queue through a real engine to their one ending."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image as Pillow

from shared.bus import Bus
from shared.events import Answer, Failure, Text
from shared.jobs import ApplyTemplate, Chat, Completion, Image, Lane, Media, Sampling
from tests.models import write_projector
from tests.worker.crew import WILD, heard_of, queued
from tests.worker.engine.looking import picture, projector_of

MARK = "\ue000a mark of this request\ue001"
GREEDY = Sampling(temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def sighted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of an engine with a projector."""
    path = write_projector(tmp_path_factory.mktemp("models") / "projector.gguf")
    return {"projector": projector_of(path)}


def png(seed: int) -> bytes:
    content = io.BytesIO()
    Pillow.fromarray(picture(seed)).save(content, "PNG")
    return content.getvalue()


def media(*files: bytes) -> Media:
    return Media(mark=MARK, images=tuple(Image(data=base64.b64encode(file).decode()) for file in files))


def completion(*prompts: str, images: tuple[bytes, ...], **more: Any) -> Completion:
    """With an image for each `*` of its prompts."""
    marked = tuple(prompt.replace("*", MARK) for prompt in prompts)
    return Completion(**{"prompts": marked, "media": media(*images), "n_predict": 16, "sampling": GREEDY} | more)


def chat(*contents: str, images: tuple[bytes, ...], **more: Any) -> Chat:
    messages = tuple({"role": "user", "content": content.replace("*", MARK)} for content in contents)
    return Chat(**{"messages": messages, "media": media(*images), "n_predict": 16, "sampling": GREEDY} | more)


async def answer(bus: Bus, request: Completion | Chat) -> Answer:
    [only] = (await heard_of(bus, request)).answers
    return only


async def failure(bus: Bus, request: Completion | Chat) -> Failure:
    heard = await heard_of(bus, request)
    assert heard.finished and heard.finished.failure
    return heard.finished.failure


async def test_prompts_and_chats_see_their_images(bus: Bus, hire: Callable[..., Any], sighted: dict[str, Any]) -> None:
    await hire(**sighted)
    first = await answer(bus, completion("a * b", images=(png(1),)))
    again = await answer(bus, completion("a * b", images=(png(1),)))
    other = await answer(bus, completion("a * b", images=(png(2),)))
    assert first.text == again.text != other.text
    assert (first.prompt, first.prompt_tokens) == ("a <__media__> b", 20)
    assert (again.timings.cache_n, other.timings.cache_n) == (19, 2)
    spoken = await answer(bus, chat("what is *", "and *?", images=(png(1), png(2))))
    assert spoken.prompt == "user: what is <__media__>\nuser: and <__media__>?\n"
    swapped = await answer(bus, chat("what is *", "and *?", images=(png(2), png(1))))
    assert spoken.text != swapped.text


async def test_a_template_is_shown_with_the_mark_of_llamacpp(bus: Bus, hire: Callable[..., Any]) -> None:
    await hire()
    heard = await heard_of(bus, ApplyTemplate(chat=chat("see * and *", images=(png(1), png(2)))))
    assert heard.finished
    [shown] = heard.finished.parts
    assert isinstance(shown, Text) and shown.text == "user: see <__media__> and <__media__>\n"


async def test_images_are_dealt_to_prompts_in_order(
    bus: Bus, hire: Callable[..., Any], sighted: dict[str, Any]
) -> None:
    await hire(**sighted)
    request = completion("a *", "b", "c * d *", images=(png(1), png(2), png(3)), n=2)
    heard = await heard_of(bus, request)
    assert [each.prompt_tokens for each in heard.answers] == [18, 18, 1, 1, 37, 37]
    alone = await answer(bus, completion("c * d *", images=(png(2), png(3))))
    assert heard.answers[4].text == heard.answers[5].text == alone.text


async def test_a_worker_without_a_projector_refuses_images_and_goes_on(bus: Bus, hire: Callable[..., Any]) -> None:
    await hire()
    refusal = await failure(bus, completion("a *", images=(png(1),)))
    assert refusal.code == "not_supported"
    assert refusal.message.startswith("image input is not supported by this model")
    assert "--mmproj" in refusal.message
    assert (await answer(bus, Completion(prompts=("a",), n_predict=2))).text is not None


TOO_LONG = "*" + "ab" * 1020
REFUSALS = [
    (completion("no mark", images=(png(1),)), "invalid_request", "room for 0 of 1 images"),
    (completion("a * b *", images=(png(1),)), "invalid_request", "room for 2 of 1 images"),
    (completion("a * b *", images=(png(1), b"rubbish")), "invalid_request", "image 2 cannot be read as an image"),
    (completion("a * b *", images=(png(1), png(2)[:150])), "invalid_request", "image 2 is damaged"),
    (completion("*" * 130, images=(png(1),) * 130), "exceed_context_size", "with its images"),
    (completion(TOO_LONG, images=(png(1),)), "exceed_context_size", "with its images"),
    (completion(TOO_LONG, images=(png(1),), truncate="blocks"), "exceed_context_size", "with its images"),
]


async def test_what_cannot_be_seen_is_refused_and_the_worker_lives(
    bus: Bus, hire: Callable[..., Any], sighted: dict[str, Any]
) -> None:
    await hire(**sighted)
    for request, code, about in REFUSALS:
        refusal = await failure(bus, request)
        assert refusal.code == code
        assert about in refusal.message
    assert (await answer(bus, completion("a *", images=(png(1),)))).timings.predicted_n == 16


async def test_a_text_behind_an_image_goes_on_after_its_workers_death(
    bus: Bus, hire: Callable[..., Any], sighted: dict[str, Any]
) -> None:
    request = completion("before * behind", images=(png(1),), n_predict=200, sampling=WILD)
    doomed = await hire("doomed", **sighted)
    async with queued(bus, request) as listener:
        await listener.until(lambda: len(listener.tokens[0]) > 20)
        await doomed.kill()
        await hire("heir", **sighted)
        await listener.to_the_end()
    assert listener.finished and listener.finished.worker == "heir"
    assert listener.answers[0].text == (await answer(bus, request)).text
    assert len(listener.answers[0].ids) == 200


async def test_a_text_with_an_image_ends_where_its_context_is_full_and_is_not_shifted(
    bus: Bus, hire: Callable[..., Any], sighted: dict[str, Any]
) -> None:
    await hire(**sighted, n_ctx=256, n_slots=1, context_shift=True)
    full = await answer(bus, completion("a *", images=(png(1),), n_predict=-1, shift=True))
    assert full.truncated and full.prompt_tokens + len(full.ids) == 256


async def test_an_image_of_a_job_that_was_cancelled_is_not_encoded(
    bus: Bus, hire: Callable[..., Any], sighted: dict[str, Any]
) -> None:
    worker = await hire(**sighted)
    vision = worker.engine.vision
    request = completion("* *", images=(png(7), png(8)))
    with vision._turnstile.turn():  # as while another image is encoded
        async with queued(bus, request) as listener:
            while not vision._turnstile._people:  # noqa: ASYNC110 - nobody tells when the first one waits its turn
                await asyncio.sleep(0)
            await bus.queue.cancel(listener.job.id)
            await listener.to_the_end()
    assert listener.finished and listener.finished.status == "cancelled"
    await worker.has_free_slots(4)
    await asyncio.to_thread(worker.puller._image_threads[Lane.INTERACTIVE].shutdown)  # when it is done with both
    assert hashlib.sha256(png(7)).digest() in vision._pictures
    assert hashlib.sha256(png(8)).digest() not in vision._pictures
