"""docs/batches.md does what it says: its file is uploaded, and what it prints is sent and answered as it shows."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.settings import StoreSettings
from tests.api.sse_lines import events
from tests.end_to_end.printed import Printed, differences, printed
from tests.stack import PATIENCE_S, Role, Stack

TEXT = (Path(__file__).parents[2] / "docs/batches.md").read_text()
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
[PROGRAM] = [text for kind, text in BLOCKS if kind == "python"]
[FILE] = [text for kind, text in BLOCKS if kind == "json" and text.startswith('{"custom_id"')]
[EVENTS] = [text for kind, text in BLOCKS if text.startswith("event: ")]
[RECORDS] = [text for kind, text in BLOCKS if text.startswith('{"id": "batch_req_')]
UPLOAD, MAKE, SHOW, LISTEN, CANCEL, RETRY, LIST = printed(TEXT)
FAILING = '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": []}}\n{bad'


async def make(stack: Stack, file: str) -> str:
    """A batch of a file, as the page makes one."""
    fields = dict(UPLOAD.form)
    files = {"file": (fields.pop("file").removeprefix("@"), file)}
    upload = await stack.http.post(UPLOAD.path, data=fields, files=files)
    assert upload.status_code == 200, upload.text
    body = re.sub(r"file-\w+", upload.json()["id"], MAKE.body)
    return str((await ask(stack, MAKE._replace(body=body)))["id"])


async def ask(stack: Stack, example: Printed, batch_id: str = "") -> Any:
    path = re.sub(r"batch_\w+", batch_id, example.path)
    response = await stack.http.request(example.method, path, content=example.body)
    assert response.status_code == 200, (path, response.text)
    if not response.headers["content-type"].startswith("application/json"):
        return response.text
    if example.answer is not None:
        assert list(differences(example.answer, response.json())) == [], response.text
    return response.json()


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_is_right(served: Stack, shared_tasks: Role) -> None:
    batch_id = await make(served, FILE)
    assert (await ask(served, SHOW, batch_id)).keys() == MAKE.answer.keys()
    told = events((await ask(served, LISTEN, batch_id)).split("\n"))
    for shown in events(EVENTS.split("\n")):
        said = next(event for event in told if (event.id, event.name) == (shown.id, shown.name) or not shown.id)
        assert said.name == shown.name and not list(differences(shown.data, said.data))
    assert (await ask(served, LIST))["data"][0]["id"] == batch_id
    cancelled = await ask(served, CANCEL, await make(served, FILE))
    assert cancelled["status"] == "cancelling"
    failed_id = await make(served, FAILING)
    _, failed, bad = map(json.loads, RECORDS.splitlines())
    by_status = {
        event.data["response"] is None: event.data
        for event in events((await ask(served, LISTEN, failed_id)).split("\n"))
        if event.name == "line"
    }
    for shown, said in ((failed, by_status[False]), (bad, by_status[True])):
        assert not list(differences(shown, said)) and shown.keys() == said.keys()
    assert (await ask(served, RETRY, failed_id))["retry_of"] == failed_id


@pytest.mark.asyncio(loop_scope="session")
async def test_the_program_runs(served: Stack, shared_tasks: Role, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(FILE)
    program = PROGRAM.replace("http://127.0.0.1:8080", str(served.http.base_url).rstrip("/")).replace("(5)", "(0.1)")
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_S):
        printed, _ = await running.communicate()
    assert running.returncode == 0
    assert {json.loads(line)["custom_id"] for line in printed.decode().split("\n") if line} == {"a", "b"}


@pytest.mark.parametrize("name", ["max-batch-lines", "max-batch-mb", "file-retention-s"])
def test_the_limits_of_the_page_are_those_of_the_settings(name: str) -> None:
    default = StoreSettings.model_fields[name.replace("-", "_")].default
    shown = re.search(rf"([\d,]+) (lines|MB|days) \(`--{name}`\)", TEXT)
    assert shown
    assert float(shown[1].replace(",", "")) * (86400 if shown[2] == "days" else 1) == default
