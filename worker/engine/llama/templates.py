"""The chat templates that llama.cpp has built in: code, not Jinja, known by names such as `chatml` and `llama3`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import llama_cpp


@cache
def builtin_templates() -> tuple[str, ...]:
    """Their names."""
    n = llama_cpp.llama_chat_builtin_templates(None, 0)
    names = (ctypes.c_char_p * n)()
    llama_cpp.llama_chat_builtin_templates(names, n)
    return tuple(sorted(name.decode() for name in names))


def apply_builtin_template(name: str, messages: Sequence[tuple[str, str]], *, adds_prompt: bool) -> str:
    """The prompt text of pairs of role and content; `adds_prompt` opens the answer.

    ValueError for a NUL, at which C would take the text to end, and for what the template refuses.
    """
    assert name in builtin_templates()
    texts = [text.encode() for pair in messages for text in pair]
    if any(b"\0" in text for text in texts):
        raise ValueError("a NUL cannot be said with a template that is built in")
    roles_and_contents = zip(texts[::2], texts[1::2], strict=True)
    chat = [llama_cpp.llama_chat_message(role=role, content=content) for role, content in roles_and_contents]
    array = (llama_cpp.llama_chat_message * len(chat))(*chat)
    n = llama_cpp.llama_chat_apply_template(name.encode(), array, len(chat), adds_prompt, None, 0)
    if n < 0:
        raise ValueError("the template refuses these messages")
    room = ctypes.create_string_buffer(n + 1)
    llama_cpp.llama_chat_apply_template(name.encode(), array, len(chat), adds_prompt, room, n + 1)
    return room.raw[:n].decode("utf-8", "replace")
