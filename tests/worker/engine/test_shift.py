"""Texts that go on when their context is full, judged by a bare loop over llama.cpp."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shared.events import Failure, StopType
from shared.jobs import Lane, Sampling
from tests.models import BYTE_EOS
from tests.worker.engine.faulty import Fault, Faults
from tests.worker.engine.harness import Recorded, config, plain_greedy, task
from tests.worker.engine.test_embedding import embed, vector
from worker.engine import EngineConfig, GenerateTask
from worker.engine.llama import Context, ContextParams, Decoded, Model, Piece
from worker.engine.overflow import n_shifted
from worker.engine.sampling import Sampler, Setting, choose

N_CTX = 64
PROMPT = list(b"It was a bright cold day in April.")


def small(model: Path, **more: object) -> EngineConfig:
    return config(model, n_ctx_slot=N_CTX, **more)


def plain_shifting(path: Path, asked: GenerateTask, n_kept: int, n_gone: int, *, again: int = 0) -> list[int]:
    """Ids of a bare loop. The first `again` shifts compute what they leave again, the others move it."""
    with Model.load(path) as model:
        params = ContextParams(n_ctx=256, n_batch=256, n_ubatch=256, n_seq_max=1, n_threads=1, n_threads_batch=1)
        sampler = Sampler.of(asked, Setting(model.facts.n_vocab, N_CTX, model.eog))
        with Context.open(model, params) as context:
            known, n_cached = list(asked.prompt), 0
            chosen: list[int] = []
            while len(chosen) < asked.request.n_predict:
                if len(known) == N_CTX + 1:
                    del known[n_kept : n_kept + n_gone]
                    if again:
                        again -= 1
                        n_cached = n_kept if context.truncate(0, n_kept) else 0
                        assert context.truncate(0, n_cached)
                    else:
                        context.shift(0, n_kept, n_kept + n_gone)
                        n_cached -= n_gone
                tokens = np.array(known[n_cached:], dtype=np.int32)
                outcome = context.decode([Piece(0, n_cached, tokens, True)])
                assert isinstance(outcome, Decoded)
                n_cached = len(known)
                ((token, *_),) = choose(outcome.logits, [sampler], [len(asked.prompt) + len(chosen)])
                sampler.accept(token)
                chosen.append(token)
                known.append(token)
            return chosen


@pytest.mark.parametrize(
    ("n_keep", "n_discard", "n_kept", "n_gone"),
    [
        (0, 0, 0, 32),
        (5, 0, 5, 29),
        (-1, 0, len(PROMPT), 15),
        (10**9, 0, N_CTX - 1, 1),
        (0, 1, 0, 1),
        (7, 20, 7, 20),
        (0, 10**9, 0, N_CTX),
        (5, 10**9, 5, N_CTX - 5),
    ],
)
def test_a_full_context_loses_what_was_asked_for_and_the_text_goes_on(
    byte_model: Path, n_keep: int, n_discard: int, n_kept: int, n_gone: int
) -> None:
    shifting = task("a", PROMPT, n_predict=110, shift=True, n_keep=n_keep, n_discard=n_discard)
    with Recorded(small(byte_model)) as engine:
        (answer,) = engine.run(shifting)
        (after,) = engine.run(task("after", PROMPT, n_predict=20))
    assert list(answer.ids) == plain_shifting(byte_model, shifting, n_kept, n_gone)
    assert (answer.stop_type, answer.truncated) == (StopType.LIMIT, True)
    assert list(after.ids) == plain_greedy(byte_model, PROMPT, 20, banned=[BYTE_EOS])
    assert not after.truncated


def test_draws_and_penalties_know_nothing_of_a_shift(byte_model: Path) -> None:
    wild = Sampling(temperature=1.5, top_k=0, min_p=0.0, repeat_penalty=1.2, repeat_last_n=100, ignore_eos=True)
    drawn = task("a", PROMPT, n_predict=110, shift=True, n_keep=5, sampling=wild, seed=5)
    with Recorded(small(byte_model)) as engine:
        (answer,) = engine.run(drawn)
    assert list(answer.ids) == plain_shifting(byte_model, drawn, 5, n_shifted(N_CTX, 5, N_CTX))


@pytest.mark.parametrize("model", ["recurrent_model", "sliding_model"])
@pytest.mark.parametrize("n_discard", [0, 1])
def test_what_cannot_be_moved_is_computed_again_and_seldom(
    request: pytest.FixtureRequest, model: str, n_discard: int
) -> None:
    path: Path = request.getfixturevalue(model)
    shifting = task("a", PROMPT, n_predict=100, shift=True, n_keep=5, n_discard=n_discard)
    with Recorded(small(path)) as engine:
        assert not engine.engine._context.can_shift
        (answer,) = engine.run(shifting, task("beside", PROMPT[3:], n_predict=20))[:1]
        beside = engine.answer("beside")
    assert list(answer.ids) == plain_shifting(path, shifting, 5, n_shifted(N_CTX, 5, N_CTX), again=100)
    assert list(beside.ids) == plain_greedy(path, PROMPT[3:], 20, banned=[BYTE_EOS])
    assert answer.truncated


def test_a_neighbour_with_the_same_prefix_notices_nothing(byte_model: Path) -> None:
    """The shifting one would move cells that both have, had it not got cells of its own."""
    prefix = [*PROMPT, *b" Or was it?"]
    neighbour = [*prefix, 65]
    n_left = N_CTX - len(neighbour)
    mover = task("mover", [*prefix, *b"Moved along"], n_predict=60, shift=True, n_discard=4)
    with Recorded(small(byte_model)) as engine:
        engine.submit(task("neighbour", neighbour, n_predict=n_left), mover)
        answer, moved = engine.answer("neighbour"), engine.answer("mover")
    assert n_left > N_CTX - len(mover.prompt) + 5, "the neighbour ends before the other shifts"
    assert moved.timings.cache_n == len(prefix)
    assert list(answer.ids) == plain_greedy(byte_model, neighbour, n_left, banned=[BYTE_EOS])
    assert list(moved.ids) == plain_shifting(byte_model, mover, 0, 4, again=1)


def test_an_idle_neighbour_gives_way_so_that_cells_can_be_moved(byte_model: Path) -> None:
    mover = task("mover", [*PROMPT, *PROMPT[:19], 65], n_predict=60, shift=True, n_discard=4)
    with Recorded(small(byte_model)) as engine:
        engine.run(task("idle", PROMPT + PROMPT[:20], n_predict=1))
        (moved,) = engine.run(mover)
        assert moved.timings.cache_n == len(PROMPT) + 19
    assert list(moved.ids) == plain_shifting(byte_model, mover, 0, 4)


def test_of_a_shifted_text_only_the_kept_part_is_lent(byte_model: Path) -> None:
    n_kept, n_gone = 20, 22
    with Recorded(small(byte_model)) as engine:
        (answer,) = engine.run(task("a", PROMPT, n_predict=35, shift=True, n_keep=n_kept))
        whole = [*PROMPT, *answer.ids]
        left = [*whole[:n_kept], *whole[n_kept + n_gone :]]
        (again,) = engine.run(task("again", left, n_predict=10))
        assert again.timings.cache_n == n_kept
    assert list(again.ids) == plain_greedy(byte_model, left, 10, banned=[BYTE_EOS])


@pytest.mark.parametrize("model", ["byte_model", "recurrent_model"])
def test_a_shifting_text_goes_on_after_its_worker_died(request: pytest.FixtureRequest, model: str) -> None:
    """Where all is computed again with each shift, the text is the same; where cells are moved, only its length."""
    path: Path = request.getfixturevalue(model)
    whole = task("whole", PROMPT, n_predict=120, shift=True, n_keep=5)
    with Recorded(small(path)) as engine:
        (answer,) = engine.run(whole)
        for n_produced in (30, 31, 32, 61, 119, 120):
            produced = answer.ids[:n_produced]
            name = f"cut{n_produced}"
            (again,) = engine.run(replace(whole, key=whole.key._replace(job_id=name), produced=produced))
            assert (len(again.ids), again.stop_type, again.truncated) == (120, StopType.LIMIT, True)
            assert again.ids[:n_produced] == produced
            if model == "recurrent_model" or n_produced < N_CTX - len(PROMPT):
                assert again.ids == answer.ids
        assert engine.engine.free_slots() == 4


def test_a_text_without_an_end_has_one(byte_model: Path) -> None:
    with Recorded(small(byte_model, context_shift=True)) as engine:
        (default,) = engine.run(task("default", PROMPT, n_predict=-1))
        (asked_not,) = engine.run(task("not", PROMPT, n_predict=-1, shift=False))
    with Recorded(small(byte_model, shift_limit=100)) as engine:
        (limited,) = engine.run(task("limited", PROMPT, n_predict=10**9, shift=True))
        (short,) = engine.run(task("short", PROMPT, n_predict=3, shift=True))
        (unasked,) = engine.run(task("unasked", PROMPT, n_predict=-1))
    with Recorded(small(byte_model, shift_limit=2)) as engine:
        (least,) = engine.run(task("least", PROMPT, n_predict=-1, shift=True))
    n_room = N_CTX - len(PROMPT)
    for answer, n_tokens, is_truncated in (
        (default, 10 * N_CTX, True),
        (asked_not, n_room, True),
        (limited, 100, True),
        (short, 3, False),
        (unasked, n_room, True),
        (least, n_room, True),
    ):
        assert (len(answer.ids), answer.stop_type, answer.truncated) == (n_tokens, StopType.LIMIT, is_truncated)


def test_a_parked_sequence_shifts_on_where_it_was(byte_model: Path) -> None:
    bulk = task("bulk", PROMPT, n_predict=120, shift=True, lane=Lane.BULK)
    with Recorded(small(byte_model, n_slots=1)) as engine:
        engine.submit(bulk)
        engine.wait_for(lambda: len(engine._events["bulk"]) > 60)
        engine.run(task("person", list(b"somebody"), n_predict=3))
        answer = engine.answer("bulk")
    assert list(answer.ids) == plain_shifting(byte_model, bulk, 0, 32)


def test_a_shifted_text_goes_on_in_a_new_context(byte_model: Path) -> None:
    faults = Faults(lambda decode: Fault(-3) if decode.number >= 50 and not decode.n_openings else None)
    with Recorded(small(byte_model), open_context=faults.open) as engine:
        (answer,) = engine.run(task("a", PROMPT, n_predict=120, shift=True))
    assert (len(answer.ids), faults.n_openings) == (120, 1)


def test_a_prompt_that_was_cut_is_said_to_be(byte_model: Path) -> None:
    with Recorded(small(byte_model)) as engine:
        (answer,) = engine.run(task("cut", PROMPT, n_predict=3, is_truncated=True))
    assert answer.truncated


def test_a_model_without_a_cache_embeds_and_refuses_to_generate(encoder_model: Path) -> None:
    with Recorded(config(encoder_model, n_ctx=512)) as engine:
        engine.submit(task("text", PROMPT), embed("vector", PROMPT))
        ending = engine.ending("text")
        assert np.linalg.norm(vector(engine, "vector")) == pytest.approx(1.0, abs=1e-5)
    assert isinstance(ending, Failure)
    assert ending.code == "not_supported"
