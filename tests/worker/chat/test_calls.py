"""How templates write calls, as their texts show it."""

from __future__ import annotations

import pytest

from shared.events import CallForm
from tests.worker.chat.templates import ARGS, DEEPSEEK, HERMES, LLAMA, MISTRAL, NUMBERED, OWN, THINKING, TURNS, XML
from worker.chat import BuiltinTemplate, ChatTemplate
from worker.chat.calls import learn_calls

IN_TAGS = CallForm(
    opening='<tool_call>\n{"name": "', middle='", "arguments": ', closing="}\n</tool_call>", separator="\n"
)


@pytest.mark.parametrize(
    ("source", "form", "takes_objects", "is_parallel"),
    [
        (HERMES, IN_TAGS, True, True),
        (THINKING, IN_TAGS.model_copy(update={"separator": ""}), True, True),
        (
            MISTRAL,
            CallForm(
                beginning="[TOOL_CALLS][",
                opening='{"name": "',
                middle='", "arguments": ',
                closing="}",
                separator=", ",
                ending="]",
            ),
            True,
            True,
        ),
        (ARGS, CallForm(opening="[TOOL_CALLS]", middle="[ARGS]", closing=""), True, True),
        (LLAMA, CallForm(opening='{"name": "', middle='", "parameters": ', closing="}"), True, False),
        (
            DEEPSEEK,
            CallForm(
                beginning="<｜calls▁begin｜>",
                opening="<｜call▁begin｜>function<｜sep｜>",
                middle="\n```json\n",
                closing="\n```<｜call▁end｜>",
                ending="<｜calls▁end｜>",
            ),
            False,
            True,
        ),
    ],
    ids=["hermes", "thinking", "mistral", "args", "llama", "deepseek"],
)
def test_a_templates_way_to_call_is_learned(
    source: str, form: CallForm, takes_objects: bool, is_parallel: bool
) -> None:
    calls = learn_calls(ChatTemplate(source, bos_token="<s>", eos_token="</s>"), ["<|eot_id|>", "</s>"])
    assert calls == (form, takes_objects, is_parallel)


@pytest.mark.parametrize("source", [TURNS, XML, OWN, "", "{{ tools }}{{ messages }}", "{{ raise_exception('no') }}"])
def test_what_no_form_describes_is_not_learned(source: str) -> None:
    assert learn_calls(ChatTemplate(source)) is None


def test_a_template_that_is_code_writes_no_calls() -> None:
    assert learn_calls(BuiltinTemplate("chatml")) is None


def test_of_numbered_calls_only_the_first_is_learned() -> None:
    calls = learn_calls(ChatTemplate(NUMBERED))
    assert calls is not None and not calls.is_parallel
    assert calls.form == CallForm(opening="<call>", middle=":0<args>", closing="</call>")


def test_the_end_of_a_turn_is_no_part_of_a_call() -> None:
    source = HERMES.replace("{% endfor %}<|im_end|>", "<|eom_id|>{% endfor %}<|im_end|>")
    calls = learn_calls(ChatTemplate(source), ["<|eom_id|>"])
    assert calls is not None and not calls.is_parallel
    assert calls.form == IN_TAGS.model_copy(update={"separator": ""})
