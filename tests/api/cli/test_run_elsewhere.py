"""`slotstream run` with services that are no slotstream, and with one that does not tell of batches as they go on."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.api.cli.conftest import BatchServer, RunCommand


def go(bulk: RunCommand, server: BatchServer, *more: str) -> tuple[str, ...]:
    return ("in.jsonl", "-o", "out.jsonl", "--url", server.open_ai, *more)


def said(bulk: RunCommand) -> list[Any]:
    return [(result["response"] or {}).get("status_code") for result in bulk.results()]


def test_every_line_has_its_record_in_its_place_and_in_our_form(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "late", "turn": 2}, {"reject": 400}, {"status": "expired"}, {"say": "last", "tokens": 5})
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 1
    results = bulk.results()
    assert [result["custom_id"] for result in results] == [f"line-{n}" for n in range(4)]
    assert said(bulk) == [200, 400, None, 200]
    assert [result.get("line") for result in results] == [None, 2, 3, None]
    assert all(result["id"].startswith("batch_req_") for result in results)
    assert (results[2]["error"]["code"], results[2]["error"]["line"]) == ("batch_expired", 3)
    assert "4 lines, 2 failed; 6 prompt and 6 generated tokens" in done.stdout
    assert "line 2 (custom_id line-1): no such thing" in done.stdout
    stats = batch_server.get("/stats")
    assert (stats["made"], stats["windows"], stats["files"]) == (1, ["24h"], 0)


def test_bad_lines_are_not_sent_for_they_would_be_the_end_of_all(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "a"}, {"say": "b"})
    good = bulk.source.read_text().splitlines()
    bulk.source.write_text("\n".join(["not json", good[0], "", good[0], good[1], "{}"]) + "\n")
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 1, done.stderr
    assert [result["error"] and result["error"]["code"] for result in bulk.results()] == [
        "invalid_json",
        None,
        "duplicate_custom_id",
        None,
        "missing_custom_id",
    ]
    assert batch_server.get("/stats")["inputs"] == [f"{good[0]}\n{good[1]}\n"]


def test_a_file_that_asks_several_paths_is_refused_in_one_sentence(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "a"}, {"say": "b"})
    text = bulk.source.read_text()
    bulk.source.write_text("\n" + text.replace("chat/completions", "embeddings", 1))
    refused = bulk.run(*go(bulk, batch_server))
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1] == (
        "slotstream run: in.jsonl asks /v1/embeddings in line 2 and /v1/chat/completions in line 3, and"
        f" {batch_server.open_ai.removesuffix('/v1')} takes one path a file"
    )
    assert batch_server.get("/stats")["uploads"] == 0
    assert [path.name for path in bulk.folder.iterdir() if path.is_file()] == ["in.jsonl"]


def test_a_span_of_time_that_was_asked_for_is_passed_on(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "a"})
    assert bulk.run(*go(bulk, batch_server, "--window", "48h")).returncode == 0
    assert batch_server.get("/stats")["windows"] == ["48h"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_stopped_while_it_waited_goes_on_with_its_batch(
    bulk: RunCommand, batch_server: BatchServer, number: signal.Signals
) -> None:
    bulk.write({"say": "a"}, {"say": "b"}, {"say": "c"})
    batch_server.script(on="content", hold=True)  # what it gets at the end
    with bulk.start(*go(bulk, batch_server)) as first:
        batch_server.get("/when?held=1")
        first.send_signal(number)
        first.wait()
    batch_server.script(on="content", hold=False)
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 0, done.stderr
    assert said(bulk) == [200] * 3
    stats = batch_server.get("/stats")
    assert (stats["uploads"], stats["made"]) == (1, 1)


@pytest.mark.parametrize("step", ["look", "content"])
@pytest.mark.parametrize("status", [502, 0])
def test_a_service_that_falls_over_is_waited_for(
    bulk: RunCommand, batch_server: BatchServer, step: str, status: int
) -> None:
    bulk.write({"say": "a"}, {"reject": 400}, {"say": "c"})
    batch_server.refuse(step, 2, status)
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 1, done.stderr
    assert said(bulk) == [200, 400, 200]


def test_a_batch_that_shows_itself_late_is_not_made_twice(bulk: RunCommand, batch_server: BatchServer) -> None:
    batch_server.refuse("look", 3, 404)
    bulk.write({"say": "a"})
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 0, done.stderr
    assert batch_server.get("/stats")["made"] == 1


def test_results_that_are_not_there_are_no_failures_of_lines(bulk: RunCommand, batch_server: BatchServer) -> None:
    batch_server.refuse("content", 1, 404)
    bulk.write({"say": "a"})
    refused = bulk.run(*go(bulk, batch_server))
    assert refused.returncode == 2
    assert "the service does not have file-batch1-output, where results" in refused.stderr
    assert bulk.run(*go(bulk, batch_server)).returncode == 0
    assert batch_server.get("/stats")["made"] == 1


def test_lines_that_a_cancelled_batch_says_nothing_of_were_cancelled(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write({"say": "a"}, {"say": "never", "turn": 99})
    with bulk.start(*go(bulk, batch_server)) as run:
        batch_server.get("/when?ended=1&looks=1")
        batch_server.script(cancel=True)
        assert run.wait() == 1
    [done, left] = bulk.results()
    assert done["response"]["status_code"] == 200
    assert (left["custom_id"], left["error"]["code"], left["line"]) == ("line-1", "batch_cancelled", 2)


def test_a_batch_that_is_refused_says_which_line_is_to_blame(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "too much"})
    refused = bulk.run(*go(bulk, batch_server))
    assert refused.returncode == 2
    assert refused.stderr.endswith("slotstream run: in.jsonl is not taken as a batch: it is too much\n")


def test_a_slotstream_that_does_not_tell_of_batches_as_they_go_on_is_asked_now_and_then(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    batch_server.script(silent=True)
    bulk.write({"say": "late", "turn": 2}, {"reject": 400}, {"say": "c"})
    bulk.source.write_text(bulk.source.read_text().replace("chat/completions", "embeddings", 1))
    done = bulk.run("in.jsonl", "-o", "out.jsonl", "--url", batch_server.url)
    assert done.returncode == 1, done.stderr
    assert said(bulk) == [200, 400, 200]
    assert json.loads(bulk.output.read_text().splitlines()[1])["line"] == 2
