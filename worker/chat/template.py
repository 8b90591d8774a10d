"""Chat messages to prompt text, with the template that the model carries or that its operator names.

Most are Jinja and come with the model file; they run in a sandbox, since a model file is a download like any other.
Some are code in llama.cpp, known by a name. Knows no tokens: `Stretch` says which stretches of the text a client wrote,
so that the intake can keep control tokens in there from being parsed.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection
from datetime import datetime
from types import GeneratorType
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from shared.errors import InvalidRequest
from shared.jobs import Chat
from worker.chat.budget import Budget, TooMuch, budget, spending
from worker.chat.sandbox import BoundedEnvironment
from worker.engine import apply_builtin_template

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""What models without a template get, as in llama.cpp."""


REASONING = "reasoning_content"

RENDERING = (
    jinja2.TemplateError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
)
"""What a template may raise when it is rendered."""


class Stretch(NamedTuple):
    """A piece of the rendered text; `is_user` when it came from the client: a message's content, or another of its
    texts that could be taken for a control token."""

    text: str
    is_user: bool


class Template(ABC):
    """Renders messages. Thread-safe."""

    source: str
    """What it is, to be shown."""

    def render(self, chat: Chat) -> str:
        """The prompt text. InvalidRequest when the template refuses the messages."""
        # Templates concatenate contents without looking: a missing one is rendered as empty.
        messages = [{**message, "content": message.get("content") or ""} for message in chat.messages]
        return self._text(chat, messages, _tools(chat), chat.template_kwargs)

    def stretches(self, chat: Chat, controls: Collection[str] = ()) -> list[Stretch] | None:
        """The prompt text, told apart into the template's words and the client's.

        Each content, and each other text of the client's with one of `controls` in it, is rendered between two marks
        that nobody can guess; a template that looks into a content (to trim or split it) may lose them, and then there
        is no answer: None.
        """
        opening, closing = f"\ue000{secrets.token_hex(8)}\ue001", f"\ue002{secrets.token_hex(8)}\ue003"

        def marked(value: Any) -> Any:
            match value:
                case str():
                    is_dangerous = any(control in value for control in controls)
                    return f"{opening}{value}{closing}" if is_dangerous else value
                case dict():
                    return {key: marked(each) for key, each in value.items()}
                case list():
                    return [marked(each) for each in value]
            return value

        messages = [
            {
                **marked(message),
                "content": f"{opening}{content}{closing}" if (content := message.get("content")) else "",
            }
            for message in chat.messages
        ]
        text = self._text(chat, messages, marked(_tools(chat)), marked(chat.template_kwargs))
        if text.replace(opening, "").replace(closing, "") != self.render(chat):
            return None
        head, *rest = text.split(opening)
        found = [Stretch(head, False)]
        for piece in rest:
            content, mark, after = piece.partition(closing)
            if not mark:
                return None
            found += [Stretch(content, True), Stretch(after, False)]
        return [stretch for stretch in found if stretch.text]

    def _text(
        self, chat: Chat, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, variables: dict[str, Any]
    ) -> str:
        """All of it, or of a chat that goes on with its last message what stands before the end of that."""
        if not chat.continues_last:
            return self._render(messages, tools, variables, adds_prompt=chat.add_generation_prompt)
        mark = f"\ue004{secrets.token_hex(8)}\ue005"
        field = REASONING if goes_on_thinking(chat) else "content"
        last = {**messages[-1], field: messages[-1][field] + mark}
        text, found, _ = self._render([*messages[:-1], last], tools, variables, adds_prompt=False).rpartition(mark)
        if not found:
            raise InvalidRequest("the model's chat template cannot go on with the last message", param="messages")
        return text

    @abstractmethod
    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
        *,
        adds_prompt: bool,
    ) -> str:
        """The text of messages whose contents are strings. InvalidRequest."""


def runs_away(refusal: InvalidRequest) -> bool:
    """Whether it is not these messages that a template refuses: it would do too much with any."""
    return isinstance(refusal.__cause__, TooMuch)


def goes_on_thinking(chat: Chat) -> bool:
    """Whether a chat ends in reasoning that is not at its end."""
    last = chat.messages[-1] if chat.continues_last else {}
    return bool(last.get(REASONING)) and not last.get("content")


def _tools(chat: Chat) -> list[dict[str, Any]] | None:
    return list(chat.tool_use.tools) if chat.tool_use is not None else None


class ChatTemplate(Template):
    """Jinja, compiled once; a plain one for a model without. `ValueError` when it is not a template at all."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source or CHATML
        environment = BoundedEnvironment(
            filters={"tojson": _to_json}, trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.globals.update(raise_exception=_raise, strftime_now=lambda form: datetime.now().strftime(form))
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = environment.from_string(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the chat template does not compile: {error.message}") from None
        except (RecursionError, SyntaxError, MemoryError):  # Python's own compiler has limits, too
            raise ValueError("the chat template does not compile: it is nested too deeply") from None

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
        *,
        adds_prompt: bool,
    ) -> str:
        named = {"tools": tools} if tools is not None else {}
        try:
            with spending(Budget.for_chat(messages, tools, variables)):
                text: str = self._template.render(
                    **{
                        "tools": None,
                        "documents": None,
                        "enable_thinking": True,  # llama.cpp's default: templates disagree on what silence means
                        **self._tokens,
                        **variables,
                        **named,
                        "messages": messages,
                        "add_generation_prompt": adds_prompt,
                    }
                )
                return text
        except TooMuch as error:
            raise InvalidRequest(f"the model's template cannot be used: {error}", param="messages") from error
        except RENDERING as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from None


class BuiltinTemplate(Template):
    """One of llama.cpp's own. Knows neither tools nor documents, nor other content than text."""

    def __init__(self, name: str) -> None:
        self.source = name

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
        *,
        adds_prompt: bool,
    ) -> str:
        pairs = [(message["role"], message["content"]) for message in messages]
        try:
            return apply_builtin_template(self.source, pairs, adds_prompt=adds_prompt)
        except ValueError as error:
            raise InvalidRequest(f"the chat template {self.source}: {error}", param="messages") from None


class TemplatePair(Template):
    """Two of one model, of which the second is for chats with tools."""

    def __init__(self, plain: Template, with_tools: Template) -> None:
        self.source = plain.source
        self._plain, self._with_tools = plain, with_tools

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
        *,
        adds_prompt: bool,
    ) -> str:
        template = self._plain if tools is None else self._with_tools
        return template._render(messages, tools, variables, adds_prompt=adds_prompt)


class _Generation(Extension):
    """`{% generation %}`: marks what an assistant wrote, for whoever trains on it; here it is what it encloses."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As `transformers` has it, which is what templates are written for."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: Any) -> list[Any]:
    """What a filter such as `map` has left to be read."""
    if isinstance(value, GeneratorType | map):
        return budget().made(list(budget().each(value)))
    raise TypeError(f"{type(value).__name__} is no JSON")


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
