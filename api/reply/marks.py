"""A mark in a model's text, as models write it: what stands between two pieces is white space, or nothing.

Knows no form of a reply. A mark is a regular expression with bounded choices, so finding one takes linear time; what is
held back of a text while a mark is not decided is bounded too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

SPACE: Final = " \t\r\n"
MOST_SPACE: Final = 64
"""Characters of white space that a mark may have in one place. With more of them it is none."""

NAME_PATTERN: Final = r"[A-Za-z0-9_.:/-]{1,128}"
"""What a function may be called. OpenAI's have at most 64 letters, digits, `_` and `-`; others' have dots, too."""

NAME: Final = "\0name"
"""A piece: the name of a function."""
OBJECT: Final = "\0object"
"""A piece: a brace must follow, which is not the mark's."""
MEMBERS: Final = "\0members"
"""A piece: more members of the object that a brace closes, such as an id, or none."""
MEMBER: Final = "\0member"
"""A piece: from the end of one string of an object to that of the next one's value, such as an id, or none."""
WORD: Final = "\0word"
"""A piece: any word that does not go on with a name, such as a mark and an id, or none."""

_SPACED: Final = rf"[{SPACE}]{{0,{MOST_SPACE}}}"
_MAY: Final = "(?:"
_OR_NOT: Final = ")?"
_GROUPING: Final = (_SPACED, _MAY, _OR_NOT)
"""What is no text of its own."""
_SPECIAL: Final = {
    NAME: (f"(?P<name>{NAME_PATTERN})",),
    OBJECT: (r"(?=\{)",),
    MEMBERS: (_MAY, ",", r"[^{}\[\]]{0,128}", _OR_NOT),
    MEMBER: (_MAY, *'",', _SPACED, '"', r"\w{1,32}", *'":', _SPACED, '"', r"[\w-]{1,64}", _OR_NOT),
    WORD: (_MAY, r"[^\w\s{}\"'.:/-]", r"[^\s{}\"']{0,80}?", _OR_NOT),
}
_AFTER: Final = "{[,:"
"""Signs of JSON behind which white space means nothing."""
_BEFORE: Final = "}],:"


def is_name(text: str) -> bool:
    """Whether a function that is called so is found in a text."""
    return re.fullmatch(NAME_PATTERN, text) is not None


class Found(NamedTuple):
    """What a look for a mark found: it stands from `start` to `end`. One that is not `whole` may yet become one, with
    what follows the text; before `start` there is none."""

    start: int
    end: int
    is_whole: bool
    name: str = ""


class Mark:
    """Pieces of text in a row, each of which may be empty, with any white space between them."""

    def __init__(self, *pieces: str) -> None:
        atoms = list(_spaced_once(atom for piece in pieces for atom in (_SPACED, *_atoms(piece))))
        self._whole = re.compile("".join(atoms))
        # The text may end behind any of its atoms; its end then stands for all the others.
        self._begun = re.compile("".join(atom if atom in _GROUPING else rf"(?:{atom}|\Z)" for atom in atoms))

    def match(self, text: str) -> Found | None:
        """At the beginning of the text, behind white space; None when it cannot stand there."""
        start = len(text) - len(text.lstrip(SPACE))
        if start > MOST_SPACE or not self._begun.match(text, start):
            return None
        return self._found(text, start)

    def search(self, text: str, *, is_all: bool = False) -> Found:
        """The first one in the text. When that is all, half a mark is none."""
        begun = self._begun.search(text)
        start = begun.start() if begun is not None else len(text)
        found = self._found(text, start)
        return Found(len(text), len(text), is_whole=False) if is_all and not found.is_whole else found

    def _found(self, text: str, start: int) -> Found:
        whole = self._whole.match(text, start)
        if whole is None:
            return Found(start, len(text), is_whole=False)
        return Found(start, whole.end(), is_whole=True, name=whole.groupdict().get("name", ""))


def _atoms(piece: str) -> Iterator[str]:
    """Patterns for a character each or for some of a kind, for white space, and what groups them."""
    if piece in _SPECIAL:
        yield from _SPECIAL[piece]
        return
    for sign in piece:
        if sign in SPACE or sign in _BEFORE:
            yield _SPACED
        if sign not in SPACE:
            yield re.escape(sign)
        if sign in _AFTER:
            yield _SPACED


def _spaced_once(atoms: Iterator[str]) -> Iterator[str]:
    """Without white space at either end, or twice in a row."""
    is_due = False
    is_first = True
    for atom in atoms:
        if atom == _SPACED:
            is_due = not is_first
            continue
        if is_due:
            yield _SPACED
        yield atom
        is_due = is_first = False
