"""How the model of one template speaks: what it writes calls and reasoning like, and what it must be told in other
words than a client's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shared.errors import InvalidRequest
from shared.events import CallForm, ReplyForm
from shared.jobs import Chat, Constraint, ToolUse
from worker.chat.calls import Calls, learn_calls
from worker.chat.capabilities import capabilities, takes_system, takes_tools
from worker.chat.functions import functions_of
from worker.chat.generic import CALLS, has_calls, plain_messages
from worker.chat.reasoning import Marks, learn_reasoning
from worker.chat.template import Template, goes_on_thinking
from worker.grammar.reply import ReplyGrammar

GENERIC = CallForm(
    beginning=f'{{"{CALLS}": [',
    opening='{"name": "',
    middle='", "arguments": ',
    closing="}",
    separator=", ",
    ending="]}",
)
"""What a generic reply writes calls like, and what it writes before an answer."""
RESPONSE = '{"response": '


@dataclass(frozen=True, slots=True)
class SpokenChat:
    """A chat as its template takes it, and what the model may write."""

    chat: Chat
    calls: Calls | None = None
    """How it calls in a way of its own; None when it must not, or has none."""
    is_generic: bool = False


class Dialect:
    """Of one template; `ends` are texts of tokens that end a generation. Thread-safe: two that learn learn the same."""

    def __init__(self, template: Template, ends: Sequence[str] = ()) -> None:
        self.template = template
        self._ends = tuple(ends)

    def learn(self) -> None:
        """All of it now, before there are chats; some dozen renderings. ValueError when the template runs away."""
        _ = self.calls, self.reasoning, self.capabilities, self._takes_system, self.tool_reply

    @cached_property
    def calls(self) -> Calls | None:
        """None for a template that must be told of tools in other words."""
        return learn_calls(self.template, self._ends) if takes_tools(self.template) else None

    @cached_property
    def reasoning(self) -> Marks | None:
        return learn_reasoning(self.template)

    @cached_property
    def capabilities(self) -> dict[str, bool]:
        return capabilities(self.template)

    @cached_property
    def _takes_system(self) -> bool:
        return takes_system(self.template)

    def spoken(self, chat: Chat) -> SpokenChat:
        """InvalidRequest for tools that nobody could call, and for what cannot go on with its last message."""
        _check_continued(chat)
        if chat.tool_use is not None:
            functions_of(chat.tool_use)
        if self.calls is not None:
            messages = tuple(_with_arguments(chat.messages)) if self.calls.takes_objects else chat.messages
            chat = chat.model_copy(update={"messages": messages})
            return SpokenChat(chat, self.calls if chat.tool_use is not None else None)
        if chat.tool_use is None and not has_calls(chat.messages):
            return SpokenChat(chat)
        messages = tuple(plain_messages(chat.messages, chat.tool_use, takes_system=self._takes_system))
        plain = chat.model_copy(update={"messages": messages, "tool_use": None})
        return SpokenChat(plain, is_generic=chat.tool_use is not None)

    @cached_property
    def tool_reply(self) -> ReplyForm:
        """How the answer to a chat with a tool is to be read."""
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
        spoken = self.spoken(Chat(messages=({"role": "user", "content": "Hi"},), tool_use=ToolUse(tools=(tool,))))
        try:
            prompt = self.template.render(spoken.chat)
        except InvalidRequest:  # a template may want what no client has asked for
            prompt = ""
        return self.reply(spoken, prompt) or ReplyForm()

    def reply(self, spoken: SpokenChat, prompt: str) -> ReplyForm | None:
        """How the answer to a rendered prompt is to be read; None for plain text."""
        marks = self.reasoning
        # An answer that has a schema of its own is not wrapped in another object, and might look like that.
        is_wrapped = spoken.is_generic and spoken.chat.constraint is None
        calls = GENERIC if spoken.is_generic else spoken.calls.form if spoken.calls is not None else None
        form = ReplyForm(
            reasoning=None if marks is None else tuple(marks),
            is_reasoning=marks is not None and (goes_on_thinking(spoken.chat) or marks.are_open(prompt)),
            calls=None if is_wrapped else calls,
            is_generic=is_wrapped,
        )
        return None if form == ReplyForm() else form

    def grammar(self, chat: Chat, reply: ReplyForm | None) -> Constraint | ReplyGrammar | None:
        """What the answer to a chat must satisfy, beyond what the client said itself: a schema is of an answer that is
        no call, and of nothing that is thought before. InvalidRequest for a grammar where there are tools, as
        llama.cpp has it: either would break the other."""
        form, constraint, use = reply or ReplyForm(), chat.constraint, chat.tool_use
        if not form.is_reasoning and chat.template_kwargs.get("enable_thinking") is False:
            form = form.model_copy(update={"reasoning": None})  # who wants none wants the answer alone
        if use is None:
            if constraint is None or form.reasoning is None:
                return constraint
            return ReplyGrammar(content=constraint, reasoning=form.reasoning, is_reasoning=form.is_reasoning)
        if constraint is not None and constraint.syntax != "json_schema":
            raise InvalidRequest(f"Field '{constraint.name}': it cannot be used with tools", param=constraint.name)
        can_repeat = self.calls is None or self.calls.is_parallel
        is_to_repeat = self.calls is not None if use.is_parallel is None else use.is_parallel
        return ReplyGrammar(
            functions=tuple(each for each in functions_of(use) if use.name in ("", each.name)),
            form=GENERIC if form.calls is None else form.calls,
            response=RESPONSE if form.is_generic else "",
            must_call=use.must_call,
            is_parallel=can_repeat and is_to_repeat and not use.name,
            content=constraint,
            reasoning=form.reasoning,
            is_reasoning=form.is_reasoning,
        )


def _check_continued(chat: Chat) -> None:
    if not chat.continues_last:
        return
    roles = [message["role"] for message in chat.messages[-2:]]
    if roles[-1:] != ["assistant"]:
        raise InvalidRequest("only an assistant's message can be continued, and the last is none", param="messages")
    if roles == ["assistant", "assistant"]:
        raise InvalidRequest("of two messages of the assistant at the end none can be continued", param="messages")
    if chat.messages[-1].get("tool_calls"):
        raise InvalidRequest("a message that calls is at its end: it cannot be continued", param="messages")


def _with_arguments(messages: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """With the arguments of calls as objects, for templates that write their fields. What a model once wrote and is no
    object stays the text that it is: most templates can show that, too."""
    for message in messages:
        calls = message.get("tool_calls")
        yield {**message, "tool_calls": [_with_object(call) for call in calls]} if calls else message


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    return {**call, "function": {**function, "arguments": _object(function.get("arguments"))}}


def _object(arguments: Any) -> Any:
    if not arguments:
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments, parse_constant=_refused)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
