"""What a chat's reply must be a sentence of: calls of functions with arguments that satisfy their schemas, in the words
of the model's template; or an answer.

llguidance's notation as in `worker.grammar.lark`. Its lazy lexemes end with the shortest text that they match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from shared.events import CallForm
from shared.jobs import Constraint
from worker.grammar.cue import Cue, pattern_of
from worker.grammar.lark import OPTIONS, lark_of, schema_of

_FIRST_MARK = re.compile(r"<[^<>\s]+>|\[[A-Z_/]+\]")
_IS_JSON = re.compile(r"\s*[{\[]")

_WORDS = re.compile(r"\s+|\S+")
_SPACE_RULE = "space: /[ \\t\\r\\n]{1,20}/\n"


class Function(NamedTuple):
    """One that may be called."""

    name: str
    parameters: str
    """The JSON Schema of its arguments, which are an object."""
    field: str
    """What the client calls that."""
    is_strict: bool = False
    """Its arguments must satisfy all of it, and not only what a grammar can keep."""


NO_CALLS = CallForm(opening="", middle="", closing="")
"""Of what never calls."""


class Beginning(Enum):
    """Where the grammar does."""

    AT_ONCE = "at once"
    BEHIND_REASONING = "behind reasoning"  # that the prompt has opened
    WITH_CALL = "with a call"  # wherever one is opened, if one is


@dataclass(frozen=True, slots=True)
class ReplyGrammar:
    """Without `functions` it is the `content` alone."""

    functions: tuple[Function, ...] = ()
    form: CallForm = NO_CALLS
    response: str = ""
    """What stands before an answer that is no call, if it has to be said in JSON too."""
    must_call: bool = False
    is_parallel: bool = True
    content: Constraint | None = None
    """What an answer that is no call must satisfy; a text that may be anything without."""
    reasoning: tuple[str, str] | None = None
    is_reasoning: bool = False
    """From the beginning on."""

    @property
    def name(self) -> str:
        """For errors."""
        if self.functions:
            return self.functions[0].field if len(self.functions) == 1 else "tools"
        return "tools" if self.content is None else self.content.name

    @property
    def parts(self) -> list[Constraint | ReplyGrammar]:
        """What of it a client wrote, each alone."""
        own: list[Constraint | ReplyGrammar] = [self.content] if self.content is not None else []
        nameless = (function._replace(name="") for function in self.functions)
        return own + [ReplyGrammar((function,), must_call=True, is_parallel=False) for function in nameless]

    @property
    def beginning(self) -> Beginning:
        if self.functions and not (self.must_call or self.response or self.content):
            return Beginning.WITH_CALL
        return Beginning.BEHIND_REASONING if self.is_reasoning else Beginning.AT_ONCE

    @property
    def cue(self) -> Cue | None:
        match self.beginning:
            case Beginning.AT_ONCE:
                return None
            case Beginning.BEHIND_REASONING:
                return Cue(reasoning=self.reasoning, is_reasoning=True)
            case Beginning.WITH_CALL:
                is_first = _IS_JSON.match(self._opening) is not None and not _FIRST_MARK.match(self._opening)
                return Cue(self.word, is_first, self.reasoning, self.is_reasoning)

    @property
    def _opening(self) -> str:
        return self.form.beginning + self.form.opening

    @property
    def word(self) -> str:
        """What tells that a call comes: a first mark such as `<tool_call>`, else all that stands before the name."""
        mark = _FIRST_MARK.match(self._opening)
        return mark[0] if mark else self._opening


def reply_lark(grammar: ReplyGrammar, controls: Mapping[str, int]) -> str:
    """`controls` are the texts and ids of the model's control tokens, which no other text can stand for. BadGrammar."""
    return _Writer(grammar, controls).written()


class _Writer:
    def __init__(self, grammar: ReplyGrammar, controls: Mapping[str, int]) -> None:
        self._grammar = grammar
        self._controls = controls
        texts = sorted((text for text in controls if text), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._lines: list[str] = []

    def written(self) -> str:
        match self._grammar.beginning:
            case Beginning.AT_ONCE:
                start = f"{self._thought()} body"
            case Beginning.BEHIND_REASONING:
                start = f"{self._heard(self._closing)} space? body"
            case Beginning.WITH_CALL:
                start = f"{self._heard(self._grammar.word)} calls"
        body = self._body() if self._grammar.beginning is not Beginning.WITH_CALL else ""
        if self._grammar.functions:
            self._write_calls()
        return "".join([OPTIONS, f"start: {start}\n", body, *self._lines, _SPACE_RULE])

    @property
    def _closing(self) -> str:
        return self._grammar.reasoning[1] if self._grammar.reasoning else ""

    def _thought(self) -> str:
        """Reasoning that the model may open itself: not where a client's own grammar has the say."""
        grammar = self._grammar
        if grammar.reasoning is None or (grammar.content and grammar.content.syntax != "json_schema"):
            return ""
        self._lines.append(f"thought: {self._spelled(grammar.reasoning[0])} {self._up_to(self._closing)} space?\n")
        return "thought?"

    def _body(self) -> str:
        """Calls, or an answer."""
        grammar = self._grammar
        if not grammar.functions:
            assert grammar.content is not None
            return "body" + lark_of(grammar.content).removeprefix(OPTIONS).removeprefix("start")
        options = ["calls"]
        if not grammar.must_call:
            answer = schema_of(grammar.content.text) if grammar.content else json.dumps({"type": "string"})
            closing = self._spelled("}") if grammar.response else ""
            options.append(f"{self._spelled(grammar.response)} %json {answer} {closing}")
        return f"body: {' | '.join(options)}\n"

    def _write_calls(self) -> None:
        grammar, form = self._grammar, self._grammar.form
        opening = form.beginning + form.opening
        if grammar.beginning is Beginning.WITH_CALL:
            opening = opening.removeprefix(grammar.word)
        more = f"({self._alternatives('more')})*" if grammar.is_parallel else ""
        self._lines.append(f"calls: ({self._alternatives('first')}) {more} {self._spelled(form.ending)}\n")
        for number, function in enumerate(grammar.functions):
            words = function.name + form.middle
            self._lines += [
                f"first{number}: {self._spelled(opening + words)} call{number}\n",
                f"more{number}: {self._spelled(form.separator + form.opening + words)} call{number}\n",
                f"call{number}: %json {_parameters(function)} {self._spelled(form.closing)}\n",
            ]

    def _alternatives(self, rule: str) -> str:
        return " | ".join(f"{rule}{number}" for number in range(len(self._grammar.functions)))

    def _heard(self, cue: str) -> str:
        """A cue, with what stands before it in its first token; one in letters is read like one in its own token."""
        self._lines.append(f"heard[lazy]: /(.|\\n)*{_escaped(cue)}/\n")
        return f"({self._token(cue)} | heard)" if cue in self._controls else "heard"

    def _up_to(self, mark: str) -> str:
        """Any text with this mark at its end, and nowhere else."""
        if mark in self._controls:
            self._lines.append("TEXT: /(.|\\n)*/\n")
            return f"TEXT {self._token(mark)}"
        self._lines.append(f"marked[lazy]: /(.|\\n)*{_escaped(mark)}/\n")
        return "marked"

    def _spelled(self, text: str) -> str:
        """A text with any white space, or none, where it has some."""
        parts: list[str] = []
        end = 0
        for control in self._control.finditer(text):
            parts += [*self._words(text[end : control.start()]), self._token(control[0])]
            end = control.end()
        return " ".join([*parts, *self._words(text[end:])])

    def _words(self, text: str) -> Iterable[str]:
        return ("space?" if word.isspace() else json.dumps(word, ensure_ascii=False) for word in _WORDS.findall(text))

    def _token(self, control: str) -> str:
        return f"<[{self._controls[control]}]>"


def _parameters(function: Function) -> str:
    return schema_of(function.parameters, is_loose=not function.is_strict)


def _escaped(text: str) -> str:
    """For a regular expression between slashes."""
    return pattern_of(text).replace("/", r"\/")
