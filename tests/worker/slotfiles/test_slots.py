"""What a slot has in the cache goes into a file and comes back, in this engine or another."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from shared.errors import InvalidRequest, NotReady
from shared.events import Failure, SlotReport, Tokens
from shared.jobs import Lane
from tests.models import write_projector
from tests.worker.engine.harness import task
from tests.worker.engine.looking import looking, picture, projector_of
from tests.worker.slotfiles.conftest import Desk, open_desk
from worker.engine import EngineEvent, PutState, SequenceKey, SlotState
from worker.engine.assembly import MOST_IDLE
from worker.engine.grouping import UNGROUPED, Grouping
from worker.slotfiles import SlotFolder, files, record
from worker.slotfiles.record import Destination

PROMPT = list(b"Once upon a time there was a cache in which a story stood, and nobody read it to its end.")
LONG = 600


def told(desk: Desk, job_id: str, prompt: list[int], *, slot: int | None = 0, n_predict: int = 8) -> tuple[str, int]:
    """The text, and how much of the prompt was in the cache."""
    [answer] = desk.engine.run(task(job_id, prompt, slot=slot, n_predict=n_predict))
    return answer.text, answer.timings.cache_n


@pytest.mark.parametrize(
    ("kind", "grouping"),
    [
        ("attention", UNGROUPED),
        ("attention", Grouping(4, 32)),
        ("recurrent", UNGROUPED),
        ("sliding", UNGROUPED),
        ("two dimensions", UNGROUPED),
    ],
)
def test_a_saved_slot_goes_on_in_another_engine_as_if_nothing_had_been(
    models: dict[str, Path], folder: Path, kind: str, grouping: Grouping
) -> None:
    with open_desk(models[kind], folder, grouping=grouping) as desk:
        [first] = desk.engine.run(task("first", PROMPT, slot=1))
        saved = desk.ask("save", 1)
        more = [*PROMPT, *first.ids[:-1], *b" And then"]
        uninterrupted, n_cached = told(desk, "more", more, slot=1)
    assert saved.n_tokens == n_cached == len(PROMPT) + len(first.ids) - 1
    with open_desk(models[kind], folder, grouping=grouping) as desk:
        restored = desk.ask("restore", 0)
        assert (restored.n_tokens, restored.n_bytes) == (saved.n_tokens, saved.n_bytes)
        assert saved.n_bytes == (folder / "a.bin").stat().st_size
        assert told(desk, "more", more) == (uninterrupted, n_cached)


def test_what_was_erased_is_computed_again(desk: Desk) -> None:
    told(desk, "first", PROMPT)
    assert told(desk, "again", PROMPT)[1] == len(PROMPT) - 1
    assert desk.ask("erase").n_tokens > len(PROMPT)
    assert told(desk, "anew", PROMPT)[1] == 0


def test_a_slot_that_has_nothing_is_saved_as_nothing(desk: Desk) -> None:
    assert desk.ask("save").n_tokens == 0
    told(desk, "first", PROMPT)
    assert desk.ask("restore").n_tokens == 0
    assert told(desk, "again", PROMPT)[1] == 0, "restoring takes the place of what was there"
    assert desk.ask("erase", 1).n_tokens == 0


def test_what_was_restored_can_be_saved_again_though_nobody_used_it(desk: Desk) -> None:
    told(desk, "first", PROMPT)
    saved = desk.ask("save", 0, "a.bin")
    desk.ask("erase", 0)
    desk.ask("restore", 1, "a.bin")
    assert desk.ask("save", 1, "b.bin").n_tokens == saved.n_tokens


def test_a_state_of_other_tokens_than_it_is_said_to_have_is_refused(desk: Desk, folder: Path) -> None:
    told(desk, "first", PROMPT)
    desk.ask("save")
    with SlotFolder(folder).reading("a.bin") as (file, n_bytes):
        whole = record.read(file, n_bytes, Destination(desk.files.origin, 1024))
    cut = SlotState(whole.tokens[:-1], whole.state, whole.scales, 0)
    n_tokens = len(whole.tokens)
    for number in range(MOST_IDLE + 3):  # more than there are ids in the cache
        desk.engine.submit(PutState(SequenceKey(f"put {number}", 0), 1, None, cut, 0, 0.0))
        ending = desk.ending(f"put {number}")
        assert isinstance(ending, Failure)
        assert ending.message.endswith(f"its state has {n_tokens} positions, and {n_tokens - 1} tokens belong to it")
    assert told(desk, "again", PROMPT, slot=1)[1] == len(PROMPT) - 1


def test_a_text_with_an_image_is_not_kept(models: dict[str, Path], folder: Path) -> None:
    projector = write_projector(folder.parent / "projector.gguf", "mlp")
    with open_desk(models["attention"], folder, projector=projector_of(projector)) as desk:
        desk.engine.run(looking(desk.engine, "image", "see: ", picture(1), " what?", slot=0))
        ending = desk.ending(desk.send("save"))
        assert isinstance(ending, Failure)
        assert (ending.code, ending.message) == (
            "invalid_request",
            "Unable to save slot: it holds an image, which no file can keep",
        )
        assert list(folder.iterdir()) == []
        told(desk, "text", PROMPT)
        assert desk.ask("save").n_tokens > len(PROMPT)


def test_a_slot_is_saved_as_it_was_last_not_as_it_was_before(desk: Desk) -> None:
    other = list(b"Quite another story")
    told(desk, "first", PROMPT)
    told(desk, "second", other)
    assert desk.ask("save").n_tokens < len(PROMPT)
    told(desk, "elsewhere", [*other, *desk.engine.answer("second").ids[:-1], 1], slot=1)  # in the place of the second
    assert desk.ask("save").n_tokens == desk.ask("erase").n_tokens == 0
    assert told(desk, "anew", PROMPT, slot=1)[1] == 0, "erased is all that ran there"


def test_a_slot_is_counted_modulo_those_there_are(desk: Desk) -> None:
    told(desk, "first", PROMPT, slot=1)
    assert desk.ask("save", 1_000_003).n_tokens > 0


def test_a_busy_slot_is_waited_for_and_the_other_is_not(desk: Desk) -> None:
    running = threading.Event()
    desk.engine.on_each = lambda key, event: running.set() if isinstance(event, Tokens) else None
    told(desk, "other", PROMPT, slot=1)
    running.clear()
    desk.engine.submit(task("busy", PROMPT, slot=0, n_predict=1_000_000, shift=True))
    assert running.wait(30)
    waiting = desk.send("save", 0)
    assert desk.ask("save", 1, "b.bin").n_tokens > 0
    assert not desk.engine.has_ended("busy") and not desk.engine.has_ended(waiting)
    desk.engine.engine.cancel("busy")
    report = desk.ending(waiting)
    assert isinstance(report, SlotReport)
    assert report.n_tokens > len(PROMPT)


def test_what_waits_takes_bounded_memory_and_gives_it_back(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    told(desk, "first", PROMPT)
    desk.ask("save")
    monkeypatch.setattr(files, "MOST_BYTES", 1)
    desk.engine.submit(task("busy", PROMPT, slot=0, n_predict=LONG))
    waiting = desk.send("restore")
    with pytest.raises(NotReady, match="too many others wait"):
        desk.send("restore")
    refused = desk.ending(desk.send("save", 1))
    assert isinstance(refused, Failure)
    assert refused.message == "Unable to save slot: too many others are still being written"
    desk.engine.engine.cancel(waiting)
    assert isinstance(desk.ending(waiting), Failure)
    desk.engine.engine.cancel("busy")
    desk.engine.ending("busy")
    assert desk.ask("restore").n_tokens > 0


@pytest.mark.parametrize("lane", Lane)
def test_who_waited_for_the_slot_before_goes_first_and_who_came_later_does_not(desk: Desk, lane: Lane) -> None:
    other = list(b"Quite another story")
    desk.engine.submit(task("busy", PROMPT, slot=0, n_predict=64))
    desk.engine.submit(task("before", other, slot=0, lane=lane))
    saving = desk.send("save", 0)
    desk.engine.submit(task("after", PROMPT, slot=0, lane=lane))
    report = desk.ending(saving)
    assert isinstance(report, SlotReport)
    assert report.n_tokens == len(other) + len(desk.engine.answer("before").ids) - 1
    desk.engine.answer("after")


def test_what_waits_for_a_slot_ends_by_its_deadline_or_when_it_is_cancelled(desk: Desk) -> None:
    desk.engine.submit(task("busy", PROMPT, slot=0, n_predict=LONG))
    late, unwanted = desk.send("save", 0, deadline_s=0.1), desk.send("save", 0)
    desk.engine.engine.cancel(unwanted)
    for job_id, code in ((late, "expired"), (unwanted, "cancelled")):
        ending = desk.ending(job_id)
        assert isinstance(ending, Failure)
        assert ending.code == code
    assert not desk.engine.has_ended("busy")


def test_it_is_not_restored_where_those_that_run_leave_no_room(models: dict[str, Path], folder: Path) -> None:
    with open_desk(models["attention"], folder, n_ctx=256, n_ctx_slot=256) as desk:
        told(desk, "first", PROMPT, n_predict=60)
        saved = desk.ask("save", 0)
        running, may_go_on = threading.Event(), threading.Event()

        def hold(key: SequenceKey, event: EngineEvent) -> None:
            if key.job_id == "busy" and isinstance(event, Tokens):
                running.set()
                assert may_go_on.wait(30)

        desk.engine.on_each = hold
        desk.engine.submit(task("busy", [*PROMPT, *PROMPT], slot=1, n_predict=20))
        assert running.wait(30)
        restoring = desk.send("restore", 0)
        may_go_on.set()
        ending = desk.ending(restoring)
        assert isinstance(ending, Failure)
        assert (ending.code, ending.message[:36]) == ("not_ready", "Unable to restore slot: there is no ")
        desk.engine.answer("busy")
        assert desk.ask("restore", 0).n_tokens == saved.n_tokens, "those that are idle make room"


def test_another_models_file_is_refused(models: dict[str, Path], folder: Path) -> None:
    with open_desk(models["stranger"], folder) as desk:
        told(desk, "first", PROMPT)
        desk.ask("save")
    with open_desk(models["attention"], folder) as desk:
        told(desk, "first", PROMPT)
        with pytest.raises(InvalidRequest, match="Unable to restore slot: it was saved from another model"):
            desk.send("restore")
        assert told(desk, "again", PROMPT)[1] == len(PROMPT) - 1


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"cache_type_k": "f16"}, "its cache has the types f32 and f32, and this worker's f16 and f32"),
        ({"grouping": Grouping(4, 32)}, "other settings of positions"),
        ({"n_ctx": 128}, "it has 97 tokens, which exceeds the 64 of a slot here"),
    ],
    ids=["cache", "positions", "context"],
)
def test_a_file_of_another_setting_is_refused(
    models: dict[str, Path], folder: Path, desk: Desk, other: dict[str, object], why: str
) -> None:
    told(desk, "first", PROMPT, n_predict=9)
    desk.ask("save")
    with open_desk(models["attention"], folder, **other) as here:
        with pytest.raises(InvalidRequest, match=why):
            here.send("restore")
        told(here, "still usable", PROMPT[:20])


def test_a_state_that_llama_cpp_refuses_leaves_the_slot_as_it_is(
    models: dict[str, Path], folder: Path, desk: Desk
) -> None:
    """Flash attention lays values out otherwise, which our own header does not say."""
    told(desk, "first", PROMPT)
    desk.ask("save")
    with open_desk(models["attention"], folder, flash_attention="on") as here:
        told(here, "first", PROMPT)
        ending = here.ending(here.send("restore", 0))
        assert isinstance(ending, Failure)
        assert ending.message == "Unable to restore slot: llama.cpp refuses its state"
        assert told(here, "again", PROMPT)[1] == len(PROMPT) - 1
