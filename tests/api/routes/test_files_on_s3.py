"""Files over HTTP whose bytes are in S3."""

from __future__ import annotations

import httpx
from pydantic import SecretStr

from shared.settings import ApiSettings
from shared.store import open_store
from tests.api.conftest import serve
from tests.s3 import BUCKET, url_at
from tests.shared.bus.conftest import eventually

LARGE = bytes(range(256)) * 48_000
"""Two parts of an upload."""


async def sent(client: httpx.AsyncClient, content: bytes) -> httpx.Response:
    return await client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)})


async def test_a_file_goes_all_its_way_through_s3(settings: ApiSettings, s3_url: str) -> None:
    async with serve(settings.model_copy(update={"store_url": SecretStr(s3_url)})) as api, open_store(s3_url) as store:
        file = (await sent(api.client, LARGE)).json()
        assert [name async for name, _ in store.names("files/")] == [f"files/{file['id']}"]
        path = f"/v1/files/{file['id']}"
        assert (await api.client.get(f"{path}/content")).content == LARGE
        part = await api.client.get(f"{path}/content", headers={"Range": "bytes=1000000-3000000"})
        assert part.content == LARGE[1_000_000:3_000_001]
        assert (await sent(api.client, b"x")).status_code == 200
        assert (await api.client.post("/v1/files", files={"file": ("in.jsonl", LARGE)})).status_code == 400
        assert len([name async for name, _ in store.names("files/")]) == 2
        assert (await api.client.delete(path)).status_code == 200

        async def is_gone() -> bool:
            return len([name async for name, _ in store.names("files/")]) == 1

        await eventually(is_gone)


async def test_while_s3_is_away_files_are_unavailable_and_all_else_is_not(settings: ApiSettings) -> None:
    away = SecretStr(url_at("http://127.0.0.1:9", BUCKET))
    async with serve(settings.model_copy(update={"store_url": away})) as api:
        response = await sent(api.client, b"x")
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert response.json()["error"]["message"] == "The store of files cannot be reached now."
        assert (await api.client.get("/v1/files")).json()["data"] == []
