"""Reads GBNF, llama.cpp's notation of grammars, into rules.

The notation is that of llama.cpp's `grammars/README.md`; the limits are ours, but for that of repetitions.
"""

from __future__ import annotations

import re

from worker.grammar.nodes import (
    LAST_CHARACTER,
    Characters,
    Choice,
    Node,
    Reference,
    Repeat,
    Row,
    Token,
    complement,
    joined,
)

Rules = dict[str, Node]

MAX_DEPTH = 50
"""Groups within groups."""
MAX_RULES = 2000
MAX_PARTS = 20_000
"""Characters, classes and references in all rules together: what takes a quarter of a second to read."""
MAX_REPETITIONS = 2000
"""In one pair of braces; llama.cpp's."""
ROOT = "root"

_BLANK = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_DEFINES = re.compile(r"[ \t]*::=")
_TOKEN = re.compile(r"(!?)<(?:\[(\d{1,9})\]|([^<>\[\]\s][^<>\s]*))>")
_COUNT = re.compile(r"\{\s*(\d{1,9})\s*(,\s*(\d{1,9})?\s*)?\}")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([trn\\\"\[\]]))")
_PLAIN = {"t": 9, "r": 13, "n": 10}
_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class BadGrammar(ValueError):
    """The grammar cannot be used. The message says what is wrong and where, in one line."""


def read(text: str) -> Rules:
    """The rules by name; of two with one name the last counts. Raises BadGrammar."""
    reader = _Reader(text)
    rules = reader.rules()
    if ROOT not in rules:
        raise BadGrammar(f"there is no rule '{ROOT}'")
    for name in reader.references:
        if name not in rules:
            raise BadGrammar(f"there is no rule '{name}'")
    return rules


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._n_parts = 0
        self.references: dict[str, None] = {}

    def rules(self) -> Rules:
        rules: Rules = {}
        self._skip(_SPACE)
        while self._at < len(self._text):
            name = self._expect(_NAME, "a rule's name").group()
            self._expect(_DEFINES, "'::='")
            self._skip(_SPACE)
            rules[name] = self._choice(is_nested=False)
            if len(rules) > MAX_RULES:
                raise BadGrammar(f"at most {MAX_RULES} rules are taken")
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error("the end of the rule")
            self._skip(_SPACE)
        return rules

    def _choice(self, *, is_nested: bool) -> Node:
        options = [self._row(is_nested=is_nested)]
        while self._take("|"):
            self._skip(_SPACE)
            options.append(self._row(is_nested=is_nested))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _row(self, *, is_nested: bool) -> Node:
        gap = _SPACE if is_nested else _BLANK
        parts: list[Node] = []
        while (part := self._part()) is not None:
            self._skip(gap)
            while (repeated := self._repeated(part)) is not None:
                part = repeated
                self._skip(gap)
            parts.append(part)
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _count(self) -> None:
        self._n_parts += 1
        if self._n_parts > MAX_PARTS:
            raise BadGrammar(f"at most {MAX_PARTS} characters, classes and references are taken")

    def _part(self) -> Node | None:
        self._count()
        match self._text[self._at : self._at + 1]:
            case '"':
                return self._literal()
            case "[":
                return self._class()
            case ".":
                self._at += 1
                return Characters(complement(()))
            case "(":
                return self._group()
            case "<" | "!":
                negated, number, name = self._expect(_TOKEN, "a token").groups()
                inside = f"[{'^' if negated else ''}{number}]" if number else name
                if negated and name:
                    raise BadGrammar(f"'!<{name}>' is not supported: give the token's number")
                return Token(f"<{inside}>")
        if name := _NAME.match(self._text, self._at):
            self._at = name.end()
            self.references[name.group()] = None
            return Reference(name.group())
        return None

    def _literal(self) -> Node:
        self._at += 1
        parts: list[Node] = []
        while not self._take('"'):
            code = self._character()
            self._count()
            parts.append(Characters(joined([(code, code)])))
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _class(self) -> Node:
        self._at += 1
        is_negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            first = last = self._character()
            if self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._character()
            if last < first:
                raise self._error("a range in ascending order")
            ranges.append((first, last))
        meant = complement(joined(ranges)) if is_negated else joined(ranges)
        if not meant:
            raise self._error("a character before the end of the class")
        return Characters(meant)

    def _group(self) -> Node:
        self._at += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadGrammar(f"groups are nested more than {MAX_DEPTH} deep")
        self._skip(_SPACE)
        node = self._choice(is_nested=True)
        if not self._take(")"):
            raise self._error("')'")
        self._depth -= 1
        return node

    def _repeated(self, part: Node) -> Node | None:
        mark = self._text[self._at : self._at + 1]
        if mark in _REPEATS and mark:
            self._at += 1
            least, most = _REPEATS[mark]
            return Repeat(part, least, most)
        if mark != "{":
            return None
        low, comma, high = self._expect(_COUNT, "a number of repetitions").groups()
        least, most = int(low), int(high) if high else None if comma else int(low)
        if max(least, most or 0) > MAX_REPETITIONS:
            raise BadGrammar(f"at most {MAX_REPETITIONS} repetitions are taken")
        if most is not None and most < least:
            raise self._error("a largest number of repetitions that is not below the least")
        return Repeat(part, least, most)

    def _character(self) -> int:
        """The next one of a literal or a class, with its escapes."""
        character = self._text[self._at : self._at + 1]
        if not character:
            raise self._error("the end of the literal or class")
        if character != "\\":
            self._at += 1
            return ord(character)
        hex2, hex4, hex8, plain = self._expect(_ESCAPE, "a known escape").groups()
        code = _PLAIN.get(plain, ord(plain)) if plain else int(hex2 or hex4 or hex8, 16)
        if code > LAST_CHARACTER or 0xD800 <= code <= 0xDFFF:
            raise self._error("the escape of a character before this place")
        return code

    def _take(self, mark: str) -> bool:
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _skip(self, blank: re.Pattern[str]) -> None:
        found = blank.match(self._text, self._at)
        assert found is not None, "these patterns match the empty text"
        self._at = found.end()

    def _expect(self, wanted: re.Pattern[str], name: str) -> re.Match[str]:
        found = wanted.match(self._text, self._at)
        if found is None:
            raise self._error(name)
        self._at = found.end()
        return found

    def _error(self, wanted: str) -> BadGrammar:
        line = self._text.count("\n", 0, self._at) + 1
        here = self._text[self._at : self._at + 20]
        return BadGrammar(f"line {line}: expected {wanted}, " + (f"found {here!r}" if here else "found the end"))
