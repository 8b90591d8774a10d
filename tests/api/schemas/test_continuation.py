"""A chat that ends with the assistant's own words: whether they are gone on with, and told again."""

from __future__ import annotations

from typing import Any

import pytest

from api.reply import Said
from api.schemas.continuation import Continuation, ContinuationFields, continuation_of
from api.schemas.openai import chat
from shared.errors import InvalidRequest
from shared.jobs import Chat

ASKED: dict[str, Any] = {"role": "user", "content": "hi"}
BEGUN: dict[str, Any] = {"role": "assistant", "content": "yo"}
THOUGHT: dict[str, Any] = {"role": "assistant", "content": None, "reasoning_content": "hm"}


def read(*messages: dict[str, Any], **fields: Any) -> Continuation:
    return continuation_of(ContinuationFields.model_validate(fields), messages)


def test_an_assistants_last_words_are_gone_on_with_and_told_again() -> None:
    assert read(ASKED, BEGUN) == Continuation((ASKED, BEGUN), True, Said(content="yo"))
    assert read(ASKED, THOUGHT) == Continuation((ASKED, THOUGHT), True, Said(reasoning="hm"))
    assert read(ASKED, BEGUN, add_generation_prompt=True).is_asked
    assert not read(ASKED).is_asked
    assert not read(ASKED, BEGUN, continue_final_message=False).is_asked


def test_who_asks_in_so_many_words_is_told_what_is_new() -> None:
    assert read(ASKED, BEGUN, continue_final_message=True) == Continuation((ASKED, BEGUN), True, Said())
    assert read(ASKED, BEGUN, continue_final_message=True, echo=True).told == Said(content="yo")


def test_either_part_of_a_message_may_be_gone_on_with() -> None:
    both = {**BEGUN, "reasoning_content": "hm"}
    assert read(ASKED, both, continue_final_message="reasoning_content").messages[-1]["content"] is None
    assert read(ASKED, THOUGHT, continue_final_message="content").messages[-1]["content"] == ""


@pytest.mark.parametrize(
    ("messages", "fields", "name"),
    [
        ([ASKED, BEGUN], {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ([ASKED], {"continue_final_message": True}, "continue_final_message"),
        ([ASKED, BEGUN, BEGUN], {}, "messages"),
        ([ASKED, {**BEGUN, "tool_calls": [{"function": {"name": "f"}}]}], {}, "messages[1]"),
        ([ASKED, BEGUN], {"continue_final_message": "poem"}, "continue_final_message"),
        ([ASKED, BEGUN], {"continue_final_message": 1}, "continue_final_message"),
    ],
    ids=str,
)
def test_what_cannot_be_gone_on_with_is_refused(messages: list[Any], fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat({"messages": messages, **fields})
    assert (refused.value.param or "").partition(".")[0] == name


def test_a_worker_goes_on_or_opens_a_turn_but_never_both() -> None:
    for body in ({"messages": [ASKED, BEGUN]}, {"messages": [ASKED]}):
        request = chat(body).request
        assert isinstance(request, Chat)
        assert request.continues_last is not request.add_generation_prompt
