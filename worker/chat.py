"""Chat messages to prompt text, with the template that the model carries or that its operator names.

Most are Jinja and come with the model file; they run in a sandbox, since a model file is a download like any other.
Some are code in llama.cpp, known by a name. Knows no tokens: `Stretch` says which stretches of the text a user wrote,
so that the intake can keep control tokens in there from being parsed.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, NoReturn, Self

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import InvalidRequest
from shared.jobs import Chat
from shared.settings import ConfigError, WorkerSettings
from worker.engine import ModelFacts, apply_builtin_template, builtin_templates

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""What models without a template get, as in llama.cpp."""


RENDERING = (
    jinja2.TemplateError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
"""What a template may raise when it is rendered."""


class Stretch(NamedTuple):
    """A piece of the rendered text; `is_user` when it came from a message's content."""

    text: str
    is_user: bool


class Template(ABC):
    """Renders messages. Thread-safe."""

    source: str
    """What it is, to be shown."""

    def render(self, chat: Chat) -> str:
        """The prompt text. InvalidRequest when the template refuses the messages."""
        # Templates concatenate contents without looking: a missing one is rendered as empty.
        return self._render(chat, [{**message, "content": message.get("content") or ""} for message in chat.messages])

    def stretches(self, chat: Chat) -> list[Stretch] | None:
        """The prompt text, told apart into the template's words and the messages'.

        Each content is rendered between two marks that nobody can guess; a template that looks into a content (to
        trim or split it) may lose them, and then there is no answer: None.
        """
        opening, closing = f"\ue000{secrets.token_hex(8)}\ue001", f"\ue002{secrets.token_hex(8)}\ue003"
        marked = self._render(
            chat,
            [{**message, "content": f"{opening}{message.get('content') or ''}{closing}"} for message in chat.messages],
        )
        if marked.replace(opening, "").replace(closing, "") != self.render(chat):
            return None
        head, *rest = marked.split(opening)
        found = [Stretch(head, False)]
        for piece in rest:
            content, mark, after = piece.partition(closing)
            if not mark:
                return None
            found += [Stretch(content, True), Stretch(after, False)]
        return [stretch for stretch in found if stretch.text]

    @abstractmethod
    def _render(self, chat: Chat, messages: list[dict[str, Any]]) -> str:
        """The text of `messages`, which stand for those of the chat. InvalidRequest."""


class ChatTemplate(Template):
    """Jinja, compiled once; a plain one for a model without. `ValueError` when it is not a template at all."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source or CHATML
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise, strftime_now=lambda form: datetime.now().strftime(form))
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = environment.from_string(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the chat template does not compile: {error.message}") from None
        except (RecursionError, SyntaxError, MemoryError):  # Python's own compiler has limits, too
            raise ValueError("the chat template does not compile: it is nested too deeply") from None

    def _render(self, chat: Chat, messages: list[dict[str, Any]]) -> str:
        try:
            return self._template.render(
                **{
                    "tools": None,
                    "documents": None,
                    **self._tokens,
                    **chat.template_kwargs,
                    "messages": messages,
                    "add_generation_prompt": chat.add_generation_prompt,
                }
            )
        except RENDERING as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from None


class BuiltinTemplate(Template):
    """One of llama.cpp's own. Knows neither tools nor documents, nor other content than text."""

    def __init__(self, name: str) -> None:
        self.source = name

    def _render(self, chat: Chat, messages: list[dict[str, Any]]) -> str:
        pairs = [(message["role"], message["content"]) for message in messages]
        try:
            return apply_builtin_template(self.source, pairs, adds_prompt=chat.add_generation_prompt)
        except ValueError as error:
            raise InvalidRequest(f"the chat template {self.source}: {error}", param="messages") from None


def template_of(facts: ModelFacts) -> Template:
    """The model's own. ValueError when it is no template."""
    return ChatTemplate(facts.chat_template, bos_token=facts.bos_token, eos_token=facts.eos_token)


@dataclass(frozen=True, slots=True)
class TemplateChoice:
    """What the settings say of the template; nothing, to take the model's own."""

    text: str = ""

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """ConfigError when it cannot be read, or is no template."""
        flag, path = "--chat-template", settings.chat_template_file
        text = settings.chat_template
        if path is not None:
            flag = "--chat-template-file"
            try:
                text = path.read_text(encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"{flag}: cannot read {path}: {(error.strerror or str(error)).lower()}") from None
            except UnicodeDecodeError:
                raise ConfigError(f"{flag}: {path} is not UTF-8") from None
        choice = cls(text)
        if text and not (choice.is_builtin or "{{" in text or "{%" in text):
            raise ConfigError(f"{flag}: {text[:40]!r} is neither Jinja nor one of {', '.join(builtin_templates())}")
        try:
            choice.open()
        except ValueError as error:
            raise ConfigError(f"{flag}: {error}") from None
        return choice

    @property
    def is_builtin(self) -> bool:
        return self.text in builtin_templates()

    def open(self, bos_token: str = "", eos_token: str = "") -> Template | None:
        """For a model with these tokens; None for its own. ValueError when it is no template."""
        if self.is_builtin:
            return BuiltinTemplate(self.text)
        return ChatTemplate(self.text, bos_token=bos_token, eos_token=eos_token) if self.text else None


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
