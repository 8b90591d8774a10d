"""The jobs that ollama's requests become."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.ask import Ask
from api.schemas.ollama import requests
from api.schemas.ollama.fields import ChatBody, EmbedBody, EmbeddingsBody, GenerateBody
from api.schemas.strict import read
from shared.errors import InvalidRequest, NotSupported
from shared.jobs import Chat, Completion, Embedding, Infill, Lane, ToolUse, Truncation

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "now", "description": "", "parameters": {}}}


def generate(**fields: Any) -> Ask:
    return requests.generate(read(GenerateBody, {"prompt": "Hi", **fields}))


def chat(**fields: Any) -> Ask:
    return requests.chat(read(ChatBody, {"messages": [USER], **fields}))


def test_a_prompt_is_a_chat_of_one_message() -> None:
    assert isinstance(plain := generate().request, Chat)
    assert plain.messages == (USER,)
    assert isinstance(led := generate(system="Be kind").request, Chat)
    assert led.messages == ({"role": "system", "content": "Be kind"}, USER)


def test_a_raw_prompt_is_the_whole_prompt() -> None:
    """Not even what the worker puts before others stands before it."""
    request = generate(raw=True).request
    assert isinstance(request, Completion)
    assert (request.prompts, request.system_prompt) == (("Hi",), "")


def test_what_is_to_stand_behind_the_text_makes_it_a_gap() -> None:
    request = generate(suffix="there").request
    assert isinstance(request, Infill)
    assert (request.prefix, request.suffix, request.truncate) == ("Hi", "there", None)
    begun = requests.generate(read(GenerateBody, {"suffix": "there"})).request
    assert isinstance(begun, Infill) and begun.prefix == ""


def test_what_does_not_fit_is_cut_as_ollama_cuts_it() -> None:
    for request, rule in (
        (generate().request, Truncation.TAIL),
        (generate(raw=True).request, Truncation.TAIL),
        (chat().request, Truncation.MESSAGES),
        (generate(truncate=False).request, None),
        (chat(truncate=False).request, None),
    ):
        assert isinstance(request, Chat | Completion)
        assert (request.truncate, request.shift) == (rule, True)
    unshifted = chat(shift=False).request
    assert isinstance(unshifted, Chat) and unshifted.shift is False


def test_a_stream_is_what_a_client_gets_who_says_nothing() -> None:
    assert generate().is_stream and chat().is_stream
    assert not generate(stream=False).is_stream and not chat(stream=False).is_stream


@pytest.mark.parametrize("reader", [requests.generate_whole, requests.chat_whole])
def test_a_job_is_whole_for_a_client_who_says_nothing(reader: Any) -> None:
    body = {"prompt": "Hi", "messages": [USER]}
    assert [reader({**body, **more}).is_stream for more in ({}, {"stream": None}, {"stream": True})] == [0, 0, 1]


def test_tools_may_be_called() -> None:
    assert isinstance(request := chat(tools=[TOOL]).request, Chat)
    assert request.tool_use == ToolUse(tools=(TOOL,))
    assert isinstance(request := chat(tools=[]).request, Chat)
    assert request.tool_use is None


def test_thinking_and_a_format_go_to_the_worker() -> None:
    assert isinstance(request := chat(think="high", format={"type": "object"}).request, Chat)
    assert request.template_kwargs == {"enable_thinking": True, "reasoning_effort": "high"}
    assert request.constraint is not None and request.constraint.text == '{"type":"object"}'


def test_probabilities_are_asked_for_by_both_fields() -> None:
    for more, asked in (
        ({}, (False, 0)),
        ({"logprobs": True}, (True, 0)),
        ({"logprobs": True, "top_logprobs": 5}, (True, 5)),
        ({"top_logprobs": 5}, (False, 0)),
    ):
        assert isinstance(request := chat(**more).request, Chat)
        assert (request.has_logprobs, request.n_probs) == asked


def test_images_stand_before_the_prompt() -> None:
    asked = generate(images=["AAAA", "BBBB"])
    assert isinstance(asked.request, Chat)
    assert asked.request.messages[0]["content"] == asked.album.mark * 2 + "Hi"
    assert [picture.data for picture in asked.album.pictures] == ["AAAA", "BBBB"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"raw": True, "system": "x"}, "raw mode does not support template, system, or context"),
        ({"raw": True, "template": "x"}, "raw mode does not support template, system, or context"),
        ({"raw": True, "context": [1]}, "raw mode does not support template, system, or context"),
        ({"suffix": "x", "images": ["AAAA"]}, "Field 'images': cannot be used together with 'suffix'"),
        ({"prompt": ""}, "Field 'prompt': is needed"),
    ],
)
def test_what_cannot_be_together_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        generate(**fields)
    assert refused.value.message == words


@pytest.mark.parametrize(("field", "value"), [("template", "{{ .Prompt }}"), ("context", [1, 2])])
def test_what_this_build_does_not_do_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(NotSupported) as refused:
        generate(**{field: value})
    assert refused.value.param == field
    assert generate(**{field: type(value)()})


def test_inputs_are_embedded_with_the_length_that_each_path_gives() -> None:
    new = requests.embed(read(EmbedBody, {"input": ["a", "b"]})).request
    assert isinstance(new, Embedding)
    assert (new.inputs, new.norm, new.is_pooled, new.truncates) == (("a", "b"), 2, True, True)
    exact = requests.embed(read(EmbedBody, {"input": "a", "truncate": False})).request
    assert isinstance(exact, Embedding) and not exact.truncates
    old = requests.embeddings(read(EmbeddingsBody, {"prompt": "a"})).request
    assert isinstance(old, Embedding)
    assert (old.inputs, old.norm) == (("a",), -1)


def test_work_may_wait_for_people() -> None:
    assert generate(priority="bulk").lane is Lane.BULK and generate().lane is None
    assert requests.embed(read(EmbedBody, {"input": "a", "priority": "bulk"})).lane is Lane.BULK
