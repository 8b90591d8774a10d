"""Chat messages to prompt text, with the template that the model carries.

Templates are Jinja and come with the model file; they run in a sandbox, since a model file is a download like any
other. Knows no tokens: `Stretch` says which stretches of the text a user wrote, so that the intake can keep control
tokens in there from being parsed.
"""

from __future__ import annotations

import json
import secrets
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import InvalidRequest
from shared.jobs import Chat

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""What models without a template get, as in llama.cpp."""


class Stretch(NamedTuple):
    """A piece of the rendered text; `is_user` when it came from a message's content."""

    text: str
    is_user: bool


class ChatTemplate:
    """A model's template, compiled once. `ValueError` when it is not a template at all."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source or CHATML
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise, strftime_now=lambda form: datetime.now().strftime(form))
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = environment.from_string(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the model's chat template does not compile: {error.message}") from None

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
        except (jinja2.TemplateError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from None


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
