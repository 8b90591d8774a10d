"""What a template can render, under the names that llama.cpp's /props has for it.

llama.cpp looks at which variables a template reads (`common/jinja/caps.cpp`); here it is what comes out that counts.
"""

from __future__ import annotations

from typing import Any

from worker.chat.probe import Probe, ProbeCall, word
from worker.chat.template import Template


def capabilities(template: Template) -> dict[str, bool]:
    probe = Probe(template)
    return {
        "supports_string_content": probe.user["content"] in probe.text(),
        "supports_typed_content": _takes_parts(probe),
        "supports_tools": takes_tools(template),
        **_with_calls(probe),
        "supports_system_role": takes_system(template),
        "supports_preserve_reasoning": _keeps_reasoning(probe),
        "supports_reasoning_effort": len({_with_effort(probe, effort) for effort in ("low", "high")}) > 1,
    }


def takes_system(template: Template) -> bool:
    """Whether a system message is rendered."""
    probe, content = Probe(template), word()
    return content in probe.text(before=[{"role": "system", "content": content}], adds_prompt=True)


def takes_tools(template: Template) -> bool:
    """Whether a tool that is offered is rendered."""
    call = _call()
    return call.name in Probe(template).text(tools=[call.tool], adds_prompt=True)


def _call() -> ProbeCall:
    return ProbeCall(word(), {word(): word()}, word())


def _takes_parts(probe: Probe) -> bool:
    text = word()
    rendered = probe.text({"role": "assistant", "content": "a"}, {"role": "user", "content": _parts(text)})
    return text in rendered and repr(_parts(text)) not in rendered and "'type'" not in rendered


def _parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def _with_calls(probe: Probe) -> dict[str, bool]:
    calls = [_call(), _call()]
    shown = {}
    for as_object in (True, False):
        parts = [call.message_part(as_object=as_object) for call in calls]
        text = probe.text(
            {"role": "assistant", "content": "", "tool_calls": parts}, tools=[call.tool for call in calls]
        )
        shown[as_object] = [all(value in text for value in call.arguments.values()) for call in calls]
        if as_object and not any(shown[True]):  # one that takes a single call refuses two
            text = probe.text(
                {"role": "assistant", "content": "", "tool_calls": parts[:1]}, tools=[call.tool for call in calls]
            )
            shown[True] = [all(value in text for value in calls[0].arguments.values()), False]
    return {
        "supports_tool_calls": any(shown[True] + shown[False]),
        "supports_parallel_tool_calls": all(shown[True]) or all(shown[False]),
        "supports_object_arguments": any(shown[True]),
    }


def _keeps_reasoning(probe: Probe) -> bool:
    """In the middle of a conversation, where some templates leave it out unless told."""
    reasoning = word()
    earlier = {"role": "assistant", "content": "a", "reasoning_content": reasoning}
    keep = {"preserve_thinking": True, "clear_thinking": False, "truncate_history_thinking": False}
    text = probe.text(
        earlier,
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c", "reasoning_content": word()},
        {"role": "user", "content": "d"},
        kwargs={**keep, "drop_thinking": False},
    )
    return reasoning in text


def _with_effort(probe: Probe, effort: str) -> str:
    return probe.text(adds_prompt=True, kwargs={"reasoning_effort": effort, "reasoning_strength": effort})
