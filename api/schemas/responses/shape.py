"""A response as a stream of numbered events, or as one body.

The numbers are cursors, so an event is a function of the job's log and record alone: whoever comes later and asks for
what follows a number gets what the first reader would have got. What is kept nowhere has no number of its own: how a
prompt gets on is told with the event that says that it is worked on, and an error that ends a stream, but not the
response, has the number of the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from api import sse
from api.problems import body_of
from api.schemas.answers import answers_of, failure_of, timings_json
from api.schemas.ask import Heard, Origin
from api.schemas.progress import ProgressReport
from api.schemas.responses.body import ResponseBody, is_cut
from api.schemas.responses.fields import Asked
from api.schemas.responses.items import Json
from api.schemas.responses.output import Output
from shared.errors import Cancelled, Ended, Expired, Rejected, SlotstreamError, UnknownJob
from shared.events import Accepted, Finished, Progress, ReplyForm, Tokens
from shared.jobs import JobStatus

_ENDINGS: dict[type[SlotstreamError], JobStatus] = {Cancelled: JobStatus.CANCELLED, Expired: JobStatus.EXPIRED}


class ResponseShape:
    """One response. `after` is the number of the last event that the reader has had."""

    framing = sse.FRAMING

    def __init__(self, origin: Origin, asked: Asked, *, after: int = -1) -> None:
        self._body = ResponseBody(origin, asked)
        self._asked = asked
        self._after = after
        self._number = -1
        """Of the last event."""
        self._working_number = 0
        """Of the one that says that it is worked on."""
        self._log_number = 0
        """The last one that was heard of the job's log."""
        self._n_characters = self._n_entries = 0
        """Of the answer, as far as they were heard."""
        self._form: ReplyForm | None = None
        self._output: Output | None = None
        """Once it is worked on."""
        self._report = ProgressReport(has_timings=asked.request.timings_per_token)

    def opening(self) -> bytes:
        """What is told before anything was heard."""
        if self._number >= 0:
            return b""
        if not self._asked.typed.background:
            return self._told([self._state("created", JobStatus.RUNNING)])
        return self._told(self._state(name, JobStatus.QUEUED) for name in ("created", "queued"))

    def say(self, heard: Heard) -> bytes:
        opening = self.opening()
        match heard.event:
            case Accepted(reply=form):
                self._form = form
                return opening + self._beginning()
            case Progress() as progress if self._asked.typed.return_progress:
                return opening + self._beginning() + self._progress(progress)
            case Tokens() as tokens:
                self._log_number = heard.number or 0
                return opening + self._beginning() + self._growth(tokens)
            case Finished() as finished:
                return opening + self._ending(finished, heard.number)
        return opening

    def end(self) -> bytes:
        return b""

    def failed(self, error: Exception) -> bytes:
        opening = self.opening()
        if isinstance(error, Ended | Rejected) and not isinstance(error, UnknownJob):
            status = _ENDINGS.get(type(error), JobStatus.FAILED)
            return opening + self._last("failed", self._body.without_answer(status, error))
        told = body_of(error, with_param=True)["error"]
        event = {"type": "error", "code": told["type"], "message": told["message"], "param": told["param"]}
        number = max(0, self._number, self._after)
        return opening + sse.notice("error", event | {"sequence_number": number, "error": told})

    def body(self, endings: Sequence[Finished]) -> Any:
        (ending,) = endings
        return self._body.ended(ending)

    def _state(self, name: str, status: JobStatus) -> Json:
        return {"type": f"response.{name}", "response": self._body.as_of(status)}

    def _beginning(self) -> bytes:
        if self._output is not None:
            return b""
        self._output = self._body.output(self._form)
        self._working_number = self._number + 1
        return self._told([self._state("in_progress", JobStatus.RUNNING)])

    def _progress(self, progress: Progress) -> bytes:
        if self._working_number <= self._after:
            return b""
        head = self._state("in_progress", JobStatus.RUNNING) | {"sequence_number": self._working_number}
        steps = self._report.push(progress.index, progress)
        return b"".join(sse.notice("response.in_progress", head | step) for step in steps)

    def _growth(self, tokens: Tokens) -> bytes:
        assert self._output is not None
        self._n_characters += len(tokens.text)
        self._n_entries += len(tokens.logprobs)
        events = self._output.push(tokens.text, tokens.logprobs)
        if events and tokens.timings is not None:
            events[-1]["timings"] = timings_json(tokens.timings)
        return self._told(events)

    def _ending(self, finished: Finished, log_number: int | None) -> bytes:
        is_lost = log_number is not None and log_number != self._log_number + 1
        if failure_of(finished) is not None:
            return self._last("failed", self._body.ended(finished), is_lost=is_lost)
        (answer,) = answers_of(finished)
        told = self._beginning()
        assert self._output is not None
        rest, entries = answer.text[self._n_characters :], answer.logprobs[self._n_entries :]
        told += self._told([*self._output.push(rest, entries), *self._output.close(is_cut=is_cut(answer))])
        response = self._body.ended(finished, self._output)
        return told + self._last(response["status"], response, is_lost=is_lost, timings=response["timings"])

    def _last(self, name: str, response: Json, *, is_lost: bool = False, **more: Any) -> bytes:
        """`is_lost`: the log was dropped, which goes before the record does. The answer has all that it said, but in
        other pieces: a number of then may be greater than that of the end now, which every reader is to have."""
        if is_lost:
            self._number = max(self._number, self._after)
        return self._told([{"type": f"response.{name}", "response": response, **more}])

    def _told(self, events: Iterable[Json]) -> bytes:
        """The events with their numbers, as far as the reader does not have them."""
        told = b""
        for event in events:
            self._number += 1
            if self._number > self._after:
                head = {"type": event["type"], "sequence_number": self._number}
                told += sse.notice(event["type"], head | event)
        return told
