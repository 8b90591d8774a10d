"""The jobs API, against a real queue and a scripted worker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from shared.bus import Bus
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker
from tests.api.sse_lines import Event, events

JOB_KEYS = {
    *("id", "object", "status", "endpoint", "model", "priority", "created_at", "started_at", "ended_at"),
    *("deadline_at", "attempts", "position", "eta_s", "usage", "result", "error", "metadata"),
}


def completion(prompt: str, **more: Any) -> dict[str, Any]:
    return {"endpoint": "/completion", "body": {"prompt": prompt}} | more


async def make(api: Api, job: dict[str, Any], **headers: str) -> dict[str, Any]:
    response = await api.client.post("/v1/jobs", json=job, headers=headers)
    assert response.status_code in (200, 202), response.text
    assert response.headers["x-job-id"] == response.json()["id"]
    return dict(response.json())


async def read_events(api: Api, job_id: str, after: int | None = None) -> list[Event]:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    response = await api.client.get(f"/v1/jobs/{job_id}/events", headers=headers)
    assert response.status_code == 200, response.text
    return events(response.text.splitlines())


async def test_a_job_is_accepted_at_once_and_done_later(api: Api) -> None:
    response = await api.client.post("/v1/jobs", json=completion("say a|b", metadata={"who": "me"}))
    job = response.json()
    assert response.status_code == 202
    assert job.keys() == JOB_KEYS
    assert job["object"] == "job" and job["priority"] == "bulk" and job["metadata"] == {"who": "me"}
    done = (await read_events(api, job["id"]))[-1]
    assert done.name == "done"
    assert done.data["status"] == "succeeded" and done.data["attempts"] == 1
    assert done.data["started_at"] is not None and done.data["ended_at"] is not None
    assert done.data["usage"]["total_tokens"] == 9
    assert (await api.client.get(f"/v1/jobs/{job['id']}")).json() == done.data


ENDPOINTS = [
    ("/completion", {"prompt": "say a|b", "seed": 1}),
    ("/v1/completions", {"prompt": "say a|b"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "say a|b"}]}),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64", "model": "mine"}),
]


@pytest.mark.parametrize(("endpoint", "body"), ENDPOINTS, ids=[row[0] for row in ENDPOINTS])
async def test_the_result_is_what_the_endpoint_would_have_answered(
    api: Api, endpoint: str, body: dict[str, Any]
) -> None:
    job = await make(api, {"endpoint": endpoint, "body": body})
    result = (await read_events(api, job["id"]))[-1].data["result"]
    answered = (await api.client.post(endpoint, json=body)).json()
    for own in ("id", "created"):
        result.pop(own, None), answered.pop(own, None)
    assert result == answered
    first, second = [(await api.client.get(f"/v1/jobs/{job['id']}")).content for _ in range(2)]
    assert first == second


async def test_events_are_numbered_from_one_without_gaps(api: Api) -> None:
    job = await make(api, completion("say a|b|c"))
    heard = await read_events(api, job["id"])
    assert [event.id for event in heard] == ["1", "2", "3", "4"]
    assert [event.name for event in heard] == ["token", "token", "token", "done"]
    assert [event.data for event in heard[:3]] == [{"text": text, "index": 0} for text in "abc"]


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_a_reader_resumes_where_it_was(api: Api, after: int) -> None:
    job = await make(api, completion("say a|b|c"))
    heard = await read_events(api, job["id"])
    assert await read_events(api, job["id"], after) == heard[after:]
    by_parameter = await api.client.get(f"/v1/jobs/{job['id']}/events?starting_after={after}")
    assert events(by_parameter.text.splitlines()) == heard[after:]


async def test_a_reader_that_saw_the_end_is_told_to_stay_away(api: Api) -> None:
    job = await make(api, completion("say a"))
    await read_events(api, job["id"])
    response = await api.client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": "2"})
    assert response.status_code == 204


async def test_the_header_counts_before_the_parameter(api: Api) -> None:
    job = await make(api, completion("say a|b"))
    url = f"/v1/jobs/{job['id']}/events?starting_after=0"
    response = await api.client.get(url, headers={"Last-Event-ID": "1"})
    assert events(response.text.splitlines())[0].id == "2"


async def test_a_cursor_that_is_no_number_is_refused(api: Api) -> None:
    url = f"/v1/jobs/{(await make(api, completion('say a')))['id']}/events"
    for garbage in ("", "x", "-1", "+1", "1.0", "1 2", "9" * 30, "٣"):
        by_header = await api.client.get(url, headers={"Last-Event-ID": garbage.encode()})
        by_parameter = await api.client.get(url, params={"starting_after": garbage})
        assert (by_header.status_code, by_parameter.status_code) == (400, 400)


async def test_a_reader_goes_on_at_another_api_process(api: Api, settings: ApiSettings, worker: ScriptedWorker) -> None:
    job = await make(api, completion("hold a|b|c"))
    lines: list[str] = []
    async with api.client.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
        async for line in response.aiter_lines():
            lines.append(line)
            if line == "":
                break
    first = events(lines)
    assert [event.data["text"] for event in first] == ["a"]
    async with serve(settings) as other:
        reading = asyncio.create_task(read_events(other, job["id"], int(first[-1].id or 0)))
        worker.go.set()
        rest = await reading
    assert [event.id for event in rest] == ["2", "3", "4"]
    assert rest[-1].data["status"] == "succeeded"


async def test_a_reader_that_leaves_cancels_nothing(api: Api, worker: ScriptedWorker) -> None:
    job = await make(api, completion("hold a|b"))
    async with api.client.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
        async for line in response.aiter_lines():
            if line == "":
                break
    worker.go.set()
    assert (await read_events(api, job["id"]))[-1].data["result"]["content"] == "ab"


async def test_the_maker_that_leaves_cancels_nothing(api: Api, worker: ScriptedWorker) -> None:
    asking = asyncio.create_task(api.client.post("/v1/jobs", json=completion("hold a|b")))
    (job_id,) = await worker.has_taken(1)
    asking.cancel()
    worker.go.set()
    assert (await read_events(api, job_id))[-1].name == "done"


async def test_silence_in_events_is_filled_with_comments(settings: ApiSettings, worker: ScriptedWorker) -> None:
    async with serve(settings.model_copy(update={"keep_alive_s": 0.05})) as api:
        job = await make(api, completion("shut a"))
        lines: list[str] = []
        async with api.client.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
            async for line in response.aiter_lines():
                lines.append(line)
                if lines.count(": keep-alive") == 2:
                    worker.go.set()
    assert [event.name for event in events(lines)] == ["token", "done"]


async def test_a_failed_job_ends_its_events_with_the_job(api: Api) -> None:
    job = await make(api, completion("die a"))
    *_, last = await read_events(api, job["id"])
    assert (last.id, last.name) == ("2", "error")
    assert last.data["status"] == "failed" and last.data["result"] is None
    assert last.data["error"] == {
        "code": 500,
        "message": "its workers died",
        "type": "server_error",
        "param": None,
    }


async def test_a_job_refused_by_its_worker_tells_both_numbers(api: Api) -> None:
    job = await make(api, completion("long"))
    error = (await read_events(api, job["id"]))[-1].data["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 99, 64)


async def test_a_running_job_can_be_cancelled(api: Api, worker: ScriptedWorker) -> None:
    job = await make(api, completion("hold a|b"))
    await worker.has_taken(1)
    assert (await api.client.post(f"/v1/jobs/{job['id']}/cancel")).status_code == 200
    last = (await read_events(api, job["id"]))[-1]
    assert (last.name, last.data["status"]) == ("error", "cancelled")


async def test_an_ended_job_is_not_changed_by_a_cancel(api: Api) -> None:
    job = await make(api, completion("say a"))
    done = (await read_events(api, job["id"]))[-1].data
    response = await api.client.post(f"/v1/jobs/{job['id']}/cancel")
    assert (response.status_code, response.json()) == (200, done)


async def test_a_job_waits_for_the_worker_of_a_known_model(settings: ApiSettings, bus: Bus) -> None:
    async with ScriptedWorker(bus):
        pass
    async with serve(settings) as api:
        job = await make(api, completion("say a"))
        assert (job["status"], job["position"]) == ("queued", 1)
        cancelled = (await api.client.post(f"/v1/jobs/{job['id']}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert (await read_events(api, job["id"]))[-1].name == "error"
        other = await make(api, completion("say b"))
        async with ScriptedWorker(bus) as worker:
            assert (await read_events(api, other["id"]))[-1].data["result"]["content"] == "b"
            assert worker.taken == [other["id"]]


async def test_a_key_makes_one_job_however_often_it_is_used(api: Api, worker: ScriptedWorker) -> None:
    key = {"Idempotency-Key": "run-1"}
    first = await api.client.post("/v1/jobs", json=completion("say a"), headers=key)
    again = await api.client.post("/v1/jobs", json=completion("say a"), headers=key)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    await read_events(api, first.json()["id"])
    assert worker.taken == [first.json()["id"]]
    other = await api.client.post("/v1/jobs", json=completion("say b"), headers=key)
    assert other.status_code == 409


async def test_spelling_and_spaces_make_no_other_body(api: Api) -> None:
    key = {"Idempotency-Key": "k"}
    text = json.dumps(completion("say é"), ensure_ascii=False, indent=3).encode()
    first = await api.client.post("/v1/jobs", json=completion("say é"), headers=key)
    again = await api.client.post("/v1/jobs", content=text, headers=key)
    assert again.json()["id"] == first.json()["id"]


async def test_a_key_that_cannot_be_kept_is_refused(api: Api) -> None:
    keys: list[Any] = ["", "x" * 256, "a\tb", "ü".encode()]
    for key in keys:
        headers = {"Idempotency-Key": key}
        response = await api.client.post("/v1/jobs", json=completion("say a"), headers=headers)
        assert response.status_code == 400


BAD_JOBS: list[tuple[dict[str, Any], int, str]] = [
    ({}, 400, "endpoint"),
    ({"endpoint": "/completion"}, 400, "body"),
    ({"endpoint": "/nowhere", "body": {}}, 400, "endpoint"),
    ({"endpoint": "/completion", "body": []}, 400, "body"),
    ({"endpoint": "/completion", "body": {}}, 400, "body.prompt"),
    ({"endpoint": "/completion", "body": {"prompt": ["a", "b"]}}, 400, "body.prompt"),
    ({"endpoint": "/completion", "body": {"prompt": "a", "n_predict": True}}, 400, "body.n_predict"),
    ({"endpoint": "/completion", "body": {"prompt": "a", "stream": True}}, 400, "body.stream"),
    ({"endpoint": "/completion", "body": {"prompt": "a", "grammar": "x"}}, 501, "body.grammar"),
    ({"endpoint": "/v1/embeddings", "body": {"input": []}}, 400, "body.input"),
    (completion("a", prority="bulk"), 400, "prority"),
    (completion("a", priority="urgent"), 400, "priority"),
    (completion("a", deadline_s=0), 400, "deadline_s"),
    (completion("a", deadline_s=True), 400, "deadline_s"),
    (completion("a", deadline_s=1e9), 400, "deadline_s"),
    (completion("a", metadata={"k": 1}), 400, "metadata.k"),
    (completion("a", webhook={"url": "http://x"}), 501, "webhook"),
]


async def test_a_bad_job_is_refused_by_the_name_of_its_field(api: Api, worker: ScriptedWorker) -> None:
    for job, status, param in BAD_JOBS:
        response = await api.client.post("/v1/jobs", json=job)
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert worker.taken == []


async def test_an_unknown_job_is_not_found(api: Api) -> None:
    for job_id in ("job_0_" + "0" * 24, "job_7_" + "0" * 24, "nonsense", "job_0_%00", "job_٣_a"):
        for response in (
            await api.client.get(f"/v1/jobs/{job_id}"),
            await api.client.get(f"/v1/jobs/{job_id}/events"),
            await api.client.post(f"/v1/jobs/{job_id}/cancel"),
        ):
            assert response.status_code == 404
            assert response.json()["error"]["type"] == "not_found_error"


async def test_another_tenants_job_is_not_found(settings: ApiSettings, worker: ScriptedWorker) -> None:
    keys = (SecretStr("one"), SecretStr("two"))
    async with serve(settings.model_copy(update={"api_key": keys})) as api:

        def ask(method: str, path: str, key: str, **more: Any) -> Any:
            return api.client.request(method, path, headers={"X-Api-Key": key} | more.pop("headers", {}), **more)

        same = {"Idempotency-Key": "same"}
        made = await ask("POST", "/v1/jobs", "one", json=completion("say a"), headers=same)
        path = f"/v1/jobs/{made.json()['id']}"
        foreign = [
            await ask("GET", path, "two"),
            await ask("GET", f"{path}/events", "two"),
            await ask("POST", f"{path}/cancel", "two"),
        ]
        assert [response.status_code for response in foreign] == [404, 404, 404]
        assert (await ask("GET", path, "one")).status_code == 200
        other = await ask("POST", "/v1/jobs", "two", json=completion("say other"), headers=same)
        assert other.status_code == 202 and other.json()["id"] != made.json()["id"]


async def test_a_large_burst_of_jobs_all_end(api: Api) -> None:
    jobs = await asyncio.gather(*(make(api, completion(f"say {i}")) for i in range(30)))
    ends = await asyncio.gather(*(read_events(api, job["id"]) for job in jobs))
    assert [end[-1].data["result"]["content"] for end in ends] == [str(i) for i in range(30)]


async def test_get_on_the_collection_is_not_allowed_yet(api: Api) -> None:
    response: httpx.Response = await api.client.get("/v1/jobs")
    assert response.status_code == 405
