"""The jobs API, against a real queue and a scripted worker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.routing import Route

from api import app
from api.schemas.dialect import ENDPOINTS
from shared.bus import Bus
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker
from tests.api.sse_lines import Event, events

JOB_KEYS = {
    *("id", "object", "status", "endpoint", "model", "priority", "created_at", "started_at", "ended_at"),
    *("deadline_at", "attempts", "position", "eta_s", "waiting_for", "usage", "result", "error", "metadata"),
}


def completion(prompt: str, **more: Any) -> dict[str, Any]:
    return {"endpoint": "/completion", "body": {"prompt": prompt}} | more


async def make(api: Api, job: dict[str, Any], **headers: str) -> dict[str, Any]:
    response = await api.client.post("/v1/jobs", json=job, headers=headers)
    assert response.status_code in (200, 202), response.text
    assert response.headers["x-job-id"] == response.json()["id"]
    return dict(response.json())


def refused_field(response: httpx.Response) -> str:
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (400, 400, "invalid_request_error")
    assert error["message"].startswith(f"Field '{error['param']}': ")
    return str(error["param"])


async def listed(api: Api, query: str = "", **headers: str) -> dict[str, Any]:
    response = await api.client.get(f"/v1/jobs?{query}", headers=headers)
    assert response.status_code == 200, response.text
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


TEXT, CHAT = {"prompt": "say a|b", "seed": 1}, {"messages": [{"role": "user", "content": "say a|b"}], "seed": 1}
BODIES: dict[str, dict[str, Any]] = {
    "/completion": TEXT | {"response_fields": ["content", "generation_settings/seed"]},
    "/completions": TEXT | {"return_tokens": True, "logit_bias": [[5, 1.0], [3, False]]},
    "/infill": {"input_prefix": "say a|b", "input_suffix": "c", "n_probs": 1},
    "/v1/completions": TEXT | {"model": "mine", "max_tokens": 1, "logprobs": 2, "n": 2},
    "/v1/chat/completions": CHAT | {"model": "mine", "logprobs": True, "top_logprobs": 2},
    "/chat/completions": CHAT | {"n": 3},
    "/v1/responses": {"input": "say a|b", "max_output_tokens": 1, "seed": 1},
    "/responses": {"input": [{"role": "user", "content": "say a|b"}], "instructions": "Be brief.", "store": False},
    "/v1/embeddings": {"input": ["a", "b"], "encoding_format": "base64", "model": "mine"},
    "/embedding": {"content": "rows"},
    "/embeddings": {"input": ["rows", "b"]},
    "/rerank": {"query": "abc", "documents": ["x", "ab"], "model": "mine"},
    "/reranking": {"query": "abc", "documents": [{"text": "x"}, "ab"], "return_documents": True},
    "/v1/rerank": {"query": "abc", "texts": ["x", "ab"], "return_text": True},
    "/v1/reranking": {"query": "abc", "texts": ["x", "ab"], "top_n": 1},
    "/api/generate": {"model": "mine", "prompt": "say a|b", "stream": False, "options": {"seed": 1}},
    "/api/chat": {"messages": CHAT["messages"], "stream": False, "logprobs": True, "top_logprobs": 2},
    "/api/embed": {"model": "mine", "input": ["a", "b"]},
    "/api/embeddings": {"prompt": "a"},
}


def without_ids(value: Any) -> Any:
    """And without times: what two answers to one question have in common."""
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    own = {"created", "created_at", "completed_at"} | ({"id"} if isinstance(value.get("id"), str) else set())
    return {name: without_ids(item) for name, item in value.items() if name not in own}


QUICK = {"/tokenize", "/detokenize", "/apply-template", "/slots/{id_slot}", "/api/show"}
"""Answered at once: nobody has to be spared the wait."""
REFUSED = {"/api/pull", "/api/push", "/api/create", "/api/copy"}
"""Answered at once, too: never with yes."""


def test_every_endpoint_that_takes_a_slot_can_be_a_job() -> None:
    answering = {route.path for route in app.ROUTES if isinstance(route, Route) and route.methods == {"POST"}}
    kept = ("/v1/jobs", "/v1/files", "/v1/batches", "/v1/webhook_endpoints")
    answering = {path for path in answering if not path.startswith(kept) and not path.endswith("/cancel")}
    assert answering - QUICK - REFUSED == set(ENDPOINTS) == BODIES.keys()


@pytest.mark.parametrize("endpoint", BODIES)
async def test_the_result_is_what_the_endpoint_would_have_answered(api: Api, endpoint: str) -> None:
    job = await make(api, {"endpoint": endpoint, "body": BODIES[endpoint]})
    result = (await read_events(api, job["id"]))[-1].data["result"]
    answered = (await api.client.post(endpoint, json=BODIES[endpoint])).json()
    assert without_ids(result) == without_ids(answered)
    first, second = [(await api.client.get(f"/v1/jobs/{job['id']}")).content for _ in range(2)]
    assert first == second


async def test_events_are_numbered_from_one_without_gaps(api: Api) -> None:
    job = await make(api, completion("say a|b|c"))
    heard = await read_events(api, job["id"])
    assert [event.id for event in heard] == ["1", "2", "3", "4"]
    assert [event.name for event in heard] == ["token", "token", "token", "done"]
    assert [event.data for event in heard[:3]] == [{"text": text, "index": 0} for text in "abc"]


async def test_a_job_has_as_many_answers_as_its_body_asks_for(api: Api, worker: ScriptedWorker) -> None:
    body = {"prompt": ["say a|b", "say c"], "n": 2, "logprobs": 1}
    job = await make(api, {"endpoint": "/completion", "body": body})
    *heard, end = await read_events(api, job["id"])
    said = [(event.data["index"], event.data["text"]) for event in heard]
    assert said == [(0, "a"), (1, "a'"), (2, "c"), (3, "c'"), (0, "b"), (1, "b'")]
    assert [entry["token"] for event in heard for entry in event.data["logprobs"]] == [text for _, text in said]
    result = end.data["result"]
    assert [(item["index"], item["content"]) for item in result] == [(0, "ab"), (1, "a'b'"), (2, "c"), (3, "c'")]
    assert end.data["usage"] == {
        "prompt_tokens": 14,
        "completion_tokens": 6,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 6},
    }
    assert worker.taken == [job["id"]]


async def test_the_usage_of_a_request_that_somebody_waited_for_counts_its_prompt_once(api: Api) -> None:
    response = await api.client.post("/completion", json={"prompt": "say a", "n": 3})
    job = (await api.client.get(f"/v1/jobs/{response.headers['x-job-id']}")).json()
    assert (job["result"], job["usage"]["prompt_tokens"], job["usage"]["completion_tokens"]) == (None, 7, 3)


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_a_reader_resumes_where_it_was(api: Api, after: int) -> None:
    job = await make(api, completion("say a|b|c"))
    heard = await read_events(api, job["id"])
    assert await read_events(api, job["id"], after) == heard[after:]
    by_parameter = await api.client.get(f"/v1/jobs/{job['id']}/events?starting_after={after}")
    assert events(by_parameter.text.splitlines()) == heard[after:]


@pytest.mark.parametrize("after", [2, 3, 999_999_999_999_999])
async def test_a_reader_that_saw_the_end_is_told_to_stay_away(api: Api, after: int) -> None:
    job = await make(api, completion("say a"))
    await read_events(api, job["id"])
    response = await api.client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": str(after)})
    assert (response.status_code, response.content) == (204, b"")


async def test_a_reader_ahead_of_the_job_hears_its_end(api: Api, worker: ScriptedWorker) -> None:
    job = await make(api, completion("hold a|b"))
    async with api.client.stream("GET", f"/v1/jobs/{job['id']}/events?starting_after=50") as response:
        worker.go.set()
        heard = events([line async for line in response.aiter_lines()])
    assert [(event.id, event.name) for event in heard] == [("3", "done")]


async def test_many_readers_hear_the_same(api: Api, worker: ScriptedWorker) -> None:
    job = await make(api, completion("hold a|b|c"))
    readers = [asyncio.create_task(read_events(api, job["id"], after)) for after in (0, 0, 0, 1, 2)]
    await worker.has_taken(1)
    worker.go.set()
    first, *others = await asyncio.gather(*readers)
    assert [event.id for event in first] == ["1", "2", "3", "4"]
    assert others == [first, first, first[1:], first[2:]]


async def test_a_look_at_the_headers_opens_no_stream(api: Api, worker: ScriptedWorker) -> None:
    job = await make(api, completion("hold a|b"))
    response = await api.client.head(f"/v1/jobs/{job['id']}/events")
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-job-id"] == job["id"]
    assert response.headers["content-length"] == "0"
    worker.go.set()


async def test_the_header_counts_before_the_parameter(api: Api) -> None:
    job = await make(api, completion("say a|b"))
    url = f"/v1/jobs/{job['id']}/events?starting_after=0"
    response = await api.client.get(url, headers={"Last-Event-ID": "1"})
    assert events(response.text.splitlines())[0].id == "2"


async def test_a_cursor_that_is_no_number_is_refused(api: Api) -> None:
    url = f"/v1/jobs/{(await make(api, completion('say a')))['id']}/events"
    for garbage in ("", "x", "-1", "+1", "1.0", "1e3", "0x1", "1_0", "1 2", "9" * 30, "٣"):
        by_header = await api.client.get(url, headers={"Last-Event-ID": garbage.encode()})
        by_parameter = await api.client.get(url, params={"starting_after": garbage})
        assert [refused_field(by_header), refused_field(by_parameter)] == ["Last-Event-ID", "starting_after"]
    for twice in (
        await api.client.get(url, headers=[("Last-Event-ID", "1"), ("Last-Event-ID", "1")]),
        await api.client.get(url, params={"starting_after": ["1", "1"]}),
        await api.client.get(url, params={"starting_from": "1"}),
    ):
        assert refused_field(twice) in ("Last-Event-ID", "starting_after", "starting_from")


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


@pytest.mark.parametrize("prompt", ["shut a", "read a"])
async def test_silence_in_events_is_filled_with_comments(
    settings: ApiSettings, worker: ScriptedWorker, prompt: str
) -> None:
    async with serve(settings.model_copy(update={"keep_alive_s": 0.2})) as api, asyncio.timeout(10):
        job = await make(api, completion(prompt))
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


async def test_a_cancel_hurts_nobody_else(settings: ApiSettings, bus: Bus) -> None:
    async with ScriptedWorker(bus, n_slots=2) as worker, serve(settings) as api:
        running = [await make(api, completion("hold a|b")) for _ in range(2)]
        await worker.has_taken(2)
        waiting = await make(api, completion("say c"))
        cancels = [await api.client.post(f"/v1/jobs/{waiting['id']}/cancel") for _ in range(2)]
        assert [cancel.json()["status"] for cancel in cancels] == ["cancelled", "cancelled"]
        assert cancels[0].json()["error"]["type"] == "cancelled_error"
        worker.go.set()
        ends = [(await read_events(api, job["id"]))[-1].data for job in running]
        assert [end["result"]["content"] for end in ends] == ["ab", "ab"]
        assert await worker.has_taken(2) == [job["id"] for job in running]


@pytest.mark.parametrize(("prompt", "status"), [("say a", "succeeded"), ("die a", "failed"), ("hold a|b", "cancelled")])
async def test_an_ended_job_is_not_changed_by_a_cancel(api: Api, prompt: str, status: str) -> None:
    job = await make(api, completion(prompt))
    if status == "cancelled":
        await api.client.post(f"/v1/jobs/{job['id']}/cancel")
    ended = (await read_events(api, job["id"]))[-1].data
    assert ended["status"] == status
    response = await api.client.post(f"/v1/jobs/{job['id']}/cancel")
    assert (response.status_code, response.json()) == (200, ended)


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


async def test_a_key_with_anything_else_is_a_conflict(api: Api) -> None:
    key, job = {"Idempotency-Key": "k"}, completion("say a", metadata={"n": "1"})
    made = await make(api, job, **key)
    for other in (
        job | {"endpoint": "/completions"},
        job | {"body": job["body"] | {"seed": 1}},
        job | {"priority": "interactive"},
        job | {"metadata": {"n": "2"}},
        completion("say a"),
    ):
        response = await api.client.post("/v1/jobs", json=other, headers=key)
        assert (response.status_code, response.json()["error"]["type"]) == (409, "idempotency_conflict")
    assert (await make(api, job, **key))["id"] == made["id"]


async def test_a_key_used_by_many_at_once_makes_one_job(api: Api, worker: ScriptedWorker) -> None:
    key = {"Idempotency-Key": "race"}
    answers = await asyncio.gather(
        *(api.client.post("/v1/jobs", json=completion("say a"), headers=key) for _ in range(10))
    )
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [202]
    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_spelling_and_spaces_make_no_other_body(api: Api) -> None:
    key = {"Idempotency-Key": "k"}
    text = json.dumps(completion("say é"), ensure_ascii=False, indent=3).encode()
    first = await api.client.post("/v1/jobs", json=completion("say é"), headers=key)
    again = await api.client.post("/v1/jobs", content=text, headers=key)
    assert again.json()["id"] == first.json()["id"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs", {"endpoint": "/completion", "body": {"prompt": "say a"}}),
        ("/v1/responses", {"input": "say a", "background": True}),
    ],
)
async def test_a_key_finds_what_it_made_wherever_the_host_of_its_webhook_leads_by_now(
    settings: ApiSettings, worker: ScriptedWorker, path: str, body: dict[str, Any]
) -> None:
    headers, told = {"Idempotency-Key": "k"}, {"webhook": {"url": "https://10.0.0.1/", "secret": WEBHOOK["secret"]}}
    async with serve(settings.model_copy(update={"allow_hosts": ("10.0.0.1",)})) as api:
        first = await api.client.post(path, json=body | told, headers=headers)
    async with serve(settings) as api:
        second = await api.client.post(path, json=body | told, headers=headers)
        new = await api.client.post(path, json=body | told)
    assert second.status_code == 200, second.text
    assert second.json()["id"] == first.json()["id"]
    assert refused_field(new) == "webhook.url"


async def test_a_key_that_cannot_be_kept_is_refused(api: Api) -> None:
    keys: list[Any] = ["", "x" * 256, "a\tb", "ü".encode()]
    for key in keys:
        headers = {"Idempotency-Key": key}
        response = await api.client.post("/v1/jobs", json=completion("say a"), headers=headers)
        assert refused_field(response) == "Idempotency-Key"
    twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    assert refused_field(await api.client.post("/v1/jobs", json=completion("say a"), headers=twice))


WEBHOOK = {"url": "https://93.184.215.14/", "secret": "whsec_" + "QUFB" * 10}
BACKGROUND = {"input": "x", "background": True}
BAD_JOBS: list[tuple[dict[str, Any], int, str]] = [
    ({}, 400, "endpoint"),
    ({"endpoint": "/completion"}, 400, "body"),
    ({"endpoint": "/nowhere", "body": {}}, 400, "endpoint"),
    ({"endpoint": "/completion", "body": []}, 400, "body"),
    ({"endpoint": "/completion", "body": {}}, 400, "body.prompt"),
    ({"endpoint": "/completion", "body": {"prompt": ["a"] * 17, "n": 128}}, 400, "body.n"),
    ({"endpoint": "/infill", "body": {"input_prefix": "a"}}, 400, "body.input_suffix"),
    ({"endpoint": "/completion", "body": {"prompt": "a", "n_predict": True}}, 400, "body.n_predict"),
    ({"endpoint": "/completion", "body": {"prompt": "a", "stream": True}}, 400, "body.stream"),
    ({"endpoint": "/completion", "body": {"prompt": "a", "lora": [{"id": 0}]}}, 400, "body.lora[0].scale"),
    ({"endpoint": "/completion", "body": {"prompt": "a", "grammar_lazy": True}}, 501, "body.grammar_lazy"),
    ({"endpoint": "/v1/embeddings", "body": {"input": []}}, 400, "body.input"),
    (completion("a", prority="bulk"), 400, "prority"),
    (completion("a", priority="urgent"), 400, "priority"),
    (completion("a", deadline_s=0), 400, "deadline_s"),
    (completion("a", deadline_s=True), 400, "deadline_s"),
    (completion("a", deadline_s=1e9), 400, "deadline_s"),
    (completion("a", deadline_s="5"), 400, "deadline_s"),
    (completion("a", metadata={"k": 1}), 400, "metadata.k"),
    (completion("a", metadata={"k": None}), 400, "metadata.k"),
    (completion("a", metadata={"k": "v" * 513}), 400, "metadata.k"),
    (completion("a", metadata={str(n): "" for n in range(17)}), 400, "metadata"),
    (completion("a", metadata=[]), 400, "metadata"),
    (completion("a", webhook="http://x"), 400, "webhook"),
    (completion("a", webhook={"url": "http://x"}), 400, "webhook.secret"),
    (
        {"endpoint": "/v1/responses", "body": BACKGROUND | {"webhook": WEBHOOK}},
        400,
        "body.webhook",
    ),
]


async def test_whoever_gives_a_jobs_body_a_webhook_is_told_where_it_belongs(api: Api) -> None:
    for background in (False, True):
        body = {"input": "say a", "background": background, "webhook": WEBHOOK}
        response = await api.client.post("/v1/jobs", json={"endpoint": "/v1/responses", "body": body})
        assert refused_field(response) == "body.webhook"
        assert "stands beside 'body'" in response.json()["error"]["message"]


async def test_a_bad_job_is_refused_by_the_name_of_its_field(api: Api, worker: ScriptedWorker) -> None:
    for job, status, param in BAD_JOBS:
        response = await api.client.post("/v1/jobs", json=job)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (status, param)
        assert error["message"].startswith(f"Field '{param}': ")
    assert worker.taken == []


async def test_a_name_is_not_repeated_at_length(api: Api) -> None:
    response = await api.client.post("/v1/jobs", json=completion("a", **{"x" * 100_000: 1}))
    assert refused_field(response).startswith("xxx")
    assert len(response.content) < 1000


BAD_JSON = [
    b"",
    b"[]",
    b"{",
    json.dumps(completion("a")).encode("utf-16"),
    b'{"endpoint": "/completion", "body": {"prompt": "a", "temperature": NaN}}',
    b'{"endpoint": "/completion", "body": {"prompt": "a"}, "deadline_s": Infinity}',
    b'{"endpoint": "/completion", "body": {"prompt": "a"}, "deadline_s": 1e999}',
    b'{"endpoint": "/completion", "body": {"prompt": "\\ud800"}}',
    b'{"endpoint": "/completion", "body": {"prompt": "a"}, "metadata": {"\\udfff": ""}}',
    b'{"endpoint": "/completion", "body": ' + b'{"x":' * 100_000 + b"1" + b"}" * 100_001,
]


@pytest.mark.parametrize("content", BAD_JSON, ids=lambda content: content[:70].decode("latin-1"))
async def test_what_is_no_json_makes_no_job(api: Api, worker: ScriptedWorker, content: bytes) -> None:
    response = await api.client.post("/v1/jobs", content=content)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert (await listed(api))["data"] == []


async def test_null_is_absent(api: Api) -> None:
    nothing = dict.fromkeys(("priority", "deadline_s", "metadata", "webhook"))
    job = await make(api, completion("say a", **nothing))
    assert (job["priority"], job["metadata"]) == ("bulk", {})


async def test_the_lane_is_the_jobs_own_or_else_its_bodys(api: Api) -> None:
    for body, more, lane in (
        ({}, {}, "bulk"),
        ({"priority": "interactive"}, {}, "interactive"),
        ({"priority": "interactive"}, {"priority": "bulk"}, "bulk"),
        ({"service_tier": "flex"}, {"priority": "interactive"}, "interactive"),
    ):
        job = {"endpoint": "/completion", "body": {"prompt": "say a"} | body} | more
        assert (await make(api, job))["priority"] == lane


async def test_a_model_that_is_not_served_is_refused_by_its_place_in_the_job(settings: ApiSettings, bus: Bus) -> None:
    async with ScriptedWorker(bus), ScriptedWorker(bus, model="other", worker_id="w2"), serve(settings) as api:
        response = await api.client.post("/v1/jobs", json=completion("a") | {"body": {"prompt": "a", "model": "x"}})
        error = response.json()["error"]
        assert (response.status_code, error["type"], error["param"]) == (404, "model_not_found", "body.model")


async def test_a_full_queue_says_when_to_come_back(settings: ApiSettings, bus: Bus) -> None:
    async with ScriptedWorker(bus):
        pass
    async with serve(settings.model_copy(update={"max_queued": 1})) as api:
        await make(api, completion("say a"))
        response = await api.client.post("/v1/jobs", json=completion("say b"))
        assert (response.status_code, response.json()["error"]["type"]) == (429, "rate_limit_error")
        assert int(response.headers["retry-after"]) >= 1


async def test_without_its_queue_every_path_says_when_to_come_back(settings: ApiSettings) -> None:
    away = settings.model_copy(update={"redis_url": SecretStr("unix:///nowhere/at/all")})
    async with serve(away) as api:
        path = "/v1/jobs/job_0_" + "0" * 24
        for response in (
            await api.client.post("/v1/jobs", json=completion("say a")),
            await api.client.get("/v1/jobs"),
            await api.client.get(path),
            await api.client.get(f"{path}/events"),
            await api.client.post(f"{path}/cancel"),
        ):
            assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")
            assert int(response.headers["retry-after"]) >= 1


async def test_a_position_is_one_that_the_queue_has(settings: ApiSettings, bus: Bus) -> None:
    async with ScriptedWorker(bus):
        pass
    async with serve(settings) as api:
        jobs = [await make(api, completion("say a")) for _ in range(4)]
        assert [job["position"] for job in jobs] == [1, 2, 3, 4]
        for job in jobs[:2]:
            await api.client.post(f"/v1/jobs/{job['id']}/cancel")
        left = [(await api.client.get(f"/v1/jobs/{job['id']}")).json() for job in jobs]
        assert [job["position"] for job in left[:2]] == [None, None]
        assert all(1 <= job["position"] <= 2 for job in left[2:])
        assert [job["eta_s"] for job in left] == [None] * 4  # nothing has ended yet: there is no rate
        async with ScriptedWorker(bus) as worker:
            await read_events(api, jobs[3]["id"])
            worker.n_slots = 0
            waiting = await make(api, completion("say c"))
            assert waiting["position"] == 1 and 0 < waiting["eta_s"] < 60


async def test_an_unknown_job_is_not_found(api: Api) -> None:
    ids = ("job_0_" + "0" * 24, "job_7_" + "0" * 24, "nonsense", "job_0_%00", "job_٣_a", "job_0_" + "a" * 5_000, "%ff")
    for job_id in ids:
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


async def test_a_wrong_method_is_told_the_right_ones(api: Api) -> None:
    job = f"/v1/jobs/{(await make(api, completion('say a')))['id']}"
    allowed = {"/v1/jobs": "GET HEAD POST", job: "GET HEAD", f"{job}/events": "GET HEAD", f"{job}/cancel": "POST"}
    for path, methods in allowed.items():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - set(methods.split()):
            response = await api.client.request(method, path)
            assert (response.status_code, response.json()["error"]["code"]) == (405, 405)
            assert sorted(response.headers["allow"].split(", ")) == methods.split()


async def test_jobs_are_listed_newest_first_and_whole(api: Api) -> None:
    assert await listed(api) == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    jobs = [await make(api, completion(f"say {n}", metadata={"n": str(n)})) for n in range(3)]
    for job in jobs:
        await read_events(api, job["id"])
    await api.client.post("/completion", json={"prompt": "say nothing of me"})
    page = await listed(api)
    ids = [job["id"] for job in reversed(jobs)]
    assert page["data"] == [(await api.client.get(f"/v1/jobs/{job_id}")).json() for job_id in ids]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[0], ids[-1], False)


async def test_a_list_leaves_out_what_is_large_and_the_job_itself_has_it(api: Api) -> None:
    large = await make(api, completion("say " + 300_000 * "x"))
    small = await make(api, completion("say a"))
    for job in (large, small):
        await read_events(api, job["id"])
    one, other = (await listed(api))["data"]
    whole = (await api.client.get(f"/v1/jobs/{large['id']}")).json()
    assert one == (await api.client.get(f"/v1/jobs/{small['id']}")).json()
    assert other == whole | {"result": None, "usage": None, "result_omitted": True}
    assert len(whole["result"]["content"]) == 300_000


async def test_a_list_says_why_a_large_job_failed(api: Api) -> None:
    job = await make(api, completion("die " + 300_000 * "x"))
    await read_events(api, job["id"])
    [listed_one] = (await listed(api))["data"]
    assert listed_one == (await api.client.get(f"/v1/jobs/{job['id']}")).json()
    assert listed_one["error"]["message"]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7])
async def test_pages_hold_every_job_once(api: Api, limit: int) -> None:
    made = [(await make(api, completion("say a")))["id"] for _ in range(5)]
    seen: list[str] = []
    after = ""
    for _ in range(len(made)):
        page = await listed(api, f"limit={limit}{after}")
        assert len(page["data"]) == min(limit, len(made) - len(seen))
        seen += [job["id"] for job in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert seen == made[::-1]
    assert (await listed(api, f"after={made[0]}"))["data"] == []


async def test_a_page_has_twenty_jobs_unless_told_otherwise(api: Api) -> None:
    await asyncio.gather(*(make(api, completion("say a")) for _ in range(21)))
    page = await listed(api)
    assert (len(page["data"]), page["has_more"]) == (20, True)
    assert len((await listed(api, "limit=100"))["data"]) == 21


async def test_jobs_are_listed_by_status(api: Api, worker: ScriptedWorker) -> None:
    for prompt in ("say a", "die a"):
        await read_events(api, (await make(api, completion(prompt)))["id"])
    held = await make(api, completion("hold a|b"))
    await worker.has_taken(3)
    worker.n_slots = 0
    queued = await make(api, completion("say b"))
    found = {status: await listed(api, f"status={status}") for status in ("succeeded", "failed", "running", "queued")}
    for status, page in found.items():
        assert [job["status"] for job in page["data"]] == [status]
    assert found["running"]["first_id"] == held["id"]
    assert found["queued"]["data"][0]["position"] == 1
    for status in ("queued", "running"):
        await api.client.post(f"/v1/jobs/{found[status]['first_id']}/cancel")
    await read_events(api, held["id"])
    assert [job["id"] for job in (await listed(api, "status=cancelled"))["data"]] == [queued["id"], held["id"]]
    assert (await listed(api, "status=expired"))["data"] == []


BAD_QUERIES = [
    *(("limit", text) for text in ("0", "101", "-1", "+1", "1.0", "1e1", "", "x", "٣", " 1", "9" * 200)),
    *(("status", text) for text in ("", "done", "QUEUED", "queued,running")),
    *(("after", text) for text in ("", "x", "job_0_" + "0" * 24, "job_٣_a", "x" * 5_000, "\x00")),
    ("stauts", "queued"),
]


@pytest.mark.parametrize(("name", "text"), BAD_QUERIES, ids=lambda text: text[:12])
async def test_a_bad_query_is_refused_by_its_name(api: Api, name: str, text: str) -> None:
    assert refused_field(await api.client.get("/v1/jobs", params={name: text})) == name


async def test_a_parameter_given_twice_is_refused(api: Api) -> None:
    assert refused_field(await api.client.get("/v1/jobs?limit=1&status=queued&limit=1")) == "limit"


async def test_tenants_list_their_own_jobs(settings: ApiSettings, worker: ScriptedWorker) -> None:
    keys = (SecretStr("one"), SecretStr("two"))
    async with serve(settings.model_copy(update={"api_key": keys})) as api:
        mine = await make(api, completion("say a"), **{"X-Api-Key": "one"})
        theirs = await make(api, completion("say b"), **{"X-Api-Key": "two"})
        for key, job in (("one", mine), ("two", theirs)):
            page = await listed(api, **{"X-Api-Key": key})
            assert [each["id"] for each in page["data"]] == [job["id"]]
        foreign = await api.client.get(f"/v1/jobs?after={theirs['id']}", headers={"X-Api-Key": "one"})
        assert refused_field(foreign) == "after"
        assert (await api.client.get("/v1/jobs")).status_code == 401
