"""Self-extend, judged by the arithmetic of llama.cpp's server of 2024, one token at a time."""

from __future__ import annotations

from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from shared.jobs import Lane
from shared.settings import ConfigError, WorkerSettings
from tests.models import BYTE_EOS, write_byte_model
from tests.worker.engine.faulty import Fault, Faults
from tests.worker.engine.harness import Recorded, config, plain_greedy, task
from worker.engine import EngineConfig, LoadFailed
from worker.engine.grouping import Grouping
from worker.engine.llama import Context, ContextParams, Decoded, Model, Piece

N_CTX_TRAIN = 64
N_CTX = 240
GROUPING = Grouping(4, 32)
PROMPT = [*b"A text that is longer than what its model has ever seen. " * 2][:100]
N_PREDICT = 120


@pytest.fixture(scope="module")
def short_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("models") / "short.gguf", n_ctx_train=N_CTX_TRAIN)


def extended(model: Path, **more: object) -> EngineConfig:
    return config(model, **({"n_ctx": 1024, "n_ctx_slot": N_CTX, "grouping": GROUPING} | more))


class Server2024:
    """What the server kept of a slot (`ga_i`, `n_past_se`), and what it did to the cache before each decode."""

    def __init__(self, ga_n: int, ga_w: int) -> None:
        self.ga_n, self.ga_w, self.ga_i, self.n_past_se = ga_n, ga_w, 0, 0

    def extend(self) -> list[tuple[str, int, int, int]]:
        """Calls with their positions and what they add or divide by."""
        calls = []
        while self.n_past_se >= self.ga_i + self.ga_w:
            ib = (self.ga_n * self.ga_i) // self.ga_w
            bd = (self.ga_w // self.ga_n) * (self.ga_n - 1)
            dd = (self.ga_w // self.ga_n) - ib * bd - self.ga_w
            moved = self.ga_i + ib * bd
            calls.append(("add", self.ga_i, self.n_past_se, ib * bd))
            calls.append(("div", moved, moved + self.ga_w, self.ga_n))
            calls.append(("add", moved + self.ga_w, self.n_past_se + ib * bd, dd))
            self.n_past_se -= bd
            self.ga_i += self.ga_w // self.ga_n
        return calls


def plain_extended(path: Path, prompt: list[int], n_predict: int, grouping: Grouping) -> tuple[list[int], list[int]]:
    """Greedy ids, and how many positions there were before each token."""
    server = Server2024(*grouping)
    with Model.load(path) as model:
        params = ContextParams(n_ctx=256, n_batch=256, n_ubatch=256, n_seq_max=1, n_threads=1, n_threads_batch=1)
        with Context.open(model, params) as context:
            known, n_positions = list(prompt), []
            while True:
                token = known[len(n_positions)]
                for name, start, end, number in server.extend():
                    move = llama_cpp.llama_memory_seq_add if name == "add" else llama_cpp.llama_memory_seq_div
                    move(context._memory, 0, start, end, number)
                n_positions.append(server.n_past_se)
                assert context.length(0) == server.n_past_se
                outcome = context.decode([Piece(0, server.n_past_se, np.array([token], dtype=np.int32), True)])
                assert isinstance(outcome, Decoded)
                server.n_past_se += 1
                if len(n_positions) >= len(prompt):
                    outcome.logits[0, BYTE_EOS] = -np.inf
                    known.append(int(outcome.logits[0].argmax()))
                if len(known) == len(prompt) + n_predict:
                    return known[len(prompt) :], n_positions


@pytest.mark.parametrize(
    "grouping", [Grouping(4, 32), Grouping(2, 2), Grouping(8, 8), Grouping(3, 30), Grouping(1, 16)]
)
def test_positions_are_those_of_the_servers_arithmetic(grouping: Grouping) -> None:
    server = Server2024(*grouping)
    for n_tokens in range(300):
        server.extend()
        assert grouping.position(n_tokens) == server.n_past_se
        server.n_past_se += 1


def test_a_group_is_complete_with_its_last_token_and_begins_where_the_one_before_ended() -> None:
    assert [n for n in range(100) if GROUPING.completed(n) is not None] == [32, 64, 96]
    assert [GROUPING.completed(n) for n in (32, 64, 96)] == [0, 8, 16]
    assert [GROUPING.n_open(n) for n in (0, 1, 31, 32, 33)] == [32, 31, 1, 32, 31]
    assert Grouping().completed(512) is None
    assert Grouping().position(10**6) == 10**6


@pytest.mark.parametrize("n_batch", [16, 50, 512])
def test_a_text_longer_than_the_trained_context_goes_on_as_the_server_has_it(short_model: Path, n_batch: int) -> None:
    with Recorded(extended(short_model, n_batch=n_batch)) as engine:
        (answer,) = engine.run(task("a", PROMPT, n_predict=N_PREDICT))
        n_positions = engine.engine._context.length(answer.id_slot)
    ids, positions = plain_extended(short_model, PROMPT, N_PREDICT, GROUPING)
    assert list(answer.ids) == ids
    assert n_positions == positions[-1] + 1 < N_CTX_TRAIN + GROUPING.width
    assert ids != plain_greedy(short_model, PROMPT, N_PREDICT, banned=[BYTE_EOS])


def test_neighbours_with_one_prefix_each_have_their_own_cells(short_model: Path) -> None:
    tasks = [task(f"job{at}", [*PROMPT, 65 + at], n_predict=50) for at in range(3)]
    with Recorded(extended(short_model)) as engine:
        answers = engine.run(*tasks)
        longer = [*tasks[0].prompt, *answers[0].ids, 66]
        (again,) = engine.run(task("again", longer, n_predict=20))
    for each, answer in zip(tasks, answers, strict=True):
        assert answer.timings.cache_n == 0
        assert list(answer.ids) == plain_extended(short_model, list(each.prompt), 50, GROUPING)[0]
    assert again.timings.cache_n == len(longer) - 2, "a whole text is gone on from"
    assert list(again.ids) == plain_extended(short_model, longer, 20, GROUPING)[0]


def test_groups_of_one_change_nothing(short_model: Path) -> None:
    with Recorded(extended(short_model, grouping=Grouping(1, 32))) as engine:
        (answer,) = engine.run(task("a", PROMPT, n_predict=N_PREDICT))
    assert list(answer.ids) == plain_greedy(short_model, PROMPT, N_PREDICT, banned=[BYTE_EOS])


def test_the_end_of_the_context_is_the_end_of_the_text(short_model: Path) -> None:
    with Recorded(extended(short_model)) as engine:
        (answer,) = engine.run(task("a", PROMPT, n_predict=-1, shift=True))
    assert (len(answer.ids), answer.truncated) == (N_CTX - len(PROMPT), True)


def test_what_was_parked_or_lost_is_grouped_again_the_same(short_model: Path) -> None:
    bulk = task("bulk", PROMPT, n_predict=N_PREDICT, lane=Lane.BULK)
    ids, _ = plain_extended(short_model, PROMPT, N_PREDICT, GROUPING)
    with Recorded(extended(short_model, n_slots=1)) as engine:
        engine.submit(bulk)
        engine.wait_for(lambda: len(engine._events["bulk"]) > 50)
        engine.run(task("person", list(b"somebody"), n_predict=3))
        assert list(engine.answer("bulk").ids) == ids
    for fault in (Fault(-3, is_halfway=True), Fault(-1)):
        faults = Faults(lambda decode, fault=fault: fault if decode.number in (3, 60) else None)  # type: ignore[misc]
        with Recorded(extended(short_model), open_context=faults.open) as engine:
            assert list(engine.run(bulk)[0].ids) == ids
        assert faults.n_openings == 0
    faults = Faults(lambda decode: Fault(-3) if decode.number >= 50 and not decode.n_openings else None)
    with Recorded(extended(short_model), open_context=faults.open) as engine:
        assert list(engine.run(bulk)[0].ids) == ids


def test_settings_that_do_not_go_together_are_one_sentence(
    short_model: Path, recurrent_model: Path, sliding_model: Path
) -> None:
    def resolved(**more: object) -> EngineConfig:
        return EngineConfig.from_settings(WorkerSettings(model=str(short_model), **more))  # type: ignore[arg-type]

    assert resolved(grp_attn_n=4, grp_attn_w=2048).grouping == Grouping(4, 2048)
    assert resolved(grp_attn_w=7).grouping.n == 1
    with pytest.raises(ConfigError, match="--grp-attn-w is 10, and must be a multiple of --grp-attn-n, 4"):
        resolved(grp_attn_n=4, grp_attn_w=10)
    with pytest.raises(ConfigError, match="--context-shift and --grp-attn-n exclude each other"):
        resolved(grp_attn_n=4, context_shift=True)
    for model in (recurrent_model, sliding_model):
        with pytest.raises(LoadFailed, match="--grp-attn-n is more than 1"):
            Recorded(extended(model)).__enter__()
