import os
from pathlib import Path

import numpy as np
import pytest

from worker.engine.llama import (
    Context,
    ContextParams,
    Decoded,
    DecodeFailed,
    Interrupt,
    Interrupted,
    LoadFailed,
    Model,
    OutOfCells,
    Piece,
)

PARAMS = ContextParams(n_ctx=256, n_batch=512, n_ubatch=512, n_seq_max=4, n_threads=1, n_threads_batch=1)


def ids(n: int, first: int = 65) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return (np.arange(n, dtype=np.int32) % 26 + first).astype(np.int32)


def test_a_missing_file_a_folder_a_stranger_and_a_pipe_are_one_sentence(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # whoever opened it would wait for ever
    for path, reason in (
        (tmp_path / "none.gguf", "no such file"),
        (tmp_path, "directory"),
        (text, "not a GGUF"),
        (pipe, "not a file"),
    ):
        with pytest.raises(LoadFailed, match=reason) as failure:
            Model.load(path)
        assert str(path) in str(failure.value)
        assert "\n" not in str(failure.value)


def test_a_file_that_was_cut_off_does_not_load(byte_model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(byte_model.read_bytes()[:20_000])
    with pytest.raises(LoadFailed, match="cannot load"):
        Model.load(cut)


def test_parameters_that_do_not_fit_are_one_sentence(byte_model: Path) -> None:
    with Model.load(byte_model) as model:
        with pytest.raises(LoadFailed, match=r"--cache-type-.: 'q9_9' is none of f32"):
            Context.open(model, ContextParams(256, 64, 64, 1, 1, 1, cache_type_k="q9_9"))
        with pytest.raises(LoadFailed, match="cannot make a context"):
            Context.open(model, ContextParams(256, 64, 64, 1, 1, 1, "off", cache_type_v="q8_0"))


def test_a_model_tells_its_facts(byte_model: Path) -> None:
    with Model.load(byte_model) as model:
        facts = model.facts
        assert (facts.n_vocab, facts.n_ctx_train, facts.n_embd) == (258, 2048, 64)
        assert (facts.eos, facts.eos_token, facts.adds_bos) == (257, "</s>", False)
        assert facts.chat_template.startswith("{% for message")
        assert facts.can_rewind
        assert (facts.architecture, facts.ftype, facts.quantization) == ("llama", "all F32", "F32")
        assert model.eog == {257}


@pytest.mark.parametrize("text", ["plain", "a\0b", "👋 日本", "\0", "", "é\n\t", "aaaa"])
def test_text_comes_back_from_its_tokens_nul_included(byte_model: Path, text: str) -> None:
    with Model.load(byte_model) as model:
        tokens = model.tokenize(text, add_special=True, parse_special=True)
        assert model.detokenize(tokens) == text
        assert b"".join(model.token_bytes(token) for token in tokens) == text.encode()


def test_control_tokens_are_parsed_and_shown_on_request_only(byte_model: Path) -> None:
    with Model.load(byte_model) as model:
        assert model.tokenize("</s>", add_special=False, parse_special=True) == [257]
        assert model.tokenize("</s>", add_special=False, parse_special=False) == list(b"</s>")
        assert (model.token_bytes(257), model.token_bytes(257, special=True)) == (b"", b"</s>")
        assert model.detokenize([257]) == "</s>"
        assert model.detokenize([257], special=False) == ""


def test_bytes_that_are_no_text_become_one_mark(byte_model: Path) -> None:
    with Model.load(byte_model) as model:
        assert model.detokenize(list("👋".encode()[:2])) == "\ufffd"


@pytest.mark.parametrize("token", [-1, 258, 2**40])
def test_an_id_outside_the_vocabulary_is_refused(byte_model: Path, token: int) -> None:
    """llama.cpp throws through C, which ends the process."""
    with Model.load(byte_model) as model:
        for call in (lambda: model.detokenize([65, token]), lambda: model.token_bytes(token)):
            with pytest.raises(ValueError, match="outside the vocabulary"):
                call()


def test_logits_come_in_the_order_of_the_pieces(byte_model: Path) -> None:
    with Model.load(byte_model) as model, Context.open(model, PARAMS) as context:
        together = context.decode(
            [Piece(2, 0, ids(5), True), Piece(0, 0, ids(9), False), Piece(1, 0, ids(3, 80), True)]
        )
        assert isinstance(together, Decoded)
        rows = together.logits.copy()
        assert rows.shape == (2, 258)
        context.clear()
        for row, tokens in zip(rows, (ids(5), ids(3, 80)), strict=True):
            alone = context.decode([Piece(3, 0, tokens, True)])
            assert isinstance(alone, Decoded)
            assert row == pytest.approx(alone.logits[0], abs=1e-3)
            context.truncate(3, 0)


def test_a_full_cache_is_an_outcome_and_changes_nothing(byte_model: Path) -> None:
    with Model.load(byte_model) as model, Context.open(model, PARAMS) as context:
        assert isinstance(context.decode([Piece(0, 0, ids(200), False)]), Decoded)
        assert context.decode([Piece(1, 0, ids(100), True)]) == OutOfCells()
        assert (context.length(0), context.length(1)) == (200, 0)
        assert context.truncate(0, 100)
        assert isinstance(context.decode([Piece(1, 0, ids(100), True)]), Decoded)


def test_a_lent_prefix_costs_no_cells(byte_model: Path) -> None:
    with Model.load(byte_model) as model, Context.open(model, PARAMS) as context:
        context.decode([Piece(0, 0, ids(200), False)])
        for slot in (1, 2, 3):
            context.share(0, slot, 0, 200)
        rows = [Piece(slot, 200, ids(10, 70 + slot), True) for slot in range(4)]
        assert isinstance(context.decode(rows), Decoded)


def test_an_interrupt_ends_a_decode_that_heeds_it_and_no_other(byte_model: Path) -> None:
    interrupt = Interrupt()
    whole = [Piece(0, 0, ids(100), True)]
    with Model.load(byte_model) as model, Context.open(model, PARAMS) as context:
        for is_set, heeded, outcome in (
            (False, interrupt, Decoded),
            (True, interrupt, Interrupted),
            (True, None, Decoded),
            (False, interrupt, Decoded),
        ):
            context.truncate(0, 0)
            if is_set:
                interrupt.set()
            else:
                interrupt.clear()
            assert isinstance(context.decode(whole, heeded), outcome)


@pytest.mark.parametrize("piece", [Piece(0, 3, ids(1, 10**6), True), Piece(0, 50, ids(1), True)])
def test_a_bad_batch_is_an_outcome(byte_model: Path, piece: Piece) -> None:
    with Model.load(byte_model) as model, Context.open(model, PARAMS) as context:
        assert isinstance(context.decode([Piece(0, 0, ids(3), True)]), Decoded)
        assert isinstance(context.decode([piece]), DecodeFailed)
        assert context.length(0) == 3
        assert isinstance(context.decode([Piece(0, 3, ids(3), True)]), Decoded)


def test_a_window_that_slid_does_not_slide_back(sliding_model: Path) -> None:
    with Model.load(sliding_model) as model, Context.open(model, PARAMS) as context:
        assert (model.facts.n_swa, context.can_shift) == (16, False)
        assert isinstance(context.decode([Piece(0, 0, ids(60), True)]), Decoded)
        assert context.truncate(0, 60)
        assert not context.truncate(0, 59)
        assert context.length(0) == 60
        assert context.truncate(0, 0)
        assert context.length(0) == 0


def test_a_context_is_as_new_when_it_was_opened_again(byte_model: Path) -> None:
    with Model.load(byte_model) as model, Context.open(model, PARAMS) as context:
        first = context.decode([Piece(0, 0, ids(9), True)])
        assert isinstance(first, Decoded)
        logits = first.logits.copy()
        context.reopen()
        assert context.length(0) == 0
        again = context.decode([Piece(0, 0, ids(9), True)])
        assert isinstance(again, Decoded)
        assert (again.logits == logits).all()


@pytest.mark.parametrize("seq_id", [-1, 4])
def test_ids_that_a_context_does_not_have_never_reach_llama_cpp(byte_model: Path, seq_id: int) -> None:
    """It takes -1 for everybody, and ends the process at others."""
    with Model.load(byte_model) as model, Context.open(model, PARAMS) as context:
        for call in (
            lambda: context.truncate(seq_id, 0),
            lambda: context.share(0, seq_id, 0, 1),
            lambda: context.share(seq_id, 0, 0, 1),
            lambda: context.shift(seq_id, 0, 1),
            lambda: context.divide(seq_id, 0, 2),
            lambda: context.length(seq_id),
        ):
            with pytest.raises(AssertionError):
                call()


def test_shifting_and_dividing_change_positions_and_nothing_before_them(byte_model: Path) -> None:
    with Model.load(byte_model) as model, Context.open(model, PARAMS) as context:
        context.decode([Piece(0, 0, ids(40), False), Piece(1, 0, ids(40), False)])
        context.shift(0, 10, 30)
        assert (context.length(0), context.length(1)) == (20, 40)
        context.divide(1, 20, 4)
        assert (context.length(0), context.length(1)) == (20, 25)
        assert isinstance(context.decode([Piece(0, 20, ids(1), True), Piece(1, 25, ids(1), True)]), Decoded)
