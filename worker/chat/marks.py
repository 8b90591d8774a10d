"""Words that stand for no text, such as `<think>` or `[TOOL_CALLS]`, found in what a template writes."""

from __future__ import annotations

import re
from itertools import takewhile

_MARK = r"(?:<[^<>]*>|\[[A-Z_/]+\])"
FIRST_MARK = re.compile(rf"\s*{_MARK}")
"""At the beginning of a text, with `match`."""
LAST_MARK = re.compile(rf"{_MARK}\s*\Z")
_MARKS = re.compile(rf"\s*({_MARK}\s*)*")
_HALF = re.compile(r"(<[^<>]*|\[[^\[\]]*)\Z")
_END = re.compile(r"[^<>]*>|[^\[\]]*\]")


def is_marks(text: str) -> bool:
    """Nothing but marks and white space, or nothing."""
    return _MARKS.fullmatch(text) is not None


def whole_marks(text: str) -> str:
    """Without the beginning of a mark at its end: `<think>` and `<tool_call>` have two characters in common, which are
    no word."""
    return _HALF.sub("", text)


def whole_marks_end(text: str) -> str:
    """Without the end of a mark at its beginning."""
    match = _END.match(text)
    return text[match.end() :] if match else text


def common_beginning(one: str, other: str) -> str:
    """Of two texts, in whole marks."""
    return whole_marks(_common(one, other))


def common_end(one: str, other: str) -> str:
    """Of two texts, in whole marks."""
    return whole_marks_end(_common(one[::-1], other[::-1])[::-1])


def _common(one: str, other: str) -> str:
    return one[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))]
