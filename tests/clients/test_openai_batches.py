"""The `openai` SDK's files and batches, unmodified, in both of its forms, with a real worker and real tasks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI
from openai.types import Batch

from tests.api.sse_lines import Event, events
from tests.stack import PATIENCE_S, Role, Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")

ENDED = ("completed", "failed", "expired", "cancelled")


class Sdk(NamedTuple):
    sync: OpenAI
    asynchronous: AsyncOpenAI


@pytest_asyncio.fixture(loop_scope="session")
async def sdk(served: Stack, shared_tasks: Role) -> AsyncIterator[Sdk]:
    ways: dict[str, Any] = {
        "base_url": f"{served.http.base_url}/v1",
        "api_key": "none",
        "max_retries": 0,
        "timeout": 40,
    }
    with OpenAI(**ways) as sync:
        async with AsyncOpenAI(**ways) as asynchronous:
            yield Sdk(sync, asynchronous)


def line(custom_id: str, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    asked = {"prompt": f"Line {custom_id}", "max_tokens": 3, "seed": 1, "ignore_eos": True}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body or asked}


def file_of(lines: Sequence[dict[str, Any] | str]) -> bytes:
    return "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines).encode()


async def uploaded(client: AsyncOpenAI, lines: Sequence[dict[str, Any] | str]) -> str:
    return (await client.files.create(file=("in.jsonl", file_of(lines)), purpose="batch")).id


async def made(
    client: AsyncOpenAI, lines: Sequence[dict[str, Any] | str], *, endpoint: Any = "/v1/completions", window: Any = "1h"
) -> Batch:
    file_id = await uploaded(client, lines)
    return await client.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window=window)


async def ended(client: AsyncOpenAI, batch: Batch) -> Batch:
    async with asyncio.timeout(PATIENCE_S):
        while batch.status not in ENDED:
            await asyncio.sleep(0.1)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def content(client: AsyncOpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """The records of a file by their custom ids, each of which is there once."""
    if file_id is None:
        return {}
    records = [json.loads(text) for text in (await client.files.content(file_id)).text.splitlines()]
    by_id = {record["custom_id"]: record for record in records}
    assert len(by_id) == len(records)
    return by_id


BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 3, "seed": 1, "ignore_eos": True},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "ignore_eos": True},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 16, "ignore_eos": True},
    "/v1/embeddings": {"input": ["a", "b"]},
}


def go_all_the_way(client: OpenAI) -> tuple[Batch, list[dict[str, Any]], list[dict[str, Any]]]:
    """From a file to its results; also what was said of the batch when it was made."""
    lines = [line("good"), line("wrong", prompt=[]), "{bad", line("good")]
    file = client.files.create(file=("in.jsonl", file_of(lines)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"a": "b"}
    )
    assert batch.status == "validating" and batch.id in [each.id for each in client.batches.list(limit=5)]
    until = time.monotonic() + PATIENCE_S
    while batch.status not in ENDED and time.monotonic() < until:
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.output_file_id and batch.error_file_id
    results = [client.files.content(each).text for each in (batch.output_file_id, batch.error_file_id)]
    outputs, errors = [[json.loads(text) for text in result.splitlines()] for result in results]
    return batch, outputs, errors


async def test_the_synchronous_client_goes_all_the_way(sdk: Sdk) -> None:
    batch, outputs, errors = await asyncio.to_thread(go_all_the_way, sdk.sync)
    assert (batch.status, batch.metadata) == ("completed", {"a": "b"})
    assert batch.request_counts and batch.request_counts.model_dump() == {"total": 4, "completed": 1, "failed": 3}
    [good] = outputs
    assert (good["custom_id"], good["error"], good["response"]["status_code"]) == ("good", None, 200)
    assert good["response"]["body"]["choices"][0]["text"]
    assert batch.usage and batch.usage.output_tokens == 3
    assert {(each["custom_id"], each["line"]) for each in errors} == {("wrong", 2), (None, 3), ("good", 4)}
    [wrong] = [each["response"] for each in errors if each["custom_id"] == "wrong"]
    assert wrong["status_code"] == 400 and wrong["body"]["error"]["param"] == "prompt"
    assert {each["error"]["code"] for each in errors if each["error"]} == {"invalid_json", "duplicate_custom_id"}
    assert batch.errors and batch.errors.data and [fault.line for fault in batch.errors.data] == [3, 4]
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert times == sorted(times, key=lambda time: time or 0) and batch.expires_at == batch.created_at + 86400


async def test_a_batch_may_ask_all_paths(sdk: Sdk) -> None:
    lines = [line(url, url, **body) for url, body in BODIES.items()]
    batch = await ended(sdk.asynchronous, await made(sdk.asynchronous, lines, endpoint="*"))
    records = await content(sdk.asynchronous, batch.output_file_id)
    assert (batch.status, batch.error_file_id, records.keys()) == ("completed", None, BODIES.keys())
    for url, body in BODIES.items():
        answer = await sdk.asynchronous.post(url.removeprefix("/v1"), cast_to=dict[str, Any], body=body)
        assert records[url]["response"]["body"].keys() == answer.keys()


LONG = {"max_tokens": 200, "seed": 1, "ignore_eos": True}


async def test_a_batch_is_cancelled_once_and_every_line_is_told_of(sdk: Sdk) -> None:
    client = sdk.asynchronous
    ids = {str(place) for place in range(40)}
    batch = await made(client, [line(each, prompt=f"Line {each}", **LONG) for each in sorted(ids)])
    async with asyncio.timeout(PATIENCE_S):
        while not (batch.request_counts and batch.request_counts.completed):
            await asyncio.sleep(0.1)
            batch = await client.batches.retrieve(batch.id)
    one, other = await asyncio.gather(client.batches.cancel(batch.id), client.batches.cancel(batch.id))
    assert one.status == other.status == "cancelling" and one.cancelling_at == other.cancelling_at
    batch = await ended(client, one)
    assert (batch.status, batch.cancelling_at) == ("cancelled", one.cancelling_at) and batch.cancelled_at
    outputs, errors = await check_records(client, batch, ids)
    assert outputs and {each["error"]["code"] for each in errors.values()} == {"batch_cancelled"}
    assert await client.batches.cancel(batch.id) == batch
    await check_retry(client, batch, errors)


async def check_records(
    client: AsyncOpenAI, batch: Batch, ids: set[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Every line has one record, in one of the two files, and is counted there; both of them by custom ids."""
    outputs, errors = await content(client, batch.output_file_id), await content(client, batch.error_file_id)
    assert batch.request_counts
    assert (batch.request_counts.completed, batch.request_counts.failed) == (len(outputs), len(errors))
    assert {*outputs, *errors} == ids and len(outputs) + len(errors) == len(ids) == batch.request_counts.total
    return outputs, errors


async def check_retry(client: AsyncOpenAI, old: Batch, errors: dict[str, Any]) -> None:
    """What was not done is another batch's, though the file has gone."""
    await client.files.delete(old.input_file_id)
    batch = await client.post(f"/batches/{old.id}/retry", cast_to=Batch, body={"completion_window": "1s"})
    assert (batch.to_dict()["retry_of"], batch.completion_window) == (old.id, "1s")
    batch = await ended(client, batch)
    assert batch.status == "expired" and batch.expired_at and batch.expired_at >= (batch.expires_at or 0)
    _, again = await check_records(client, batch, {*errors})
    assert again and {each["error"]["code"] for each in again.values()} == {"batch_expired"}
    with pytest.raises(openai.BadRequestError, match="ended as expired"):
        await client.batches.cancel(batch.id)


async def listen(stack: Stack, batch_id: str, after: int = 0, n_lines: int | None = None) -> list[Event]:
    """The events of a batch to its end, or to so many lines, behind which the connection is cut."""
    lines: list[str] = []
    async with stack.http.stream("GET", f"/v1/batches/{batch_id}/events?starting_after={after}") as response:
        async for text in response.aiter_lines():
            lines.append(text)
            if text == "" and sum(event.name == "line" for event in events(lines)) == n_lines:
                break
    return events(lines)


async def test_who_listens_gets_each_record_once_however_often_he_comes_again(served: Stack, sdk: Sdk) -> None:
    client = sdk.asynchronous
    batch = await made(client, [*(line(str(place)) for place in range(30)), "{bad"])
    heard: list[Event] = []
    for n_lines in (1, 10, None):
        after = int(heard[-1].id or 0) if heard else 0
        told = await listen(served, batch.id, after, n_lines)
        heard += [event for event in told if event.name != "progress"]
    *lines, done = heard
    assert [event.id for event in heard] == [str(number) for number in range(1, 33)]
    assert (done.name, done.data["status"]) == ("done", "completed")
    batch = await client.batches.retrieve(batch.id)
    records = await content(client, batch.output_file_id) | await content(client, batch.error_file_id)
    assert {event.data["custom_id"]: event.data for event in lines} == records
    assert [event for event in await listen(served, batch.id) if event.name != "progress"] == heard


class Forgetful:
    """Leads to an API, and loses its first answers when they come."""

    def __init__(self, port: int, n_lost: int) -> None:
        self._port = port
        self.n_lost = n_lost
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_api, to_api = await asyncio.open_connection("127.0.0.1", self._port)
        asking = asyncio.create_task(self._pump(reader, to_api))
        answer = await from_api.read(65536)
        if self.n_lost:
            self.n_lost -= 1
            writer.transport.abort()
        else:
            writer.write(answer)
            await self._pump(from_api, writer)
        asking.cancel()
        to_api.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()


async def test_an_answer_that_is_lost_makes_no_second_batch(served: Stack, sdk: Sdk) -> None:
    file_id = await uploaded(sdk.asynchronous, [line("a")])
    port = served.http.base_url.port
    assert port
    async with (
        Forgetful(port, 2) as proxy,
        AsyncOpenAI(base_url=proxy.url, api_key="none", max_retries=2, timeout=40) as client,
    ):
        batch = await client.batches.create(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
        assert proxy.n_lost == 0
    listed = [each.id async for each in sdk.asynchronous.batches.list(limit=3) if each.input_file_id == file_id]
    assert listed == [batch.id]
    assert (await ended(sdk.asynchronous, batch)).status == "completed"


async def test_what_cannot_be_a_batch_is_refused_as_the_client_expects(sdk: Sdk) -> None:
    client = sdk.asynchronous
    with pytest.raises(openai.BadRequestError, match="input_file_id") as refusal:
        await client.batches.create(input_file_id="file-0_0", endpoint="/v1/completions", completion_window="24h")
    assert refusal.value.param == "input_file_id"
    with pytest.raises(openai.NotFoundError):
        await client.batches.retrieve("batch_0_0")
    for limit in (0, 101):
        with pytest.raises(openai.BadRequestError, match="limit"):
            await client.batches.list(limit=limit)
    empty = await ended(client, await made(client, [" "]))
    assert empty.status == "failed" and empty.failed_at and empty.errors and empty.errors.data
    assert empty.output_file_id is None and empty.error_file_id is None
