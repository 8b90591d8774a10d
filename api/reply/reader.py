"""Reads what a model said in a chat: its reasoning, its content, and its calls of functions, also while it is said.

How it writes them is its `ReplyForm`. White space beside a mark belongs to the mark. What only looks like a call, or is
cut before its arguments begin, is content: no text is lost. Knows no family and no JSON of theirs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from api.reply.jsontext import ObjectEnd, spelled
from api.reply.marks import MEMBER, MEMBERS, MOST_SPACE, NAME, OBJECT, SPACE, WORD, Found, Mark
from shared.events import CallForm, ReplyForm

GENERIC_TEXT: Final = '{"response":"'
GENERIC_CALLS: Final = CallForm(
    beginning='{"tool_calls":[',
    opening='{"name":"',
    middle='","arguments":',
    closing="}",
    separator=",",
    ending="]}",
)
"""How calls stand in a generic reply."""


class CallPiece(NamedTuple):
    """Of one call of a reply."""

    place: int
    """Among the calls, from 0 on."""
    name: str
    """Of the function, in the first piece of a call only, which has no arguments yet."""
    arguments: str
    """The next stretch of their JSON."""


class Said(NamedTuple):
    """What a stretch of text said; any of the three may be empty."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallPiece, ...] = ()


class Call(NamedTuple):
    name: str
    arguments: str
    """JSON, unless the reply was cut within."""


class Reply(NamedTuple):
    """All that a text said."""

    reasoning: str | None
    content: str
    calls: tuple[Call, ...]


class ReplyReader:
    """Reads a text that comes in chunks: how it is cut changes nothing. `push` them all, then `close`."""

    def __init__(self, form: ReplyForm | None, *, splits_reasoning: bool = True) -> None:
        """Without `splits_reasoning`, reasoning and its marks are content."""
        form = form or ReplyForm()
        self._marks = _marks_of(form)
        self._splits_reasoning = splits_reasoning
        self._text = ""
        """Not decided yet: no longer than a mark, and the white space before it."""
        self._is_all = False
        """No more will come: half a mark is none."""
        self._is_behind_mark = False
        self._read: Callable[[], bool] = self._read_beginning
        """Reads on in the text; False when there must be more of it first."""
        self._arguments = ObjectEnd()
        self._n_calls = 0
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[CallPiece] = []
        if form.is_reasoning and form.reasoning is not None:
            self._go_on(self._read_reasoning, is_behind_mark=splits_reasoning)

    def push(self, text: str) -> Said:
        self._text += text
        return self._said()

    def close(self) -> Said:
        """What was held back."""
        self._is_all = True
        return self._said()

    def _said(self) -> Said:
        while self._has_text() and self._read():
            pass
        said = Said("".join(self._reasoning), "".join(self._content), tuple(self._calls))
        self._reasoning, self._content, self._calls = [], [], []
        return said

    def _has_text(self) -> bool:
        if self._is_behind_mark:
            self._text = self._text.lstrip(SPACE)
            self._is_behind_mark = not self._text
        return bool(self._text)

    def _go_on(self, read: Callable[[], bool], *, is_behind_mark: bool = True) -> None:
        self._read = read
        self._is_behind_mark = is_behind_mark

    def _read_beginning(self) -> bool:
        return self._read_one_of((self._marks.thought, self._open_reasoning), *self._answers())

    def _open_reasoning(self, found: Found) -> None:
        if not self._splits_reasoning:
            self._content.append(self._text[: found.end])
        self._go_on(self._read_reasoning, is_behind_mark=self._splits_reasoning)

    def _read_reasoning(self) -> bool:
        said = self._reasoning if self._splits_reasoning else self._content
        is_over = self._read_until(self._marks.thought_end, said, keeps=not self._splits_reasoning) is not None
        if is_over:
            self._go_on(self._read_answer, is_behind_mark=self._splits_reasoning)
        return is_over

    def _read_answer(self) -> bool:
        """The beginning of what is no reasoning."""
        return self._read_one_of(*self._answers())

    def _answers(self) -> tuple[Branch, Branch]:
        return (self._marks.text, self._open_text), (self._marks.call, self._open_call)

    def _read_content(self) -> bool:
        """Anything, and perhaps a call in it."""
        found = self._read_until(self._marks.call_within, self._content)
        if found is not None:
            self._open_call(found)
        return found is not None

    def _open_call(self, found: Found) -> None:
        self._calls.append(CallPiece(self._n_calls, found.name, ""))
        self._arguments = ObjectEnd()
        self._go_on(self._read_arguments)

    def _read_arguments(self) -> bool:
        end = self._arguments.push(self._text)
        self._calls.append(CallPiece(self._n_calls, "", self._text[:end]))
        self._text = "" if end is None else self._text[end:]
        if end is not None:
            self._n_calls += 1
            self._go_on(self._read_behind_call, is_behind_mark=False)
        return end is not None

    def _read_behind_call(self) -> bool:
        ends = ((mark, self._open_content) for mark in self._marks.calls_end)
        return self._read_one_of((self._marks.call_more, self._open_call), *ends)

    def _open_content(self, found: Found) -> None:
        self._go_on(self._read_content)

    def _open_text(self, found: Found) -> None:
        self._go_on(self._read_text, is_behind_mark=False)

    def _read_text(self) -> bool:
        """The one string of a generic reply."""
        text, end, is_closed = spelled(self._text)
        self._content.append(text)
        self._text = self._text[end:]
        if is_closed:
            self._go_on(self._read_behind_text)
        return is_closed

    def _read_behind_text(self) -> bool:
        return self._read_one_of((self._marks.text_end, self._open_content))

    def _read_one_of(self, *branches: Branch) -> bool:
        """The first of these marks that stands here. Where none does, content begins."""
        for mark, open_up in branches:
            found = mark.match(self._text) if mark is not None else None
            if found is not None and found.is_whole:
                open_up(found)
                self._text = self._text[found.end :]
                return True
            if found is not None and not self._is_all:
                return False
        self._go_on(self._read_content, is_behind_mark=False)
        return True

    def _read_until(self, mark: Mark | None, said: list[str], *, keeps: bool = False) -> Found | None:
        """Passes on what stands before a mark, but not the white space beside it; with `keeps`, that and the mark, too.
        None when it has not come yet: what may become it is held back."""
        if mark is None:
            said.append(self._text)
            self._text = ""
            return None
        found = mark.search(self._text, is_all=self._is_all)
        end = found.end if keeps and found.is_whole else found.start
        if not keeps and (found.is_whole or not self._is_all):
            end = _without_space(self._text, end)
        said.append(self._text[:end])
        self._text = self._text[found.end if found.is_whole else end :]
        return found if found.is_whole else None


Branch = tuple[Mark | None, Callable[[Found], None]]
"""A mark, and what it opens."""


def read_reply(form: ReplyForm | None, text: str, *, splits_reasoning: bool = True) -> Reply:
    """The whole text of a reply, at once."""
    reader = ReplyReader(form, splits_reasoning=splits_reasoning)
    all_said = (reader.push(text), reader.close())
    names: dict[int, str] = {}
    arguments: defaultdict[int, str] = defaultdict(str)
    for piece in (piece for said in all_said for piece in said.calls):
        names.setdefault(piece.place, piece.name)
        arguments[piece.place] += piece.arguments
    return Reply(
        reasoning="".join(said.reasoning for said in all_said) or None,
        content="".join(said.content for said in all_said),
        calls=tuple(Call(name, arguments[place]) for place, name in names.items()),
    )


class _Marks(NamedTuple):
    """Those of one form. Of a kind that it does not have there is None, and nothing is looked for."""

    thought: Mark | None
    thought_end: Mark | None
    text: Mark | None
    """What opens the one string of a generic reply."""
    text_end: Mark | None
    call: Mark | None
    """A call up to its arguments, where the answer begins."""
    call_within: Mark | None
    """The same, anywhere in the content."""
    call_more: Mark | None
    """What leads from a call's arguments to those of the next one."""
    calls_end: tuple[Mark, ...]
    """What follows the last one, the longest first."""


@lru_cache(maxsize=256)
def _marks_of(form: ReplyForm) -> _Marks:
    thought, thought_end = map(Mark, form.reasoning) if form.reasoning is not None else (None, None)
    calls = GENERIC_CALLS if form.is_generic else form.calls
    call = more = within = None
    ends: tuple[Mark, ...] = ()
    if calls is not None:
        between = MEMBER if calls.middle.lstrip(SPACE).startswith('"') else WORD
        one = (calls.opening, NAME, between, calls.middle, OBJECT)
        closing = (MEMBERS, calls.closing) if calls.closing.lstrip(SPACE).startswith("}") else (calls.closing,)
        call, more = Mark(calls.beginning, *one), Mark(*closing, calls.separator, *one)
        ends = (Mark(*closing, calls.ending), Mark(*closing))
        within = None if _could_be_json(calls.beginning + calls.opening) else call
    return _Marks(
        thought=None if form.is_reasoning else thought,
        thought_end=thought_end,
        text=Mark(GENERIC_TEXT) if form.is_generic else None,
        text_end=Mark("}") if form.is_generic else None,
        call=call,
        call_within=within,
        call_more=more,
        calls_end=ends,
    )


def _could_be_json(words: str) -> bool:
    """What content may have in it as well; `[TOOL_CALLS]` is none."""
    words = words.lstrip(SPACE)
    return words[:1] in ("", "{", "[") and not re.match(r"\[[A-Z_/]+\]", words)


def _without_space(text: str, end: int) -> int:
    """Where the white space begins that stands before `end`: as much of it as a mark may have beside it."""
    start = max(0, end - MOST_SPACE)
    return start + len(text[start:end].rstrip(SPACE))
