"""Files over HTTP, byte for byte: what is taken, what is refused and why, and what is left of what was broken off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
import pytest_asyncio
from pydantic import SecretStr
from redis.asyncio import Redis

from shared.batches import Segment, error_file_id, output_file_id, segment_pieces
from shared.bus import open_bus
from shared.files import FileRecord, Piece, Purpose
from shared.settings import ApiSettings
from shared.store import open_store
from tests.api.conftest import Api, RedisProcess, serve
from tests.api.raw import connected
from tests.shared.bus.conftest import eventually
from tests.shared.bus.test_batches import held, made

pytestmark = pytest.mark.asyncio(loop_scope="module")

MB = 1_000_000
BATCH = {"purpose": "batch"}
TWO_LINES = b'{"a": 1}\n{"b": "\xc3\xa9"}\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files") / "store"


@pytest.fixture(scope="module")
def settings(redis_process: RedisProcess, folder: Path) -> ApiSettings:
    """With room for a file of a megabyte."""
    return ApiSettings(
        redis_url=SecretStr(redis_process.url),
        namespace="files",
        store_url=SecretStr(str(folder)),
        max_file_mb=1.0,
        max_body_mb=0.01,
        file_retention_s=1000.0,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(settings: ApiSettings) -> AsyncIterator[Api]:
    """An API without a worker: files need none."""
    async with serve(settings) as api:
        yield api


@pytest_asyncio.fixture(loop_scope="module")
async def files(served: Api, folder: Path, settings: ApiSettings) -> AsyncIterator[Api]:
    """The same, with no files."""
    yield served
    async with Redis.from_url(settings.redis_url.get_secret_value()) as client:
        await client.flushdb()
    async with open_store(str(folder)) as store:
        await store.delete([name async for name, _ in store.names()])


async def send(api: Api, content: bytes = TWO_LINES, name: str = "in.jsonl", **fields: str) -> httpx.Response:
    return await api.client.post("/v1/files", data=BATCH | fields, files={"file": (name, content)})


async def sent(api: Api, content: bytes = TWO_LINES, name: str = "in.jsonl", **fields: str) -> dict[str, Any]:
    response = await send(api, content, name, **fields)
    assert response.status_code == 200, response.text
    file: dict[str, Any] = response.json()
    return file


def left_in(folder: Path) -> list[str]:
    """All but what tells one store from another."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if not name.startswith("marks/"))


def form(*parts: tuple[bytes, bytes], boundary: bytes = b"xyz") -> bytes:
    """Of raw `Content-Disposition` parameters and bytes."""
    lines = [
        b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (boundary, disposition, content)
        for disposition, content in parts
    ]
    return b"".join([*lines, b"--%b--\r\n" % boundary])


PURPOSE, FILE = (b'name="purpose"', b"batch"), (b'name="file"; filename="a.jsonl"', TWO_LINES)
FORM = {"Content-Type": "multipart/form-data; boundary=xyz"}


async def send_raw(api: Api, body: bytes, headers: dict[str, str] = FORM) -> httpx.Response:
    return await api.client.post("/v1/files", content=body, headers=headers)


async def test_a_file_is_kept_as_it_was_sent_and_told_of(files: Api, folder: Path) -> None:
    file = await sent(files)
    assert file["object"] == "file"
    assert (file["bytes"], file["filename"], file["purpose"]) == (len(TWO_LINES), "in.jsonl", "batch")
    assert file["expires_at"] - file["created_at"] == pytest.approx(1000, abs=1)
    assert left_in(folder) == [f"files/{file['id']}"]
    assert (folder / "files" / file["id"]).read_bytes() == TWO_LINES
    assert (await files.client.get(f"/v1/files/{file['id']}")).json() == file
    assert (await files.client.get("/v1/files")).json()["data"] == [file]


@pytest.mark.parametrize("size", [0, 1, 65_536, MB - 1, MB])
async def test_files_of_any_size_up_to_the_largest_are_taken(files: Api, size: int) -> None:
    content = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    file = await sent(files, content)
    assert file["bytes"] == size
    response = await files.client.get(f"/v1/files/{file['id']}/content")
    assert response.content == content
    assert response.headers["content-length"] == str(size)


@pytest.mark.parametrize("parts", [(PURPOSE, FILE), (FILE, PURPOSE), ((b'name="more"', b"x"), FILE, PURPOSE)])
async def test_the_file_may_come_before_or_behind_the_other_fields(files: Api, parts: Any) -> None:
    response = await send_raw(files, form(*parts))
    assert response.status_code == 200, response.text
    content = await files.client.get(f"/v1/files/{response.json()['id']}/content")
    assert content.content == TWO_LINES


async def test_a_form_may_come_byte_by_byte(files: Api) -> None:
    body = form(FILE, PURPOSE)
    async with connected(files.url) as client:
        client.send(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=xyz\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        for byte in body:
            client.send(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        answer = await client.answer()
    assert answer.status == 200, answer.content


async def test_a_form_without_a_length_is_taken_and_may_wait_for_a_go_ahead(files: Api) -> None:
    body = form(FILE, PURPOSE)
    async with connected(files.url) as client:
        client.send(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=xyz\r\n"
            b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
        )
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert (await client.answer()).status == 200


async def test_a_file_that_is_too_large_is_refused_while_it_comes(files: Api, folder: Path) -> None:
    begun = form(PURPOSE, (FILE[0], b"x" * (MB + 1)))[: -len(b"\r\n--xyz--\r\n")]
    async with connected(files.url) as client:
        client.send(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=xyz\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(begun), begun)
        )  # and no end
        answer = await client.answer()
    assert answer.status == 413
    assert str(MB) in answer.error["message"]
    assert left_in(folder) == []


async def test_a_file_that_says_that_it_is_too_large_is_refused_before_it_comes(files: Api, folder: Path) -> None:
    async with connected(files.url) as client:
        client.send(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=xyz\r\n"
            b"Content-Length: 9000000\r\n\r\n"
        )
        assert (await client.answer()).status == 413
    assert (await send(files, b"x" * 3 * MB)).status_code == 413
    assert left_in(folder) == []


async def test_a_form_that_is_large_besides_its_file_is_refused(files: Api, folder: Path) -> None:
    many = [(b'name="f%d"' % number, b"x" * 60_000) for number in range(40)]
    assert (await send_raw(files, form(PURPOSE, FILE, *many))).status_code == 413
    assert left_in(folder) == []


REFUSED: dict[str, tuple[bytes, str, str]] = {
    "no purpose": (form(FILE), "purpose", "is needed"),
    "an unknown purpose": (form(FILE, (b'name="purpose"', b"poetry")), "purpose", "must be one of assistants, batch, "),
    "a purpose of ours": (form(FILE, (b'name="purpose"', b"batch_output")), "purpose", "must be one of"),
    "two purposes": (form(FILE, PURPOSE, PURPOSE), "purpose", "given twice"),
    "a purpose that is no text": (form(FILE, (b'name="purpose"', b"\xff")), "purpose", "UTF-8"),
    "no file": (form(PURPOSE), "file", "is needed"),
    "two files": (form(FILE, PURPOSE, FILE), "file", "given twice"),
    "a file that is a text": (form(PURPOSE, (b'name="file"', b"x")), "file", "with a name"),
    "a file without a name": (form(PURPOSE, (b'name="file"; filename=""', b"x")), "file", "with a name"),
    "a long name": (form(PURPOSE, (b'name="file"; filename="%b"' % (b"n" * 5000), b"x")), "file", "255 characters"),
    "a NUL in the name": (form(PURPOSE, (b'name="file"; filename="a\0b"', b"x")), "file", "NUL"),
    "a huge field": (form(PURPOSE, FILE, (b'name="more"', b"x" * 70_000)), "more", "65536 bytes"),
    "an anchor alone": (
        form(FILE, PURPOSE, (b'name="expires_after[anchor]"', b"created_at")),
        "expires_after[seconds]",
        "is needed",
    ),
    "seconds alone": (
        form(FILE, PURPOSE, (b'name="expires_after[seconds]"', b"3600")),
        "expires_after[anchor]",
        "is needed",
    ),
    **{
        f"{seconds!r} seconds": (
            form(
                *(FILE, PURPOSE, (b'name="expires_after[anchor]"', b"created_at")),
                (b'name="expires_after[seconds]"', seconds),
            ),
            "expires_after[seconds]",
            "",
        )
        for seconds in (b"3599", b"2592001", b"", b"1e9", b"-1", b"3600.5", b"9" * 5000)
    },
    "another anchor": (
        form(
            *(FILE, PURPOSE, (b'name="expires_after[anchor]"', b"last_used")),
            (b'name="expires_after[seconds]"', b"3600"),
        ),
        "expires_after[anchor]",
        "created_at",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_wrong_form_is_refused_by_its_field_and_leaves_nothing(files: Api, folder: Path, what: str) -> None:
    body, field, why = REFUSED[what]
    response = await send_raw(files, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == field
    assert f"Field '{field}': " in error["message"]
    assert why in error["message"]
    assert left_in(folder) == []
    assert (await files.client.get("/v1/files")).json()["data"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"--xyz",
        b"--xyz--\r\n"[:-4],
        form(PURPOSE, FILE)[:-10],
        form(PURPOSE, FILE)[:60],
        form(PURPOSE, FILE).replace(b"form-data; name=", b"file; name="),
        form(PURPOSE, (b'name="file"; filename="\xff\xfe.jsonl"', b"x")),
        form(PURPOSE, (b'name="file"; filename="\xed\xa0\x80.jsonl"', b"x")),
        form(PURPOSE, (b'name="file"; filename="a\r\nX: y.jsonl"', b"x")),
        form(PURPOSE, (b'name="file"; filename="%b"' % (b"n" * 20_000), b"x")),
        form(*[(b'name="f%d"' % number, b"") for number in range(100)]),
    ],
    ids=str,
)
async def test_what_is_no_form_is_refused_and_leaves_nothing(files: Api, folder: Path, body: bytes) -> None:
    response = await send_raw(files, body)
    assert response.status_code == 400, response.text
    assert "Error(" not in response.text, "what a library says is for people, not for programmers"
    assert left_in(folder) == []


@pytest.mark.parametrize(
    "kind",
    ["", "application/json", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=x"],
)
async def test_a_body_of_another_kind_is_refused(files: Api, kind: str) -> None:
    response = await send_raw(files, form(PURPOSE, FILE), {"Content-Type": kind})
    assert response.status_code == 400
    assert "multipart/form-data" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "name",
    ["../../x.jsonl", '"; X: y', "é😀.jsonl", "a b;c=d.txt", ".", "\r\nX: y", "n" * 255, "日本.txt"],
)
async def test_a_name_is_shown_again_and_used_for_nothing(files: Api, folder: Path, name: str) -> None:
    file = await sent(files, name=name)
    assert file["filename"] == name
    assert left_in(folder) == [f"files/{file['id']}"]
    response = await files.client.get(f"/v1/files/{file['id']}/content")
    assert "x" not in response.headers
    disposition = response.headers["content-disposition"]
    assert disposition.isascii() and disposition.isprintable()
    plain, encoded = disposition.removeprefix('attachment; filename="').split("\"; filename*=utf-8''")
    assert unquote(encoded) == name
    assert '"' not in plain and "\\" not in plain
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_lines_are_given_as_lines_and_all_else_as_bytes(files: Api) -> None:
    kinds = []
    for name, purpose in (("a.txt", "batch"), ("b.jsonl", "user_data"), ("c.html", "user_data")):
        file = await sent(files, name=name, purpose=purpose)
        kinds.append((await files.client.get(f"/v1/files/{file['id']}/content")).headers["content-type"])
    assert kinds == ["application/jsonl", "application/jsonl", "application/octet-stream"]


async def test_a_file_may_say_how_long_it_is_kept(files: Api) -> None:
    more = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"}
    file = await sent(files, **more)
    assert file["expires_at"] - file["created_at"] == pytest.approx(7200, abs=1)


async def test_files_are_listed_in_pages(files: Api) -> None:
    made = [(await sent(files, purpose=purpose))["id"] for purpose in ("batch", "evals", "batch")]

    async def listed(query: str) -> list[str]:
        page = (await files.client.get(f"/v1/files?{query}")).json()
        assert page["object"] == "list"
        ids = [file["id"] for file in page["data"]]
        assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
        return [*ids, *(["more"] if page["has_more"] else [])]

    assert await listed("") == made[::-1]
    assert await listed("order=asc&unknown=1") == made
    assert await listed("limit=2") == [*made[:0:-1], "more"]
    assert await listed(f"limit=2&after={made[1]}") == [made[0]]
    assert await listed(f"order=asc&after={made[1]}") == [made[2]]
    assert await listed("purpose=evals") == [made[1]]
    assert await listed("purpose=vision") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *(("limit=0", "limit"), ("limit=10001", "limit"), ("limit=x", "limit"), ("order=up", "order")),
        *(("purpose=x", "purpose"), ("after=x", "after"), ("after=file-0_" + "a" * 24, "after")),
        ("limit=1&limit=2", "limit"),
    ],
)
async def test_a_wrong_query_is_refused_by_its_name(files: Api, query: str, field: str) -> None:
    response = await files.client.get(f"/v1/files?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


async def test_a_deleted_file_is_gone_at_once_and_its_bytes_soon(files: Api, folder: Path) -> None:
    path = f"/v1/files/{(await sent(files))['id']}"
    response = await files.client.delete(path)
    assert response.json() == {"id": path.rpartition("/")[2], "object": "file", "deleted": True}

    async def is_empty() -> bool:
        return left_in(folder) == []

    await eventually(is_empty)
    for answer in (
        await files.client.delete(path),
        await files.client.get(path),
        await files.client.get(f"{path}/content"),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "not_found_error"
    assert (await files.client.get("/v1/files")).json()["data"] == []


@pytest.mark.parametrize(
    "name", ["x", "file-0_" + "0" * 24, "file-77_" + "0" * 24, "..%2f..%2fetc%2fpasswd", "%00", "é"]
)
@pytest.mark.parametrize(("method", "rest"), [("GET", ""), ("DELETE", ""), ("GET", "/content")])
async def test_what_there_is_not_is_not_found(files: Api, method: str, name: str, rest: str) -> None:
    response = await files.client.request(method, f"/v1/files/{name}{rest}")
    assert response.status_code == 404


TEN = b"0123456789"


@pytest.mark.parametrize(
    ("asked", "status", "content", "told"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=0-0", 206, b"0", "bytes 0-0/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-100", 206, TEN, "bytes 0-9/10"),
        ("bytes=5-100", 206, b"56789", "bytes 5-9/10"),
        ("Bytes = 2 - 4", 206, b"234", "bytes 2-4/10"),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=10-20", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=4-2", 200, TEN, None),
        ("bytes=-", 200, TEN, None),
        ("bytes=0-1,3-4", 200, TEN, None),
        ("lines=0-1", 200, TEN, None),
        ("bytes=a-b", 200, TEN, None),
        ("bytes=" + "9" * 30 + "-", 200, TEN, None),
    ],
)
async def test_a_part_can_be_asked_for(
    files: Api, asked: str, status: int, content: bytes | None, told: str | None
) -> None:
    file = await sent(files, TEN)
    response = await files.client.get(f"/v1/files/{file['id']}/content", headers={"Range": asked})
    assert response.status_code == status
    assert response.headers.get("content-range") == told
    if content is not None:
        assert response.content == content
        assert response.headers["accept-ranges"] == "bytes"


async def test_a_part_of_another_version_is_not_given(files: Api) -> None:
    path = f"/v1/files/{(await sent(files, TEN))['id']}/content"
    tag = (await files.client.get(path)).headers["etag"]
    same, other = [
        await files.client.get(path, headers={"Range": "bytes=2-4", "If-Range": each}) for each in (tag, '"another"')
    ]
    assert (same.status_code, same.content) == (206, b"234")
    assert (other.status_code, other.content) == (200, TEN)


async def test_head_tells_of_a_file_without_its_content(files: Api) -> None:
    response = await files.client.head(f"/v1/files/{(await sent(files, TEN))['id']}/content")
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-length"] == "10"


async def test_a_client_that_leaves_half_way_leaves_nothing(files: Api, folder: Path) -> None:
    async with connected(files.url) as client:
        client.send(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=xyz\r\n"
            b"Content-Length: 500000\r\n\r\n" + form(PURPOSE, (FILE[0], b"x" * 200_000))[:-50]
        )

        async def has_begun() -> bool:
            return left_in(folder) != []

        await eventually(has_begun)

    async def is_empty() -> bool:
        return left_in(folder) == []

    await eventually(is_empty)
    assert (await files.client.get("/v1/files")).json()["data"] == []


async def test_a_store_that_cannot_be_written_is_unavailable(files: Api, folder: Path) -> None:
    (folder / "partial").rmdir()
    (folder / "partial").write_text("in the way")
    try:
        response = await send(files)
    finally:
        (folder / "partial").unlink()
        (folder / "partial").mkdir()
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert str(folder) not in response.text
    assert (await files.client.get("/v1/files")).json()["data"] == []


async def test_bytes_that_are_not_in_the_store_are_an_error_and_no_empty_file(files: Api, folder: Path) -> None:
    file = await sent(files)
    path, content = folder / "files" / file["id"], f"/v1/files/{file['id']}/content"
    path.write_bytes(b"short")
    with pytest.raises(httpx.RemoteProtocolError):
        await files.client.get(content)
    path.unlink()
    response = await files.client.get(content)
    assert response.status_code == 503
    assert "not in the store" in response.json()["error"]["message"]


async def test_the_content_of_several_objects_is_one(files: Api, settings: ApiSettings, folder: Path) -> None:
    pieces = tuple(Piece(name=f"batches/batch_0_a/{number}", n_bytes=number) for number in (3, 0, 4, 1))
    async with open_bus(settings, name="test") as bus, open_store(str(folder)) as store:
        for piece in pieces:
            await store.put(piece.name, bytes([48 + piece.n_bytes]) * piece.n_bytes)
        made_of = {"purpose": Purpose.BATCH_OUTPUT, "created_at": 0.0, "pieces": pieces}
        record = FileRecord(id=bus.files.new_id(), tenant="default", filename="x", **made_of)
        await bus.files.create(record, 100)
    path = f"/v1/files/{record.id}/content"
    assert (await files.client.get(path)).content == b"33344441"
    for start in range(8):
        for stop in range(start + 1, 9):
            part = await files.client.get(path, headers={"Range": f"bytes={start}-{stop - 1}"})
            assert part.content == b"33344441"[start:stop]


async def test_a_file_of_a_batch_that_runs_is_served_as_far_as_it_goes(
    files: Api, settings: ApiSettings, folder: Path
) -> None:
    async with open_bus(settings, name="test") as bus, open_store(str(folder)) as store:
        batch = await made(bus, tenant="default")
        assert (await files.client.get(f"/v1/files/{output_file_id(batch.id)}")).json()["bytes"] == 0
        hold = await held(bus, batch)
        segment = Segment(number=0, mark=hold.mark, n_error=1, error_bytes=len(TWO_LINES))
        await store.put(segment_pieces(batch.id, segment)[1].name, TWO_LINES)
        assert await bus.batches.planned(hold, n_total=2, n_planned=1, segment=segment)

    path = f"/v1/files/{error_file_id(batch.id)}"
    file = (await files.client.get(path)).json()
    assert (file["bytes"], file["purpose"], file["status"]) == (len(TWO_LINES), "batch_output", "uploaded")
    response = await files.client.get(f"{path}/content")
    assert response.content == TWO_LINES
    assert response.headers["x-incomplete"] == "true"
    nothing = await files.client.get(f"/v1/files/{output_file_id(batch.id)}/content")
    assert (nothing.status_code, nothing.content, nothing.headers["x-incomplete"]) == (200, b"", "true")
    assert (await files.client.delete(path)).status_code == 400
    assert (await files.client.get("/v1/files")).json()["data"] == []


async def test_each_key_has_files_of_its_own(files: Api, settings: ApiSettings) -> None:
    keys = (SecretStr("one"), SecretStr("two"))
    async with serve(settings.model_copy(update={"api_key": keys})) as api:
        api.client.headers["X-Api-Key"] = "one"
        path = f"/v1/files/{(await sent(api))['id']}"
        api.client.headers["X-Api-Key"] = "two"
        answers = [
            *[await api.client.get(path), await api.client.get(f"{path}/content"), await api.client.delete(path)],
            await api.client.get(path.replace("file-", "file-9")),
        ]
        assert {answer.status_code for answer in answers} == {404}
        assert len({answer.json()["error"]["message"] for answer in answers}) == 1
        assert (await api.client.get("/v1/files")).json()["data"] == []
        api.client.headers["X-Api-Key"] = "one"
        assert (await api.client.get(path)).status_code == 200
