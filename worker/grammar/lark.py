"""Writes constraints in llguidance's own notation, which is Lark's with additions.

Its documentation: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md and json_schema.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from llguidance import regex_to_lark

from shared.jobs import Constraint
from worker.grammar import gbnf
from worker.grammar.gbnf import BadGrammar, Rules
from worker.grammar.lexemes import find_lexemes
from worker.grammar.nodes import Characters, Choice, Node, Reference, Repeat, Row, Token

MAX_LENGTH = 512 * 1024
"""Of a constraint, in characters."""

OPTIONS = '%llguidance {"no_forcing": true}\n'
"""Without looking for text that must come next: with `a{1000000}` that takes seconds, and we have no use for it."""

WHITE_SPACE = r"\x20|\n[\x20\t]{0,20}"
"""At one place in JSON: enough to indent. Without a bound a model that likes white space writes nothing else."""

FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uri uuid".split())
"""Those that llguidance keeps to."""
_PLAIN_VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keys whose values are no schemas."""
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keys whose values have schemas under names of the client's own."""
_LOOKS_AROUND = re.compile(r"(?<!\\)\(\?<?[=!]|\\[1-9]")
"""What JavaScript's regular expressions have and no grammar keeps to: conditions on what is around, and repetitions."""


def lark_of(constraint: Constraint) -> str:
    """Raises BadGrammar; that it raises nothing does not say that llguidance takes it."""
    text = constraint.text
    if len(text) > MAX_LENGTH:
        raise BadGrammar(f"it has {len(text)} characters, and at most {MAX_LENGTH} are taken")
    if "\0" in text:
        raise BadGrammar("it has a NUL character")
    match constraint.syntax:
        case "gbnf":
            return OPTIONS + _Writer(gbnf.read(text)).written()
        case "regex":
            return f"{OPTIONS}start: /{_one_line(regex_to_lark(text, 'dw'))}/\n"
        case "json_schema":
            return f"{OPTIONS}start: %json {schema_of(text)}\n"


def _one_line(regex: str) -> str:
    """A line break ends a regex in Lark."""
    return regex.replace("\r", r"\r").replace("\n", r"\n")


def schema_of(text: str, *, is_loose: bool = False) -> str:
    """A JSON Schema as llguidance is to read it; a loose one without what no grammar keeps to, such as `uniqueItems`.
    Raises BadGrammar."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise BadGrammar("it is not JSON") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise BadGrammar("nothing satisfies it" if schema is False else "it must be an object or a boolean")
    options = {"whitespace_pattern": WHITE_SPACE, "lenient": is_loose, "coerce_one_of": is_loose}
    return json.dumps({**_kept(schema, is_loose), "x-guidance": options})


def _kept(schema: Any, is_loose: bool) -> Any:
    """To JSON Schema a format is a remark unless both sides know better, and clients have formats of their own."""
    match schema:
        case dict():
            return {
                key: _kept_under(key, value, is_loose)
                for key, value in schema.items()
                if not _is_left_out(key, value, is_loose)
            }
        case list():
            return [_kept(each, is_loose) for each in schema]
    return schema


def _kept_under(key: str, value: Any, is_loose: bool) -> Any:
    if key in _PLAIN_VALUES:
        return value
    if key in _BY_NAME and isinstance(value, dict):
        return {name: _kept(each, is_loose) for name, each in value.items()}
    return _kept(value, is_loose)


def _is_left_out(key: str, value: Any, is_loose: bool) -> bool:
    if not isinstance(value, str):
        return False
    return (key == "format" and value not in FORMATS) or (
        is_loose and key == "pattern" and _LOOKS_AROUND.search(value) is not None
    )


class _Writer:
    """The rules of a grammar that are needed; a lexeme is a terminal, whose name is in capitals."""

    def __init__(self, rules: Rules) -> None:
        self._lexemes = find_lexemes(rules, gbnf.ROOT)
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._terminals: dict[str, Node] = {}
        """By name, those that something refers to."""

    def written(self) -> str:
        root = Reference(gbnf.ROOT)
        lines = [f"start: {self._rule(root)}"]
        if not self._lexemes.has(root):
            rules = self._lexemes.rules
            lines += [f"{self._name(name)}: {self._rule(rules[name])}" for name in self._lexemes.in_rules(gbnf.ROOT)]
        n_written = 0
        while n_written < len(self._terminals):  # writing one may refer to others
            name, node = list(self._terminals.items())[n_written]
            lines.append(f"{name}: {self._expression(node)}")
            n_written += 1
        return "\n".join(lines) + "\n"

    def _name(self, rule: str) -> str:
        return f"r{self._numbers[rule]}"

    def _rule(self, node: Node) -> str:
        """A node outside of lexemes."""
        if self._lexemes.has(node):
            return f"/{_class(node)}/" if isinstance(node, Characters) else self._terminal(node)
        match node:
            case Token(text):
                return text
            case Reference(name):
                return self._name(name)
        return self._composed(node, self._rule)

    def _terminal(self, node: Node) -> str:
        """The name of a lexeme, or of a rule that one refers to."""
        if isinstance(node, Reference):
            name, node = f"T{self._numbers[node.name]}", self._lexemes.rules[node.name]
        else:
            name = f"L{len(self._terminals)}"
        self._terminals.setdefault(name, node)
        return name

    def _expression(self, node: Node) -> str:
        """A node inside a lexeme."""
        match node:
            case Characters():
                return f"/{_class(node)}/"
            case Reference():
                return self._terminal(node)
            case Row(parts) if parts and all(isinstance(part, Characters) for part in parts):
                return "/" + "".join(_class(part) for part in parts if isinstance(part, Characters)) + "/"
        return self._composed(node, self._expression)

    def _composed(self, node: Node, written: Callable[[Node], str]) -> str:
        match node:
            case Row(parts):
                return " ".join(map(written, parts)) or '""'
            case Choice(options):
                return "(" + " | ".join(map(written, options)) + ")"
            case Repeat(part, least, most):
                return f"({written(part)}){{{least},{'' if most is None else most}}}"
            case _:
                raise AssertionError(f"{node} has no parts")


def _class(characters: Characters) -> str:
    """As a regex, with escapes throughout: no character means anything but itself."""
    (first, last), *more = characters.ranges
    if first == last and not more:
        return f"\\x{{{first:x}}}"
    return "[" + "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in characters.ranges) + "]"
