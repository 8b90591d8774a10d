"""The response object: what was asked, how it stands, and what came of it. The judge is the `openai` SDK's `Response`.

Everything in it is a function of the request and of the job's record, so that two reads are equal. Knows no stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.problems import problem_of
from api.schemas.answers import answers_of, failure_of, timings_json
from api.schemas.ask import Origin
from api.schemas.logprobs import chat_json
from api.schemas.responses.fields import Asked
from api.schemas.responses.items import Json
from api.schemas.responses.output import Output
from shared import errors
from shared.events import Answer, ChosenLogprob, Finished, ReplyForm, StopType
from shared.jobs import JobStatus, Lane

_PREFIX, _JOB_PREFIX = "resp_", "job_"

_STATUSES = {
    JobStatus.QUEUED: "queued",
    JobStatus.RUNNING: "in_progress",
    JobStatus.FAILED: "failed",
    JobStatus.EXPIRED: "failed",
    JobStatus.CANCELLED: "cancelled",
}


def response_id_of(job_id: str) -> str:
    return _PREFIX + job_id.removeprefix(_JOB_PREFIX)


def job_id_of(response_id: str) -> str:
    """The job that a response is; no job's of what is no response's id."""
    return _JOB_PREFIX + response_id.removeprefix(_PREFIX) if response_id.startswith(_PREFIX) else ""


def is_cut(answer: Answer) -> bool:
    return answer.stop_type is StopType.LIMIT


class ResponseBody:
    """One response, in all its states."""

    def __init__(self, origin: Origin, asked: Asked) -> None:
        self._origin = origin
        self._asked = asked

    def as_of(self, status: JobStatus) -> Json:
        """While it has not ended."""
        return self._body(_STATUSES[status])

    def ended(self, finished: Finished, output: Output | None = None) -> Json:
        """`output`: what the answer says, if it has been read already."""
        if (failure := failure_of(finished)) is not None:
            return self.without_answer(JobStatus(finished.status), failure)
        (answer,) = answers_of(finished)
        if output is None:
            output = self.output(answer.reply)
            output.push(answer.text, answer.logprobs)
            output.close(is_cut=is_cut(answer))
        reason = {"reason": "max_output_tokens"} if is_cut(answer) else None
        return self._body(
            "completed" if reason is None else "incomplete",
            completed_at=_ended_at(self._origin, answer) if reason is None else None,
            incomplete_details=reason,
            output=output.items,
            usage=_usage(answer, output.n_reasoning),
            timings=timings_json(answer.timings),
        )

    def without_answer(self, status: JobStatus, failure: errors.SlotstreamError) -> Json:
        """It failed, or was cancelled, and what had been said is not told again."""
        return self._body(_STATUSES[status], error=None if status is JobStatus.CANCELLED else _error(failure))

    def output(self, form: ReplyForm | None) -> Output:
        """Of a reply of this form, nothing of which has been read yet."""
        return Output(
            self._origin.job_id,
            form,
            splits_reasoning=self._asked.typed.splits_reasoning,
            probabilities=self._probabilities,
        )

    def _probabilities(self, entries: Sequence[ChosenLogprob]) -> list[Json]:
        told: list[Json] = chat_json(entries, is_post_sampling=self._asked.request.post_sampling_probs)["content"]
        return told

    def _body(self, status: str, **more: Any) -> Json:
        typed, request = self._asked.typed, self._asked.request
        unset: Json = {"error": None, "incomplete_details": None, "output": [], "usage": None, "completed_at": None}
        return {
            "id": response_id_of(self._origin.job_id),
            "object": "response",
            "created_at": self._origin.created,
            "status": status,
            **unset,
            "background": typed.background,
            "conversation": None,
            "instructions": typed.instructions,
            "max_output_tokens": typed.limit() if typed.limit() >= 0 else None,
            "max_tool_calls": typed.max_tool_calls,
            "metadata": typed.metadata,
            "model": self._origin.model,
            "parallel_tool_calls": typed.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt": None,
            "prompt_cache_key": typed.prompt_cache_key,
            "reasoning": typed.reasoning.model_dump(),
            "safety_identifier": typed.safety_identifier,
            "service_tier": "flex" if typed.lane is Lane.BULK else "default",
            "store": typed.store,
            "temperature": request.sampling.temperature,
            "text": _text(self._asked),
            "tool_choice": typed.tool_choice,
            "tools": [{"parameters": None, "strict": None} | tool for tool in typed.tools],
            "top_logprobs": typed.top_logprobs or 0,
            "top_p": request.sampling.top_p,
            "truncation": typed.truncation,
            "user": typed.user,
            **more,
        }


def _text(asked: Asked) -> Json:
    text = asked.typed.text
    format = {name: value for name, value in text.format.model_dump(by_alias=True).items() if value is not None}
    return {"format": format, "verbosity": text.verbosity}


def _usage(answer: Answer, n_reasoning: int) -> Json:
    """Nobody keeps which token wrote what: those of reasoning are an estimate, by its share of the text."""
    output_tokens = answer.timings.predicted_n
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.timings.cache_n, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": round(output_tokens * n_reasoning / max(1, len(answer.text)))},
        "total_tokens": answer.prompt_tokens + output_tokens,
    }


def _ended_at(origin: Origin, answer: Answer) -> int:
    """By what the job took: its record would say the same, but whoever follows its log does not have it."""
    timings = answer.timings
    return origin.created + int((timings.queue_ms + timings.prompt_ms + timings.predicted_ms) / 1000)


def _error(failure: errors.SlotstreamError) -> Json:
    """OpenAI has few codes; ours of the same trouble stands beside it."""
    code = "invalid_prompt" if isinstance(failure, errors.Rejected) else "server_error"
    return {"code": code, "message": failure.message, "param": failure.param, "type": problem_of(failure).type}
