"""The `openai` client's files, unmodified, in its synchronous and its asynchronous form."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.api.conftest import Api

LINES = b'{"custom_id": "a"}\n' * 20_000
"""More than a piece that anybody reads at once."""


@pytest.fixture(params=["sync", "asynchronous"])
async def client(request: pytest.FixtureRequest, api: Api) -> AsyncIterator[Client]:
    options: dict[str, Any] = {"base_url": f"{api.url}/v1", "api_key": "none", "max_retries": 0}
    if request.param == "sync":
        with OpenAI(**options) as client:
            yield Client(client)
    else:
        async with AsyncOpenAI(**options) as asynchronous:
            yield Client(asynchronous)


class Client:
    """Either form of it."""

    def __init__(self, sdk: OpenAI | AsyncOpenAI) -> None:
        self.sdk: Any = sdk

    async def __call__(self, method: str, *arguments: Any, **more: Any) -> Any:
        call = getattr(self.sdk.files, method)
        if isinstance(self.sdk, OpenAI):
            return await asyncio.to_thread(call, *arguments, **more)
        return await call(*arguments, **more)

    async def all(self, **query: Any) -> list[Any]:
        """Page by page."""
        if isinstance(self.sdk, OpenAI):
            return await asyncio.to_thread(lambda: list(self.sdk.files.list(**query)))
        return [file async for file in self.sdk.files.list(**query)]


async def test_a_file_goes_all_its_way(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "é in.jsonl"
    path.write_bytes(LINES)
    file = await client("create", file=path, purpose="batch")
    assert (file.object, file.filename, file.bytes, file.purpose) == ("file", "é in.jsonl", len(LINES), "batch")
    assert file.id in [each.id for each in await client.all()]
    assert await client("retrieve", file.id) == file
    assert (await client("wait_for_processing", file.id)).status == "processed"
    assert (await client("content", file.id)).content == LINES
    deleted = await client("delete", file.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
    for method in ("retrieve", "content", "delete"):
        with pytest.raises(openai.NotFoundError):
            await client(method, file.id)


async def test_a_file_may_come_as_bytes_or_be_read_from_anywhere(client: Client) -> None:
    sources = ((b"bytes", "upload"), (("n.jsonl", b"bytes"), "n.jsonl"), (io.BytesIO(b"bytes"), "upload"))
    for given, name in sources:
        file = await client("create", file=given, purpose="user_data")
        assert (file.filename, file.bytes) == (name, 5)


async def test_a_file_may_say_when_it_goes(client: Client) -> None:
    after = {"anchor": "created_at", "seconds": 3600}
    file = await client("create", file=("x", b""), purpose="batch", expires_after=after)
    assert file.expires_at - file.created_at == 3600


async def test_pages_are_turned_by_the_client(client: Client) -> None:
    made = [(await client("create", file=("x", b"x"), purpose="evals")).id for _ in range(5)]
    assert [file.id for file in await client.all(limit=2, order="asc", purpose="evals")] == made
    assert [file.id for file in await client.all(limit=2)] == made[::-1]


async def test_content_is_streamed_and_written_to_files(client: Client, tmp_path: Path) -> None:
    file = await client("create", file=("x", LINES), purpose="batch")
    streaming = client.sdk.files.with_streaming_response.content(file.id)
    if isinstance(client.sdk, OpenAI):

        def read() -> bytes:
            with streaming as response:
                return b"".join(response.iter_bytes())

        assert await asyncio.to_thread(read) == LINES
    else:
        async with streaming as response:
            await response.stream_to_file(tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == LINES


async def test_what_is_wrong_is_told_by_its_field(client: Client) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client("create", file=("x", b""), purpose="poetry")
    assert refused.value.param == "purpose"
    with pytest.raises(openai.BadRequestError) as refused:
        await client("create", file=("x", b""), purpose="batch", expires_after={"anchor": "created_at", "seconds": 5})
    assert refused.value.param == "expires_after[seconds]"
