"""What one choice of a chat says, in OpenAI's words: as a message, or as the deltas of one. Knows no stream.

Each choice has a reader of its own, so that one of them may think while another one calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from api.reply import CallPiece, ReplyReader, Said, read_reply
from api.schemas.reasoning import ReasoningFormat
from api.schemas.tools import call_id, calls_json
from shared.events import Answer, ReplyForm

Delta = dict[str, Any]


class Telling(NamedTuple):
    """How the replies of a chat are told."""

    reasoning: ReasoningFormat = ReasoningFormat.DEEPSEEK
    before: Said = Said()
    """What comes first, and was not generated."""


def message_json(job_id: str, answer: Answer, telling: Telling) -> dict[str, Any]:
    """Of a whole answer. What it does not have is left out, but for the content, which is null."""
    form, before = telling.reasoning, telling.before
    beside = read_reply(answer.reply, answer.text)
    content = beside.content
    if form.is_within(is_stream=False):
        content = read_reply(answer.reply, answer.text, splits_reasoning=False).content
    message: dict[str, Any] = {"role": "assistant", "content": before.content + content}
    reasoning = before.reasoning + (beside.reasoning or "")
    if reasoning and form.is_beside(is_stream=False):
        message["reasoning_content"] = reasoning
    if beside.calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = calls_json(job_id, answer.index, beside.calls)
    return message


class Deltas:
    """A choice as it is said. `push` its texts, then `close`."""

    def __init__(self, job_id: str, index: int, form: ReplyForm | None, telling: Telling) -> None:
        self._job_id = job_id
        self._index = index
        self._reader = ReplyReader(form, splits_reasoning=telling.reasoning.is_beside(is_stream=True))
        self.has_calls = False

    def push(self, text: str) -> list[Delta]:
        return self._deltas(self._reader.push(text))

    def close(self) -> list[Delta]:
        """What was held back."""
        return self._deltas(self._reader.close())

    def _deltas(self, said: Said) -> list[Delta]:
        self.has_calls = self.has_calls or bool(said.calls)
        return [*deltas_of(said), *({"tool_calls": [self._call_json(piece)]} for piece in said.calls)]

    def _call_json(self, piece: CallPiece) -> dict[str, Any]:
        called: dict[str, Any] = {"index": piece.place, "function": {"arguments": piece.arguments}}
        if piece.name:
            called |= {"id": call_id(self._job_id, self._index, piece.place), "type": "function"}
            called["function"] = {"name": piece.name, "arguments": piece.arguments}
        return called


def deltas_of(said: Said) -> list[Delta]:
    """Of its words."""
    told = {"reasoning_content": said.reasoning, "content": said.content}
    return [{name: text} for name, text in told.items() if text]
