"""Small conversations in words that nobody can guess, to see what a template makes of them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from shared.errors import InvalidRequest
from shared.jobs import Chat, ToolUse
from worker.chat.template import Template, runs_away

Message = dict[str, Any]


def word() -> str:
    """Nine letters and digits, of which some templates want a call's id to be."""
    return "q" + secrets.token_hex(4)


class ProbeCall(NamedTuple):
    """A call to be written."""

    name: str
    arguments: dict[str, Any]
    id: str

    def message_part(self, *, as_object: bool) -> Message:
        arguments = self.arguments if as_object else json.dumps(self.arguments)
        return {"type": "function", "id": self.id, "function": {"name": self.name, "arguments": arguments}}

    @property
    def tool(self) -> Message:
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": "Does it.",
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": "string", "description": "What."} for key in self.arguments},
                    "required": list(self.arguments),
                },
            },
        }


class Probe:
    """A conversation that begins with a user's word."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self.user: Message = {"role": "user", "content": word()}

    def text(
        self,
        *messages: Message,
        before: Sequence[Message] = (),
        tools: Sequence[Message] = (),
        adds_prompt: bool = False,
        kwargs: dict[str, Any] | None = None,
    ) -> str:
        """With `messages` behind the user's, and some before it; empty when the template refuses it. ValueError when
        that runs away."""
        chat = Chat(
            messages=(*before, self.user, *messages),
            add_generation_prompt=adds_prompt,
            template_kwargs=kwargs or {},
            tool_use=ToolUse(tools=tuple(tools)) if tools else None,
        )
        try:
            return self._template.render(chat)
        except InvalidRequest as refusal:
            if runs_away(refusal):
                raise ValueError(str(refusal.__cause__)) from None
            return ""
