"""How a template writes calls, learned from what it writes: its words are what stays the same between two calls.

Nothing is believed that three calls in a row do not bear out. What no `CallForm` describes, such as arguments that are
not JSON or calls that are numbered, is not learned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from shared.events import CallForm
from worker.chat.marks import common_beginning, common_end, is_marks
from worker.chat.probe import Message, Probe, ProbeCall, word
from worker.chat.reasoning import learn_reasoning
from worker.chat.template import Template


class Calls(NamedTuple):
    """A template's way with calls."""

    form: CallForm
    takes_objects: bool
    """Whether arguments are given to it as an object; else as its JSON."""
    is_parallel: bool
    """Whether it writes several calls in one message."""


def learn_calls(template: Template, ends: Sequence[str] = ()) -> Calls | None:
    """None when it writes none, or in no way that a `CallForm` describes. `ends` are texts of the model's tokens that
    end a generation: what is behind one is no part of a reply."""
    objects = _Learner(template, ends, takes_objects=True)
    if (calls := objects.calls()) is not None:
        return calls
    # One that writes an object's fields in a way of its own would write JSON too, as one more way that is not its own.
    return None if objects.are_arguments_shown else _Learner(template, ends, takes_objects=False).calls()


class _Written(NamedTuple):
    """A text with calls, cut at their names and arguments."""

    head: str
    """Up to the first name."""
    middles: tuple[str, ...]
    """From each name to its arguments."""
    gaps: tuple[str, ...]
    """From each arguments to the next name."""
    tail: str

    def is_like(self, other: _Written) -> bool:
        """But for names and arguments."""
        middles = {*self.middles, *other.middles}
        return (self.head, self.tail, len(middles)) == (other.head, other.tail, 1)


class _Learner:
    def __init__(self, template: Template, ends: Sequence[str], *, takes_objects: bool) -> None:
        self._probe = Probe(template)
        self._takes_objects = takes_objects
        self._reasoning = learn_reasoning(template)
        self._id = word()
        # One id for all: what differs between two calls must be the call.
        self._calls = [
            ProbeCall(word(), {word(): word()}, self._id),
            ProbeCall(word(), {word(): word(), "é": [1, {"}": None}]}, self._id),
            ProbeCall(word(), {word(): word(), "more": True}, self._id),
        ]
        content = word()
        plain = self._probe.text({"role": "assistant", "content": content}, tools=self._tools)
        self._before, _, self._behind = plain.rpartition(content)
        """What stands around an assistant's content."""
        self._opened = self._probe.text(tools=self._tools, adds_prompt=True)
        """Up to where an assistant is to speak."""
        self._ends = [end for end in (*ends, self._behind.strip()) if end]

    @property
    def _tools(self) -> list[Message]:
        return [call.tool for call in self._calls]

    @property
    def are_arguments_shown(self) -> bool:
        """In whatever way, but for that of a template which takes them to be text and writes Python's."""
        call = self._calls[0]
        text = self._text([call])
        return all(text.count(word) > 1 for word in call.arguments) and repr(call.arguments) not in text

    def calls(self) -> Calls | None:
        for is_parallel in (True, False):
            if (form := self._form(is_parallel=is_parallel)) is not None:
                return Calls(form, self._takes_objects, is_parallel)
        return None

    def _form(self, *, is_parallel: bool) -> CallForm | None:
        texts = [_cut(self._text(self._calls[:n]), self._calls[:n]) for n in ((1, 2, 3) if is_parallel else (1,))]
        one = texts[0]
        if one is None or not all(text is not None and text.is_like(one) for text in texts):
            return None
        head, tail = self._head(one.head), self._without_end(one.tail)
        gaps = {gap for text in texts if text is not None for gap in text.gaps}
        if head is None or len(gaps) > 1 or any(end in gap for end in self._ends for gap in gaps):
            return None
        if not gaps:
            return _tidied(CallForm(opening=head, middle=one.middles[0], closing=tail), self._id)
        [gap] = gaps
        opening = common_end(head, gap)
        between = gap.removesuffix(opening)
        closing = common_beginning(between, tail)
        form = CallForm(
            beginning=head.removesuffix(opening),
            opening=opening,
            middle=one.middles[0],
            closing=closing,
            separator=between[len(closing) :],
            ending=tail[len(closing) :],
        )
        return _tidied(form, self._id)

    def _text(self, calls: list[ProbeCall]) -> str:
        parts = [call.message_part(as_object=self._takes_objects) for call in calls]
        return self._probe.text({"role": "assistant", "content": "", "tool_calls": parts}, tools=self._tools)

    def _head(self, text: str) -> str | None:
        """What an assistant writes before the first name; the template's words that open its turn are not it, nor marks
        that it writes before a content only."""
        for before in (self._before, self._opened):
            common = common_beginning(text, before)
            if before and is_marks(before[len(common) :]):
                return self._unthinking(text[len(common) :])
        return None

    def _unthinking(self, head: str) -> str:
        """Without reasoning that nobody did: some templates write its marks all the same."""
        if self._reasoning is None:
            return head
        opening, closing = map(re.escape, self._reasoning)
        return re.sub(rf"\A\s*{opening}\s*{closing}\s*", "", head)

    def _without_end(self, tail: str) -> str:
        """What an assistant writes behind the last arguments, without what closes its turn."""
        tail = tail.removesuffix(common_end(tail, self._behind))
        return tail[: min((at for end in self._ends if (at := tail.find(end)) >= 0), default=len(tail))]


def _cut(text: str, calls: list[ProbeCall]) -> _Written | None:
    """None when one of them is not there, or not in this way."""
    at = len(text)
    cuts: list[tuple[int, int, int, int]] = []
    for call in reversed(calls):
        span = _arguments(text[:at], call)
        name = text.rfind(call.name, 0, span[0]) if span is not None else -1
        if span is None or name < 0:
            return None
        cuts.insert(0, (name, name + len(call.name), *span))
        at = name
    return _Written(
        head=text[: cuts[0][0]],
        middles=tuple(text[cut[1] : cut[2]] for cut in cuts),
        gaps=tuple(text[left[3] : right[0]] for left, right in pairwise(cuts)),
        tail=text[cuts[-1][3] :],
    )


def _arguments(text: str, call: ProbeCall) -> tuple[int, int] | None:
    """Where they stand last, as JSON."""
    value = next(iter(call.arguments.values()))
    at = text.rfind(value)
    while (at := text.rfind("{", 0, at)) >= 0:
        try:
            found, end = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            continue
        return (at, end) if found == call.arguments else None
    return None


def _tidied(form: CallForm, id_: str) -> CallForm | None:
    """As a reader wants it: without a call's id, and with no white space at either end. None for what cannot be written
    without the id, or would be found where there is no call.

    An id is left out as one field of JSON, or with all that stands in front of it between name and arguments.
    """
    field = r"""(["'])\w+\1\s*:\s*(["']?)ID\2""".replace("ID", id_)
    opening = re.sub(rf"{field}\s*,\s*", "", form.opening)
    middle = form.middle.rpartition(id_)[2]
    closing = re.sub(rf"\s*,\s*{field}", "", form.closing)
    blank = closing[len(closing.rstrip()) :]
    beginning = form.beginning.lstrip()
    indent = "" if beginning else opening[: len(opening) - len(opening.lstrip())]
    tidied = CallForm(
        beginning=beginning,
        opening=opening[len(indent) :],
        middle=middle,
        closing=closing.rstrip(),
        separator=blank + form.separator + indent,
        ending=(blank + form.ending).rstrip(),
    )
    if id_ in tidied.model_dump_json() or not tidied.opening or not middle.strip():
        return None
    return tidied if re.search(r"[^\w\s]", beginning + tidied.opening) else None
