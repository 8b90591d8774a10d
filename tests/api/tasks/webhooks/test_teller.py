"""Who is told of which ending: once, whatever happens between the ending and the delivery."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from api.tasks.outbox import bridge
from api.tasks.webhooks.teller import tell
from api.webhooks.signing import new_secret
from shared.batches import Batch
from shared.bus import Bus, open_bus
from shared.errors import BusUnavailable
from shared.events import Finished
from shared.settings import BusSettings
from shared.store import open_store
from shared.webhooks import Delivery, Endpoint, Secret, Webhook
from tests.api.tasks.webhooks.conftest import CUT, SUCCEEDED, Future, Post, ended_job

URL = "https://receiver.test/hook"


async def told(bus: Bus) -> None:
    """What the bridge does with the rows that there are."""
    rows = await bus.outbox.read()
    await tell(bus, rows)
    await bus.outbox.acknowledge(rows)


async def waiting(bus: Bus, endpoint: Endpoint) -> list[Delivery]:
    return await bus.webhooks.take(endpoint.id, 100)


async def types_of(bus: Bus, endpoint: Endpoint) -> list[str]:
    return sorted(delivery.event_type for delivery in await waiting(bus, endpoint))


def a_webhook(**fields: Any) -> Webhook:
    return Webhook(url=URL, secret=Secret(value=new_secret()), **fields)


FAILED = Finished(status="failed")


@pytest.mark.parametrize(
    ("path", "finished", "event_type"),
    [
        ("/completion", SUCCEEDED, "job.succeeded"),
        ("/completion", CUT, "job.succeeded"),
        ("/v1/embeddings", FAILED, "job.failed"),
        ("/completion", None, "job.cancelled"),
        ("/v1/responses", SUCCEEDED, "response.completed"),
        ("/v1/responses", CUT, "response.incomplete"),
        ("/v1/responses", FAILED, "response.failed"),
        ("/v1/responses", None, "response.cancelled"),
    ],
)
async def test_an_end_is_told_as_what_it_is(
    bus: Bus, post: Post, path: str, finished: Finished | None, event_type: str
) -> None:
    endpoint = await post.endpoint(URL)
    job = await ended_job(bus, finished, endpoint=path)
    await told(bus)
    [delivery] = await waiting(bus, endpoint)
    event = json.loads(delivery.body)
    assert (delivery.event_type, event["type"], event["id"]) == (event_type, event_type, delivery.event_id)
    assert event["data"] == {"id": job.id.replace("job_", "resp_") if "responses" in path else job.id}
    record = await bus.queue.record(job.id)
    assert record is not None and record.ended_at is not None
    assert abs(event["created_at"] - record.ended_at) <= 1


async def test_a_batch_is_told_of_to_its_tenant_and_its_own_webhook_also_when_its_record_has_gone(
    bus: Bus, post: Post, future: Future
) -> None:
    endpoint, webhook = await post.endpoint(URL, tenant="t"), a_webhook()
    batch = Batch(
        id=bus.batches.new_id(),
        tenant="t",
        endpoint="/v1/completions",
        input_file_id="file-0_" + "0" * 24,
        completion_window="24h",
        window_s=86400.0,
        webhook=webhook,
    )
    await bus.batches.create(batch)
    [due] = await bus.batches.due()
    hold = await bus.batches.hold(batch.id, due.epoch, 5.0)
    assert hold is not None
    assert await bus.batches.reject(hold, (), 60.0)
    for key in await future.keys("batch:*"):
        await future.client.delete(key)
    await told(bus)
    for each in (endpoint, await bus.webhooks.hidden("t", webhook)):
        [delivery] = await waiting(bus, each)
        assert delivery.event_type == "batch.failed"
        assert json.loads(delivery.body)["data"] == {"id": batch.id}


async def test_only_who_wants_an_event_gets_it(bus: Bus, post: Post) -> None:
    wanting = await post.endpoint(URL, event_types=("job.failed", "response.incomplete"))
    strangers = await post.endpoint(URL, tenant="other")
    for path in ("/completion", "/v1/responses"):
        for finished in (SUCCEEDED, CUT, FAILED, None):
            await ended_job(bus, finished, endpoint=path)
    await told(bus)
    assert await types_of(bus, wanting) == ["job.failed", "response.incomplete"]
    assert await types_of(bus, strangers) == []


async def test_a_webhook_of_a_job_hears_what_it_asked_for_of_that_job_alone(bus: Bus) -> None:
    webhook, choosy = a_webhook(), a_webhook(events=("job.failed",))
    await ended_job(bus, SUCCEEDED, webhook=webhook)
    await ended_job(bus, CUT, webhook=webhook, endpoint="/v1/responses")
    await ended_job(bus, SUCCEEDED, webhook=choosy)
    await ended_job(bus, FAILED, webhook=choosy)
    await ended_job(bus, FAILED)
    await told(bus)
    endpoint = await bus.webhooks.hidden("default", webhook)
    assert (endpoint.url, endpoint.secrets) == (URL, (webhook.secret,))
    assert await types_of(bus, endpoint) == ["job.succeeded", "response.incomplete"]
    assert await types_of(bus, await bus.webhooks.hidden("default", choosy)) == ["job.failed"]


async def test_a_large_answer_that_cannot_be_read_now_holds_nobody_up(
    embedded_settings: BusSettings, bus: Bus, post: Post, tmp_path: Path
) -> None:
    endpoint = await post.endpoint(URL)
    parts = tuple(part.model_copy(update={"text": 300_000 * "x"}) for part in CUT.parts)
    async with open_store(str(tmp_path)) as store, open_bus(embedded_settings, name="sharing", store=store) as sharing:
        await ended_job(sharing, CUT.model_copy(update={"parts": parts}), endpoint="/v1/responses")
        await told(sharing)
        assert await types_of(bus, endpoint) == ["response.incomplete"]
        await ended_job(sharing, CUT.model_copy(update={"parts": parts}), endpoint="/v1/responses")
    await told(bus)  # as one without the store
    assert await types_of(bus, endpoint) == ["response.completed", "response.incomplete"]


async def test_told_twice_it_is_one_delivery_with_the_same_bytes(bus: Bus, post: Post) -> None:
    endpoint, webhook = await post.endpoint(URL), a_webhook()
    await ended_job(bus, webhook=webhook)
    await tell(bus, await bus.outbox.read())  # and then it dies, before it acknowledges
    first = await waiting(bus, endpoint)
    await told(bus)
    await told(bus)
    assert await waiting(bus, endpoint) == first
    assert len(first) == len(await waiting(bus, await bus.webhooks.hidden("default", webhook))) == 1


async def test_a_job_whose_record_has_gone_is_told_of_all_the_same(bus: Bus, post: Post, future: Future) -> None:
    endpoint, webhook = await post.endpoint(URL, tenant="a:b"), a_webhook()
    await ended_job(bus, tenant="a:b", webhook=webhook)
    await ended_job(bus, CUT, tenant="a:b", endpoint="/v1/responses")
    for key in await future.keys("job:*"):
        await future.client.delete(key)
    await told(bus)
    assert await types_of(bus, endpoint) == ["job.succeeded", "response.completed"]
    assert await types_of(bus, await bus.webhooks.hidden("a:b", webhook)) == ["job.succeeded"]


async def test_a_row_of_an_older_version_is_told_from_the_record(bus: Bus, post: Post, future: Future) -> None:
    endpoint = await post.endpoint(URL)
    job = await ended_job(bus)
    [key] = await future.keys("outbox")
    await future.client.delete(key)
    await future.client.xadd(key, {"job": job.id, "status": "succeeded"})
    await told(bus)
    assert await types_of(bus, endpoint) == ["job.succeeded"]


@pytest.mark.parametrize(
    "row",
    [
        {"job": "no id of ours", "status": "succeeded", "tenant": "default", "endpoint": "/completion"},
        {"job": "job_0_1", "status": "done"},
        {"status": "succeeded"},
        {"batch": "batch_0_1", "status": "completed"},
        {"job": "job_0_" + "a" * 24, "status": "failed", "tenant": "default", "webhook": "{}"},
        {"job": b"\xff", "status": "failed"},
    ],
)
async def test_a_row_that_makes_no_sense_keeps_no_other_back(
    bus: Bus, post: Post, future: Future, row: dict[str, Any]
) -> None:
    endpoint = await post.endpoint(URL)
    await ended_job(bus)
    [key] = await future.keys("outbox")
    await future.client.delete(key)
    await future.client.xadd(key, row)
    await ended_job(bus, FAILED)
    await told(bus)
    await told(bus)
    assert await types_of(bus, endpoint) == ["job.failed"]
    assert await future.client.xlen(key) == 0


async def test_rows_are_kept_until_their_deliveries_are(bus: Bus, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_: Any) -> None:
        raise BusUnavailable("away")

    endpoint = await post.endpoint(URL)
    await ended_job(bus)
    with monkeypatch.context() as patched:
        patched.setattr(bus.webhooks, "post", fails)
        with pytest.raises(BusUnavailable):
            await bridge(bus, [tell])
    await told(bus)
    assert await types_of(bus, endpoint) == ["job.succeeded"]


async def test_an_endpoint_that_is_disabled_keeps_what_it_missed(bus: Bus, post: Post) -> None:
    endpoint = await post.endpoint(URL)
    await bus.webhooks.disable(endpoint.id, "for this test")
    await ended_job(bus)
    await told(bus)
    [missed] = (await bus.webhooks.deliveries(endpoint.id)).records
    assert (missed.status, missed.n_attempts) == ("failed", 0)
