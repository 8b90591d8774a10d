"""ollama's answers to what generates text, whole and in pieces, and to what embeds.

Each piece is an object, the last one says `done`; a client may ask for lines of them or for Server-Sent Events. What a
family has to say of a reply is the same in all of ollama's paths, and stands in another place in each: `Form`. Knows no
field of a request. Durations are whole nanoseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

from api import ndjson, sse
from api.framing import Framing
from api.problems import ollama_body_of
from api.reply import CallPiece, ReplyReader, Said, read_reply
from api.schemas.answers import answers_of, finish_reason, vectors_of
from api.schemas.ask import Heard, Origin
from api.schemas.logprobs import chat_json
from api.schemas.strict import parse_object
from api.schemas.tools import call_id
from shared.errors import InvalidRequest
from shared.events import Accepted, Answer, ChosenLogprob, Finished, Tokens


class Wire(Enum):
    """What a stream is made of."""

    LINES = "lines"
    EVENTS = "events"

    def write(self, value: Any) -> bytes:
        return ndjson.line(value) if self is Wire.LINES else sse.data(value)

    def framing(self, nothing: Callable[[], Any]) -> Framing:
        """`nothing` is an object that says nothing."""
        if self is Wire.EVENTS:
            return sse.FRAMING
        return Framing(ndjson.HEADERS, lambda: ndjson.line(nothing()))


class Call(NamedTuple):
    place: int
    name: str
    arguments: dict[str, Any]


class Spoken(NamedTuple):
    """What a piece of an answer tells."""

    thinking: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()


Form = Callable[[Spoken, str], dict[str, Any]]
"""Where a path tells it; the text is the id of the job."""


def as_response(spoken: Spoken, job_id: str = "") -> dict[str, Any]:
    """As `/api/generate` does."""
    return {"response": spoken.content, **({"thinking": spoken.thinking} if spoken.thinking else {})}


def as_message(spoken: Spoken, job_id: str = "") -> dict[str, Any]:
    """As `/api/chat` does."""
    message: dict[str, Any] = {"role": "assistant", "content": spoken.content}
    if spoken.thinking:
        message["thinking"] = spoken.thinking
    if spoken.calls:
        message["tool_calls"] = [_call_json(call, job_id) for call in spoken.calls]
    return {"message": message}


def idle_json(form: Form, model: str, reason: str) -> dict[str, Any]:
    """The answer where nothing is generated, because a model was only to be loaded, or unloaded."""
    return {**_head(model, time.time()), **form(Spoken(), ""), "done": True, "done_reason": reason}


class ReplyShape:
    """One text."""

    def __init__(
        self,
        origin: Origin,
        form: Form,
        *,
        model: str | None,
        wire: Wire = Wire.LINES,
        splits_thinking: bool = True,
    ) -> None:
        """`model` is what the client calls it."""
        self._origin = origin
        self._model = model or origin.model
        self._form = form
        self._wire = wire
        self._splits_thinking = splits_thinking
        self._reader: ReplyReader | None = None
        self._calls = _Calls()
        self.framing = wire.framing(lambda: self._piece(Spoken()))

    def say(self, heard: Heard) -> bytes:
        match heard.event:
            case Accepted(reply=form) if self._reader is None:
                # A later attempt at the same job goes on with the text that this reader is in.
                self._reader = ReplyReader(form, splits_reasoning=self._splits_thinking)
            case Tokens(text=text, logprobs=logprobs):
                return self._said(self._reading().push(text), logprobs)
            case Finished() as finished:
                (answer,) = answers_of(finished)
                rest = self._said(self._reading().close(), is_last=True)
                return rest + self._wire.write(self._piece(Spoken()) | _ending_json(answer))
        return b""

    def end(self) -> bytes:
        return b""

    def failed(self, error: Exception) -> bytes:
        return self._wire.write(ollama_body_of(error))

    def body(self, endings: Sequence[Finished]) -> Any:
        (ending,) = endings
        (answer,) = answers_of(ending)
        reply = read_reply(answer.reply, answer.text, splits_reasoning=self._splits_thinking)
        calls = (_call(place, call.name, call.arguments) for place, call in enumerate(reply.calls))
        spoken = Spoken(reply.reasoning or "", reply.content, tuple(call for call in calls if call is not None))
        return self._piece(spoken, self._origin.created) | _ending_json(answer) | _logprobs_json(answer.logprobs)

    def _reading(self) -> ReplyReader:
        if self._reader is None:
            self._reader = ReplyReader(None)
        return self._reader

    def _said(self, said: Said, logprobs: Sequence[ChosenLogprob] = (), *, is_last: bool = False) -> bytes:
        calls = [*self._calls.push(said.calls), *(self._calls.flush() if is_last else ())]
        spoken = Spoken(said.reasoning, said.content, tuple(calls))
        if not any(spoken) and not logprobs:
            return b""
        return self._wire.write(self._piece(spoken) | _logprobs_json(logprobs))

    def _piece(self, spoken: Spoken, created: float | None = None) -> dict[str, Any]:
        created = time.time() if created is None else created
        return {**_head(self._model, created), **self._form(spoken, self._origin.job_id), "done": False}


class _Calls:
    """Puts calls together, which come in stretches: ollama's clients get each one whole."""

    def __init__(self) -> None:
        self._place = -1
        self._name = ""
        self._arguments: list[str] = []

    def push(self, pieces: Iterable[CallPiece]) -> list[Call]:
        whole: list[Call] = []
        for piece in pieces:
            if piece.place != self._place:
                whole += self.flush()
                self._place, self._name = piece.place, piece.name
            self._arguments.append(piece.arguments)
        return whole

    def flush(self) -> list[Call]:
        """The one that no more will be heard of."""
        call = _call(self._place, self._name, "".join(self._arguments)) if self._place >= 0 else None
        self._place, self._arguments = -1, []
        return [] if call is None else [call]


def _call(place: int, name: str, arguments: str) -> Call | None:
    """None for a call whose arguments are no object, because the text ended in it: nobody could make it."""
    try:
        return Call(place, name, parse_object(arguments.encode()))
    except InvalidRequest:
        return None


def _call_json(call: Call, job_id: str) -> dict[str, Any]:
    function = {"index": call.place, "name": call.name, "arguments": call.arguments}
    return {"id": call_id(job_id, 0, call.place), "function": function}


def embed_json(ending: Finished, model: str) -> dict[str, Any]:
    vectors = vectors_of(ending)
    return {
        "model": model,
        "embeddings": [vector.values().tolist() for vector in vectors],
        "prompt_eval_count": sum(vector.prompt_tokens for vector in vectors),
    }


def embeddings_json(ending: Finished) -> dict[str, Any]:
    (vector,) = vectors_of(ending)
    return {"embedding": vector.values().tolist()}


def _head(model: str, created: float) -> dict[str, Any]:
    moment = datetime.fromtimestamp(created, UTC)
    return {"model": model, "created_at": moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"}


def _logprobs_json(entries: Sequence[ChosenLogprob]) -> dict[str, Any]:
    return {"logprobs": chat_json(entries, is_post_sampling=False)["content"]} if entries else {}


def _ending_json(answer: Answer) -> dict[str, Any]:
    """ollama's `load_duration` is all that passes before a runner has the prompt: here the wait in the queue."""
    timings = answer.timings
    return {
        "done": True,
        "done_reason": finish_reason(answer.stop_type),
        "total_duration": _nanoseconds(timings.queue_ms + timings.prompt_ms + timings.predicted_ms),
        "load_duration": _nanoseconds(timings.queue_ms),
        "prompt_eval_count": answer.prompt_tokens,
        "prompt_eval_cached_count": timings.cache_n,
        "prompt_eval_duration": _nanoseconds(timings.prompt_ms),
        "eval_count": timings.predicted_n,
        "eval_duration": _nanoseconds(timings.predicted_ms),
    }


def _nanoseconds(milliseconds: float) -> int:
    return round(milliseconds * 1e6)
