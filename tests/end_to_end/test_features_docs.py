"""docs/features.md does what it says: its requests are sent as they are printed, and its flags are there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shared.settings import ServeSettings
from shared.settings.flags import parser_of
from tests.end_to_end.printed import n_curls, printed
from tests.end_to_end.test_image_cases import RED
from tests.stack import Stack

TEXT = (Path(__file__).parents[2] / "docs/features.md").read_text()
HELP = set(re.findall(r"--[a-z-]+\w", parser_of(ServeSettings, "", "", "").format_help()))
SPECIALISTS = {"Images": "tiny", "Reranking": "judge"}
"""By section: the model that can do it, which the page has alone."""


def test_every_request_of_the_page_is_found() -> None:
    assert len(list(printed(TEXT))) == n_curls(TEXT) > 15


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"(?<![\w-])--[a-z-]+\w", TEXT))))
def test_every_flag_of_the_page_is_there(flag: str) -> None:
    assert flag in HELP


@pytest.mark.asyncio(loop_scope="session")
async def test_the_requests_of_the_page_are_granted(served: Stack, specialists: Stack) -> None:
    try:
        for request in printed(TEXT):
            stack, sent = served, request.body
            if model := SPECIALISTS.get(request.section):
                fields = json.loads(sent.replace("$(base64 -w0 cat.png)", RED))
                stack, sent = specialists, json.dumps(fields | {"model": model})
            content = request._replace(body=sent).content(b"{}")
            response = await stack.http.request(request.method, request.path, **content)
            assert response.status_code == 200, (request, response.text)
    finally:
        await served.http.post("/lora-adapters", json=[])
