"""What a model said is read out of its text: the same however the text is cut, and nothing of it is lost."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from api.reply import Call, Reply, ReplyReader, read_reply
from shared.events import CallForm, ReplyForm

TAGGED = CallForm(
    opening='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    closing="}\n</tool_call>",
    separator="\n",
)
"""Hermes, Qwen."""
LISTED = CallForm(
    beginning="[TOOL_CALLS][",
    opening='{"name": "',
    middle='", "arguments": ',
    closing="}",
    separator=", ",
    ending="]",
)
"""Mistral."""
BARE = CallForm(opening='{"name": "', middle='", "parameters": ', closing="}", separator="; ")
"""Llama 3.1."""
TAGS = CallForm(opening="<function=", middle=">", closing="</function>")
"""Functionary 3.1."""

THINKING = ReplyForm(reasoning=("<think>\n", "\n</think>\n\n"), calls=TAGGED)
FORMS = {
    "plain": ReplyForm(),
    "thinking": THINKING,
    "thinks at once": THINKING.model_copy(update={"is_reasoning": True}),
    "tagged": ReplyForm(calls=TAGGED),
    "listed": ReplyForm(calls=LISTED),
    "bare": ReplyForm(calls=BARE),
    "tags": ReplyForm(calls=TAGS),
    "words": ReplyForm(calls=CallForm(opening="[TOOL_CALLS]", middle="[ARGS]", closing="")),
    "generic": ReplyForm(is_generic=True),
}

SCRAPS = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<function=", "</function>", "; "),
        *('", "id": "', "[CALL_ID]", "[ARGS]"),
        *('{"name": "', '", "arguments": ', '","parameters":', '{"response":"', '{"tool_calls":[{"name":"', "a.b", '"'),
        *("{", "}", "[", "]", "<", ">", ",", "\\", "\\u00e4", "\\ud83d", "\\ude00", " ", "\n", " " * 70, "hi", "😀"),
        '<tool_call>{"name":"f","arguments":{"a":"}"}}</tool_call>',
        '[TOOL_CALLS][{"name":"f","arguments":{}}',
    ]
)
TEXTS = st.lists(SCRAPS, max_size=14).map("".join)


def read_in_pieces(form: ReplyForm | None, pieces: list[str], *, splits_reasoning: bool = True) -> Reply:
    reader = ReplyReader(form, splits_reasoning=splits_reasoning)
    all_said = [*map(reader.push, pieces), reader.close()]
    names: dict[int, str] = {}
    arguments: defaultdict[int, str] = defaultdict(str)
    for piece in (piece for said in all_said for piece in said.calls):
        assert (piece.place not in names) == bool(piece.name), "the name comes once, and first"
        assert not (piece.name and piece.arguments)
        names.setdefault(piece.place, piece.name)
        arguments[piece.place] += piece.arguments
    assert list(names) == list(range(len(names)))
    reasoning = "".join(said.reasoning for said in all_said)
    content = "".join(said.content for said in all_said)
    return Reply(reasoning or None, content, tuple(Call(name, arguments[place]) for place, name in names.items()))


def test_a_mark_in_brackets_is_no_json_and_opens_calls_wherever_it_stands() -> None:
    calls = '[TOOL_CALLS][{"name": "f", "arguments": {}}]'
    assert read_reply(ReplyForm(calls=LISTED), f"Let me see. {calls}") == Reply(None, "Let me see.", (Call("f", "{}"),))
    assert read_reply(ReplyForm(calls=LISTED), "a [TOOL] or [TOOL_CALLS]?").content == "a [TOOL] or [TOOL_CALLS]?"


@settings(max_examples=150)
@given(text=TEXTS, form=st.sampled_from(list(FORMS.values())), cuts=st.sets(st.integers(1, 200)), splits=st.booleans())
def test_how_a_text_is_cut_changes_nothing(text: str, form: ReplyForm, cuts: set[int], splits: bool) -> None:
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    whole = read_reply(form, text, splits_reasoning=splits)
    assert read_in_pieces(form, pieces, splits_reasoning=splits) == whole
    assert read_in_pieces(form, list(text), splits_reasoning=splits) == whole


WORDS = st.text('ab <{}"\\\n', max_size=20).map(lambda text: f"w{text}w")
ARGUMENTS = st.dictionaries(st.sampled_from("ab"), WORDS | st.lists(WORDS, max_size=2), max_size=2)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "get_weather", "a.b:c/d-e"]), ARGUMENTS), max_size=3)


@given(calls=CALLS, words=WORDS, gap=st.sampled_from(["", " ", "\n\n"]), name=st.sampled_from(["tagged", "tags"]))
def test_calls_behind_words_are_read_as_they_were_written(
    calls: list[tuple[str, object]], words: str, gap: str, name: str
) -> None:
    form = FORMS[name]
    assert form.calls is not None
    reply = read_reply(form, words + gap + written(form.calls, calls))
    assert reply == Reply(None, words if calls else words + gap, told(calls))


@given(calls=CALLS.filter(bool), name=st.sampled_from(["listed", "bare", "tagged", "tags"]))
def test_calls_at_the_beginning_are_read_as_they_were_written(calls: list[tuple[str, object]], name: str) -> None:
    form = FORMS[name].calls
    assert form is not None
    text = written(form, calls)
    assert read_reply(FORMS[name], text) == read_in_pieces(FORMS[name], list(text)) == Reply(None, "", told(calls))
    assert read_reply(FORMS[name], written(form, calls).replace('": ', '":  \n')).calls[0].name == calls[0][0]


@given(text=TEXTS)
@example("<tool_call>\n" + " " * 65 + '{"name": "f", "arguments": {}}')
@example('<tool_call>{"name": "f", "argum')
@example('<tool_call>{"name": "f", "arguments": null}</tool_call>')
@example('<tool_call>{"name": "f g", "arguments": {}}</tool_call>')
def test_a_reply_without_a_whole_call_is_content_to_the_letter(text: str) -> None:
    reply = read_reply(ReplyForm(calls=TAGGED), text)
    assert reply.calls or reply.content == text
    if "<tool_call>" not in text:
        assert not reply.calls


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "listed",
            '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "a1"}, {"name": "g", "arguments": {}, "id": "b2"}]',
        ),
        (
            "listed",
            '[TOOL_CALLS][{"name": "f", "id": "a1", "arguments": {}}, {"name": "g", "id":"b2", "arguments": {}}]',
        ),
        ("words", "[TOOL_CALLS]f[CALL_ID]a1[ARGS]{}[TOOL_CALLS]g[CALL_ID]b2[ARGS]{}"),
        ("words", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}"),
    ],
)
def test_an_id_is_no_part_of_a_call(name: str, text: str) -> None:
    read = Reply(None, "", (Call("f", "{}"), Call("g", "{}")))
    assert read_reply(FORMS[name], text) == read_in_pieces(FORMS[name], list(text)) == read


def test_what_follows_a_cut_call_stays_in_it() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "</tool_call> <tool_call>'
    assert read_reply(ReplyForm(calls=TAGGED), text) == Reply(None, "", (Call("f", text[text.index('{"a"') :]),))


@pytest.mark.parametrize("name", ["listed", "bare"])
def test_an_answer_that_is_json_of_its_own_is_no_call(name: str) -> None:
    for text in ('{"name": "Ada", "age": 36}', '[{"name": "Ada"}]', 'See: {"name": "f", "parameters": {}}', "[1]"):
        assert read_reply(FORMS[name], text) == Reply(None, text, ())


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("<think>\n\nhm\n</think>\n\nyes", Reply("hm", "yes", ())),
        (" <think>hm</think>yes ", Reply("hm", "yes ", ())),
        ("<think>\n\n</think>\n\nyes", Reply(None, "yes", ())),
        ("<think>hm </thin", Reply("hm </thin", "", ())),
        ("<think>hm\n", Reply("hm\n", "", ())),
        ("  yes", Reply(None, "  yes", ())),
        (" " * 65 + "<think>hm", Reply(None, " " * 65 + "<think>hm", ())),
        ("yes <think>no</think>", Reply(None, "yes <think>no</think>", ())),
        (
            '<think>a <tool_call></think><tool_call>{"name":"f","arguments":{}}</tool_call>',
            Reply("a <tool_call>", "", (Call("f", "{}"),)),
        ),
    ],
)
def test_reasoning_stands_before_the_answer(text: str, reply: Reply) -> None:
    assert read_reply(THINKING, text) == read_in_pieces(THINKING, list(text)) == reply


def test_a_prompt_may_have_opened_the_reasoning() -> None:
    form = FORMS["thinks at once"]
    assert read_reply(form, "\nhm</think>\nyes") == Reply("hm", "yes", ())
    assert read_reply(form, "hm") == Reply("hm", "", ())
    assert read_reply(form, "hm</think>yes", splits_reasoning=False) == Reply(None, "hm</think>yes", ())


@given(words=WORDS)
def test_reasoning_that_is_not_split_off_is_content_to_the_letter(words: str) -> None:
    text = f" <think>\n{words}</think>\n\n{words}"
    assert read_reply(THINKING, text, splits_reasoning=False) == Reply(None, text, ())


@given(text=st.text(), escapes=st.booleans())
def test_a_generic_reply_says_its_string(text: str, escapes: bool) -> None:
    text = text.encode("utf-8", "ignore").decode()
    reply = read_reply(FORMS["generic"], json.dumps({"response": text}, ensure_ascii=escapes) + "\n")
    assert reply == Reply(None, text, ())


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (r"a\ud83d\ude00b", "a😀b"),
        (r"\ud83d", ""),
        (r"\ud83d x", "\ufffd x"),
        (r"\ude00 x", "\ufffd x"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\x\/\b", "\\x/\b"),
        ("a\\", "a"),
        (r"a\u00", "a"),
        (r"a\u00g", "a\\u00g"),
    ],
)
def test_no_half_character_of_a_generic_reply_is_told(raw: str, text: str) -> None:
    assert read_reply(FORMS["generic"], f'{{"response": "{raw}').content == text
    assert read_in_pieces(FORMS["generic"], list(f'{{"response": "{raw}')).content == text


@given(calls=CALLS.filter(bool), indent=st.sampled_from([None, 1]))
def test_calls_of_a_generic_reply_are_in_a_list(calls: list[tuple[str, object]], indent: int | None) -> None:
    listed = {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}
    reply = read_reply(FORMS["generic"], json.dumps(listed, indent=indent))
    assert (reply.content, [call.name for call in reply.calls]) == ("", [name for name, _ in calls])
    assert [json.loads(call.arguments) for call in reply.calls] == [arguments for _, arguments in calls]


def test_a_reply_that_is_not_as_it_was_asked_for_is_content() -> None:
    for text in ("hello", '{"respo', '{"answer": "x"}', '{"tool_calls": []}'):
        assert read_reply(FORMS["generic"], text) == Reply(None, text, ())


@pytest.mark.parametrize(
    "unit", ["<", "{", "[", '"', "\\", "\n", "<think>", "<tool_call>", '<tool_call>{"name": "aa', "\\n"]
)
def test_long_nonsense_is_read_in_a_moment(unit: str) -> None:
    for name, form in FORMS.items():
        for start in ("", '<tool_call>{"name":"f","arguments":{', '{"response":"'):
            text = start + unit * (200_000 // len(unit))
            began = time.process_time()
            read_reply(form, text)
            assert time.process_time() - began < 1.5, name


def written(form: CallForm, calls: list[tuple[str, object]]) -> str:
    """As a model that was taught this form writes it."""
    each = [form.opening + name + form.middle + json.dumps(arguments) + form.closing for name, arguments in calls]
    return form.beginning + form.separator.join(each) + form.ending if calls else ""


def told(calls: list[tuple[str, object]]) -> tuple[Call, ...]:
    return tuple(Call(name, json.dumps(arguments)) for name, arguments in calls)
