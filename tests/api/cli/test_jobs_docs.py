"""docs/jobs.md does what it says: its examples are run in order, and answered as it shows."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from api.schemas.dialect import ENDPOINTS
from shared.bus import Bus
from shared.settings import ApiSettings
from tests.api.cli.conftest import ROOT
from tests.api.cli.jobs_command import jobs
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker
from tests.api.sse_lines import events

TEXT = (ROOT / "docs" / "jobs.md").read_text()
ADDRESS = "http://127.0.0.1:8080"
OWN = frozenset({"created_at", "deadline_at", "model", "text", "ended_at", "started_at"})
"""What differs from one run to the next: only its type is compared."""


class Example(NamedTuple):
    command: str
    answer: str


def examples() -> Iterator[Example]:
    """Shell blocks with the block that follows each, if it shows an answer."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for (kind, content), (next_kind, answer) in zip(blocks, [*blocks[1:], ("sh", "")], strict=True):
        if kind == "sh":
            yield Example(content, "" if next_kind == "sh" else answer)


CURLS = [example for example in examples() if example.command.startswith("curl")]
[COMMANDS] = [example.command for example in examples() if not example.command.startswith("curl")]
[DOCUMENTED_ID] = set(re.findall(r"job_0_[0-9a-f]{24}", TEXT))


async def curl(api: Api, command: str) -> httpx.Response:
    """As curl would, for the few options that the page uses."""
    _, *words = shlex.split(command.replace("\\\n", ""))
    method, headers, content, url = "GET", {}, None, ""
    arguments = iter(words)
    for word in arguments:
        if word == "-H":
            name, _, value = next(arguments).partition(": ")
            headers[name] = value
        elif word == "-d":
            method, content = "POST", next(arguments)
        elif word == "-X":
            method = next(arguments)
        elif word != "-N":
            url = word
    assert url.startswith(ADDRESS), command
    return await api.client.request(method, url.removeprefix(ADDRESS), headers=headers, content=content)


def assert_shows(shown: Any, said: Any, name: str = "") -> None:
    """What is shown was said; more may have been said."""
    if name in OWN:
        assert type(shown) is type(said), name
    elif isinstance(shown, dict):
        for key, value in shown.items():
            assert_shows(value, said[key], key)
    elif isinstance(shown, list):
        assert len(shown) == len(said), name
        for one, other in zip(shown, said, strict=True):
            assert_shows(one, other)
    else:
        assert shown == said, name


def assert_answers(answer: str, response: httpx.Response) -> None:
    if answer.startswith("id: "):
        *tokens, end = events([*answer.splitlines(), ""])
        *said_tokens, said_end = events(response.text.splitlines())
        for number, event in enumerate([*said_tokens, said_end], 1):
            shown = end if event is said_end else tokens[number - 1]
            assert (event.id, event.name) == (str(number), shown.name)
            assert_shows(shown.data, event.data)
    elif answer:
        status, _, body = answer.partition("\n")
        assert response.status_code == int(status)
        assert not body or assert_shows(json.loads(body), response.json()) is None
    else:
        assert response.status_code == 200


async def test_the_page_is_right(settings: ApiSettings, bus: Bus) -> None:
    async with ScriptedWorker(bus):
        pass  # its model is known from here on, and the first job waits for the next worker
    async with serve(settings) as api:
        first, *others = CURLS
        response = await curl(api, first.command)
        job = response.json()
        assert_answers(first.answer.replace(DOCUMENTED_ID, job["id"]), response)
        assert list(json.loads(first.answer.partition("\n")[2])) == list(job)
        async with ScriptedWorker(bus):
            await api.client.get(f"/v1/jobs/{job['id']}/events")
            for command, answer in others:
                response = await curl(api, command.replace(DOCUMENTED_ID, job["id"]))
                assert_answers(answer.replace(DOCUMENTED_ID, job["id"]), response)
            for line in COMMANDS.splitlines():
                await run(api, line.replace(DOCUMENTED_ID, job["id"]))


async def run(api: Api, line: str) -> None:
    before, _, command = line.rpartition(" | ")
    body = json.loads(shlex.split(before)[1]) if before else None
    slotstream, name, *arguments = shlex.split(command)
    assert (slotstream, name) == (".venv/bin/slotstream", "jobs")
    done = await jobs(api, *arguments, body=body)
    assert done.code == 0 and DOCUMENTED_ID not in done.out + done.err, done


def test_the_page_names_every_path_that_a_job_can_stand_for() -> None:
    assert sorted(set(re.findall(r"`(/[^`]*)`", TEXT))) == sorted(ENDPOINTS)


def test_the_page_shows_every_call() -> None:
    calls = " ".join(example.command for example in CURLS)
    for path in ("/v1/jobs ", "/v1/jobs?", f"/v1/jobs/{DOCUMENTED_ID}\n", "/events", "/cancel"):
        assert path in calls


@pytest.mark.parametrize("shown", [{"a": 2}, {"b": 1}, {"a": [1]}])
def test_a_wrong_answer_is_noticed(shown: Any) -> None:
    with pytest.raises((AssertionError, KeyError, TypeError)):
        assert_shows(shown, {"a": 1})
