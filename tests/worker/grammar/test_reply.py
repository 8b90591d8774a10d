"""What a reply may be, and from which word on, over a vocabulary of bytes and some control tokens."""

from __future__ import annotations

import json

import pytest

from shared.events import CallForm
from shared.jobs import Constraint
from worker.chat.dialect import GENERIC, RESPONSE
from worker.grammar.cue import Cue, Listener
from worker.grammar.lexicon import Lexicon
from worker.grammar.reply import Function, ReplyGrammar, reply_lark

CONTROLS = ("[TOOL_CALLS]", "[ARGS]", "<think>", "</think>")
END = 256
LEXICON = Lexicon(
    [*(bytes([byte]) for byte in range(256)), b"</s>", *(control.encode() for control in CONTROLS)],
    control=frozenset(range(END, END + 5)),
    eog=frozenset({END}),
)
WITHOUT = Lexicon(LEXICON.tokens[:257], control=frozenset({END}), eog=frozenset({END}))

WEATHER = Function(
    "weather",
    json.dumps({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
    "tools.weather.parameters",
)
WEATHER_2 = Function("weather_2", '{"type": "object"}', "tools.weather_2.parameters")
BOTH = (WEATHER, WEATHER_2)

TAGS = CallForm(opening='<tool_call>\n{"name": "', middle='", "arguments": ', closing="}\n</tool_call>", separator="\n")
JSON = CallForm(opening='{"name": "', middle='", "parameters": ', closing="}")
LIST = CallForm(
    beginning="[TOOL_CALLS][",
    opening='{"name": "',
    middle='", "arguments": ',
    closing="}",
    separator=", ",
    ending="]",
)
ARGS = CallForm(opening="[TOOL_CALLS]", middle="[ARGS]", closing="")
THINK = ("<think>", "</think>")

IN_TAGS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
IN_JSON = '{"name": "weather", "parameters": {"city": "Bonn"}}'
IN_LIST = '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Bonn"}}, {"name": "weather_2", "arguments": {}}]'
IN_ARGS = '[TOOL_CALLS]weather[ARGS]{"city": "Bonn"}'
SCHEMA = Constraint(syntax="json_schema", text='{"type": "integer"}', field="response_format")


def ids_of(text: str, lexicon: Lexicon) -> list[int]:
    """With control tokens where their text stands."""
    ids: list[int] = []
    while text:
        control = next((each for each in lexicon.controls if text.startswith(each)), "")
        ids += [lexicon.controls[control]] if control else text[0].encode()
        text = text[len(control) or 1 :]
    return ids


def takes(grammar: ReplyGrammar, text: str, lexicon: Lexicon = WITHOUT) -> bool:
    """Whether the text may be said to its end, and may end there."""
    tokens = ids_of(text, lexicon)
    if grammar.cue is not None:
        listener = Listener(grammar.cue)
        for position, token in enumerate(tokens):
            if heard := listener.push(token, lexicon.tokens[token]):
                tokens = [*heard, *tokens[position + 1 :]]
                break
        else:
            return True
    matcher = lexicon.matcher(reply_lark(grammar, lexicon.controls))
    assert not matcher.is_error(), matcher.get_error()
    tokens.append(END)
    return matcher.validate_tokens(tokens) == len(tokens)


FREE = ReplyGrammar(BOTH, TAGS)
FORCED = ReplyGrammar(BOTH, TAGS, must_call=True)


@pytest.mark.parametrize("grammar", [FREE, FORCED])
def test_a_call_is_of_a_function_that_there_is_with_arguments_that_it_takes(grammar: ReplyGrammar) -> None:
    assert takes(grammar, IN_TAGS)
    assert takes(grammar, IN_TAGS.replace("weather", "weather_2"))
    assert takes(grammar, f"{IN_TAGS}\n{IN_TAGS}")
    assert takes(grammar, "".join(IN_TAGS.split())), "white space is the model's own affair"
    for wrong in (
        IN_TAGS.replace("weather", "weathe"),
        IN_TAGS.replace("weather", "weather_3"),
        IN_TAGS.replace('"Bonn"', "5"),
        IN_TAGS.replace("city", "town"),
        IN_TAGS.replace("</tool_call>", ""),
        f"{IN_TAGS} and so on",
    ):
        assert not takes(grammar, wrong), wrong


def test_a_free_reply_may_be_anything_up_to_a_call() -> None:
    for text in ("", "Hello.", "<tool", "Use <b>that</b>.", f"Let me see.\n{IN_TAGS}"):
        assert takes(FREE, text), text
        assert takes(FORCED, text) == (text == IN_TAGS)
    assert not takes(FREE, "Let me <tool_call>see")


def test_there_is_one_call_at_most_where_no_more_are_wanted() -> None:
    for must_call in (True, False):
        one = ReplyGrammar(BOTH, TAGS, must_call=must_call, is_parallel=False)
        assert takes(one, IN_TAGS)
        assert not takes(one, f"{IN_TAGS}\n{IN_TAGS}")


@pytest.mark.parametrize(("form", "text"), [(LIST, IN_LIST), (ARGS, IN_ARGS), (ARGS, IN_ARGS * 2)])
def test_a_mark_that_is_a_control_token_is_said_by_it_alone(form: CallForm, text: str) -> None:
    for must_call in (True, False):
        assert takes(ReplyGrammar(BOTH, form, must_call=must_call), text, LEXICON)
    forced = ReplyGrammar(BOTH, form, must_call=True)
    assert not takes(forced, text.replace("[TOOL_CALLS]", "[TOOL_CALL"), LEXICON)
    matcher = LEXICON.matcher(reply_lark(forced, LEXICON.controls))
    assert matcher.validate_tokens(list(text.encode())) == 0, "letters that look like it"


def test_an_object_is_a_call_only_where_the_reply_begins() -> None:
    free = ReplyGrammar(BOTH, JSON)
    assert takes(free, IN_JSON) and takes(free, f"\n {IN_JSON}")
    assert not takes(free, IN_JSON.replace("Bonn", '"'))
    assert takes(free, 'So: {"name": "Bo"}') and takes(free, '{"age": 5}') and takes(free, "{" * 500)
    assert not takes(ReplyGrammar(BOTH, JSON, must_call=True), f"So: {IN_JSON}")


@pytest.mark.parametrize("lexicon", [LEXICON, WITHOUT])
def test_reasoning_may_be_anything_and_a_call_follows_it(lexicon: Lexicon) -> None:
    opened = ReplyGrammar(BOTH, TAGS, must_call=True, reasoning=THINK, is_reasoning=True)
    assert takes(opened, f"A <tool_call> or not?\n</think>\n\n{IN_TAGS}", lexicon)
    assert not takes(opened, "Hm.</think>No.", lexicon)
    own = ReplyGrammar(BOTH, TAGS, must_call=True, reasoning=THINK)
    assert takes(own, IN_TAGS, lexicon) and takes(own, f"<think>Hm.</think>\n{IN_TAGS}", lexicon)
    assert not takes(own, "<think>Hm.</think>No.", lexicon)


def test_a_mark_in_letters_ends_reasoning_as_it_does_for_who_reads_it() -> None:
    opened = ReplyGrammar(BOTH, TAGS, must_call=True, reasoning=THINK, is_reasoning=True)
    assert opened.cue is not None
    matcher = LEXICON.matcher(reply_lark(opened, LEXICON.controls))
    text = f"</think>{IN_TAGS}".encode()
    assert matcher.validate_tokens(list(text)) == len(text)


@pytest.mark.parametrize("lexicon", [LEXICON, WITHOUT])
def test_words_of_a_call_in_reasoning_are_none(lexicon: Lexicon) -> None:
    opened = ReplyGrammar(BOTH, TAGS, reasoning=THINK, is_reasoning=True)
    assert takes(opened, "A <tool_call> or not?</think>No.", lexicon)
    assert takes(opened, f"A <tool_call> or not?</think>Yes: {IN_TAGS}", lexicon)
    assert not takes(opened, "</think>Yes: <tool_call>x", lexicon)
    own = ReplyGrammar(BOTH, TAGS, reasoning=THINK)
    assert takes(own, "<think>A <tool_call> or not?</think>No.", lexicon)
    assert not takes(own, "<think>A <tool_call>?</think><tool_call>x", lexicon)
    assert not takes(own, "<tool_call>x", lexicon)
    first = ReplyGrammar(BOTH, JSON, reasoning=THINK)
    assert takes(first, f"<think>{{</think>\n{IN_JSON}", lexicon)
    assert not takes(first, '<think>{</think>{"name": "x"', lexicon)


def test_a_generic_reply_is_an_answer_or_calls() -> None:
    generic = ReplyGrammar(BOTH, GENERIC, response=RESPONSE)
    calls = (
        '{"tool_calls": [{"name": "weather", "arguments": {"city": "Bonn"}}, {"name": "weather_2", "arguments": {}}]}'
    )
    assert takes(generic, '{"response": "Hello \\"you\\""}') and takes(generic, calls)
    assert not takes(generic, "Hello") and not takes(generic, '{"response": 5}')
    forced = ReplyGrammar(BOTH, GENERIC, response=RESPONSE, must_call=True)
    assert takes(forced, calls) and not takes(forced, '{"response": "Hello"}')
    assert not takes(forced, '{"tool_calls": []}')


def test_an_answer_that_is_no_call_satisfies_its_own_schema() -> None:
    grammar = ReplyGrammar(BOTH, TAGS, content=SCHEMA)
    assert takes(grammar, "5") and takes(grammar, IN_TAGS) and not takes(grammar, "Hello")
    assert not takes(ReplyGrammar(BOTH, TAGS, content=SCHEMA, must_call=True), "5")


def test_a_constraint_is_of_the_answer_and_not_of_the_reasoning_before_it() -> None:
    rhyme = Constraint(syntax="gbnf", text='root ::= x "!"\nx ::= "a" | "b"')
    for content, good in ((SCHEMA, "5"), (rhyme, "a!"), (Constraint(syntax="regex", text="a|b"), "b")):
        opened = ReplyGrammar(content=content, reasoning=THINK, is_reasoning=True)
        assert takes(opened, f"Hm.</think>\n{good}") and not takes(opened, "Hm.</think>x")
        own = ReplyGrammar(content=content, reasoning=THINK)
        assert takes(own, good)
        assert takes(own, f"<think>Hm.</think>{good}") == (content is SCHEMA), "a grammar has the say where it is"


def test_where_in_tokens_a_word_stands_does_not_matter() -> None:
    text = "Well then: <tool_call>"
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            assert FREE.cue is not None
            listener = Listener(FREE.cue)
            cuts = [text[:start], text[start:end], text[end:]]
            for number, cut in enumerate(cuts):
                if heard := listener.push(number, cut.encode()):
                    break
            assert "".join(cuts[: number + 1]).endswith("<tool_call>")
            said = "".join(cuts[each] for each in heard)
            assert "<tool_call>" in said and "<tool_call>" not in said[len(cuts[heard[0]]) :]


def test_a_long_text_is_not_kept() -> None:
    assert FREE.cue is not None
    for cue in (FREE.cue, Cue(reasoning=THINK, is_reasoning=True), Cue("{", is_first=True)):
        listener = Listener(cue)
        for number in range(10_000):
            assert not listener.push(number, b"" if number % 3 else b"word ")
        assert len(listener._text) < 200 and len(listener._tokens) < 200
