"""/completion, against a real queue and a scripted worker."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from shared.bus import Bus, open_bus
from shared.jobs import JobStatus
from shared.settings import ApiSettings
from tests.api.conftest import Api, RedisProcess, serve
from tests.api.scripted_worker import ScriptedWorker
from tests.api.sse_lines import data

UNION_KEYS = {
    *("index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated"),
    *("generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word"),
    *("tokens_cached", "timings", "stopped_eos", "stopped_word", "stopped_limit"),
}


async def test_an_answer_has_the_keys_of_both_generations(api: Api) -> None:
    response = await api.client.post("/completion", json={"prompt": "say a|b|c", "seed": 7})
    assert response.status_code == 200
    body = response.json()
    assert body.keys() == UNION_KEYS
    assert body["content"] == "abc" and body["stop"] is True and body["tokens"] == []
    assert body["stop_type"] == "eos" and body["stopped_eos"] is True and body["stopped_limit"] is False
    assert body["generation_settings"]["seed"] == 7
    assert body["model"] == "tiny"
    timings = body["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == body["tokens_evaluated"] == 7
    assert timings["predicted_per_second"] == 200.0 and timings["queue_ms"] == 1.5
    assert response.headers["x-job-id"].startswith("job_")
    assert response.headers["x-request-id"].startswith("req_")


async def test_a_stream_is_the_same_answer_in_pieces(api: Api) -> None:
    request = {"prompt": "say a|b|c", "seed": 7}
    whole = (await api.client.post("/completion", json=request)).json()
    *pieces, last = data(await api.stream("/completion", request))
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert [piece["tokens"] for piece in pieces] == [[0], [1], [2]]
    assert [piece["tokens_predicted"] for piece in pieces] == [1, 2, 3]
    assert {piece["stop"] for piece in pieces} == {False}
    assert {piece["tokens_evaluated"] for piece in pieces} == {7}
    assert last["stop"] is True and last["content"] == "" and last["tokens"] == []
    ignored = {"content", "generation_settings"}
    assert {k: v for k, v in last.items() if k not in ignored} == {k: v for k, v in whole.items() if k not in ignored}


async def test_a_stream_has_the_headers_that_proxies_need(api: Api) -> None:
    async with api.client.stream("POST", "/completion", json={"prompt": "say a", "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["x-job-id"].startswith("job_")
        assert "[DONE]" not in (await response.aread()).decode()


async def test_one_token_has_no_rate(api: Api) -> None:
    timings = (await api.client.post("/completion", json={"prompt": "say a"})).json()["timings"]
    assert timings["predicted_per_second"] == 0.0 and timings["predicted_per_token_ms"] == 0.0


async def test_the_limit_is_told(api: Api) -> None:
    body = (await api.client.post("/completions", json={"prompt": "say a|b|c", "n_predict": 2})).json()
    assert (body["content"], body["stop_type"], body["stopped_limit"]) == ("ab", "limit", True)


async def test_tokens_and_fields_come_when_asked_for(api: Api) -> None:
    wanted = ["tokens", "generation_settings/n_predict", "no/such"]
    request = {"prompt": "say a|b", "return_tokens": True, "response_fields": wanted, "n_predict": 9}
    body = (await api.client.post("/completion", json=request)).json()
    assert body == {"tokens": [0, 1], "generation_settings/n_predict": 9}


async def test_an_array_is_answered_in_its_order_however_it_finishes(api: Api, worker: ScriptedWorker) -> None:
    asking = asyncio.create_task(
        api.client.post("/completion", json={"prompt": ["hold a|b", "say c", [5, 6], "say d|e"]})
    )
    await worker.has_taken(4)
    worker.go.set()
    response = await asking
    assert [(item["index"], item["content"]) for item in response.json()] == [
        (0, "ab"),
        (1, "c"),
        (2, "(5, 6)"),
        (3, "de"),
    ]
    assert "x-job-id" not in response.headers


async def test_an_array_of_one_is_an_object(api: Api) -> None:
    assert (await api.client.post("/completion", json={"prompt": ["say a"]})).json()["content"] == "a"


async def test_a_streamed_array_says_whose_every_piece_is(api: Api) -> None:
    pieces = data(await api.stream("/completion", {"prompt": ["say a|b", "say c|d|e"]}))
    said = ["".join(piece["content"] for piece in pieces if piece["index"] == index) for index in (0, 1)]
    assert said == ["ab", "cde"]
    assert [piece["index"] for piece in pieces if piece["stop"]] in ([0, 1], [1, 0])
    assert pieces[-1]["stop"]


async def test_choices_are_answers_of_their_own_in_order(api: Api, worker: ScriptedWorker) -> None:
    body = (await api.client.post("/completion", json={"prompt": ["say a|b", "say c"], "n_cmpl": 2})).json()
    assert [(item["index"], item["content"]) for item in body] == [(0, "ab"), (1, "a'b'"), (2, "c"), (3, "c'")]
    assert len(worker.taken) == 2
    one = (await api.client.post("/completion", json={"prompt": "say a", "n": 2})).json()
    assert [item["content"] for item in one] == ["a", "a'"]


async def test_a_streamed_choice_is_told_by_its_index(api: Api) -> None:
    request = {"prompt": ["say a|b", "say c"], "n": 2, "return_progress": True}
    pieces = data(await api.stream("/completion", request))
    said = ["".join(piece["content"] for piece in pieces if piece["index"] == index) for index in range(4)]
    assert said == ["ab", "a'b'", "c", "c'"]
    finals = [piece for piece in pieces if piece["stop"]]
    assert sorted(final["index"] for final in finals) == [0, 1, 2, 3]
    assert {final["tokens_predicted"] for final in finals} == {1, 2}
    counts = [piece["tokens_predicted"] for piece in pieces if piece["index"] == 1 and not piece["stop"]]
    assert counts == [1, 2]


async def test_probabilities_come_with_each_token_and_add_up_to_those_of_the_whole(api: Api) -> None:
    request = {"prompt": "say a|👋|b", "n_probs": 3}
    whole = (await api.client.post("/completion", json=request)).json()["completion_probabilities"]
    assert [entry["token"] for entry in whole] == ["a", "\ufffd", "\ufffd", "b"]
    assert bytes(byte for entry in whole for byte in entry["bytes"]).decode() == "a👋b"
    assert all(len(entry["top_logprobs"]) == 3 and entry["top_logprobs"][0]["id"] == entry["id"] for entry in whole)
    *pieces, last = data(await api.stream("/completion", request))
    assert [len(piece["completion_probabilities"]) for piece in pieces] == [len(piece["tokens"]) for piece in pieces]
    assert [entry for piece in pieces for entry in piece["completion_probabilities"]] == whole
    assert "completion_probabilities" not in last


async def test_probabilities_do_not_come_unasked(api: Api) -> None:
    assert "completion_probabilities" not in "".join(await api.stream("/completion", {"prompt": "say a"}))


async def test_probabilities_after_sampling_are_no_logarithms(api: Api) -> None:
    request = {"prompt": "say a", "n_probs": 2, "post_sampling_probs": True}
    [entry] = (await api.client.post("/completion", json=request)).json()["completion_probabilities"]
    assert entry["prob"] == 0.5 and [other["prob"] for other in entry["top_probs"]] == [0.5, 0.25]


async def test_timings_come_with_each_token_when_asked_for(api: Api) -> None:
    *pieces, _ = data(await api.stream("/completion", {"prompt": "say a|b", "timings_per_token": True}))
    assert [piece["timings"]["predicted_n"] for piece in pieces] == [1, 2]
    *pieces, _ = data(await api.stream("/completion", {"prompt": "say a|b"}))
    assert not any("timings" in piece for piece in pieces)


async def test_how_a_prompt_gets_on_is_told_from_what_was_in_the_cache_on(api: Api, worker: ScriptedWorker) -> None:
    lines: list[str] = []
    request = {"prompt": "read a", "stream": True, "return_progress": True, "timings_per_token": True}
    async with api.client.stream("POST", "/completion", json=request) as response:
        async for line in response.aiter_lines():
            lines.append(line)
            if len(lines) > 4:
                worker.go.set()
    told = [piece for piece in data(lines) if "prompt_progress" in piece]
    processed = [piece["prompt_progress"]["processed"] for piece in told]
    assert processed[0] == 0 and processed == sorted(set(processed)) and len(processed) > 1
    assert [piece["timings"]["prompt_n"] for piece in told] == processed
    assert {(piece["content"], piece["stop"], len(piece["tokens"])) for piece in told} == {("", False, 0)}


async def test_an_infill_is_answered_like_a_completion(api: Api) -> None:
    request = {"input_prefix": "say a|b", "input_suffix": "c", "seed": 7}
    body = (await api.client.post("/infill", json=request)).json()
    assert body.keys() == UNION_KEYS
    assert body["content"] == "ab" and body["generation_settings"]["seed"] == 7
    assert data(await api.stream("/infill", request))[-1]["stop"] is True


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_infill_that_the_model_cannot_do_is_a_plain_error(api: Api, is_stream: bool) -> None:
    request = {"input_prefix": "lack", "input_suffix": "", "stream": is_stream}
    response = await api.client.post("/infill", json=request)
    assert response.status_code == 501
    assert response.headers["content-type"].startswith("application/json")
    assert response.json()["error"]["type"] == "not_supported_error"


async def test_more_prompts_than_slots_are_all_answered(api: Api) -> None:
    body = (await api.client.post("/completion", json={"prompt": [f"say {i}" for i in range(10)]})).json()
    assert [item["content"] for item in body] == [str(i) for i in range(10)]


async def test_one_bad_element_stops_all_before_anything_is_queued(api: Api, worker: ScriptedWorker) -> None:
    response = await api.client.post("/completion", json={"prompt": ["say a", [-1]]})
    assert response.status_code == 400
    assert (await api.client.post("/completion", json={"prompt": "say a"})).status_code == 200
    assert len(worker.taken) == 1


async def test_one_failing_element_fails_all_and_cancels_the_rest(api: Api, worker: ScriptedWorker) -> None:
    response = await api.client.post("/completion", json={"prompt": ["hold a|b", "long x"]})
    assert response.status_code == 400
    held = (await worker.has_taken(2))[0]
    await worker.cancelled[held].wait()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_prompt_too_long_is_a_plain_error_with_both_numbers(api: Api, is_stream: bool) -> None:
    response = await api.client.post("/completion", json={"prompt": "long x", "stream": is_stream})
    assert response.status_code == 400
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("exceed_context_size_error", 400)
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (99, 64)


async def test_a_failure_after_the_first_byte_is_the_streams_last_event(api: Api) -> None:
    *pieces, last = data(await api.stream("/completion", {"prompt": "die a|b"}))
    assert [piece["content"] for piece in pieces] == ["a", "b"]
    assert last == {"error": {"code": 500, "message": "its workers died", "type": "server_error"}}


async def test_a_job_cancelled_by_another_ends_its_stream_with_an_error(api: Api, worker: ScriptedWorker) -> None:
    lines: list[str] = []
    async with api.client.stream("POST", "/completion", json={"prompt": "hold a|b", "stream": True}) as response:
        async for line in response.aiter_lines():
            lines.append(line)
            if "content" in line:
                job_id = response.headers["x-job-id"]
                cancelled = await api.client.post(f"/v1/jobs/{job_id}/cancel")
                assert cancelled.status_code == 200
    last = data(lines)[-1]
    assert last["error"]["type"] == "cancelled_error"


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("prompt", ["hold a|b", "shut a"])
async def test_a_client_that_goes_away_cancels_its_job(
    api: Api, worker: ScriptedWorker, is_stream: bool, prompt: str
) -> None:
    asking = asyncio.create_task(api.client.post("/completion", json={"prompt": prompt, "stream": is_stream}))
    (job_id,) = await worker.has_taken(1)
    asking.cancel()
    await asyncio.wait_for(worker.cancelled[job_id].wait(), 5)
    await asyncio.wait_for(worker.is_idle(), 5)


async def test_a_queued_job_of_a_gone_client_never_runs_and_hurts_nobody(
    settings: ApiSettings, bus: Bus, worker: ScriptedWorker
) -> None:
    async with serve(settings.model_copy(update={"accept_wait_s": 0.05})) as api:
        holding = [
            asyncio.create_task(api.client.post("/completion", json={"prompt": "hold a|b"}))
            for _ in range(worker.n_slots)
        ]
        await worker.has_taken(worker.n_slots)
        late = {"prompt": "say late", "stream": True}
        async with api.client.stream("POST", "/completion", json=late) as response:
            job_id = response.headers["x-job-id"]
        await ended(bus, job_id)
        worker.go.set()
        answers = await asyncio.gather(*holding)
    assert {answer.json()["content"] for answer in answers} == {"ab"}
    assert job_id not in worker.taken
    record = await bus.queue.record(job_id)
    assert record is not None and record.status is JobStatus.CANCELLED


async def ended(bus: Bus, job_id: str) -> None:
    async with asyncio.timeout(5), bus.log.follow(job_id) as reader:
        async for _ in reader:
            pass


async def test_many_quick_departures_leave_nothing_behind(api: Api, worker: ScriptedWorker) -> None:
    for number in range(20):
        asking = asyncio.create_task(
            api.client.post("/completion", json={"prompt": "hold a|b", "stream": number % 2 == 0})
        )
        await worker.has_taken(number + 1)
        asking.cancel()
        await asyncio.wait_for(worker.cancelled[worker.taken[-1]].wait(), 5)
    await asyncio.wait_for(worker.is_idle(), 5)
    assert (await api.client.post("/completion", json={"prompt": "say a"})).json()["content"] == "a"


async def test_silence_is_filled_with_comments_after_the_wait_for_a_worker(
    settings: ApiSettings, worker: ScriptedWorker
) -> None:
    hasty = settings.model_copy(update={"accept_wait_s": 0.05, "keep_alive_s": 0.05})
    lines: list[str] = []
    async with serve(hasty) as api:
        request = {"prompt": "shut a|b", "stream": True}
        async with api.client.stream("POST", "/completion", json=request) as response:
            async for line in response.aiter_lines():
                lines.append(line)
                if lines.count(": keep-alive") == 2:
                    worker.go.set()
    assert [piece["content"] for piece in data(lines)] == ["a", "b", ""]


async def test_a_client_may_say_after_how_many_seconds_of_silence_there_is_a_comment(
    api: Api, worker: ScriptedWorker
) -> None:
    lines: list[str] = []
    request = {"prompt": "read a", "stream": True, "sse_ping_interval": 1}
    async with asyncio.timeout(10), api.client.stream("POST", "/completion", json=request) as response:
        async for line in response.aiter_lines():
            lines.append(line)
            worker.go.set()
    assert lines[0] == ": keep-alive"


async def test_a_long_prompt_whose_progress_nobody_asked_for_is_silence_too(
    settings: ApiSettings, worker: ScriptedWorker
) -> None:
    lines: list[str] = []
    async with serve(settings.model_copy(update={"keep_alive_s": 0.2})) as api, asyncio.timeout(10):
        request = {"prompt": "read a", "stream": True}
        async with api.client.stream("POST", "/completion", json=request) as response:
            async for line in response.aiter_lines():
                lines.append(line)
                if lines.count(": keep-alive") == 2:
                    worker.go.set()
    assert [piece["content"] for piece in data(lines)] == ["a", ""]


async def test_the_deadline_ends_a_request_that_nobody_works_on(settings: ApiSettings, bus: Bus) -> None:
    await ScriptedWorker(bus).announce("loading")
    async with serve(settings.model_copy(update={"deadline_s": 0.2})) as api:
        asking = asyncio.create_task(api.client.post("/completion", json={"prompt": "say a"}))
        while not asking.done():
            await bus.queue.reap()
        response = await asking
    assert response.status_code == 504
    assert response.json()["error"]["type"] == "timeout_error"


async def test_without_a_worker_jobs_are_taken_and_requests_that_somebody_waits_for_are_not(
    settings: ApiSettings, bus: Bus
) -> None:
    async with ScriptedWorker(bus):
        pass  # so that its model is known, and nobody serves it
    async with serve(settings) as api:
        job = {"endpoint": "/completion", "body": {"prompt": "say a"}}
        assert (await api.client.post("/v1/jobs", json=job)).status_code == 202
        for is_stream in (False, True):
            response = await api.client.post("/completion", json={"prompt": "say b", "stream": is_stream})
            assert response.status_code == 503
            assert response.json()["error"]["type"] == "unavailable_error"
            assert int(response.headers["retry-after"]) >= 1


async def test_a_full_queue_says_when_to_come_back(settings: ApiSettings, bus: Bus) -> None:
    await ScriptedWorker(bus).announce("loading")
    async with serve(settings.model_copy(update={"max_queued": 1})) as api:
        job = {"endpoint": "/completion", "body": {"prompt": "say a"}}
        assert (await api.client.post("/v1/jobs", json=job)).status_code == 202
        response = await api.client.post("/completion", json={"prompt": "say b"})
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["type"] == "rate_limit_error"


async def test_a_stopping_server_lets_streams_end(settings: ApiSettings, worker: ScriptedWorker) -> None:
    async with serve(settings) as api:
        streaming = asyncio.create_task(api.stream("/completion", {"prompt": "hold a|b"}))
        await worker.has_taken(1)
        api.server.should_exit = True
        await refused(api.url)
        worker.go.set()
        assert data(await streaming)[-1]["stop"] is True


async def test_a_job_that_redis_forgot_ends_its_stream_with_an_error() -> None:
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ss") as folder, RedisProcess(Path(folder)) as redis:
        settings = ApiSettings(redis_url=SecretStr(redis.url))
        async with (
            serve(settings) as api,
            open_bus(settings, name="test") as bus,
            ScriptedWorker(bus),
            api.client.stream("POST", "/completion", json={"prompt": "hold a|b", "stream": True}) as response,
        ):
            async for line in response.aiter_lines():
                lines.append(line)
                if '"content":"a"' in line:
                    redis.stop()
                    redis.start()
    assert data(lines)[-1]["error"]["type"] == "unavailable_error"


async def refused(url: str) -> None:
    async with asyncio.timeout(5), httpx.AsyncClient(base_url=url) as client:
        while True:
            try:
                await client.get("/live")
            except httpx.TransportError:
                return


async def test_what_outlasts_the_server_ends_with_an_error(settings: ApiSettings, worker: ScriptedWorker) -> None:
    async with serve(settings, grace_s=1) as api:
        streaming = asyncio.create_task(api.stream("/completion", {"prompt": "hold a|b"}))
        waiting = asyncio.create_task(api.client.post("/completion", json={"prompt": "hold a|b"}))
        jobs = await worker.has_taken(2)
        api.server.should_exit = True
        assert data(await streaming)[-1]["error"]["type"] == "unavailable_error"
        assert (await waiting).json()["error"]["type"] == "unavailable_error"
        for job_id in jobs:
            await asyncio.wait_for(worker.cancelled[job_id].wait(), 5)


async def test_slots_are_counted_over_workers_and_round_again(settings: ApiSettings, bus: Bus) -> None:
    async with (
        ScriptedWorker(bus, worker_id="w1", n_slots=2) as first,
        ScriptedWorker(bus, worker_id="w2", n_slots=3) as second,
        serve(settings) as api,
    ):
        for number, worker, slot in ((0, first, 0), (1, first, 1), (2, second, 0), (4, second, 2), (6, first, 1)):
            n_taken = len(worker.taken)
            answer = (await api.client.post("/completion", json={"prompt": "say a", "id_slot": number})).json()
            assert (answer["id_slot"], len(worker.taken)) == (slot, n_taken + 1), number
        job = {"endpoint": "/completion", "body": {"prompt": "say a", "id_slot": 3}}
        made = (await api.client.post("/v1/jobs", json=job)).json()
        assert (await second.has_taken(3))[-1] == made["id"]


async def test_an_array_with_a_slot_stays_on_its_worker(settings: ApiSettings, bus: Bus) -> None:
    async with (
        ScriptedWorker(bus, worker_id="w1", n_slots=1) as first,
        ScriptedWorker(bus, worker_id="w2", n_slots=1) as second,
        serve(settings) as api,
    ):
        body = {"prompt": ["say a", "say b", "say c"], "id_slot": 1}
        assert [each["content"] for each in (await api.client.post("/completion", json=body)).json()] == ["a", "b", "c"]
    assert (len(first.taken), len(second.taken)) == (0, 3)
