"""A chat's messages as the text of a prompt: which of them, and what in it may be control tokens. Knows no limits but
the one it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from shared.errors import InvalidRequest
from shared.events import ReplyForm
from shared.jobs import Chat
from worker.chat import Dialect
from worker.engine import Model
from worker.vocabulary import Piece, Vocabulary

N_TURN = 3
"""Messages that are tried to be left out together."""


class Written(NamedTuple):
    """Messages as their template writes them."""

    pieces: list[Piece]
    add_special: bool
    reply: ReplyForm | None
    """How what the model says to it is to be read."""
    is_cut: bool = False
    """Messages were left out."""


class ChatPrompter:
    """Thread-safe: model and template are only read."""

    def __init__(self, model: Model, vocabulary: Vocabulary, dialect: Dialect) -> None:
        self._controls = model.control_texts
        self._vocabulary = vocabulary
        self._dialect = dialect
        self._bos_text = model.facts.bos_token if model.facts.adds_bos else ""

    def n_least(self, chat: Chat) -> int:
        """Tokens that a chat has at least: a template writes something for each message, which may cost it more than
        tokenizing costs us."""
        contents = (Piece(message.get("content") or "") for message in chat.messages)
        return max(len(chat.messages), self._vocabulary.n_least(contents))

    def written(self, chat: Chat) -> Written:
        """Control tokens count only where the template wrote them, never in what a client did. InvalidRequest."""
        template, spoken = self._dialect.template, self._dialect.spoken(chat)
        text = template.render(spoken.chat)
        # A template may write the BOS itself; llama.cpp would add a second one.
        add_special = not (self._bos_text and text.startswith(self._bos_text))
        pieces = [Piece(text)]
        # Tokenized in one piece wherever possible: cutting at the contents' edges changes how words merge there.
        clients = "\0".join(_texts(spoken.chat))
        if controls := [control for control in self._controls if control in clients]:
            stretches = template.stretches(spoken.chat, controls)
            if stretches is None:
                raise InvalidRequest("a message contains a control token of the model", param="messages")
            pieces = [Piece(stretch.text, parse_special=not stretch.is_user) for stretch in stretches]
        return Written(pieces, add_special, self._dialect.reply(spoken, text))

    def fitting(self, chat: Chat, fits: Callable[[Written], bool]) -> Written:
        """As many of the last messages as fit, and every one of the system's, as ollama has it; the last one at least,
        which need not fit. InvalidRequest.

        Costs what it costs to render and count a few times the messages that fit.
        """
        n_kept, kept = 1, self.written(_ending_of(chat, 1))
        n_over = len(chat.messages) + 1
        while n_kept + 1 < n_over:
            n_tried = min(2 * n_kept, (n_kept + n_over) // 2)
            tried = self._with_last(chat, n_tried, n_least=n_kept + 1)
            if tried is not None and fits(tried):
                n_kept, kept = n_tried, tried
            else:
                n_over = n_tried
        return kept._replace(is_cut=len(_ending_of(chat, n_kept).messages) < len(chat.messages))

    def _with_last(self, chat: Chat, n_messages: int, n_least: int) -> Written | None:
        """With so many, or with one less or two where the template wants turns of a user and of an assistant, or a
        result would stand without its call."""
        for n in range(n_messages, max(n_messages - N_TURN, n_least - 1), -1):
            if chat.messages[-n]["role"] == "tool":
                continue
            try:
                return self.written(_ending_of(chat, n))
            except InvalidRequest:
                continue
        return None


def _ending_of(chat: Chat, n_messages: int) -> Chat:
    """With the last of its messages, and before them those of the system."""
    earlier, last = chat.messages[:-n_messages], chat.messages[-n_messages:]
    system = tuple(message for message in earlier if message["role"] == "system")
    return chat.model_copy(update={"messages": system + last})


def _texts(chat: Chat) -> Iterator[str]:
    """All that a client wrote and a template may render."""
    waiting: list[Any] = [*chat.messages, chat.template_kwargs, *(chat.tool_use.tools if chat.tool_use else ())]
    while waiting:
        match waiting.pop():
            case str() as text:
                yield text
            case dict() as fields:
                waiting += [*fields, *fields.values()]
            case list() | tuple() as values:
                waiting += values
