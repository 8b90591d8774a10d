"""The input of a response, brought to the messages of a chat: a text, or items as earlier answers had them.

An assistant's turn is one message: what it thought, said and called come as items of their own, in that order. Knows
no template and no field but `input` and `instructions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from api.schemas.pictures import Address, Album, picture_of
from api.schemas.strict import bad_field
from shared.errors import NotSupported

_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Types of parts that are text, each with the key that has it."""
_OTHER_MEDIA = {"input_file", "input_audio"}

Message = dict[str, Any]


class InputText(TypedDict):
    type: Literal["input_text", "output_text", "text"]
    text: str


class Refusal(TypedDict):
    type: Literal["refusal"]
    refusal: str


class InputImage(TypedDict):
    type: Literal["input_image"]
    image_url: Address


InputContent = str | list[InputText | Refusal | InputImage]


class InputMessage(TypedDict):
    type: NotRequired[Literal["message"]]
    role: Literal["user", "assistant", "system", "developer"]
    content: InputContent


class InputCall(TypedDict):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class InputCallOutput(TypedDict):
    type: Literal["function_call_output"]
    call_id: str
    output: InputContent


class ReasoningPart(TypedDict):
    text: str


class InputReasoning(TypedDict):
    type: Literal["reasoning"]
    content: NotRequired[list[ReasoningPart] | None]
    summary: NotRequired[list[ReasoningPart] | None]


InputItem = InputMessage | InputCall | InputCallOutput | InputReasoning


def messages_of(instructions: str | None, value: Any, album: Album) -> tuple[Message, ...]:
    """What the model is to read, with marks for pictures, which go into the album. Raises InvalidRequest that names the
    item at fault, or NotSupported for what is neither text nor image."""
    if not isinstance(value, str | list):
        raise bad_field("input", "must be a string or a list of items")
    if not value and isinstance(value, list):
        raise bad_field("input", "must not be empty")
    conversation = _Conversation(album)
    if instructions is not None:
        conversation.say({"role": "system", "content": instructions})
    if isinstance(value, str):
        conversation.say({"role": "user", "content": value})
    else:
        for place, item in enumerate(value):
            conversation.take(f"input[{place}]", item)
    if not conversation.messages:
        raise bad_field("input", "must not be empty")  # of reasoning that only its maker can read, nothing is left
    return tuple(conversation.messages)


class _Conversation:
    """Messages, of which the last one may still be the assistant's to go on with."""

    def __init__(self, album: Album) -> None:
        self.messages: list[Message] = []
        self._album = album

    def take(self, name: str, item: Any) -> None:
        if not isinstance(item, dict):
            raise bad_field(name, "must be an object")
        kind = item.get("type")
        if kind is None and "role" in item:
            kind = "message"
        reader = self._READERS.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise bad_field(f"{name}.type", f"must be one of {', '.join(self._READERS)}")
        reader(self, name, item)

    def say(self, message: Message) -> None:
        self.messages.append(message)

    def _take_message(self, name: str, item: dict[str, Any]) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise bad_field(f"{name}.role", f"must be one of {', '.join(_ROLES)}")
        content = _content(f"{name}.content", item.get("content"), self._album)
        if role == "assistant":
            self._turn("content", "tool_calls")["content"] = content
        else:
            # Few templates know of developers: to all others they are who sets up the system, as in llama.cpp.
            self.say({"role": "system" if role == "developer" else role, "content": content})

    def _take_reasoning(self, name: str, item: dict[str, Any]) -> None:
        """Nothing, where its maker has only a secret of it to send back."""
        texts = _texts(f"{name}.content", item.get("content")) or _texts(f"{name}.summary", item.get("summary"))
        if texts:
            self._turn("reasoning_content", "content", "tool_calls")["reasoning_content"] = "\n".join(texts)

    def _take_call(self, name: str, item: dict[str, Any]) -> None:
        called, arguments = (_string(f"{name}.{key}", item.get(key)) for key in ("name", "arguments"))
        function = {"name": called, "arguments": arguments or "{}"}
        call = {"id": _string(f"{name}.call_id", item.get("call_id")), "type": "function", "function": function}
        self._turn().setdefault("tool_calls", []).append(call)

    def _take_call_output(self, name: str, item: dict[str, Any]) -> None:
        call_id = _string(f"{name}.call_id", item.get("call_id"))
        output = _content(f"{name}.output", item.get("output"), self._album)
        self.say({"role": "tool", "tool_call_id": call_id, "content": output})

    def _turn(self, *later: str) -> Message:
        """The assistant's message that is going on, if it has nothing yet of what comes `later` in one; else a new
        one."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            last = self.messages[-1]
            if all(last.get(key) is None for key in later):
                return last
        self.say({"role": "assistant", "content": None})
        return self.messages[-1]

    _READERS: dict[str, Callable[[_Conversation, str, dict[str, Any]], None]] = {
        "message": _take_message,
        "reasoning": _take_reasoning,
        "function_call": _take_call,
        "function_call_output": _take_call_output,
    }


def _content(name: str, content: Any, album: Album) -> str:
    """One text of all parts. A line break stands between two texts only, as in a chat."""
    if isinstance(content, str):
        return content
    if content is None:
        raise bad_field(name, "is needed")
    if not isinstance(content, list):
        raise bad_field(name, "must be a string or a list of parts")
    text = ""
    was_text = False
    for place, part in enumerate(content):
        field = f"{name}[{place}]"
        kind = _kind(field, part)
        if kind == "input_image":
            if part.get("image_url") is None and part.get("file_id") is not None:
                reason = "images are not taken from files: send it as a data URL in 'image_url'"
                raise NotSupported(f"Field '{field}.file_id': {reason}", param=f"{field}.file_id")
            text += album.put(picture_of(field, part))
        elif kind in _TEXTS:
            text += ("\n" if was_text else "") + _string(f"{field}.{_TEXTS[kind]}", part.get(_TEXTS[kind]))
        elif kind in _OTHER_MEDIA:
            raise NotSupported(f"Field '{field}': this build reads text and images", param=field)
        else:
            raise bad_field(f"{field}.type", "must be 'input_text', 'output_text', 'refusal' or 'input_image'")
        was_text = kind in _TEXTS
    return text


def _texts(name: str, parts: Any) -> Sequence[str]:
    """Of reasoning's parts, whatever their types: its whole content, or a summary."""
    if parts is None:
        return ()
    if not isinstance(parts, list):
        raise bad_field(name, "must be a list of parts")
    for place, part in enumerate(parts):
        _kind(f"{name}[{place}]", part)
    return [_string(f"{name}[{place}].text", part.get("text")) for place, part in enumerate(parts)]


def _kind(name: str, part: Any) -> str:
    if not isinstance(part, dict):
        raise bad_field(name, "must be an object")
    kind = part.get("type")
    return kind if isinstance(kind, str) else ""


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise bad_field(name, "is needed" if value is None else "must be a string")
    return value
