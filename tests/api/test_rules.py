"""What holds of every route, whoever wrote it: walked along the table of routes, so that none can be forgotten.

The requests that must be granted are those that docs/api.md prints; what is wrong with a field is what the API's own
document excludes. The worker is a scripted one.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jsonschema
import pytest
import pytest_asyncio
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.routing import Route

from api.app import ROUTES
from api.keys import Keys, keys_of
from api.openapi.description import Operation, Reach, operations_of
from api.openapi.document import document_of
from api.problems import LLAMACPP, OLLAMA, family_of
from api.schemas.strict import OwnFields
from api.webhooks.signing import new_secret
from shared.bus import open_bus
from shared.errors import QueueFull
from shared.files import FileRecord, Purpose
from shared.settings import ApiSettings
from shared.webhooks import Endpoint, Secret
from tests.api.conftest import Api, RedisProcess, serve
from tests.api.scripted_worker import ScriptedWorker
from tests.end_to_end.printed import Printed, printed, template_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY, OTHER = "sesame", "mellon"
MAX_BODY = 100_000
DOCUMENT = document_of(ROUTES)
PAGE = (Path(__file__).parents[2] / "docs/api.md").read_text()
PRINTED = [each for each in printed(PAGE) if each.status < 300]
NAMES = {
    **{"id_slot": "0", "model": "tiny", "digest": "sha256:0"},
    **{"job_id": "job_0_0", "response_id": "resp_0_0", "batch_id": "batch_0_0", "file_id": "file-0_0"},
    **{"webhook_endpoint_id": f"whep_0_{'0' * 24}", "delivery_id": f"wh_0_{'0' * 24}"},
}
"""For what stands in paths."""
PRINTED_FILE = re.search(r"file-0_[0-9a-f]{24}", PAGE)
"""That the page makes a batch of."""


class Asked(NamedTuple):
    """An operation, and how it is asked for something that it grants."""

    operation: Operation
    path: str
    body: dict[str, Any]


def operations() -> Iterator[Operation]:
    for route in ROUTES:
        assert isinstance(route, Route)
        yield from operations_of(route)


def schema_of(operation: Operation) -> dict[str, Any]:
    """Of the body, with the definitions that it refers to."""
    body = DOCUMENT["paths"][operation.path][operation.method.lower()]["requestBody"]["content"]["application/json"]
    name = body["schema"]["$ref"].rpartition("/")[2]
    return {**DOCUMENT["components"]["schemas"][name], "components": DOCUMENT["components"]}


def printed_for(operation: Operation) -> Printed | None:
    """The page's request for it, or for another path of the same function."""
    paths = [template_of(each.path) for each in operations() if each.endpoint == operation.endpoint]
    for example in PRINTED:
        path = example.path.partition("?")[0]
        if example.method == operation.method and any(each.fullmatch(path) for each in paths):
            return example
    return None


def asked(operation: Operation) -> Asked:
    example = printed_for(operation)
    _, mark, query = example.path.partition("?") if example else ("", "", "")
    body = json.loads(example.body) if example and example.body[:1] == "{" else {}
    return Asked(operation, operation.path.format(**NAMES) + mark + query, body)


def streams_of(operation: Operation) -> dict[str, dict[str, Any]]:
    """By media type, the schema of its pieces."""
    told = DOCUMENT["paths"][operation.path][operation.method.lower()]["responses"].get("200", {})
    return {kind: content["x-piece"] for kind, content in told.get("content", {}).items() if "x-piece" in content}


ALL = list(operations())
READERS = [asked(each) for each in ALL if each.description and each.description.reads is not None]
OBJECTS = [each for each in READERS if "properties" in schema_of(each.operation)]
GRANTED = [each for each in OBJECTS if each.body]
WORKED = [each for each in GRANTED if each.operation.description and each.operation.description.reach is Reach.JOB]

NAMED = [each for each in WORKED if "model" in schema_of(each.operation)["properties"]]
LANED = [each for each in WORKED if "priority" in schema_of(each.operation)["properties"]]
OWNED = [each for each in ALL if re.search(r"\{(job|response|batch|file)_id\}", each.path)]


def label(value: object) -> str:
    operation = value.operation if isinstance(value, Asked) else value
    return f"{operation.method} {operation.path}" if isinstance(operation, Operation) else str(value)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(redis_process: RedisProcess) -> AsyncIterator[Api]:
    """With two keys; its own client has the first."""
    settings = ApiSettings(
        redis_url=SecretStr(redis_process.url),
        namespace="rules",
        deadline_s=10,
        api_key=(SecretStr(KEY), SecretStr(OTHER)),
        max_body_mb=MAX_BODY / 1e6,
        allow_hosts=("hooks.example.com",),
    )
    async with (
        open_bus(settings, name="test") as bus,
        ScriptedWorker(bus, has_slot_files=True),
        serve(settings) as served,
    ):
        tenant = Keys(keys_of(settings)).tenant_of(Headers({"X-Api-Key": KEY}))
        assert PRINTED_FILE
        file = FileRecord(
            id=PRINTED_FILE[0], tenant=tenant, filename="in.jsonl", purpose=Purpose.BATCH, created_at=0, pieces=()
        )
        await bus.files.create(file, 600)
        served.client.headers["X-Api-Key"] = KEY
        secret = Secret(value=new_secret())
        await bus.webhooks.create(
            Endpoint(id=NAMES["webhook_endpoint_id"], tenant=tenant, url="x:", event_types=(), secrets=(secret,))
        )
        yield served


def check_refusal(response: httpx.Response, status: int, path: str) -> str:
    """An error object of the path's family; its message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json") and response.headers["x-request-id"]
    error = response.json()["error"]
    if family_of(path) is OLLAMA:
        assert response.json() == {"error": str(error)}
        return str(error)
    assert error.keys() == {"code", "message", "type", *([] if family_of(path) is LLAMACPP else ["param"])}
    assert error["code"] == status and error["type"]
    return str(error["message"])


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"])
async def test_a_method_that_is_not_there_is_refused_and_told_which_are(api: Api, method: str) -> None:
    for path in sorted({operation.path for operation in ALL}):
        there = {operation.method for operation in ALL if operation.path == path}
        if method not in there:
            response = await api.client.request(method, path.format(**NAMES))
            check_refusal(response, 405, path)
            assert set(response.headers["allow"].split(", ")) - {"HEAD"} == there, path


@pytest.mark.parametrize(
    "path", ["/no", "/v1/no", "/v1/jobs/x/no", "/chat/no", "/api/no", "/slots/0/no", "/v1/models/"]
)
async def test_a_path_that_is_not_there_is_refused_in_the_words_of_its_family(api: Api, path: str) -> None:
    check_refusal(await api.client.get(path), 404, path)


@pytest.mark.parametrize("asked", READERS, ids=label)
async def test_what_is_not_strict_json_of_the_right_kind_is_refused(api: Api, asked: Asked) -> None:
    wrong = [
        b"{bad",
        b'"x"',
        b"1",
        b'{"x":NaN}',
        b'{"x":-Infinity}',
        b'{"x":1e999}',
        b'{"x":"\\ud800"}',
        b'{"x":"\xff"}',
    ]
    wrong += [b"[" * 10_000, b"[1]" if "properties" in schema_of(asked.operation) else b"{}"]
    assert asked.operation.description
    wrong += [b""] if asked.operation.description.needs_body else []
    for content in wrong:
        response = await api.client.request(asked.operation.method, asked.path, content=content)
        assert check_refusal(response, 400, asked.path)


@pytest.mark.parametrize("asked", READERS, ids=label)
async def test_a_body_too_large_is_refused(api: Api, asked: Asked) -> None:
    content = b'{"x":"' + b"x" * MAX_BODY + b'"}'
    check_refusal(await api.client.request(asked.operation.method, asked.path, content=content), 413, asked.path)


@pytest.mark.parametrize("asked", {each.operation.endpoint: each for each in OBJECTS}.values(), ids=label)
async def test_every_field_of_a_wrong_type_is_refused_by_its_name(api: Api, asked: Asked) -> None:
    for place, (name, field) in enumerate(schema_of(asked.operation)["properties"].items()):
        fits = jsonschema.Draft202012Validator({**field, "components": DOCUMENT["components"]}).is_valid
        odd = [value for value in (True, 1.5, "?", ["?"], {"?": 1}, [[[]]], {"x": {"y": []}}) if not fits(value)]
        assert odd, f"{name} takes anything"
        value = odd[place % len(odd)]  # each field another one, and in every run the same
        message = check_refusal(await ask(api, asked, {name: value}), 400, asked.path)
        assert name in message, (name, value, message)


@pytest.mark.parametrize("asked", GRANTED, ids=label)
async def test_null_is_absent_and_the_answer_tells_its_request_and_its_job(api: Api, asked: Asked) -> None:
    schema = schema_of(asked.operation)
    absent = {name: None for name in schema["properties"] if name not in schema.get("required", ())}
    response = await api.client.request(asked.operation.method, asked.path, json=absent | asked.body)
    assert response.status_code in (200, 202), response.text
    assert response.headers["x-request-id"]
    told = DOCUMENT["paths"][asked.operation.path][asked.operation.method.lower()]["responses"]["200"]["headers"]
    assert ("x-job-id" in response.headers) == ("X-Job-Id" in told)


@pytest.mark.parametrize("asked", GRANTED, ids=label)
async def test_unknown_fields_are_let_through_where_others_have_the_path_and_refused_where_it_is_ours(
    api: Api, asked: Asked
) -> None:
    response = await ask(api, asked, {"no_such": 1})
    assert asked.operation.description
    if issubclass(asked.operation.description.reads, OwnFields):
        assert "no_such" in check_refusal(response, 400, asked.path)
    else:
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "asked", [each for each in WORKED if "priority" in schema_of(each.operation)["properties"]], ids=label
)
async def test_a_request_is_interactive_unless_it_says_otherwise(api: Api, asked: Asked) -> None:
    for more, lane in [({}, "interactive"), ({"priority": "bulk"}, "bulk"), ({"service_tier": "flex"}, "bulk")]:
        response = await ask(api, asked, more)
        job = (await api.client.get(f"/v1/jobs/{response.headers['x-job-id']}")).json()
        assert job["priority"] == lane, more


@pytest.mark.parametrize("operation", OWNED, ids=label)
async def test_what_another_key_made_is_not_there(api: Api, operation: Operation) -> None:
    names = await made(api)
    path = operation.path.format(**names)
    theirs = await api.client.request(operation.method, path, headers={"X-Api-Key": OTHER})
    nobodys = await api.client.request(operation.method, operation.path.format(**NAMES))
    check_refusal(theirs, 404, path)
    assert theirs.json() == nobodys.json()
    if operation.method != "GET":
        still = (await api.client.get(re.sub("/(cancel|retry)$", "", path))).json()
        assert still["status"] not in ("cancelled", "cancelling", "incomplete")


async def made(api: Api) -> dict[str, str]:
    """One of each thing that a key owns, for the names in paths."""
    job = await api.client.post("/v1/jobs", json={"endpoint": "/completion", "body": {"prompt": "say a|b"}})
    response = await api.client.post("/v1/responses", json={"input": "say a", "background": True})
    assert PRINTED_FILE
    file = {"input_file_id": PRINTED_FILE[0], "endpoint": "*", "completion_window": "1h"}
    batch = await api.client.post("/v1/batches", json=file)
    sent = await api.client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", b"{}")})
    answers = {"job_id": job, "response_id": response, "batch_id": batch, "file_id": sent}
    return {name: answer.json()["id"] for name, answer in answers.items()}


@pytest.mark.parametrize("asked", [each for each in WORKED if streams_of(each.operation)], ids=label)
async def test_each_piece_of_a_stream_is_what_the_document_says(api: Api, asked: Asked) -> None:
    for kind in streams_of(asked.operation):
        stream = {"stream": True} | ({"stream_options": {"include_usage": True}} if "/v1/c" in asked.path else {})
        method, body = asked.operation.method, asked.body | stream
        response = await api.client.request(method, asked.path, json=body, headers={"Accept": kind})
        assert len(check_pieces(response, asked.operation, kind)) > 1


async def test_each_event_of_a_job_and_of_a_response_is_what_the_document_says(api: Api) -> None:
    names = await made(api)
    for operation in OWNED:
        # A batch ends only where somebody works on it.
        for kind in streams_of(operation) if "{batch_id}" not in operation.path else ():
            response = await api.client.get(
                operation.path.format(**names), params={"stream": "true"} if "resp" in operation.path else None
            )
            assert len(check_pieces(response, operation, kind)) > 1


def check_pieces(response: httpx.Response, operation: Operation, kind: str) -> list[Any]:
    """Of a stream of that kind, which has no error in it."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].partition(";")[0] == kind
    lines = response.text.split("\n")
    told = lines if kind == "application/x-ndjson" else [line[6:] for line in lines if line.startswith("data: ")]
    pieces = [json.loads(line) for line in told if line not in ("", "[DONE]")]
    for piece in pieces:
        jsonschema.validate(piece, {**streams_of(operation)[kind], "components": DOCUMENT["components"]})
    return pieces


async def test_any_model_will_do_while_there_is_one_and_it_must_be_one_of_several(settings: ApiSettings) -> None:
    async with open_bus(settings, name="test") as bus, ScriptedWorker(bus, has_slot_files=True):
        async with serve(settings) as api:
            for asked in NAMED:
                response = await ask(api, asked, {"model": "no/such"})
                assert response.status_code == 200, (asked.path, response.text)
        async with ScriptedWorker(bus, model="other", worker_id="w2"), serve(settings) as api:
            for asked in NAMED:
                message = check_refusal(await ask(api, asked, {"model": "no/such"}), 404, asked.path)
                assert "no/such" in message, (asked.path, message)


async def test_who_waits_while_nobody_works_is_told_when_to_come_again(settings: ApiSettings) -> None:
    async with open_bus(settings, name="test") as bus:
        async with ScriptedWorker(bus):
            pass  # so that its model is known, and nobody serves it
        async with serve(settings) as api:
            for asked in WORKED:
                await check_later(api, asked, 503)


async def test_who_comes_to_a_full_queue_is_told_when_to_come_again(settings: ApiSettings) -> None:
    async with open_bus(settings, name="test") as bus:
        await ScriptedWorker(bus).announce("ready")  # and takes nothing
        async with serve(settings.model_copy(update={"max_queued": 1})) as api:
            job = {"endpoint": "/completion", "body": {"prompt": "say a"}}
            assert (await api.client.post("/v1/jobs", json=job)).status_code == 202
            for asked in WORKED:
                if "{id_slot}" not in asked.operation.path:  # what is for one worker has a line of its own
                    await check_later(api, asked, family_of(asked.path).statuses.get(QueueFull, 429))


async def ask(api: Api, asked: Asked, more: dict[str, Any] | None = None) -> httpx.Response:
    return await api.client.request(asked.operation.method, asked.path, json=asked.body | (more or {}))


async def check_later(api: Api, asked: Asked, status: int) -> None:
    has_choice = "background" in schema_of(asked.operation)["properties"]
    response = await ask(api, asked, {"background": False} if has_choice else None)
    check_refusal(response, status, asked.path)
    assert int(response.headers["retry-after"]) >= 1, asked.path
