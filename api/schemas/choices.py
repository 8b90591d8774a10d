"""OpenAI's answers to chats and completions, whole and in pieces, with llama.cpp's additions. Knows no field of theirs.

Each answer is a choice; choice `c` of prompt `p` has the index `p * n + c`. The judge is the `openai` SDK.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from api import sse
from api.problems import body_of
from api.schemas.answers import FINGERPRINT, answers_of, finish_reason, timings_json, usage_json
from api.schemas.ask import Heard, Origin
from api.schemas.final import final_json
from api.schemas.logprobs import LegacyLogprobs, chat_json
from api.schemas.progress import ProgressReport
from api.schemas.reasoning import ReasoningFormat
from api.schemas.telling import Delta, Deltas, Telling, deltas_of, message_json
from shared.events import Accepted, Answer, ChosenLogprob, Finished, Progress, ReplyForm, Tokens
from shared.jobs import Chat, Completion, Infill


class Wanted(NamedTuple):
    """What is told besides the choices: usage and progress in a stream, llama.cpp's own answer, and how soon it was
    to come."""

    has_usage: bool = False
    has_progress: bool = False
    is_verbose: bool = False
    service_tier: str | None = None


class _Shape:
    """What both have in common: numbered choices, what closes a stream, usage."""

    framing = sse.FRAMING
    _reasoning = ReasoningFormat.NONE

    def __init__(
        self, head: dict[str, Any], chunk_head: dict[str, Any], request: Chat | Completion | Infill, wanted: Wanted
    ) -> None:
        self._head = head
        self._chunk_head = chunk_head
        self._request = request
        self._wanted = wanted
        self._answers: list[Answer] = []
        """That ended a choice of the stream."""
        self._report = ProgressReport(has_timings=request.timings_per_token)

    def end(self) -> bytes:
        if not self._wanted.has_usage:
            return sse.DONE
        last = {"choices": [], **self._chunk_head, **self._closing(self._answers, self._answers[-1])}
        return sse.data(last) + sse.DONE

    def failed(self, error: Exception) -> bytes:
        return sse.data(body_of(error, with_param=True))

    def _index(self, place: int, index: int) -> int:
        """Among the choices of all jobs."""
        return place * self._request.n + index

    def _whole(self, choices: list[dict[str, Any]], endings: Iterable[Finished]) -> dict[str, Any]:
        answers = [answer for ending in endings for answer in answers_of(ending)]
        whole = {"choices": choices, **self._head, **self._closing(answers, answers[0])}
        return whole | self._verbose(choices[0], answers[0], is_stream=False)

    def _closing(self, answers: Iterable[Answer], timed: Answer) -> dict[str, Any]:
        return {"usage": usage_json(answers, self._request.n), "timings": timings_json(timed.timings)}

    def _chunk(self, choice: dict[str, Any], tokens: Tokens | None = None) -> bytes:
        chunk = {"choices": [choice], **self._chunk_head}
        if tokens is not None and tokens.timings is not None:
            chunk["timings"] = timings_json(tokens.timings)
        return sse.data(chunk)

    def _progress(self, choice: dict[str, Any], progress: Progress) -> bytes:
        chunk = {"choices": [choice], **self._chunk_head}
        return b"".join(sse.data(chunk | step) for step in self._report.push(choice["index"], progress))

    def _last_chunk(self, choice: dict[str, Any], answer: Answer) -> bytes:
        """Of one choice. That of the last one has the timings, unless a chunk with usage follows."""
        self._answers.append(answer)
        chunk = {"choices": [choice], **self._chunk_head, **self._last_parts(answer)}
        return sse.data(chunk | self._verbose(choice, answer, is_stream=True))

    def _last_parts(self, answer: Answer) -> dict[str, Any]:
        if self._wanted.has_usage or len(self._answers) < self._request.n_sequences:
            return {}
        return {"timings": timings_json(answer.timings)}

    def _verbose(self, choice: dict[str, Any], answer: Answer, *, is_stream: bool) -> dict[str, Any]:
        if not self._wanted.is_verbose:
            return {}
        index, model = choice["index"], self._head["model"]
        final = final_json(
            self._request, answer, index=index, model=model, is_stream=is_stream, reasoning=self._reasoning
        )
        return {"__verbose": final}


class ChatShape(_Shape):
    """`chat.completion` and its chunks. Of each choice the role comes first, then what it says, then why it ended."""

    def __init__(self, origin: Origin, request: Chat, wanted: Wanted, telling: Telling) -> None:
        head = _head(origin, "chatcmpl", "chat.completion", wanted)
        super().__init__(head, head | {"object": "chat.completion.chunk"}, request, wanted)
        self._reasoning = telling.reasoning
        self._job_id = origin.job_id
        self._telling = telling
        self._form: ReplyForm | None = None
        self._choices: dict[int, Deltas] = {}
        """Those that were opened, by their index."""
        self._untold: defaultdict[int, list[ChosenLogprob]] = defaultdict(list)
        """Of tokens whose text is held back."""

    def say(self, heard: Heard) -> bytes:
        match heard.event:
            case Accepted(reply=form):
                self._form = form
                return b"".join(self._opening(index) for index in range(self._request.n))
            case Progress() as progress if self._wanted.has_progress:
                choice: dict[str, Any] = {"finish_reason": None, "index": progress.index, "delta": {}}
                return self._opening(progress.index) + self._progress(choice, progress)
            case Tokens() as tokens:
                opening = self._opening(tokens.index)
                self._untold[tokens.index] += tokens.logprobs
                return opening + self._deltas(tokens.index, self._choices[tokens.index].push(tokens.text), tokens)
            case Finished() as finished:
                return b"".join(self._ending(answer) for answer in answers_of(finished))
        return b""

    def body(self, endings: Sequence[Finished]) -> Any:
        (ending,) = endings
        return self._whole([self._choice(answer) for answer in answers_of(ending)], endings)

    def _opening(self, index: int) -> bytes:
        if index in self._choices:
            return b""
        self._choices[index] = Deltas(self._job_id, index, self._form, self._telling)
        deltas = [self._first_delta(), *deltas_of(self._telling.before)]
        return b"".join(self._chunk({"finish_reason": None, "index": index, "delta": delta}) for delta in deltas)

    def _first_delta(self) -> Delta:
        return {"role": "assistant", "content": None}

    def _deltas(self, index: int, deltas: Sequence[Delta], tokens: Tokens | None = None) -> bytes:
        """A chunk for each. The last one has the probabilities of all tokens so far, and how long they took."""
        chunks = b""
        for place, delta in enumerate(deltas, 1):
            choice: dict[str, Any] = {"finish_reason": None, "index": index, "delta": delta}
            is_last = place == len(deltas)
            if is_last and self._request.wants_logprobs:
                choice["logprobs"] = self._logprobs(self._untold.pop(index, ()))
            chunks += self._chunk(choice, tokens if is_last else None)
        return chunks

    def _ending(self, answer: Answer) -> bytes:
        opening = self._opening(answer.index)
        choice = self._choices[answer.index]
        rest = choice.close() or ([{"content": ""}] if self._untold.get(answer.index) else [])
        reason = finish_reason(answer.stop_type, has_calls=choice.has_calls)
        last = {"finish_reason": reason, "index": answer.index, "delta": {}}
        return opening + self._deltas(answer.index, rest) + self._last_chunk(last, answer)

    def _choice(self, answer: Answer) -> dict[str, Any]:
        message = message_json(self._job_id, answer, self._telling)
        return {
            "finish_reason": finish_reason(answer.stop_type, has_calls="tool_calls" in message),
            "index": answer.index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs) if self._request.wants_logprobs else None,
        }

    def _logprobs(self, entries: Sequence[ChosenLogprob]) -> dict[str, Any]:
        return chat_json(entries, is_post_sampling=self._request.post_sampling_probs)


class TextShape(_Shape):
    """`text_completion`, whole or in pieces."""

    def __init__(
        self, origin: Origin, request: Completion | Infill, wanted: Wanted, echoes: Sequence[str] = ()
    ) -> None:
        """The text of each choice begins with the echo of its prompt, where there are any."""
        head = _head(origin, "cmpl", "text_completion", wanted)
        super().__init__(head, head, request, wanted)
        self._echoes = echoes
        self._logprobs: dict[int, LegacyLogprobs] = {}
        self._echoed: set[int] = set()

    def say(self, heard: Heard) -> bytes:
        match heard.event:
            case Accepted():
                return b"".join(self._opening(self._index(heard.place, choice)) for choice in range(self._request.n))
            case Progress() as progress if self._wanted.has_progress:
                index = self._index(heard.place, progress.index)
                return self._opening(index) + self._progress(_text_choice(index, ""), progress)
            case Tokens() as tokens if tokens.text or tokens.logprobs:
                index = self._index(heard.place, tokens.index)
                choice = _text_choice(index, tokens.text, logprobs=self._logprobs_of(index, tokens.logprobs))
                return self._opening(index) + self._chunk(choice, tokens)
            case Finished() as finished:
                return b"".join(
                    self._ending(self._index(heard.place, answer.index), answer) for answer in answers_of(finished)
                )
        return b""

    def body(self, endings: Sequence[Finished]) -> Any:
        choices = [
            self._choice(self._index(place, answer.index), answer)
            for place, ending in enumerate(endings)
            for answer in answers_of(ending)
        ]
        return self._whole(choices, endings)

    def _opening(self, index: int) -> bytes:
        echo = self._echo(index)
        if not echo or index in self._echoed:
            return b""
        self._echoed.add(index)
        return self._chunk(_text_choice(index, echo))

    def _ending(self, index: int, answer: Answer) -> bytes:
        choice = _text_choice(index, "", reason=finish_reason(answer.stop_type))
        return self._opening(index) + self._last_chunk(choice, answer)

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        logprobs = self._logprobs_of(index, answer.logprobs)
        reason = finish_reason(answer.stop_type)
        return _text_choice(index, self._echo(index) + answer.text, logprobs=logprobs, reason=reason)

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._request.n] if self._echoes else ""

    def _logprobs_of(self, index: int, entries: Sequence[ChosenLogprob]) -> dict[str, Any] | None:
        if not self._request.wants_logprobs:
            return None
        if index not in self._logprobs:
            self._logprobs[index] = LegacyLogprobs(is_post_sampling=self._request.post_sampling_probs)
        return self._logprobs[index].push(entries)


def _head(origin: Origin, prefix: str, kind: str, wanted: Wanted) -> dict[str, Any]:
    tier = {} if wanted.service_tier is None else {"service_tier": wanted.service_tier}
    return tier | {
        "created": origin.created,
        "id": f"{prefix}-{origin.job_id.removeprefix('job_').replace('_', '')}",
        "model": origin.model,
        "system_fingerprint": FINGERPRINT,
        "object": kind,
    }


def _text_choice(
    index: int, text: str, *, logprobs: dict[str, Any] | None = None, reason: str | None = None
) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}
