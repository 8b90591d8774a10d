"""docs/api.md forgets no path, and does what it says: its requests are sent as they are printed, and answered so."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from starlette.routing import Route

from api.app import ROUTES
from api.openapi.description import operations_of
from api.webhooks.events import Event
from shared.bus import Bus, open_bus
from shared.webhooks import Attempt, DeliveryStatus
from tests.end_to_end.printed import Printed, differences, n_curls, printed, template_of
from tests.stack import Role, Stack

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
IDS = re.compile(r"\b(job_|resp_|batch_|file-|whep_|wh_)\d\w+")
"""Of what an example makes and the next ones ask for: a run has its own."""


LINES = b"".join(
    b'{"custom_id": "%b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 4}}\n'
    % name
    for name in (b"a", b"b")
)
"""Of any file that an example sends."""


def other_names(example: Printed) -> list[str]:
    """All paths of its row of the table, with its names and its query."""
    path, mark, query = example.path.partition("?")
    for method, paths in ROWS:
        meant = next((found for each in paths if (found := template_of(each).fullmatch(path))), None)
        if method == example.method and meant and method != "DELETE":  # what is gone cannot go again
            names = {"digest": "sha256:0"} | meant.groupdict()
            return [each.format(**names) + mark + query for each in paths]
    return [example.path]


def test_every_request_of_the_page_is_found() -> None:
    assert len(PRINTED) == n_curls(TEXT) > 30


def test_the_table_has_every_path_and_no_other() -> None:
    told = sorted((method, path) for method, paths in ROWS for path in paths)
    assert told == sorted(OPERATIONS)


@pytest.mark.parametrize(("method", "paths"), ROWS, ids=str)
def test_every_path_has_an_example(method: str, paths: list[str]) -> None:
    asked = [example.path.partition("?")[0] for example in PRINTED if example.method == method]
    assert any(template_of(path).fullmatch(each) for path in paths for each in asked)


@pytest.mark.parametrize(
    ("shown", "said"),
    [({"a": 1}, {}), ([1], []), ({"a": 1}, {"a": "1"}), (True, 1), (None, 0), ([{"a": {}}], [{"a": []}])],
)
def test_another_shape_is_noticed(shown: object, said: object) -> None:
    assert list(differences(shown, said))


@pytest.mark.asyncio(loop_scope="session")
async def test_the_requests_of_the_page_are_answered_as_it_shows(
    served: Stack, specialists: Stack, shared_tasks: Role
) -> None:
    async with open_bus(served.bus_settings, name="test") as bus:
        made: dict[str, str] = {}
        try:
            for example in PRINTED:
                path, body = (IDS.sub(lambda found: made[found[1]], text) for text in (example.path, example.body))
                for name in other_names(example._replace(path=path)):
                    answer = await ask(served, specialists, example._replace(path=name, body=body))
                    if found := IDS.fullmatch(str(answer.get("id"))):
                        made[found[1]] = found[0]
                    if "signing_secret" in answer and "wh_" not in made:
                        made["wh_"] = await a_failed_delivery(bus, made["whep_"])
        finally:
            await served.http.post("/lora-adapters", json=[])


async def a_failed_delivery(bus: Bus, endpoint_id: str) -> str:
    """As a sender leaves one that nobody took; its id."""
    delivery = Event("evt_0_00", "batch.completed", "batch_0_00", time.time()).to(endpoint_id)
    attempt = Attempt(at=time.time(), duration_ms=12, status_code=503, response="busy")
    await bus.webhooks.post([delivery])
    await bus.webhooks.attempted(delivery.id, endpoint_id, attempt, status=DeliveryStatus.FAILED, after_s=None)
    return delivery.id


async def ask(served: Stack, specialists: Stack, example: Printed) -> dict[str, object]:
    stack, content = served, example.body
    if model := SPECIALISTS.get(next((name for name in SPECIALISTS if name in example.path), "")):
        stack, content = specialists, json.dumps(json.loads(content) | {"model": model})
    sent = example._replace(body=content).content(LINES)
    response = await stack.http.request(example.method, example.path, **sent)
    assert response.status_code == example.status, (example, response.text)
    if example.answer is None:
        return {}
    answer = response.json()
    assert list(differences(example.answer, answer)) == [], (example.path, response.text[:2000])
    return dict(answer) if isinstance(answer, dict) else {}
