"""The batches API, against a real queue; what is done with a batch is scripted."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai.types
import pytest
from pydantic import SecretStr

from shared.batches import BatchStatus
from shared.bus import Bus
from shared.files import FileRecord, Purpose
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_tasks import ScriptedTasks, record


@pytest.fixture
async def file_id(bus: Bus) -> str:
    return await file(bus)


async def file(bus: Bus, purpose: Purpose = Purpose.BATCH, tenant: str = "default") -> str:
    """Known as one that was uploaded."""
    file_id = bus.files.new_id()
    made = FileRecord(id=file_id, tenant=tenant, filename="x", purpose=purpose, created_at=0, pieces=())
    await bus.files.create(made, 600)
    return file_id


def asked(file_id: str, **more: Any) -> dict[str, Any]:
    return {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "1h30m"} | more


async def make(api: Api, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    response = await api.client.post("/v1/batches", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def post(api: Api, path: str, **more: Any) -> dict[str, Any]:
    response = await api.client.post(path, **more)
    assert response.status_code == 200, response.text
    return dict(response.json())


def refused_field(response: httpx.Response) -> str:
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error"), response.text
    assert error["message"].startswith(f"Field '{error['param']}': ")
    return str(error["param"])


async def test_a_batch_is_made_and_shown_as_it_was_made(api: Api, file_id: str) -> None:
    life = {"anchor": "created_at", "seconds": 7200}
    made = await make(api, asked(file_id, metadata={"a": "b"}, output_expires_after=life))
    assert made["status"] == "validating" and made["metadata"] == {"a": "b"} and made["retry_of"] is None
    assert made["expires_at"] == made["created_at"] + 5400
    shown = await api.client.get(f"/v1/batches/{made['id']}")
    assert shown.json() == made
    openai.types.Batch.model_validate(made, strict=True)


async def test_the_file_must_be_one_that_was_uploaded_for_batches(api: Api, bus: Bus) -> None:
    for file_id in ("file-0_0", "x", await file(bus, tenant="other"), await file(bus, Purpose.ASSISTANTS)):
        response = await api.client.post("/v1/batches", json=asked(file_id))
        assert refused_field(response) == "input_file_id"


async def test_a_path_that_no_line_can_ask_is_refused_with_those_that_one_can(api: Api, file_id: str) -> None:
    response = await api.client.post("/v1/batches", json=asked(file_id, endpoint="/v1/moderations"))
    assert refused_field(response) == "endpoint"
    assert "/v1/chat/completions" in response.text and "*" in response.text
    assert (await make(api, asked(file_id, endpoint="*")))["endpoint"] == "*"


async def test_a_batch_takes_its_webhook_along_and_shows_it_to_nobody(api: Api, bus: Bus, file_id: str) -> None:
    secret = f"whsec_{'A' * 32}"
    webhook = {"url": "https://1.1.1.1/done", "events": ["batch.failed"], "secret": secret}
    made = await make(api, asked(file_id, webhook=webhook))
    batch = await bus.batches.record(made["id"])
    assert batch and batch.webhook and batch.webhook.secret.value.get_secret_value() == secret
    assert (batch.webhook.url, batch.webhook.events) == ("https://1.1.1.1/done", ("batch.failed",))
    assert "webhook" not in made
    for wrong, field in (
        ({"url": "http://10.0.0.1/"}, "webhook.url"),
        ({"events": ["job.failed"]}, "webhook.events"),
        ({"secret": None}, "webhook.secret"),
        ({"secret": "x"}, "webhook.secret"),
    ):
        response = await api.client.post("/v1/batches", json=asked(file_id, webhook=webhook | wrong))
        assert refused_field(response) == field


async def test_a_key_makes_one_batch(api: Api, bus: Bus, file_id: str) -> None:
    first, second = await asyncio.gather(*(make(api, asked(file_id), **{"Idempotency-Key": "k"}) for _ in range(2)))
    assert first == second
    conflict = asked(file_id, completion_window="1h")
    response = await api.client.post("/v1/batches", json=conflict, headers={"Idempotency-Key": "k"})
    assert (response.status_code, response.json()["error"]["type"]) == (409, "idempotency_conflict")
    await bus.files.delete(file_id, "default")
    assert await make(api, asked(file_id), **{"Idempotency-Key": "k"}) == first, "it was made while the file was there"
    assert len((await api.client.get("/v1/batches")).json()["data"]) == 1


REPEATED = {"X-Stainless-Retry-Count": "1"}


async def test_what_a_client_says_it_sends_again_makes_no_second_batch(api: Api, file_id: str) -> None:
    first = await make(api, asked(file_id), **{"X-Stainless-Retry-Count": "0"})
    assert await make(api, asked(file_id), **REPEATED) == first
    other = await make(api, asked(file_id, completion_window="1h"), **REPEATED)
    assert other["id"] != first["id"], "what it asks for is new"
    again = await make(api, asked(file_id), **{"X-Stainless-Retry-Count": "0"})
    assert again["id"] != first["id"], "it means to"
    assert (await make(api, asked(file_id), **REPEATED))["id"] == again["id"]


async def test_whoever_has_keys_may_ask_for_the_same_twice_though_one_is_sent_again(api: Api, file_id: str) -> None:
    first = await make(api, asked(file_id), **{"Idempotency-Key": "a"})
    second = await make(api, asked(file_id), **REPEATED, **{"Idempotency-Key": "b"})
    assert first["id"] != second["id"]


async def test_cancelling_twice_at_once_is_cancelling(api: Api, tasks: ScriptedTasks, file_id: str) -> None:
    batch_id = (await make(api, asked(file_id)))["id"]
    await tasks.begin(batch_id, 2)
    path = f"/v1/batches/{batch_id}/cancel"
    one, other = await asyncio.gather(post(api, path), post(api, path))
    assert one == other and one["status"] == "cancelling" and one["cancelling_at"]
    await tasks.write(batch_id, [record("a")], [record("b")])
    ended = await tasks.end(batch_id)
    assert ended.status is BatchStatus.CANCELLED
    again = await post(api, path)
    assert (again["status"], again["cancelling_at"]) == ("cancelled", one["cancelling_at"])


async def test_a_batch_can_be_cancelled_while_its_file_is_looked_through(api: Api, file_id: str) -> None:
    batch_id = (await make(api, asked(file_id)))["id"]
    assert (await post(api, f"/v1/batches/{batch_id}/cancel"))["status"] == "cancelling"


@pytest.mark.parametrize("how", ["completed", "failed"])
async def test_a_batch_that_has_ended_is_not_cancelled_and_stays_as_it_was(
    api: Api, tasks: ScriptedTasks, file_id: str, how: str
) -> None:
    batch_id = (await make(api, asked(file_id)))["id"]
    if how == "failed":
        await tasks.reject(batch_id)
    else:
        await tasks.begin(batch_id, 1)
        await tasks.write(batch_id, [record("a")])
        await tasks.end(batch_id)
    ended = (await api.client.get(f"/v1/batches/{batch_id}")).json()
    assert ended["status"] == how
    response = await api.client.post(f"/v1/batches/{batch_id}/cancel")
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert how in response.json()["error"]["message"]
    assert (await api.client.get(f"/v1/batches/{batch_id}")).json() == ended


async def test_batches_are_listed_newest_first_page_by_page(api: Api, file_id: str) -> None:
    made = [(await make(api, asked(file_id)))["id"] for _ in range(5)]
    pages, after = [], ""
    for _ in range(3):
        page = (await api.client.get(f"/v1/batches?limit=2{after}")).json()
        pages.append([each["id"] for each in page["data"]])
        assert (page["first_id"], page["last_id"]) == (pages[-1][0], pages[-1][-1])
        assert page["has_more"] == (len(pages) < 3)
        after = f"&after={page['last_id']}"
    assert [batch_id for page in pages for batch_id in page] == made[::-1]
    assert (await api.client.get("/v1/batches?new=1")).status_code == 200


async def test_an_empty_list_is_one(api: Api) -> None:
    empty = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert (await api.client.get("/v1/batches")).json() == empty


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *[
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("limit=x", "limit"),
            ("limit=", "limit"),
            ("limit=-1", "limit"),
        ],
        *[("after=batch_0_0", "after"), ("after=x", "after"), ("after=", "after"), ("limit=1&limit=1", "limit")],
    ],
)
async def test_a_list_that_cannot_be_is_refused(api: Api, query: str, field: str) -> None:
    assert refused_field(await api.client.get(f"/v1/batches?{query}")) == field


@pytest.fixture
async def old_id(api: Api, tasks: ScriptedTasks, file_id: str) -> str:
    """A batch that has ended, with a bad line and one that failed."""
    made = await make(api, asked(file_id, metadata={"a": "b"}))
    batch_id = str(made["id"])
    await tasks.begin(batch_id, 2, bad=[record("bad")])
    await tasks.write(batch_id, [record("a")], [record("b")])
    await tasks.end(batch_id)
    return batch_id


async def test_lines_that_failed_are_run_again_as_before_unless_it_is_said_otherwise(
    api: Api, bus: Bus, file_id: str, old_id: str
) -> None:
    await bus.files.delete(file_id, "default")
    made = await post(api, f"/v1/batches/{old_id}/retry")
    assert (made["retry_of"], made["status"], made["input_file_id"]) == (old_id, "validating", file_id)
    assert (made["completion_window"], made["metadata"], made["endpoint"]) == ("1h30m", {"a": "b"}, "/v1/completions")
    said = {"completion_window": "2d", "metadata": {}}
    other = await post(api, f"/v1/batches/{old_id}/retry", json=said)
    assert (other["completion_window"], other["metadata"]) == ("2d", None) and other["id"] != made["id"]


async def test_a_retry_that_is_sent_again_is_one(api: Api, old_id: str) -> None:
    path = f"/v1/batches/{old_id}/retry"
    keyed = [await post(api, path, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    repeated = [await post(api, path, headers={"X-Stainless-Retry-Count": str(count)}) for count in (0, 1)]
    assert keyed[0] == keyed[1] and repeated[0] == repeated[1]
    assert keyed[0]["id"] != repeated[0]["id"]


async def test_what_is_asked_for_again_is_there_wherever_the_host_of_its_webhook_leads_by_now(
    settings: ApiSettings, api: Api, file_id: str, old_id: str
) -> None:
    told = {"webhook": {"url": "https://10.0.0.1/", "secret": "whsec_" + "QUFB" * 10}}
    wanted = [("/v1/batches", asked(file_id) | told), (f"/v1/batches/{old_id}/retry", told)]
    async with serve(settings.model_copy(update={"allow_hosts": ("10.0.0.1",)})) as trusting:
        made = [await post(trusting, path, json=body, headers={"Idempotency-Key": path}) for path, body in wanted]
    assert [await post(api, path, json=body, headers={"Idempotency-Key": path}) for path, body in wanted] == made
    for path, body in wanted:
        assert refused_field(await api.client.post(path, json=body)) == "webhook.url"


async def test_only_what_has_ended_and_failed_is_run_again(api: Api, tasks: ScriptedTasks, file_id: str) -> None:
    batch_id = (await make(api, asked(file_id)))["id"]
    await tasks.begin(batch_id, 1, bad=[record("bad")])
    early = await api.client.post(f"/v1/batches/{batch_id}/retry")
    await tasks.write(batch_id, [record("a")])
    await tasks.end(batch_id)
    late = await api.client.post(f"/v1/batches/{batch_id}/retry")
    for response, word in ((early, "in_progress"), (late, "No line")):
        assert response.status_code == 400 and word in response.json()["error"]["message"]


async def test_a_batch_whose_lines_nobody_has_read_is_not_run_again(
    api: Api, tasks: ScriptedTasks, file_id: str
) -> None:
    batch_id = (await make(api, asked(file_id)))["id"]
    await post(api, f"/v1/batches/{batch_id}/cancel")
    await tasks.end(batch_id)
    response = await api.client.post(f"/v1/batches/{batch_id}/retry")
    assert response.status_code == 400 and "make another of that file" in response.json()["error"]["message"]


@pytest.mark.parametrize("body", [{"endpoint": "*"}, {"completion_window": "0s"}, {"metadata": {"a": 1}}])
async def test_a_retry_of_something_else_is_refused(api: Api, old_id: str, body: dict[str, Any]) -> None:
    response = await api.client.post(f"/v1/batches/{old_id}/retry", json=body)
    assert refused_field(response).startswith(next(iter(body)))


async def test_a_batch_is_nobody_elses(settings: ApiSettings, api: Api, file_id: str) -> None:
    batch_id = (await make(api, asked(file_id)))["id"]
    async with serve(settings.model_copy(update={"api_key": (SecretStr("other"),)})) as theirs:
        theirs.client.headers["X-Api-Key"] = "other"
        for each in (batch_id, "batch_0_0", "x"):
            for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/retry")):
                response = await theirs.client.request(method, f"/v1/batches/{each}{path}")
                assert (response.status_code, response.json()["error"]["message"]) == (404, "There is no such batch")
        assert refused_field(await theirs.client.get(f"/v1/batches?after={batch_id}")) == "after"
        assert refused_field(await theirs.client.post("/v1/batches", json=asked(file_id))) == "input_file_id"
        assert (await theirs.client.get("/v1/batches")).json()["data"] == []
    assert (await api.client.get(f"/v1/batches/{batch_id}")).json()["status"] == "validating"


async def test_who_lists_hears_how_long_batches_take(api: Api, tasks: ScriptedTasks, file_id: str) -> None:
    batch_id = (await make(api, asked(file_id)))["id"]
    await tasks.begin(batch_id, 3)
    await tasks.write(batch_id, [record("a")])
    [listed] = (await api.client.get("/v1/batches")).json()["data"]
    assert listed["eta_s"] > 0 and listed["request_counts"] == {"total": 3, "completed": 1, "failed": 0}
    assert listed["partial_output_file_id"] and listed["output_file_id"] is None
