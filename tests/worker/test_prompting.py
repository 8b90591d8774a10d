"""Prompts that fit, are cut to fit, stand behind a system prompt or around a gap; the tokens are bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.errors import PromptTooLong
from shared.jobs import Chat, Completion, Infill, Truncation
from shared.settings import ConfigError
from tests.models import FILL_TOKENS, N_BYTE_VOCAB, write_infill_model
from tests.worker.test_intake import admit, generations
from worker.engine import Model
from worker.engine.overflow import truncated
from worker.intake import Registrar
from worker.rules import Rules, SystemPrompt

PREFIX, SUFFIX, MIDDLE, REPOSITORY, SEPARATOR = range(N_BYTE_VOCAB, N_BYTE_VOCAB + len(FILL_TOKENS))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with Model.load(write_infill_model(tmp_path_factory.mktemp("models") / "infill.gguf")) as loaded:
        yield loaded


def registrar(model: Model, **rules: Any) -> Registrar:
    return Registrar(model, Rules(**({"n_ctx": 64} | rules)))


def prompt_of(model: Model, request: Completion | Chat | Infill, **rules: Any) -> tuple[tuple[int, ...], bool]:
    task = generations(admit(registrar(model, **rules), **request.model_dump()))[0]
    return task.prompt, task.is_truncated


@pytest.mark.parametrize("rule", Truncation)
@pytest.mark.parametrize("n_keep", [-1, 0, 7, 10**9])
@pytest.mark.parametrize("n_prompt", [62, 63, 64, 65, 127, 500])
def test_a_prompt_is_cut_by_the_rule_and_leaves_room(
    model: Model, rule: Truncation, n_keep: int, n_prompt: int
) -> None:
    ids = tuple(index % 256 for index in range(n_prompt))
    prompt, is_truncated = prompt_of(model, Completion(prompts=(ids,), truncate=rule, n_keep=n_keep))
    assert len(prompt) < 64
    assert is_truncated == (n_prompt >= 64)
    n_room = 64 if rule is Truncation.BLOCKS else 63
    assert prompt == (ids if n_prompt < 64 else truncated(ids, n_room, n_keep, rule, adds_bos=False))


@pytest.mark.parametrize("rule", Truncation)
@pytest.mark.parametrize("pieces", [1, 1000])
def test_megabytes_are_cut_before_they_are_tokenized(model: Model, rule: Truncation, pieces: int) -> None:
    text = "The beginning, " + "and so on, " * 400_000 + "the end."
    size = len(text) // pieces
    cut = tuple(text[start : start + size] for start in range(0, len(text), size))
    started = time.thread_time()
    prompt, is_truncated = prompt_of(model, Completion(prompts=(cut,), truncate=rule, n_keep=14))
    assert time.thread_time() - started < 1.0
    said = model.detokenize(prompt)
    assert is_truncated and said.startswith("The beginning,") and said.endswith("the end.")


def test_what_does_not_fit_is_refused_unless_it_may_be_cut(model: Model) -> None:
    for request in (
        Completion(prompts=("x" * 200,)),
        Chat(messages=({"role": "user", "content": "x" * 200},)),
        Infill(prompt="x" * 200),
    ):
        prompt, is_truncated = prompt_of(model, request.model_copy(update={"truncate": Truncation.TAIL}))
        assert is_truncated and len(prompt) == 63
        with pytest.raises(PromptTooLong) as refused:
            prompt_of(model, request)
        assert refused.value.n_ctx == 64 <= refused.value.n_prompt_tokens


def test_a_system_prompt_stands_before_each_prompt_and_is_kept(model: Model) -> None:
    request = Completion(prompts=("Hi", "Yo"), system_prompt="Be brief. ", n_keep=3)
    tasks = generations(admit(registrar(model), **request.model_dump()))
    assert [model.detokenize(task.prompt) for task in tasks] == ["Be brief. Hi", "Be brief. Yo"]
    assert {task.request.n_keep for task in tasks} == {10 + 3}


@pytest.mark.parametrize("n_characters", [64, 5_000_000])
def test_a_system_prompt_is_never_cut(model: Model, n_characters: int) -> None:
    with pytest.raises(PromptTooLong):
        prompt_of(model, Completion(prompts=("Hi",), system_prompt="x" * n_characters, truncate=Truncation.BLOCKS))
    request = Completion(prompts=("y" * 999,), system_prompt="x" * 40, truncate=Truncation.BLOCKS)
    assert model.detokenize(prompt_of(model, request)[0]).startswith("x" * 40 + "y")


def test_the_workers_own_system_prompt_gives_way_to_that_of_a_request(model: Model) -> None:
    own = SystemPrompt("You are Bob. ", "Alice:")

    def heard(request: Completion | Chat) -> tuple[str, tuple[str, ...]]:
        [task] = generations(admit(registrar(model, system_prompt=own), **request.model_dump()))
        return model.detokenize(task.prompt), task.request.stop

    assert heard(Completion(prompts=("Hi",), stop=("!",))) == ("You are Bob. Hi", ("!", "Alice:"))
    assert heard(Completion(prompts=("Hi",), system_prompt="Be brief. ")) == ("Be brief. Hi", ())
    assert heard(Completion(prompts=("Hi",), system_prompt="")) == ("Hi", ())
    assert heard(Chat(messages=({"role": "user", "content": "Hi"},))) == ("user: Hi\n", ())


@pytest.mark.parametrize(
    ("content", "read"),
    [
        ("You are Bob.\n", SystemPrompt("You are Bob.\n")),
        ('{"prompt": "Bob.", "anti_prompt": "Alice:", "assistant_name": "Bob:"}', SystemPrompt("Bob.", "Alice:")),
        ("{}", SystemPrompt("")),
        ("[1]", SystemPrompt("[1]")),
        ("", SystemPrompt("")),
    ],
)
def test_a_system_prompt_is_read_as_text_or_as_the_old_object(tmp_path: Path, content: str, read: SystemPrompt) -> None:
    (tmp_path / "prompt").write_text(content)
    assert SystemPrompt.read(tmp_path / "prompt") == read


@pytest.mark.parametrize("content", [b"\xff", b'{"prompt": 3}', None])
def test_a_system_prompt_that_is_none_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "prompt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        SystemPrompt.read(path)


def test_a_gap_stands_between_its_sides_behind_other_files(model: Model) -> None:
    request = Infill(prefix="def f(", suffix="):", prompt="x", extra=(("a.py", "A"), ("b.py", "B")))
    before, after = (PREFIX, *b"def f(x"), (SUFFIX, *b"):")
    files = (REPOSITORY, *b"myproject\n", SEPARATOR, *b"a.py\nA", SEPARATOR, *b"b.py\nB", SEPARATOR, *b"filename\n")
    assert prompt_of(model, request, n_ctx=256) == ((*files, *before, *after, MIDDLE), False)
    assert prompt_of(model, request, n_ctx=256, is_suffix_first=True)[0] == (*files, *after, *before, MIDDLE)


def test_what_surrounds_a_gap_is_cut_far_from_it(model: Model) -> None:
    request = Infill(prefix="<" * 300 + "here", suffix="there" + ">" * 300, extra=(("a", "z" * 99_999),), n_predict=10)
    prompt, is_truncated = prompt_of(model, request, n_ctx=256, n_batch=64)
    tokens = list(prompt)
    prefix, suffix = tokens.index(PREFIX), tokens.index(SUFFIX)
    assert bytes(tokens[prefix + 1 : suffix]) == b"<" * 44 + b"here"
    assert bytes(tokens[suffix + 1 : -1]) == b"there" + b">" * 9
    assert bytes(tokens[: prefix - 10]) == b"z" * (256 - 64 - 6 - 20 - 10)
    assert not is_truncated and len(prompt) + 2 * 10 < 256


def test_control_tokens_around_a_gap_are_text(model: Model) -> None:
    prompt, _ = prompt_of(model, Infill(prefix="<|fim_middle|>"), n_ctx=256)
    assert prompt.count(MIDDLE) == 1


def conversation(*texts: str) -> tuple[dict[str, Any], ...]:
    """A system's word, then a user's and an assistant's by turns."""
    turns = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    return ({"role": "system", "content": "S"}, *turns)


def left_of(model: Model, messages: tuple[dict[str, Any], ...], n_ctx: int) -> tuple[str, bool]:
    prompt, is_truncated = prompt_of(model, Chat(messages=messages, truncate=Truncation.MESSAGES), n_ctx=n_ctx)
    return model.detokenize(prompt), is_truncated


def test_the_oldest_messages_of_a_chat_go_and_the_systems_stay(model: Model) -> None:
    messages = conversation(*("abcdefg"))
    lines = [f"{message['role']}: {message['content']}\n" for message in messages]
    for n_ctx in range(len(lines[0] + lines[-1]) + 1, 120):
        kept = max(n for n in range(1, 8) if len(lines[0] + "".join(lines[-n:])) < n_ctx)
        assert left_of(model, messages, n_ctx) == (lines[0] + "".join(lines[-kept:]), kept < 7)


def test_a_last_message_that_alone_does_not_fit_loses_its_beginning(model: Model) -> None:
    text, is_truncated = left_of(model, conversation("a", "b", "x" * 500 + "end"), 64)
    assert is_truncated and len(text) == 63 and text.endswith("xend\n")
    assert left_of(model, conversation("a", "b", "c"), 8)[0] == "user: c\n"[-7:]


def test_a_result_does_not_stay_without_its_call(model: Model) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = (
        {"role": "user", "content": "x" * 40},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "5"},
        {"role": "user", "content": "y"},
    )
    for n_ctx in range(10, 200, 9):
        text, _ = left_of(model, messages, n_ctx)
        assert ("tool_results" not in text) or ("tool_calls" in text)


def test_a_conversation_of_a_hundred_thousand_messages_is_cut_soon(model: Model) -> None:
    started = time.thread_time()
    text, is_truncated = left_of(model, conversation(*["word"] * 100_000), 64)
    assert is_truncated and text.endswith("assistant: word\n")
    assert time.thread_time() - started < 2.0


@pytest.mark.parametrize("request_", [Completion(prompts=("x" * 20,)), Chat(messages=conversation("x" * 20))])
def test_a_request_may_want_less_of_the_context(model: Model, request_: Completion | Chat) -> None:
    capped = request_.model_copy(update={"n_ctx": 16})
    with pytest.raises(PromptTooLong) as refused:
        prompt_of(model, capped)
    assert refused.value.n_ctx == 16 and "16" in refused.value.message
    for rule in Truncation:
        prompt, is_truncated = prompt_of(model, capped.model_copy(update={"truncate": rule}))
        assert is_truncated and len(prompt) < 16
    wide = capped.model_copy(update={"n_ctx": 10**6})
    assert prompt_of(model, wide) == prompt_of(model, request_)
    intake = admit(registrar(model), **capped.model_copy(update={"truncate": Truncation.TAIL}).model_dump())
    assert intake.accepted.n_ctx == 16


@pytest.mark.parametrize("rule", Truncation)
def test_the_smallest_context_leaves_something(model: Model, rule: Truncation) -> None:
    prompt, is_truncated = prompt_of(model, Completion(prompts=("x" * 20,), truncate=rule, n_ctx=1))
    assert is_truncated and 0 < len(prompt) < 4
