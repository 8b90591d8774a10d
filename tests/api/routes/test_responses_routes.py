"""Responses over HTTP, against a real queue and a scripted worker: kept, followed, picked up and let go."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import redis
from pydantic import SecretStr

from shared.bus import Bus, Chunk, Verdict, Wanted
from shared.events import Finished
from shared.jobs import JobStatus
from shared.settings import ApiSettings
from tests.api.conftest import Api, RedisProcess, serve
from tests.api.scripted_worker import ScriptedWorker
from tests.api.sse_lines import Event, events


async def make(api: Api, input: str, **more: Any) -> dict[str, Any]:
    response = await api.client.post("/v1/responses", json={"input": input, **more})
    assert response.status_code == 200, response.text
    assert response.headers["x-job-id"] == response.json()["id"].replace("resp_", "job_")
    return dict(response.json())


async def get(api: Api, response_id: str, **more: Any) -> dict[str, Any]:
    response = await api.client.get(f"/v1/responses/{response_id}", **more)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def follow(api: Api, response_id: str, after: int | None = None) -> list[Event]:
    query = "" if after is None else f"&starting_after={after}"
    response = await api.client.get(f"/v1/responses/{response_id}?stream=true{query}")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response.text.splitlines())


async def start(api: Api, input: str, n_events: int, **more: Any) -> list[Event]:
    """The first events of a stream, which is cut behind them."""
    lines: list[str] = []
    body = {"input": input, "stream": True, **more}
    async with api.client.stream("POST", "/v1/responses", json=body) as response:
        async for line in response.aiter_lines():
            lines.append(line)
            if len(events([*lines, ""])) == n_events and not line:
                return events(lines)
    raise AssertionError("the stream ended before")


def refused(response: httpx.Response) -> tuple[int, str | None]:
    error = response.json()["error"]
    assert error["code"] == response.status_code
    return response.status_code, error["param"]


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
async def test_an_answer_can_be_asked_for_again_word_for_word(api: Api, path: str) -> None:
    made = (await api.client.post(path, json={"input": "say a|b"})).json()
    assert (made["status"], made["output"][0]["content"][0]["text"]) == ("completed", "ab")
    assert (await api.client.get(f"{path}/{made['id']}")).json() == made
    assert await follow(api, made["id"]) == events(
        (await api.client.get(f"{path}/{made['id']}?stream=true")).text.splitlines()
    )


async def test_a_stream_is_told_again_event_for_event(api: Api) -> None:
    heard = events(await api.stream("/v1/responses", {"input": "say a|b|c"}))
    response = heard[-1].data["response"]
    assert await follow(api, response["id"]) == heard
    assert await get(api, response["id"]) == response


async def test_times_are_the_queues_and_not_of_who_happened_to_answer(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = SimpleNamespace(time=lambda: 5.0, monotonic=time.monotonic)
    monkeypatch.setattr("api.relay.time", wrong)
    made = await make(api, "say a")
    assert made == await get(api, made["id"])
    assert made["completed_at"] >= made["created_at"] > 5


async def test_an_answer_that_is_not_to_be_stored_is_not(api: Api, bus: Bus) -> None:
    made = await make(api, "say a", store=False)
    assert made["store"] is False
    assert (await api.client.get(f"/v1/responses/{made['id']}")).status_code == 404
    heard = events(await api.stream("/v1/responses", {"input": "say a", "store": False}))
    assert heard[-1].name == "response.completed"


async def test_in_the_background_the_answer_comes_at_once_and_what_was_asked_later(
    api: Api, worker: ScriptedWorker
) -> None:
    made = await make(api, "hold a|b", background=True, metadata={"who": "me"})
    assert (made["status"], made["output"], made["background"]) == ("queued", [], True)
    await worker.has_taken(1)
    assert (await get(api, made["id"]))["status"] in ("queued", "in_progress")
    worker.go.set()
    heard = await follow(api, made["id"])
    done = await get(api, made["id"])
    assert heard[-1].data["response"] == done
    assert (done["status"], done["metadata"], done["created_at"]) == ("completed", {"who": "me"}, made["created_at"])


async def test_the_background_waits_for_a_worker_and_others_do_not(settings: ApiSettings, bus: Bus) -> None:
    async with ScriptedWorker(bus):
        pass  # its model is known from now on
    async with serve(settings) as api:
        made = await make(api, "say a", background=True)
        assert (await api.client.post("/v1/responses", json={"input": "say a"})).status_code == 503
        async with ScriptedWorker(bus):
            assert (await follow(api, made["id"]))[-1].name == "response.completed"


@pytest.mark.parametrize("n_events", [1, 2, 3, 6])
async def test_a_cut_background_stream_is_picked_up_where_it_was(
    api: Api, worker: ScriptedWorker, n_events: int
) -> None:
    first = await start(api, "hold a|b|c", n_events, background=True)
    assert [event.data["sequence_number"] for event in first] == list(range(n_events))
    worker.go.set()
    response_id = first[0].data["response"]["id"]
    rest = await follow(api, response_id, after=n_events - 1)
    assert first + rest == await follow(api, response_id)
    assert rest[-1].name == "response.completed"
    assert await follow(api, response_id, after=rest[-1].data["sequence_number"]) == []


async def test_a_second_reader_joins_a_stream_that_runs(api: Api, worker: ScriptedWorker) -> None:
    made = await make(api, "hold a|b", background=True)
    reading = asyncio.create_task(follow(api, made["id"]))
    others = asyncio.create_task(follow(api, made["id"], after=1))
    await worker.has_taken(1)
    worker.go.set()
    assert (await reading)[2:] == await others


async def test_a_look_at_the_headers_of_a_stream_waits_for_nothing(api: Api, worker: ScriptedWorker) -> None:
    made = await make(api, "hold a|b", background=True)
    response = await api.client.head(f"/v1/responses/{made['id']}?stream=true")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert (await get(api, made["id"]))["status"] in ("queued", "in_progress")


@pytest.mark.parametrize("query", ["starting_after=x", "starting_after=-1", "starting_after=1.5", "starting_after="])
async def test_a_garbled_cursor_is_refused(api: Api, query: str) -> None:
    made = await make(api, "say a")
    response = await api.client.get(f"/v1/responses/{made['id']}?stream=true&{query}")
    assert refused(response) == (400, "starting_after")


async def test_other_parameters_are_let_through_however_often_they_are_given(api: Api) -> None:
    made = await make(api, "say a")
    query = "include[]=a&include[]=b&include_obfuscation=false"
    assert (await api.client.get(f"/v1/responses/{made['id']}?{query}")).json() == made
    assert refused(await api.client.get(f"/v1/responses/{made['id']}?stream=maybe")) == (400, "stream")


@pytest.mark.parametrize("is_taken", [False, True])
async def test_cancelling_says_so_at_once_and_twice_is_the_same(
    api: Api, worker: ScriptedWorker, is_taken: bool
) -> None:
    if not is_taken:
        for _ in range(worker.n_slots):
            await make(api, "hold x|y", background=True)
        await worker.has_taken(worker.n_slots)
    made = await make(api, "hold a|b", background=True)
    if is_taken:
        await worker.has_taken(1)
    first, second = [await api.client.post(f"/v1/responses/{made['id']}/cancel") for _ in range(2)]
    assert first.json()["status"] == "cancelled" and first.json()["error"] is None
    assert first.json() == second.json() == await get(api, made["id"])
    assert (await follow(api, made["id"]))[-1].data["response"] == first.json()


async def test_cancelling_waits_for_the_worker_to_stop(settings: ApiSettings, bus: Bus) -> None:
    async with ScriptedWorker(bus):
        pass  # its model is known from now on
    async with serve(settings) as api:
        made = await make(api, "say a", background=True)
        [claimed] = await bus.queue.claim("slow", "tiny", Wanted(0, 1, 1))
        cancelling = asyncio.create_task(api.client.post(f"/v1/responses/{made['id']}/cancel"))
        while await bus.queue.append([Chunk(claimed.lease, 1)]) != [Verdict.CANCEL]:
            assert not cancelling.done()
        response = await get(api, made["id"])  # who asks meanwhile is answered
        assert response["status"] == "in_progress" and not cancelling.done()
        await bus.queue.finish(claimed.lease, Finished(status="cancelled"), 1)
        assert (await cancelling).json()["status"] == "cancelled"


async def test_a_cancelled_stream_ends_and_says_that_it_was(api: Api, worker: ScriptedWorker) -> None:
    made = await make(api, "hold a|b", background=True)
    reading = asyncio.create_task(follow(api, made["id"]))
    await worker.has_taken(1)
    cancelled = (await api.client.post(f"/v1/responses/{made['id']}/cancel")).json()
    last = (await reading)[-1]
    assert (last.name, last.data["response"]) == ("response.failed", cancelled)


async def test_only_the_background_is_cancelled_and_what_has_ended_stays(api: Api) -> None:
    made = await make(api, "say a")
    assert (await api.client.post(f"/v1/responses/{made['id']}/cancel")).status_code == 400
    made = await make(api, "say a", background=True)
    done = (await follow(api, made["id"]))[-1].data["response"]
    assert (await api.client.post(f"/v1/responses/{made['id']}/cancel")).json() == done


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_goes_away_cancels_what_it_waited_for(
    api: Api, worker: ScriptedWorker, bus: Bus, is_stream: bool, store: bool
) -> None:
    body = {"input": "hold a|b", "stream": is_stream, "store": store}
    asking = asyncio.create_task(api.client.post("/v1/responses", json=body))
    (job_id,) = await worker.has_taken(1)
    asking.cancel()
    await asyncio.wait_for(worker.cancelled[job_id].wait(), 5)
    await asyncio.wait_for(worker.is_idle(), 5)
    record = await bus.queue.record(job_id)
    assert record is not None and record.status is JobStatus.CANCELLED


async def test_deleting_forgets_what_has_ended(api: Api, worker: ScriptedWorker, bus: Bus) -> None:
    made = await make(api, "hold a|b", background=True)
    await worker.has_taken(1)
    early = await api.client.delete(f"/v1/responses/{made['id']}")
    assert early.status_code == 400 and "in progress" in early.json()["error"]["message"]
    worker.go.set()
    await follow(api, made["id"])
    deleted = await api.client.delete(f"/v1/responses/{made['id']}")
    assert deleted.json() == {"id": made["id"], "object": "response", "deleted": True}
    assert (await api.client.get(f"/v1/responses/{made['id']}")).status_code == 404
    assert (await api.client.delete(f"/v1/responses/{made['id']}")).status_code == 404
    assert (await bus.queue.page("default")).records == []


async def test_what_is_no_response_of_this_tenant_is_not_found(settings: ApiSettings, worker: ScriptedWorker) -> None:
    keys = [SecretStr("one"), SecretStr("two")]
    async with serve(settings.model_copy(update={"api_key": keys})) as api:
        one, two = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
        body = {"input": "say a", "background": True}
        mine = (await api.client.post("/v1/responses", json=body, headers=one)).json()["id"]
        job = {"endpoint": "/completion", "body": {"prompt": "say a"}}
        other_kind = (await api.client.post("/v1/jobs", json=job, headers=two)).json()["id"].replace("job_", "resp_")
        unknown = (mine, other_kind, mine.replace("resp_", "job_"), "resp_0_0", "resp_", "x", "resp_0_%00", "resp_9_a")
        for response_id in unknown:
            path = f"/v1/responses/{response_id}"
            for method, rest in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel"), ("DELETE", "")):
                response = await api.client.request(method, path + rest, headers=two)
                assert refused(response) == (404, None), (method, path, rest)
        assert (await api.client.get(f"/v1/responses/{mine}", headers=one)).status_code == 200


async def test_when_the_log_has_gone_the_record_still_tells_the_answer(
    api: Api, settings: ApiSettings, redis_process: RedisProcess
) -> None:
    heard = events(await api.stream("/v1/responses", {"input": "say a|b|c"}))
    response = heard[-1].data["response"]
    with redis.Redis.from_url(redis_process.url) as client:
        assert client.delete(*client.scan_iter(match=f"{settings.namespace}:*log:job_*")) == 1
    again = await follow(api, response["id"])
    assert "".join(event.data.get("delta", "") for event in again) == "abc"
    for after in (None, 4, 7, 50):
        last = (await follow(api, response["id"], after))[-1]
        assert (last.name, last.data["response"]) == ("response.completed", response)
        assert last.data["sequence_number"] > (after or 0)


async def test_what_a_worker_refuses_is_an_error_for_who_waits_and_a_failure_for_who_does_not(api: Api) -> None:
    for is_stream in (False, True):
        response = await api.client.post("/v1/responses", json={"input": "long", "stream": is_stream})
        assert response.json()["error"]["type"] == "exceed_context_size_error"
    made = await make(api, "long", background=True)
    last = (await follow(api, made["id"]))[-1]
    assert last.name == "response.failed"
    assert last.data["response"]["error"]["code"] == "invalid_prompt"
    assert last.data["response"] == await get(api, made["id"])


async def test_a_job_that_dies_in_the_middle_fails_the_response(api: Api) -> None:
    heard = events(await api.stream("/v1/responses", {"input": "die a|b"}))
    assert heard[-1].name == "response.failed"
    assert heard[-1].data["response"]["error"]["code"] == "server_error"
    assert await follow(api, heard[0].data["response"]["id"]) == heard


async def test_a_bad_request_makes_nothing(api: Api, worker: ScriptedWorker) -> None:
    for body, field in (({}, "input"), ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id")):
        for path in ("/v1/responses", "/responses"):
            assert refused(await api.client.post(path, json=body)) == (400, field)
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,eA=="}]}]
    for background in (False, True):
        response = await api.client.post("/v1/responses", json={"input": image, "background": background})
        assert response.status_code == 501
    assert worker.taken == []


SECRET = "whsec_" + "QUFB" * 10
WEBHOOK = {"url": "https://93.184.215.14/done", "secret": SECRET}


@pytest.mark.parametrize(
    ("webhook", "more", "field"),
    [
        (WEBHOOK, {}, "webhook"),
        (WEBHOOK | {"url": "https://10.0.0.1/"}, {"background": True}, "webhook.url"),
        (WEBHOOK | {"events": ["job.succeeded"]}, {"background": True}, "webhook.events"),
        ({"url": WEBHOOK["url"]}, {"background": True}, "webhook.secret"),
        ("https://93.184.215.14/done", {"background": True}, "webhook"),
    ],
)
async def test_a_bad_webhook_is_refused_by_the_name_of_its_field(
    api: Api, worker: ScriptedWorker, webhook: Any, more: dict[str, Any], field: str
) -> None:
    body = {"input": "say a", "webhook": webhook, **more}
    assert refused(await api.client.post("/v1/responses", json=body)) == (400, field)
    assert worker.taken == []


async def test_a_response_has_its_webhook_and_shows_nothing_of_it(api: Api, bus: Bus) -> None:
    response = await make(api, "say a", background=True, webhook=WEBHOOK)
    record = await bus.queue.record(response["id"].replace("resp_", "job_"))
    assert record is not None and record.webhook is not None and record.body is not None
    assert record.webhook.url == WEBHOOK["url"]
    assert record.webhook.secret.value.get_secret_value() == SECRET
    assert "webhook" not in record.body
    assert "webhook" not in await get(api, response["id"])


async def test_the_same_key_is_the_same_background_response(api: Api) -> None:
    body, headers = {"input": "say a", "background": True}, {"Idempotency-Key": "k"}
    first, second = [(await api.client.post("/v1/responses", json=body, headers=headers)).json() for _ in range(2)]
    assert first["id"] == second["id"]
    other = await api.client.post("/v1/responses", json=body | {"input": "say b"}, headers=headers)
    assert other.status_code == 409


async def test_a_response_that_was_made_as_a_job_is_one(api: Api) -> None:
    job = (await api.client.post("/v1/jobs", json={"endpoint": "/v1/responses", "body": {"input": "say a"}})).json()
    response_id = job["id"].replace("job_", "resp_")
    response = (await follow(api, response_id))[-1].data["response"]
    assert (await api.client.get(f"/v1/jobs/{job['id']}")).json()["result"] == response == await get(api, response_id)
