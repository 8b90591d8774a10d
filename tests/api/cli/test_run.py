from __future__ import annotations

import json
import random
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api.cli import run as command
from api.cli.batchfile import survey
from api.cli.bulkrun import Most
from api.cli.runfolder import ModelChanged, RunFolder, RunModel
from api.cli.spool import Ledger
from api.lines.record import Subject, answered
from shared.settings import WorkerSettings
from tests.api.cli.conftest import BatchServer, RunCommand


def bodies(n: int, *, window: int = 8, seed: int = 1) -> list[dict[str, Any]]:
    """Bodies of jobs that end in a shuffled order, each in reach of the ones around it."""
    turns = list(range(n))
    mixed = random.Random(seed)
    for start in range(0, n, window):
        piece = turns[start : start + window]
        mixed.shuffle(piece)
        turns[start : start + window] = piece
    return [{"say": f"say-{i}", "turn": turn, "tokens": i % 3} for i, turn in enumerate(turns)]


def go(bulk: RunCommand, server: BatchServer, *more: str, url: str = "") -> tuple[str, ...]:
    return ("in.jsonl", "-o", "out.jsonl", "--url", url or server.url, *more)


def say(result: dict[str, Any]) -> str:
    text: str = result["response"]["body"]["choices"][0]["message"]["content"]
    return text


def test_results_are_in_input_order_although_jobs_end_out_of_order(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write(*bodies(50))
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 0, done.stderr
    assert [result["custom_id"] for result in bulk.results()] == [f"line-{n}" for n in range(50)]
    assert [say(result) for result in bulk.results()] == [f"say-{n}" for n in range(50)]
    assert not bulk.part.exists()
    assert "50 lines, none failed; 150 prompt and 49 generated tokens" in done.stdout
    assert re.search(r"^\d+ generated tokens/s, ", done.stdout, re.MULTILINE)
    assert "50/50 done" in done.stderr
    stats = batch_server.get("/stats")
    assert (stats["made"], stats["windows"]) == (1, ["30d"])


def test_of_a_run_that_is_complete_nothing_is_left_with_the_service(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write({"say": "a"}, {"reject": 400})
    assert bulk.run(*go(bulk, batch_server)).returncode == 1
    stats = batch_server.get("/stats")
    assert (stats["files"], stats["deletes"]) == (0, 3)  # the input, and what came of it, good and bad


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        *((signal.SIGKILL, moment) for moment in ("uploads=1", "made=1", "ended=1", "ended=13", "ended=40")),
        (signal.SIGINT, "ended=13"),
        (signal.SIGTERM, "ended=25"),
    ],
)
def test_a_run_that_was_stopped_goes_on_without_a_line_lost_or_asked_twice(
    bulk: RunCommand, batch_server: BatchServer, number: signal.Signals, moment: str
) -> None:
    bulk.write(*bodies(40))
    with bulk.start(*go(bulk, batch_server)) as first:
        batch_server.get(f"/when?{moment}")
        first.send_signal(number)
        code = first.wait()
    assert code in {signal.SIGKILL: {-9, 0}, signal.SIGINT: {130, 0}, signal.SIGTERM: {143, 0}}[number]
    second = bulk.run(*go(bulk, batch_server))
    assert second.returncode == 0, second.stderr
    assert [say(result) for result in bulk.results()] == [f"say-{n}" for n in range(40)]
    stats = batch_server.get("/stats")
    assert stats["says"] == sorted(f"say-{n}" for n in range(40))
    assert (stats["uploads"], stats["made"]) == (1, 1)


STEPS = ["reading", "upload", "asked", "create"]
"""Where a request waits: before its file was read, before the answer that it is kept, and likewise with the batch."""


@pytest.mark.parametrize("way", ["slotstream", "openai"])
@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_was_killed_between_two_steps_does_neither_of_them_twice(
    bulk: RunCommand, batch_server: BatchServer, step: str, way: str
) -> None:
    url = batch_server.open_ai if way == "openai" else batch_server.url
    bulk.write(*bodies(5))
    batch_server.script(on=step, hold=True)
    with bulk.start(*go(bulk, batch_server, url=url)) as first:
        batch_server.get("/when?held=1")
        first.send_signal(signal.SIGKILL)
        first.wait()
    if step in ("upload", "create"):  # else what was asked before it died would be done when it is let go
        batch_server.script(on=step, hold=False)
    else:
        batch_server.script(on=step, drop=True)
    second = bulk.run(*go(bulk, batch_server, url=url))
    assert second.returncode == 0, second.stderr
    assert [say(result) for result in bulk.results()] == [f"say-{n}" for n in range(5)]
    stats = batch_server.get("/stats")
    assert (stats["uploads"], stats["made"], stats["files"]) == (1, 1, 0)


def test_what_a_service_did_while_nobody_listened_counts_for_no_speed(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write(*bodies(40))
    batch_server.refuse("events", 1000, 503)
    with bulk.start(*go(bulk, batch_server)) as first:
        assert next(text for text in first.lines if "come back" in text)
        batch_server.get("/when?ended=40")
        first.send_signal(signal.SIGKILL)
        first.wait()
    batch_server.refuse("events", 0, 503)
    second = bulk.run(*go(bulk, batch_server))
    assert second.returncode == 0 and "40 lines, none failed" in second.stdout
    assert "tokens/s" not in second.stdout
    assert set(re.findall(r"(\d+) tokens/s", second.stderr)) <= {"2"}  # which the service says itself


def test_records_that_waited_in_the_spool_are_not_sent_again(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "never", "turn": 99}, *({"say": f"early-{n}"} for n in range(9)))
    with bulk.start(*go(bulk, batch_server)) as first:
        assert next(text for text in first.lines if "9/10 done" in text)
    assert bulk.part.read_bytes() == b""
    with bulk.start(*go(bulk, batch_server)) as second:
        assert "9 of 10 lines" in next(text for text in second.lines if "going on" in text)
        batch_server.get("/when?follows=2")
    stats = batch_server.get("/stats")
    assert (stats["made"], stats["sent"]) == (1, 9)


def test_what_a_service_tells_twice_or_breaks_off_is_taken_once(bulk: RunCommand, batch_server: BatchServer) -> None:
    batch_server.script(stutter=True)
    bulk.write(*bodies(20))
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 0, done.stderr
    assert [say(result) for result in bulk.results()] == [f"say-{n}" for n in range(20)]


def test_a_record_that_a_crash_took_from_the_middle_is_asked_for_again(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write({"say": "last", "turn": 9}, *({"say": f"early-{n}"} for n in range(9)))
    batch_server.script(on="events", hold=True)
    with bulk.start(*go(bulk, batch_server)):
        batch_server.get("/when?held=1")
    batch_server.script(on="events", hold=False)
    (state,) = (bulk.folder / "state").rglob("run.json")
    # As if the machine had stopped, and its disk had the second of two records only.
    response = {"status_code": 200, "body": {"usage": {}}}
    record = {"id": "batch_req_1", "custom_id": "line-5", "response": response, "error": None}
    (state.parent / "spool.jsonl").write_text('{"line":5,"record":' + json.dumps(record) + "}\n")
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 0, done.stderr
    assert [result["custom_id"] for result in bulk.results()] == [f"line-{n}" for n in range(10)]
    assert batch_server.get("/stats")["made"] == 1


def test_what_a_crash_left_half_written_is_cut(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write(*bodies(30), {"say": "never", "turn": 99})
    with bulk.start(*go(bulk, batch_server)) as first:
        next(text for text in first.lines if "30/31 done" in text)
    with bulk.part.open("a") as part:
        part.write('{"id":"batch_req_1","cust')
    with bulk.start(*go(bulk, batch_server)) as second:
        assert "30 of 31 lines" in next(text for text in second.lines if "going on" in text)
    records = [json.loads(line) for line in bulk.part.read_text().splitlines()]
    assert [record["custom_id"] for record in records] == [f"line-{n}" for n in range(30)]


def test_a_rate_is_of_prompts_where_nothing_is_generated(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"tokens": 0}, {"tokens": 0})
    done = bulk.run(*go(bulk, batch_server))
    assert "6 prompt and 0 generated tokens" in done.stdout
    assert re.search(r"^\d+ prompt tokens/s, ", done.stdout, re.MULTILINE)


def test_a_complete_run_says_so_and_does_nothing(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write(*bodies(5))
    assert bulk.run(*go(bulk, batch_server)).returncode == 0
    before = bulk.output.read_bytes()
    again = bulk.run(*go(bulk, batch_server))
    assert again.returncode == 0
    assert "complete already" in again.stderr
    assert bulk.output.read_bytes() == before
    assert batch_server.get("/stats")["made"] == 1


def test_a_complete_run_with_failures_fails_again_when_it_is_asked_again(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write({"say": "x"}, {"reject": 400}, {"status": "expired"})
    assert bulk.run(*go(bulk, batch_server)).returncode == 1
    again = bulk.run(*go(bulk, batch_server))
    assert again.returncode == 1
    assert again.stderr.endswith("out.jsonl is complete already, 2 lines failed; --restart does it again\n")
    assert batch_server.get("/stats")["made"] == 1
    bulk.write({"say": "good"})
    assert bulk.run(*go(bulk, batch_server, "--restart")).returncode == 0
    assert bulk.run(*go(bulk, batch_server)).returncode == 0


def test_the_first_failures_are_told_at_the_end_with_their_place_in_the_file(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    fail = {"fail": {"code": 503, "message": "too\nlate"}}
    bulk.write({"say": "a"}, fail | {"turn": 2}, {"reject": 400}, {"status": "expired"})
    bulk.source.write_text("\nnot json\n\n" + bulk.source.read_text())
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].startswith("5 lines, 4 failed; ")
    assert done.stdout.splitlines()[1:5] == [
        "  line 2: the line is not valid JSON: Expecting value at character 0",
        "  line 5 (custom_id line-1): too late",
        "  line 6 (custom_id line-2): no such thing",
        f"  and 1 more in {bulk.output}",
    ]
    assert "line-3" not in done.stdout


@pytest.mark.parametrize("flag", [["-m", "demo"], ["-mdemo"], ["--model", "demo"], ["--model=demo"], ["-hf", "a/b"]])
def test_a_service_and_a_model_of_ones_own_are_refused_together(
    bulk: RunCommand, batch_server: BatchServer, flag: list[str]
) -> None:
    bulk.write({"say": "x"})
    refused = bulk.run(*go(bulk, batch_server), *flag)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"slotstream run: {flag[0].partition('=')[0].removesuffix('demo')} is of no use")
    assert refused.stderr.count("\n") == 1
    assert not bulk.part.exists()


def test_a_model_in_the_settings_file_is_for_other_commands_than_run_with_a_service(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write({"say": "x"})
    (bulk.folder / "slotstream.toml").write_text('model = "nothing.gguf"\n')
    assert bulk.run(*go(bulk, batch_server)).returncode == 0


@pytest.mark.parametrize(("model", "fault"), [("nothing.gguf", "no such file or directory"), (".", "is a directory")])
def test_a_model_file_that_is_missing_is_said_before_anything_starts(bulk: RunCommand, model: str, fault: str) -> None:
    bulk.write({"say": "x"})
    refused = bulk.run("in.jsonl", "-o", "out.jsonl", "-m", model)
    assert refused.returncode == 2
    assert refused.stderr == f"slotstream run: cannot read the model {model}: {fault}\n"
    assert [path.name for path in bulk.folder.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("status", "kept"), [(200, {"run.json", "lock"}), (400, {"run.json", "lock", "logs"})], ids=["good", "failed"]
)
def test_of_a_finished_run_a_note_is_kept_and_its_logs_only_when_lines_failed(
    bulk: RunCommand, status: int, kept: set[str]
) -> None:
    bulk.write({})
    found = survey(bulk.source)
    with RunFolder.open(bulk.folder / "state", bulk.source, bulk.output) as run:
        assert run.begin(found, is_restart=False)
        (run.fresh_logs() / "api.log").touch()
        run.copy.touch()
        for folder in (run.valkey, run.files):
            folder.mkdir()
        with Ledger(run.part, run.spool, n_lines=1) as ledger:
            ledger.put(0, answered(Subject("k", 1, "a"), status=status, request_id=None, body=b"{}"))
            run.publish(ledger)
        run.tidy()
        assert {path.name for path in run.folder.iterdir()} == kept
        assert run.begin(found, is_restart=True)
        assert {path.name for path in run.folder.iterdir()} == {"run.json", "lock"}


def test_a_crash_after_the_results_stood_leaves_nothing_behind_for_good(bulk: RunCommand) -> None:
    bulk.write({})
    found = survey(bulk.source)
    with RunFolder.open(bulk.folder / "state", bulk.source, bulk.output) as run:
        run.begin(found, is_restart=False)
        run.valkey.mkdir()
        with Ledger(run.part, run.spool, n_lines=1) as ledger:
            ledger.put(0, answered(Subject("k", 1, "a"), status=200, request_id=None, body=b"{}"))
            run.publish(ledger)
        assert not run.begin(found, is_restart=False)
        assert {path.name for path in run.folder.iterdir()} == {"run.json", "lock"}


def test_restart_does_everything_again_and_replaces_the_results_at_the_end(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write(*bodies(5))
    assert bulk.run(*go(bulk, batch_server)).returncode == 0
    bulk.write({"say": "new"})
    assert bulk.run(*go(bulk, batch_server, "--restart")).returncode == 0
    assert [say(result) for result in bulk.results()] == ["new"]
    assert batch_server.get("/stats")["made"] == 2


def test_restart_cancels_the_batch_that_it_begins_anew(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "old", "turn": 99})
    with bulk.start(*go(bulk, batch_server)):
        batch_server.get("/when?follows=1")
    bulk.write({"say": "new"})
    done = bulk.run(*go(bulk, batch_server, "--restart"))
    assert done.returncode == 0, done.stderr
    assert [say(result) for result in bulk.results()] == ["new"]
    stats = batch_server.get("/stats")
    assert (stats["statuses"], stats["files"]) == (["cancelled", "completed"], 0)


def test_a_batch_is_found_again_also_when_the_input_has_another_name_by_now(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write(*bodies(5))
    batch_server.script(on="create", hold=True)
    with bulk.start(*go(bulk, batch_server)):
        batch_server.get("/when?held=1")
    batch_server.script(on="create", hold=False)
    bulk.source.rename(bulk.folder / "other.jsonl")
    done = bulk.run("other.jsonl", *go(bulk, batch_server)[1:])
    assert done.returncode == 0, done.stderr
    assert batch_server.get("/stats")["made"] == 1


def test_a_batch_that_was_cancelled_for_a_new_run_is_not_taken_up_when_that_is_refused(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write({"say": "old", "turn": 99})
    with bulk.start(*go(bulk, batch_server)):
        batch_server.get("/when?follows=1")
    bulk.write({"say": "too much"})
    assert bulk.run(*go(bulk, batch_server, "--restart")).returncode == 2
    bulk.write({"say": "new"})
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 0, done.stderr
    assert [say(result) for result in bulk.results()] == ["new"]


def test_a_batch_that_its_service_forgot_is_asked_for_again_without_what_is_known(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write({"say": "late", "turn": 1}, {"say": "never", "turn": 99}, {"say": "early"})
    with bulk.start(*go(bulk, batch_server)) as first:
        next(text for text in first.lines if "2/3 done" in text)
        batch_server.script(forget=True)
        said = next(text for text in first.lines if "any more" in text)
        assert "does not know the batch any more; asking again for 1 line" in said
        stats = batch_server.get("/when?uploads=2&made=1")
    assert stats["says"] == ["early", "late", "never", "never"]
    assert stats["inputs"][1].startswith("\n{"), "what is left keeps its number"


def test_a_file_that_its_service_forgot_is_sent_again(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write(*bodies(5))
    batch_server.script(on="asked", hold=True)
    with bulk.start(*go(bulk, batch_server)):
        batch_server.get("/when?held=1")
    batch_server.script(forget=True)
    batch_server.script(on="asked", drop=True)
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 0, done.stderr
    assert len(bulk.results()) == 5


def test_a_file_of_more_lines_than_a_batch_may_have_is_several(
    bulk: RunCommand, batch_server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "USUAL", Most(4, 1_000_000))
    bulk.write(*({"say": f"say-{n}"} for n in range(10)), {"reject": 400})
    lines = bulk.source.read_text().splitlines()
    bulk.source.write_text("\n".join([*lines[:5], "not json", lines[0], *lines[5:]]) + "\n")
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 1, done.stderr
    assert [(r["custom_id"], r.get("line")) for r in bulk.results()] == [
        *((f"line-{n}", None) for n in range(5)),
        (None, 6),
        ("line-0", 7),
        *((f"line-{n}", None) for n in range(5, 10)),
        ("line-10", 13),
    ]
    stats = batch_server.get("/stats")
    assert (stats["made"], stats["files"], len(stats["says"])) == (3, 0, 11)


def test_a_batch_that_its_service_does_not_take_is_said_and_forgotten(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write({"say": "too much"})
    refused = bulk.run(*go(bulk, batch_server))
    assert refused.returncode == 2
    assert refused.stderr.endswith("slotstream run: in.jsonl is not taken as a batch: it is too much\n")
    assert batch_server.get("/stats")["files"] == 0
    bulk.write({"say": "less"})
    assert bulk.run(*go(bulk, batch_server)).returncode == 0


@pytest.mark.parametrize(
    ("step", "status", "sentence"),
    [
        ("upload", 413, "in.jsonl is not taken: the service answered 413: come back"),
        ("upload", 500, "in.jsonl is not taken: the service answered 500: come back"),
        ("create", 400, "in.jsonl is not taken as a batch: the service answered 400: come back"),
        ("upload", 401, "refuses the API key (see --api-key)"),
        ("create", 403, "refuses the API key (see --api-key)"),
    ],
)
def test_a_no_is_one_sentence(
    bulk: RunCommand, batch_server: BatchServer, step: str, status: int, sentence: str
) -> None:
    bulk.write({"say": "x"})
    batch_server.refuse(step, 9, status)
    refused = bulk.run(*go(bulk, batch_server))
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].endswith(sentence)
    assert "Traceback" not in refused.stderr
    assert not bulk.output.exists()


def test_results_that_were_taken_elsewhere_make_the_same_command_a_new_run(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write({"say": "x"})
    assert bulk.run(*go(bulk, batch_server)).returncode == 0
    bulk.output.rename(bulk.folder / "kept.jsonl")
    assert bulk.run(*go(bulk, batch_server)).returncode == 0
    assert len(bulk.results()) == 1


A, B = RunModel(path="/a.gguf"), RunModel(path="/b.gguf")
NAMED = RunModel(path="/a.gguf", alias="x")
FETCHED = RunModel.of(WorkerSettings(hf_repo="someone/model:Q8_0", hf_file="a.gguf", hf_revision="v1"))


@pytest.mark.parametrize(
    ("begun", "now", "sentence"),
    [
        (A, B, "model /a.gguf; give -m /a.gguf again, or --restart starts over"),
        (
            FETCHED,
            A,
            "model someone/model:Q8_0 --hf-file a.gguf --hf-revision v1; give -hf someone/model:Q8_0 --hf-file a.gguf"
            " --hf-revision v1 again, or --restart starts over",
        ),
        (NAMED, A, "model /a.gguf and alias x; give -m /a.gguf -a x again, or --restart starts over"),
        (A, NAMED, "model /a.gguf and no alias; give -m /a.gguf without an alias again, or --restart starts over"),
    ],
)
def test_another_model_is_refused_until_restart(
    bulk: RunCommand, begun: RunModel, now: RunModel, sentence: str
) -> None:
    bulk.write({})
    found = survey(bulk.source)
    with RunFolder.open(bulk.folder / "state", bulk.source, bulk.output) as run:
        for model in (None, begun, None, begun):  # a service in between has a model of its own
            assert run.begin(found, is_restart=False, model=model)
        with pytest.raises(ModelChanged) as refusal:
            run.begin(found, is_restart=False, model=now)
        assert str(refusal.value) == f"{bulk.output} was begun with {sentence}"
        assert run.begin(found, is_restart=True, model=now)
        assert run.begin(found, is_restart=False, model=now)


def test_another_model_is_said_before_anything_starts(bulk: RunCommand) -> None:
    bulk.write({})
    (bulk.folder / "b.gguf").write_bytes(b"GGUF")
    with RunFolder.open(bulk.folder / "state", bulk.source, bulk.output) as run:
        run.begin(survey(bulk.source), is_restart=False, model=RunModel.of(WorkerSettings(model="demo")))
    refused = bulk.run("in.jsonl", "-o", "out.jsonl", "-m", "b.gguf", "--state-dir", str(bulk.folder / "state"))
    assert refused.returncode == 2
    assert "was begun with model demo; give -m demo again, or --restart starts over" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not run.logs.exists()


def test_a_model_is_the_same_however_its_path_is_written(bulk: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bulk.folder)
    elsewhere = str(bulk.folder / "x" / ".." / "m.gguf")
    assert RunModel.of(WorkerSettings(model="m.gguf")) == RunModel.of(WorkerSettings(model=elsewhere))


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_changed_input_is_refused_until_restart(
    bulk: RunCommand, batch_server: BatchServer, is_complete: bool
) -> None:
    bulk.write({"say": "x"}, {"say": "y", "turn": 1 if is_complete else 99})
    if is_complete:
        assert bulk.run(*go(bulk, batch_server)).returncode == 0
    else:
        with bulk.start(*go(bulk, batch_server)):
            batch_server.get("/when?follows=1")
    bulk.write({"say": "z"})
    refused = bulk.run(*go(bulk, batch_server))
    assert refused.returncode == 2
    assert "in.jsonl has changed since the run" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert bulk.run(*go(bulk, batch_server, "--restart")).returncode == 0
    assert [say(result) for result in bulk.results()] == ["z"]


def test_bad_lines_are_records_with_their_line_number_and_the_others_run(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write({"say": "a"}, {"say": "b"})
    good = bulk.source.read_text().splitlines()
    bulk.source.write_text("\n".join(["not json", good[0], "", good[0], good[1], "{}"]) + "\n")
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 1
    assert "5 lines, 3 failed" in done.stdout
    outcome = [
        (result["custom_id"], result["error"] and (result["error"]["code"], result["error"]["line"]))
        for result in bulk.results()
    ]
    assert outcome == [
        (None, ("invalid_json", 1)),
        ("line-0", None),
        ("line-0", ("duplicate_custom_id", 4)),
        ("line-1", None),
        (None, ("missing_custom_id", 6)),
    ]


def test_each_way_to_fail_has_its_record(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write(
        {"reject": 400},
        {"fail": {"code": 503, "message": "no", "type": "unavailable_error"}},
        {"fail": {"code": "odd", "message": "no"}},
        {"status": "cancelled"},
        {"status": "expired"},
        {"say": "good"},
    )
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 1
    results = bulk.results()
    assert [(r["response"] or {}).get("status_code") for r in results] == [400, 503, 500, None, None, 200]
    codes = [(r["error"] or {}).get("code") for r in results]
    assert codes == [None, None, None, "batch_cancelled", "batch_expired", None]
    assert [r.get("line") for r in results] == [1, 2, 3, 4, 5, None]
    assert results[0]["response"]["request_id"] == "req_1"
    assert results[0]["response"]["body"]["error"]["message"] == "no such thing"


@pytest.mark.parametrize("status", [429, 503, 502, 0])
@pytest.mark.parametrize("step", ["check", "upload", "create", "events"])
def test_a_service_that_is_full_or_away_is_waited_for(
    bulk: RunCommand, batch_server: BatchServer, step: str, status: int
) -> None:
    batch_server.refuse(step, 3, status)
    bulk.write(*bodies(12))
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 0, done.stderr
    stats = batch_server.get("/stats")
    assert stats["says"] == sorted(f"say-{n}" for n in range(12))
    assert (stats["made"], stats["uploads"]) == (1, 1)


def test_why_a_run_waits_is_shown(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "x"})
    batch_server.refuse("check", 10**6, 503)
    with bulk.start(*go(bulk, batch_server)) as waiting:
        said = next(text for text in waiting.lines if "come back" in text)
        assert said.endswith(", waiting: the service answered 503: come back\n")


def test_two_runs_do_not_write_one_output(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "x", "turn": 99})
    with bulk.start(*go(bulk, batch_server)):
        batch_server.get("/when?made=1")
        second = bulk.run(*go(bulk, batch_server))
    assert second.returncode == 2
    assert "another slotstream run" in second.stderr


def nothing(bulk: RunCommand) -> None:
    pass


def make_folder(bulk: RunCommand) -> None:
    bulk.output.mkdir()


def make_foreign_output(bulk: RunCommand) -> None:
    bulk.output.write_text("mine\n")


def make_foreign_part(bulk: RunCommand) -> None:
    bulk.part.write_text("mine\n")


def make_csv(bulk: RunCommand) -> None:
    bulk.source.write_text("a,b\n1,2\n")


@pytest.mark.parametrize(
    ("prepare", "arguments", "sentence"),
    [
        (nothing, ["nothing.jsonl", "-o", "out.jsonl"], "nothing.jsonl does not exist"),
        (nothing, [".", "-o", "out.jsonl"], "is a folder"),
        (make_csv, ["in.jsonl", "-o", "out.jsonl"], "has no line that can be run"),
        (nothing, ["in.jsonl", "-o", "in.jsonl"], "would overwrite the input"),
        (nothing, ["in.jsonl", "-o", "./x/../in.jsonl"], "would overwrite the input"),
        (nothing, ["in.jsonl", "-o", "no/such/out.jsonl"], "there is no folder"),
        (nothing, ["in.jsonl", "-o", "/proc/out.jsonl"], "cannot write"),
        (nothing, ["in.jsonl", "-o", "/dev/null"], "not a regular file"),
        (make_folder, ["in.jsonl", "-o", "out.jsonl"], "is a folder"),
        (make_foreign_output, ["in.jsonl", "-o", "out.jsonl"], "exists already; --restart replaces it"),
        (make_foreign_part, ["in.jsonl", "-o", "out.jsonl"], "--restart replaces it"),
        (nothing, ["in.jsonl"], "-o"),
        (nothing, ["in.jsonl", "-o", "out.jsonl", "--window", "soon"], "--window: must be a span of time"),
        (nothing, ["in.jsonl", "-o", "out.jsonl", "--state-dir", "/proc/x"], "cannot make the folder"),
    ],
)
def test_what_cannot_work_is_one_sentence_before_anything_starts(
    bulk: RunCommand,
    batch_server: BatchServer,
    prepare: Callable[[RunCommand], None],
    arguments: list[str],
    sentence: str,
) -> None:
    bulk.write({"say": "x"})
    prepare(bulk)
    refused = bulk.run(*arguments, "--url", batch_server.url)
    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert "Traceback" not in refused.stderr
    assert batch_server.get("/stats")["uploads"] == 0


def test_without_a_model_or_a_service_it_asks_for_one(bulk: RunCommand) -> None:
    bulk.write({"say": "x"})
    refused = bulk.run("in.jsonl", "-o", "out.jsonl")
    assert refused.returncode == 2
    assert "which model?" in refused.stderr


def test_an_api_without_batches_is_said_at_once_and_makes_no_records(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write({"say": "x"})
    for url in (f"{batch_server.url}/elsewhere", f"{batch_server.url}/elsewhere/v1"):
        refused = bulk.run(*go(bulk, batch_server, url=url))
        assert refused.returncode == 2
        assert "is not a slotstream, nor has it batches: GET /v1/batches answered 404" in refused.stderr
        assert refused.stderr.splitlines()[-1].startswith("slotstream run: ")
    assert not bulk.part.exists()


def test_a_service_that_is_not_there_is_said_at_once(bulk: RunCommand) -> None:
    bulk.write({"say": "x"})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "nonsense"):
        refused = bulk.run("in.jsonl", "-o", "out.jsonl", "--url", url)
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
        assert url in refused.stderr


def unused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_run_that_met_no_service_is_forgotten(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "x"})
    assert bulk.run("in.jsonl", "-o", "out.jsonl", "--url", unused_url()).returncode == 2
    assert [path.name for path in bulk.folder.iterdir() if path.is_file()] == ["in.jsonl"]
    bulk.source.rename(bulk.folder / "other.jsonl")
    bulk.write({"say": "y"})
    done = bulk.run(*go(bulk, batch_server))
    assert done.returncode == 0, done.stderr
    assert bulk.run(*go(bulk, batch_server), "--restart", "--url", unused_url()).returncode == 2
    assert "complete already" in bulk.run(*go(bulk, batch_server)).stderr, "the results are of a run as before"


def test_a_run_that_was_taken_up_is_kept_when_its_service_is_away(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "x", "turn": 99})
    with bulk.start(*go(bulk, batch_server)):
        batch_server.get("/when?follows=1")
    (state,) = (bulk.folder / "state").rglob("run.json")
    before = json.loads(state.read_text())
    assert bulk.run("in.jsonl", "-o", "out.jsonl", "--url", unused_url()).returncode == 2
    assert json.loads(state.read_text()) == before, "its batch is found by that"


def test_a_bad_model_does_not_keep_the_next_one_out(bulk: RunCommand) -> None:
    bulk.write({"say": "x"})
    for name in ("bad.gguf", "worse.gguf"):
        (bulk.folder / name).write_text("no model")
        refused = bulk.run("in.jsonl", "-o", "out.jsonl", "-m", name)
        assert refused.returncode == 2
        assert name in refused.stderr.splitlines()[-1]
        assert "begun with" not in refused.stderr


def test_another_input_for_the_same_output_is_called_that(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "x"})
    assert bulk.run(*go(bulk, batch_server)).returncode == 0
    (bulk.folder / "other.jsonl").write_text(bulk.source.read_text().replace("x", "y"))
    refused = bulk.run("other.jsonl", "-o", "out.jsonl", "--url", batch_server.url)
    assert refused.returncode == 2
    assert f"out.jsonl was begun with another file, {bulk.source}; " in refused.stderr


@pytest.mark.parametrize(
    ("more", "sentence"),
    [([], "the same command goes on from here"), (["--restart"], "the same command without --restart goes on")],
)
def test_a_stop_says_how_to_go_on(bulk: RunCommand, batch_server: BatchServer, more: list[str], sentence: str) -> None:
    bulk.write({"say": "x", "turn": 99})
    with bulk.start(*go(bulk, batch_server), *more) as stopped:
        batch_server.get("/when?follows=1")
        stopped.send_signal(signal.SIGINT)
        said = stopped.lines.read()
    assert said.endswith(f"slotstream run: stopped; the service goes on with the batch, and {sentence}\n")
    assert batch_server.get("/stats")["cancels"] == 0


def test_a_stop_before_the_file_was_sent_says_that_nothing_was_begun(
    bulk: RunCommand, batch_server: BatchServer
) -> None:
    bulk.write({"say": "x"})
    batch_server.script(on="reading", hold=True)
    with bulk.start(*go(bulk, batch_server, "--restart")) as stopped:
        batch_server.get("/when?held=1")
        stopped.send_signal(signal.SIGINT)
        assert stopped.lines.read().endswith("slotstream run: stopped; nothing was begun\n")
    assert not bulk.part.exists()


def test_a_state_that_cannot_be_read_is_no_state(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "x"})
    assert bulk.run(*go(bulk, batch_server)).returncode == 0
    (state,) = (bulk.folder / "state").rglob("run.json")
    state.write_text("{")
    again = bulk.run(*go(bulk, batch_server))
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_a_crash_between_the_rename_and_its_note_is_complete(bulk: RunCommand, batch_server: BatchServer) -> None:
    bulk.write({"say": "x"})
    assert bulk.run(*go(bulk, batch_server)).returncode == 0
    (state,) = (bulk.folder / "state").rglob("run.json")
    state.write_text(json.dumps(json.loads(state.read_text()) | {"phase": "finishing"}))
    again = bulk.run(*go(bulk, batch_server))
    assert (again.returncode, "complete already" in again.stderr) == (0, True)


def test_the_output_may_be_anywhere_and_the_state_is_the_outputs(
    bulk: RunCommand, batch_server: BatchServer, tmp_path: Path
) -> None:
    bulk.write({"say": "x"})
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    first = bulk.run("in.jsonl", "-o", "link/out.jsonl", "--url", batch_server.url)
    assert first.returncode == 0, first.stderr
    second = bulk.run("in.jsonl", "-o", "deep/out.jsonl", "--url", batch_server.url)
    assert "complete already" in second.stderr
