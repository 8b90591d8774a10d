"""`slotstream jobs` against the API itself, a real queue and a scripted worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from api.cli.jobprint import answer_text, printable, summary
from api.cli.jobs import EXIT_PIPE_CLOSED, LARGEST_PAGE
from api.cli.jobservice import JobView
from shared.settings import ApiSettings
from tests.api.cli.conftest import JobsServer, environment
from tests.api.cli.jobs_command import jobs, run_here
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker

NOBODYS = "job_0_" + "0" * 24


async def submitted(api: Api, prompt: str, *arguments: str) -> str:
    done = await jobs(api, "submit", *arguments, body={"prompt": prompt})
    assert (done.code, done.err) == (0, ""), done
    return done.out.removesuffix("\n")


async def shown(api: Api, job_id: str) -> dict[str, Any]:
    return dict((await api.client.get(f"/v1/jobs/{job_id}")).json())


async def ended(api: Api, job_id: str) -> dict[str, Any]:
    await api.client.get(f"/v1/jobs/{job_id}/events")
    return await shown(api, job_id)


async def test_submit_prints_the_id_of_the_job_that_was_asked_for(api: Api) -> None:
    more = ("--priority", "interactive", "--deadline-s", "60", "--metadata", "a=1", "--metadata", "b=x=y")
    job = await shown(api, await submitted(api, "say a", *more))
    assert (job["endpoint"], job["priority"], job["metadata"]) == ("/completion", "interactive", {"a": "1", "b": "x=y"})
    assert job["deadline_at"] - job["created_at"] in (60, 61)


async def test_the_same_key_submits_the_same_job(api: Api) -> None:
    first, again = [await submitted(api, "say a", "--idempotency-key", "k") for _ in range(2)]
    assert first == again
    assert await submitted(api, "say a") != await submitted(api, "say a")
    conflict = await jobs(api, "submit", "--idempotency-key", "k", body={"prompt": "say b"})
    assert conflict.code == 1
    assert "answered 409: The idempotency key was used with another body" in conflict.err


async def test_submit_reads_a_file(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text('{"messages": [{"role": "user", "content": "say a|b"}]}')
    done = await jobs(api, "submit", str(path), "--endpoint", "/v1/chat/completions", "--wait")
    assert (done.code, done.out) == (0, "ab\n")


async def test_submit_can_wait_and_says_how_it_ended(api: Api) -> None:
    done = await jobs(api, "submit", "--wait", body={"prompt": "say a|b\n"})
    assert (done.code, done.out) == (0, "ab\n")
    job_id, end = [line.removeprefix("slotstream jobs submit: ") for line in done.err.splitlines()]
    assert end == f"{job_id} succeeded: 7 prompt and 2 generated tokens, 0 s"
    died = await jobs(api, "submit", "--wait", body={"prompt": "die a"})
    assert (died.code, died.out) == (1, "a\n")
    assert died.err.endswith(" failed: its workers died\n")


async def test_answers_that_come_at_once_are_printed_one_below_the_other(api: Api) -> None:
    body = {"prompt": ["say a|b", "say c\n"], "n": 2}
    waited = await jobs(api, "submit", "--wait", body=body)
    assert (waited.code, waited.out) == (0, "ab\n\na'b'\n\nc\n\nc\n'\n")
    job_id = waited.err.splitlines()[0].split()[-1]
    assert (await jobs(api, "show", job_id)).out.endswith("\nab\n\na'b'\n\nc\n\n\nc\n'\n")


async def test_submit_prints_an_answer_without_words_as_json(api: Api) -> None:
    done = await jobs(api, "submit", "--endpoint", "/v1/embeddings", "--wait", body={"input": "a"})
    assert done.code == 0
    assert len(done.objects[0]["data"][0]["embedding"]) == 4


async def test_json_is_what_the_api_says(api: Api) -> None:
    waited = await jobs(api, "submit", "--wait", "--json", body={"prompt": "say a|b"})
    [job] = waited.objects
    [made] = (await jobs(api, "submit", "--json", body={"prompt": "say a|b"})).objects
    other = await ended(api, made["id"])
    assert job == await shown(api, job["id"])
    for arguments, expected in (
        (("show", job["id"]), [job]),
        (("list",), [other, job]),
        (("list", "--limit", "1"), [other]),
        (("list", "--status", "queued"), []),
        (("cancel", job["id"], other["id"]), [job, other]),
    ):
        done = await jobs(api, *arguments, "--json")
        assert (done.code, done.objects, done.err) == (0, expected, "")


async def test_show_is_for_people(api: Api) -> None:
    job = await ended(api, await submitted(api, "say a|b", "--metadata", "who=me"))
    done = await jobs(api, "show", job["id"])
    lines = [line.split() for line in done.out.splitlines()]
    assert done.code == 0
    for line in (["id", job["id"]], ["status", "succeeded"], ["metadata", "who=me"], ["attempts", "1"], ["ab"]):
        assert line in lines


async def test_list_is_a_table_with_the_newest_first(api: Api, worker: ScriptedWorker) -> None:
    assert (await jobs(api, "list")).err == "slotstream jobs list: no jobs\n"
    first = await submitted(api, "die a")
    await ended(api, first)
    worker.n_slots = 0
    second = await submitted(api, "say a")
    done = await jobs(api, "list")
    head, *rows = done.out.splitlines()
    assert head.split() == ["ID", "STATUS", "PRIORITY", "MADE", "ENDPOINT"]
    assert [row.split()[:3] for row in rows] == [[second, "queued", "bulk"], [first, "failed", "bulk"]]
    assert "position 1" in rows[0]
    assert "its workers died" in rows[1]
    by_status = await jobs(api, "list", "--status", "failed")
    assert [line.split()[0] for line in by_status.out.splitlines()[1:]] == [first]


async def test_list_goes_on_behind_the_largest_page(api: Api) -> None:
    job = {"endpoint": "/completion", "body": {"prompt": "say a"}}
    await asyncio.gather(*(api.client.post("/v1/jobs", json=job) for _ in range(LARGEST_PAGE + 2)))
    done = await jobs(api, "list", "--limit", str(LARGEST_PAGE + 1), "--json")
    assert len({job["id"] for job in done.objects}) == len(done.objects) == LARGEST_PAGE + 1


async def test_cancel_tells_of_each_and_fails_for_what_is_not_there(api: Api, worker: ScriptedWorker) -> None:
    over = await submitted(api, "say a")
    await ended(api, over)
    running = await submitted(api, "hold a|b")
    await worker.has_taken(2)
    worker.n_slots = 0
    waiting = await submitted(api, "say b")
    done = await jobs(api, "cancel", over, running, NOBODYS, "../health", waiting)
    assert done.code == 1
    assert done.out.splitlines() == [
        f"{over} had ended before: succeeded",
        f"{running} is running and ends as soon as its worker hears of it",
        f"{waiting} is cancelled",
    ]
    assert done.err.splitlines() == [
        f"slotstream jobs cancel: there is no job '{NOBODYS}'",
        "slotstream jobs cancel: there is no job '../health'",
    ]
    assert (await ended(api, running))["status"] == "cancelled"


async def test_events_follow_a_job_from_any_number_on(api: Api, worker: ScriptedWorker) -> None:
    job_id = await submitted(api, "hold a|b|c")
    following = asyncio.create_task(jobs(api, "events", job_id))
    await worker.has_taken(1)
    worker.go.set()
    done = await following
    assert (done.code, done.out) == (0, "abc\n")
    assert f"{job_id} succeeded" in done.err
    assert (await jobs(api, "events", job_id, "--after", "2")).out == "c\n"
    late = await jobs(api, "events", job_id, "--after", "99")
    assert (late.code, late.out) == (0, "")
    as_json = await jobs(api, "events", job_id, "--after", "2", "--json")
    token, end = as_json.objects
    assert token == {"id": 3, "event": "token", "data": {"text": "c", "index": 0}}
    assert (end["id"], end["event"], end["data"]) == (4, "done", await shown(api, job_id))


async def test_a_job_that_did_not_succeed_is_an_exit_code(api: Api) -> None:
    done = await jobs(api, "events", await submitted(api, "die a"))
    assert (done.code, done.out) == (1, "a\n")


@pytest.mark.parametrize("action", ["show", "events", "cancel"])
@pytest.mark.parametrize("job_id", [NOBODYS, "x", "..", "a/b?c", "job_0_é", ""])
async def test_a_job_that_is_not_there_is_one_sentence(api: Api, action: str, job_id: str) -> None:
    done = await jobs(api, action, job_id)
    assert (done.code, done.out, done.err) == (1, "", f"slotstream jobs {action}: there is no job {job_id!r}\n")


@pytest.mark.parametrize(
    ("arguments", "content", "code", "sentence"),
    [
        (("submit",), b"{", 2, "stdin: The body is not valid JSON: "),
        (("submit",), b"[]", 2, "stdin: The body must be a JSON object"),
        (("submit",), b'{"prompt": NaN}', 2, "stdin: The body is not valid JSON: NaN is not a JSON number"),
        (("submit", "/no/such/file"), b"", 2, "/no/such/file: No such file or directory"),
        (("submit",), b'{"prompt": 5}', 1, "the service answered 400: Field 'body.prompt': "),
        (("submit", "--endpoint", "/x"), b"{}", 1, "the service answered 400: Field 'endpoint': must be one of"),
        (("submit", "--priority", "high"), b"{}", 2, "argument --priority: invalid choice: 'high' (choose from"),
        (("submit", "--metadata", "x"), b"{}", 2, "argument --metadata: 'x' is not NAME=VALUE"),
        (("list", "--limit", "0"), b"", 2, "argument --limit: must be at least 1"),
        (("list", "--limit", "-1"), b"", 2, "argument --limit: "),
        (("list", "--status", "done"), b"", 2, "argument --status: invalid choice: 'done' (choose from"),
        (("events", NOBODYS, "--after", "1.0"), b"", 2, "argument --after: '1.0' is not a number from 0 on"),
        (("list", "--url", "http://127.0.0.1:1"), b"", 2, "nothing answers at http://127.0.0.1:1: "),
        (("list", "--url", "nowhere"), b"", 2, "nowhere is not a URL that begins with http:// or https:// (see --url)"),
        (("list", "--url", "localhost:1"), b"", 2, "localhost:1 is not a URL that begins with http:// or https://"),
        (("list", "--url", "ftp://127.0.0.1:1"), b"", 2, "ftp://127.0.0.1:1 is not a URL that begins with http:// or"),
        (("cancel",), b"", 2, "the following arguments are required: ID"),
    ],
)
async def test_a_mistake_is_one_sentence(
    api: Api, arguments: tuple[str, ...], content: bytes, code: int, sentence: str
) -> None:
    done = await asyncio.to_thread(run_here, arguments, content, {"SLOTSTREAM_URL": api.url})
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert done.err.startswith(f"slotstream jobs {arguments[0]}: {sentence}")


def test_who_asks_where_nobody_is_hears_which_flag_says_where() -> None:
    done = run_here(("list", "--url", "http://127.0.0.1:1"), b"", {})
    assert done.err.endswith(" (see --url)\n")


async def test_the_key_comes_from_a_flag_or_the_environment(settings: ApiSettings, worker: ScriptedWorker) -> None:
    async with serve(settings.model_copy(update={"api_key": (SecretStr("one"),)})) as api:
        refused = await jobs(api, "list")
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert "refuses the API key (see --api-key)" in refused.err
        assert (await jobs(api, "list", SLOTSTREAM_API_KEY="one")).code == 0
        assert (await jobs(api, "list", "--api-key", "one", SLOTSTREAM_API_KEY="two")).code == 0
        assert (await jobs(api, "--api-key", "one", "list")).code == 0


async def test_flags_of_the_service_may_stand_before_the_action(api: Api) -> None:
    job_id = await submitted(api, "say a")
    done = await jobs(api, "--url", api.url, "--json", "list", SLOTSTREAM_URL="http://127.0.0.1:1")
    assert [job["id"] for job in done.objects] == [job_id]


def test_it_waits_for_a_service_that_is_busy_and_says_so(jobs_server: JobsServer) -> None:
    jobs_server.script(refuse=2, status=429)
    arguments = ("submit", "--priority", "bulk", "--wait")
    done = run_here(arguments, b'{"say": "hello"}', {"SLOTSTREAM_URL": jobs_server.url})
    assert done.code == 0
    assert done.err.count("slotstream jobs submit: waiting: the service answered 429: come back\n") == 1


def test_a_short_question_is_not_asked_for_long(jobs_server: JobsServer) -> None:
    jobs_server.script(refuse=10**6, status=503)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("api.cli.jobs.SHORT_PATIENCE_S", 0.1)
        done = run_here(("list",), b"", {"SLOTSTREAM_URL": jobs_server.url})
    assert done.code == 2


@pytest.mark.parametrize("arguments", [("list",), ("list", "--json")])
async def test_a_reader_that_leaves_is_no_error(api: Api, arguments: tuple[str, ...]) -> None:
    await submitted(api, "say a")

    def look_away() -> tuple[int, bytes]:
        with subprocess.Popen(
            [sys.executable, "-m", "api.cli", "jobs", *arguments],
            env=environment(SLOTSTREAM_URL=api.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout and process.stderr
            process.stdout.close()
            return process.wait(30), process.stderr.read()

    assert await asyncio.to_thread(look_away) == (EXIT_PIPE_CLOSED, b"")


async def test_what_others_wrote_cannot_steer_a_terminal(api: Api) -> None:
    job_id = await submitted(api, "say a", "--metadata", "title=\x1b]0;owned\x07\x9b31m")
    for arguments in (("list",), ("show", job_id)):
        assert not set((await jobs(api, *arguments)).out) & set("\x1b\x07\x9b")
    assert printable("a\x1b[31m\tb\r\n\x00é👋") == "a\ufffd[31m\tb\ufffd\n\ufffdé👋"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": "a", "stop": True}, "a"),
        ({"choices": [{"message": {"content": "b"}}]}, "b"),
        ({"choices": [{"text": "c", "index": 0}]}, "c"),
        ({"choices": [{"message": {"content": None}}]}, '{"choices": [{"message": {"content": null}}]}'),
        ([{"content": "a"}, {"content": "b\n"}], "a\n\nb\n"),
        ({"choices": [{"text": "c", "index": 0}, {"text": "d", "index": 1}]}, "c\n\nd"),
        ([{"content": "a"}, {}], '[{"content": "a"}, {}]'),
        ([], "[]"),
        ([1.5], "[1.5]"),
    ],
)
def test_an_answer_is_its_words(result: Any, text: str) -> None:
    assert answer_text(result) == text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"status": "queued"}, "waiting"),
        ({"status": "queued", "position": 3}, "position 3"),
        ({"status": "queued", "position": 3, "eta_s": 75.4}, "position 3, about 1 min 15 s"),
        ({"status": "queued", "position": 3, "waiting_for": "a worker"}, "position 3, waiting for a worker"),
        ({"status": "succeeded", "started_at": 5, "ended_at": 12}, "7 s"),
        ({"status": "succeeded", "usage": {"prompt_tokens": 1}}, "1 prompt token"),
        ({"status": "cancelled", "error": {"message": "no more"}}, "no more"),
    ],
)
def test_a_state_in_a_few_words(fields: dict[str, Any], words: str) -> None:
    assert summary(JobView(id="job_0_a", **fields)) == words
