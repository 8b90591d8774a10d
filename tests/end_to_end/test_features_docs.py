"""docs/features.md does what it says: its requests are sent as they are printed, and its flags are there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from shared.flags import parser_of
from shared.settings import ServeSettings
from tests.end_to_end.test_image_cases import RED
from tests.stack import Stack

TEXT = (Path(__file__).parents[2] / "docs/features.md").read_text()
CURL = re.compile(
    r"^curl (-N |-X POST )?'?http://127\.0\.0\.1:8080(/[^\s']*)'?(?: -d '([^']*)'| -d @- <<END\n(.*?)\nEND)?$",
    re.MULTILINE | re.DOTALL,
)
HELP = set(re.findall(r"--[a-z-]+\w", parser_of(ServeSettings, "", "", "").format_help()))
SPECIALISTS = {"Images": "tiny", "Reranking": "judge"}
"""By section: the model that can do it, which the page has alone."""


class Printed(NamedTuple):
    section: str
    method: str
    path: str
    body: str


def printed() -> list[Printed]:
    found = []
    for section in TEXT.split("\n## "):
        for option, path, short, long in CURL.findall(section):
            body = short or long
            found.append(Printed(section.partition("\n")[0], "POST" if body or "POST" in option else "GET", path, body))
    return found


def test_every_request_of_the_page_is_found() -> None:
    assert len(printed()) == len(re.findall(r"^curl ", TEXT, re.MULTILINE)) > 15


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"(?<![\w-])--[a-z-]+\w", TEXT))))
def test_every_flag_of_the_page_is_there(flag: str) -> None:
    assert flag in HELP


@pytest.mark.asyncio(loop_scope="session")
async def test_the_requests_of_the_page_are_granted(served: Stack, specialists: Stack) -> None:
    try:
        for section, method, path, body in printed():
            stack, sent = served, body
            if model := SPECIALISTS.get(section):
                fields = json.loads(body.replace("$(base64 -w0 cat.png)", RED))
                stack, sent = specialists, json.dumps(fields | {"model": model})
            response = await stack.http.request(method, path, content=sent)
            assert response.status_code == 200, (path, body, response.text)
    finally:
        await served.http.post("/lora-adapters", json=[])
