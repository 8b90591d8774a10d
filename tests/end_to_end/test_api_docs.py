"""docs/api.md forgets no path, and does what it says: its requests are sent as they are printed, and answered so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from starlette.routing import Route

from api.app import ROUTES
from api.openapi.description import operations_of
from tests.end_to_end.printed import Printed, differences, n_curls, printed
from tests.stack import Stack

TEXT = (Path(__file__).parents[2] / "docs/api.md").read_text()
PRINTED = list(printed(TEXT))
ROWS = [
    (method, re.findall(r"`(/[^`]*)`", paths)) for method, paths in re.findall(r"^\| ([A-Z]+) \| (.*?) \|", TEXT, re.M)
]
"""Of the table of all paths: a method, and the paths that have one example together."""
OPERATIONS = [
    (operation.method, operation.path)
    for route in ROUTES
    if isinstance(route, Route)
    for operation in operations_of(route)
]
SPECIALISTS = {"/infill": "tiny", "/rerank": "judge"}
"""By path: the model that can do it, where several are served."""
[DOCUMENTED_ID] = set(re.findall(r"job_0_[0-9a-f]{24}", TEXT))


def fits(path: str, template: str) -> bool:
    """Whether a path with its query is one of those that a route's path means."""
    return re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path.partition("?")[0]) is not None


def test_every_request_of_the_page_is_found() -> None:
    assert len(PRINTED) == n_curls(TEXT) > 30


def test_the_table_has_every_path_and_no_other() -> None:
    told = sorted((method, path) for method, paths in ROWS for path in paths)
    assert told == sorted(OPERATIONS)


@pytest.mark.parametrize(("method", "paths"), ROWS, ids=str)
def test_every_path_has_an_example(method: str, paths: list[str]) -> None:
    assert any(example.method == method and fits(example.path, path) for example in PRINTED for path in paths)


@pytest.mark.parametrize(
    ("shown", "said"),
    [({"a": 1}, {}), ([1], []), ({"a": 1}, {"a": "1"}), (True, 1), (None, 0), ([{"a": {}}], [{"a": []}])],
)
def test_another_shape_is_noticed(shown: object, said: object) -> None:
    assert list(differences(shown, said))


@pytest.mark.asyncio(loop_scope="session")
async def test_the_requests_of_the_page_are_answered_as_it_shows(served: Stack, specialists: Stack) -> None:
    job_id = ""
    try:
        for example in PRINTED:
            sent = example._replace(path=example.path.replace(DOCUMENTED_ID, job_id))
            for path in other_names(sent):
                answer = await ask(served, specialists, sent._replace(path=path))
                job_id = answer["id"] if example.status == 202 else job_id
    finally:
        await served.http.post("/lora-adapters", json=[])


def other_names(example: Printed) -> list[str]:
    """All paths of its row of the table, so that each was asked once; itself where names stand in it."""
    row = next((paths for method, paths in ROWS if method == example.method and example.path in paths), [])
    return [path.replace("{digest}", "sha256:0") for path in row] or [example.path]


async def ask(served: Stack, specialists: Stack, example: Printed) -> dict[str, object]:
    stack, content = served, example.body
    if model := SPECIALISTS.get(next((name for name in SPECIALISTS if name in example.path), "")):
        stack, content = specialists, json.dumps(json.loads(content) | {"model": model})
    response = await stack.http.request(example.method, example.path, content=content)
    assert response.status_code == example.status or example.answer is None, (example, response.text)
    assert response.status_code < 500 or response.status_code == example.status, (example, response.text)
    if example.answer is None:
        return {}
    answer = response.json()
    assert list(differences(example.answer, answer)) == [], (example.path, response.text[:2000])
    return dict(answer) if isinstance(answer, dict) else {}
