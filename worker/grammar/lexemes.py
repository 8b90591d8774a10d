"""Decides which parts of a grammar may be read in one go, as lexemes, and which only character by character.

llguidance reads a text as lexemes, each as long as it can get, and never goes back: with `[a-z]+` as one lexeme, a "b"
behind it is never found. GBNF knows no such thing. To read single characters is always right, and fifty times as
slow. So a part becomes a lexeme when nothing that may follow another lexeme could be taken for more of it. What is
reckoned here errs on the safe side: repetitions count as unbounded, and any two lexemes as possible at one place.

Pure. Knows no notation.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from worker.grammar.nodes import Characters, Choice, Node, Ranges, Reference, Repeat, Row, Token, children

MAX_POSITIONS = 600
MAX_PAIRS = 20_000
MAX_DEPTH = 100
"""Beyond these a grammar is read character by character."""

Key = int | str
"""Of a part: a rule's name for a reference to it, which is one lexeme wherever it stands, else the node's identity."""


@dataclass(slots=True)
class Lexemes:
    """`rules` are those to be written; of their nodes, those for which `has` is true are lexemes."""

    rules: Mapping[str, Node]
    regular: frozenset[str]
    """Rules that neither lead back to themselves nor name tokens: each could be a regular expression."""
    split: set[Key] = field(default_factory=set)
    """Parts that are regular and must not be lexemes."""

    def has(self, node: Node) -> bool:
        return key(node) not in self.split and is_regular(node, self.regular)

    def in_rules(self, start: str) -> dict[str, list[Node]]:
        """The rules that can be reached from `start` without going into a lexeme, each with its lexemes."""
        found: dict[str, list[Node]] = {}
        waiting = [start]
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found[name] = []
            for node in self._outside(self.rules[name]):
                if self.has(node):
                    found[name].append(node)
                elif isinstance(node, Reference):
                    waiting.append(node.name)
        return found

    def _outside(self, node: Node) -> Iterator[Node]:
        yield node
        if not self.has(node):
            for child in children(node):
                yield from self._outside(child)


def key(node: Node) -> Key:
    return node.name if isinstance(node, Reference) else id(node)


def is_regular(node: Node, regular: frozenset[str]) -> bool:
    match node:
        case Token():
            return False
        case Reference(name):
            return name in regular
        case _:
            return all(is_regular(child, regular) for child in children(node))


def find_lexemes(rules: Mapping[str, Node], start: str) -> Lexemes:
    """The largest parts that are safe."""
    regular = _regular_rules(rules)
    rules = {name: _grouped(node, regular) for name, node in rules.items()}
    lexemes = Lexemes(rules, regular)
    if start in regular:
        return lexemes
    while unsafe := _unsafe(lexemes, start):
        lexemes.split |= unsafe
    return lexemes


def _references(node: Node) -> Iterator[str]:
    if isinstance(node, Reference):
        yield node.name
    for child in children(node):
        yield from _references(child)


def _has_token(node: Node) -> bool:
    return isinstance(node, Token) or any(map(_has_token, children(node)))


def _regular_rules(rules: Mapping[str, Node]) -> frozenset[str]:
    needs = {name: set(_references(node)) for name, node in rules.items() if not _has_token(node)}
    users: dict[str, list[str]] = {}
    for name, needed in needs.items():
        for each in needed:
            users.setdefault(each, []).append(name)
    ready = deque(name for name, needed in needs.items() if not needed)
    found: set[str] = set()
    while ready:
        found.add(name := ready.popleft())
        for user in users.get(name, ()):
            needs[user].discard(name)
            if not needs[user]:
                ready.append(user)
    return frozenset(found)


def _grouped(node: Node, regular: frozenset[str]) -> Node:
    """The same, with neighbours in a row that are regular as rows of their own, so that they can be one lexeme."""
    match node:
        case Row(parts) if not is_regular(node, regular):
            groups: list[Node] = []
            run: list[Node] = []
            for part in (*parts, None):
                if part is not None and is_regular(part, regular):
                    run.append(part)
                    continue
                groups += [Row(tuple(run))] if len(run) > 1 else run
                run = []
                if part is not None:
                    groups.append(_grouped(part, regular))
            return Row(tuple(groups))
        case Choice(options):
            return Choice(tuple(_grouped(option, regular) for option in options))
        case Repeat(part, least, most):
            return Repeat(_grouped(part, regular), least, most)
    return node


def _unsafe(lexemes: Lexemes, start: str) -> set[Key]:
    """Lexemes that could swallow what is meant to follow."""
    reached = lexemes.in_rules(start)
    alphabet = _Alphabet(lexemes.rules.values())
    follow = _Followers(lexemes, alphabet, start).of_lexemes
    machine = _Machine(lexemes.rules, alphabet)
    try:
        for nodes in reached.values():
            for node in nodes:
                machine.add(node)
        return machine.swallowers(follow)
    except _TooLarge:
        return {key(node) for nodes in reached.values() for node in nodes if not isinstance(node, Characters)}


class _TooLarge(Exception):
    pass


class _Alphabet:
    """Characters by classes that the grammar never tells apart: a set of them is the bits of an integer."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        edges: set[int] = set()
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            waiting += children(node)
            if isinstance(node, Characters):
                edges.update(edge for first, last in node.ranges for edge in (first, last + 1))
        self._index = {edge: index for index, edge in enumerate(sorted(edges))}
        self._known: dict[Ranges, int] = {}

    def bits(self, ranges: Ranges) -> int:
        if ranges not in self._known:
            spans = [(self._index[first], self._index[last + 1]) for first, last in ranges]
            self._known[ranges] = sum((1 << end) - (1 << start) for start, end in spans)
        return self._known[ranges]


class _Followers:
    """Which characters can come behind each lexeme: FIRST and FOLLOW of compiler books, over the rules in use."""

    def __init__(self, lexemes: Lexemes, alphabet: _Alphabet, start: str) -> None:
        self._lexemes = lexemes
        self._alphabet = alphabet
        rules = lexemes.rules
        self._edges = {name: _Edge(is_nullable=False, first=0) for name in rules}
        self._settle(self._edges, lambda name: self._edge(rules[name]))
        self.of_lexemes: dict[Key, int] = {}
        self._of_rules = {start: 0}
        before = None
        while before != (before := (dict(self.of_lexemes), dict(self._of_rules))):
            for name in list(self._of_rules):
                self._walk(rules[name], self._of_rules[name])

    @staticmethod
    def _settle(edges: dict[str, _Edge], edge_of: Callable[[str], _Edge]) -> None:
        has_changed = True
        while has_changed:
            has_changed = False
            for name, before in edges.items():
                edges[name] = edge_of(name)  # no key is new, so the loop goes on
                has_changed |= edges[name] != before

    def _edge(self, node: Node) -> _Edge:
        match node:
            case Characters(ranges):
                return _Edge(is_nullable=False, first=self._alphabet.bits(ranges))
            case Token():
                return _Edge(is_nullable=False, first=0)
            case Reference(name):
                return self._edges[name]
            case Row(parts):
                first = 0
                for part in parts:
                    edge = self._edge(part)
                    first |= edge.first
                    if not edge.is_nullable:
                        return _Edge(is_nullable=False, first=first)
                return _Edge(is_nullable=True, first=first)
            case Choice(options):
                edges = [self._edge(option) for option in options]
                first = functools.reduce(operator.or_, (edge.first for edge in edges))
                return _Edge(any(edge.is_nullable for edge in edges), first)
            case Repeat(part, least):
                edge = self._edge(part)
                return _Edge(least == 0 or edge.is_nullable, edge.first)

    def _walk(self, node: Node, follow: int) -> None:
        """Note what follows each lexeme of a node that has `follow` behind it."""
        if self._lexemes.has(node):
            self.of_lexemes[key(node)] = self.of_lexemes.get(key(node), 0) | follow
            return
        match node:
            case Reference(name):
                self._of_rules[name] = self._of_rules.get(name, 0) | follow
            case Row(parts):
                for part in reversed(parts):
                    self._walk(part, follow)
                    edge = self._edge(part)
                    follow = edge.first | (follow if edge.is_nullable else 0)
            case Choice(options):
                for option in options:
                    self._walk(option, follow)
            case Repeat(part):
                self._walk(part, follow | self._edge(part).first)


class _Edge(NamedTuple):
    """Of a part: whether it can be empty, and the characters that it can begin with."""

    is_nullable: bool
    first: int


class _Span(NamedTuple):
    """Of a part in the machine: whether it can be empty, and the positions that it can begin and end with."""

    is_nullable: bool
    first: frozenset[int]
    last: frozenset[int]


_EMPTY = _Span(True, frozenset(), frozenset())


class _Machine:
    """The lexemes as one automaton whose states are their characters' places (Glushkov, 1961)."""

    def __init__(self, rules: Mapping[str, Node], alphabet: _Alphabet) -> None:
        self._rules = rules
        self._alphabet = alphabet
        self._bits: list[int] = []
        self._next: list[set[int]] = []
        self._owner: list[Key] = []
        self._spans: dict[Key, _Span] = {}
        self._adding: Key = 0

    def add(self, node: Node) -> None:
        self._adding = key(node)
        if self._adding not in self._spans:
            self._spans[self._adding] = self._span(node, depth=0)

    def swallowers(self, follow: Mapping[Key, int]) -> set[Key]:
        """Lexemes that can read on, over a text that is a whole other one (or itself), into what may follow that."""
        firsts = [position for span in self._spans.values() for position in span.first]
        lasts = {position for span in self._spans.values() for position in span.last}
        waiting = self._alike(firsts, firsts)
        seen = set(waiting)
        found: set[Key] = set()
        while waiting:
            ended, reading = waiting.pop()
            ahead = self._next[reading]
            if ended in lasts and any(self._bits[each] & follow.get(self._owner[ended], 0) for each in ahead):
                found.add(self._owner[reading])
            fresh = [pair for pair in self._alike(self._next[ended], ahead) if pair not in seen]
            seen.update(fresh)
            waiting += fresh
            if len(seen) > MAX_PAIRS:
                raise _TooLarge
        return found

    def _alike(self, some: Iterable[int], others: Iterable[int]) -> list[tuple[int, int]]:
        """Pairs of positions that one character can lead to."""
        return [(one, other) for one in some for other in others if self._bits[one] & self._bits[other]]

    def _span(self, node: Node, depth: int) -> _Span:
        if depth > MAX_DEPTH:
            raise _TooLarge
        match node:
            case Characters(ranges):
                if len(self._bits) == MAX_POSITIONS:
                    raise _TooLarge
                position = frozenset((len(self._bits),))
                self._bits.append(self._alphabet.bits(ranges))
                self._next.append(set())
                self._owner.append(self._adding)
                return _Span(False, position, position)
            case Reference(name):
                return self._span(self._rules[name], depth + 1)
            case Row(parts):
                whole = _EMPTY
                for part in parts:
                    whole = self._linked(whole, self._span(part, depth + 1))
                return whole
            case Choice(options):
                spans = [self._span(option, depth + 1) for option in options]
                return _Span(
                    any(span.is_nullable for span in spans),
                    frozenset().union(*(span.first for span in spans)),
                    frozenset().union(*(span.last for span in spans)),
                )
            case Repeat(part, least, most):
                span = self._span(part, depth + 1)
                if most != 1:
                    self._linked(span, span)
                return span._replace(is_nullable=span.is_nullable or least == 0)
            case Token():
                raise AssertionError("no lexeme has a token in it")

    def _linked(self, left: _Span, right: _Span) -> _Span:
        """One behind the other."""
        for position in left.last:
            self._next[position] |= right.first
        return _Span(
            left.is_nullable and right.is_nullable,
            left.first | right.first if left.is_nullable else left.first,
            left.last | right.last if right.is_nullable else right.last,
        )
