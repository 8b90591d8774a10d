"""llama.cpp's own `/completion` and `/infill`: their fields, and their answers, whole and in pieces.

Knows neither the model's vocabulary nor who is asked: token ids beyond the vocabulary are refused by the worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from api import sse
from api.problems import body_of
from api.schemas.answers import answers_of, timings_json
from api.schemas.ask import Ask, Heard, Origin, Shape
from api.schemas.completion import PromptFields, completion_of
from api.schemas.constraints import constraint_of
from api.schemas.final import final_json
from api.schemas.generation import GenerationFields
from api.schemas.later import ALWAYS, LATER, LIST, refuse_later
from api.schemas.logprobs import native_json
from api.schemas.pictures import Album, PromptPictures
from api.schemas.progress import ProgressReport
from api.schemas.prompts import OnePrompt, prompt_of
from api.schemas.sampling import Whole
from api.schemas.strict import ClientFields, by_hand, read
from shared.events import Accepted, Answer, ChosenLogprob, Finished, Progress, Tokens
from shared.jobs import Completion, Infill

UNNAMED_FILE = "tmp"
"""What llama.cpp calls a piece of context whose file has no name."""


class NativeFields(GenerationFields):
    logprobs: Whole = 0
    return_tokens: bool = False
    response_fields: list[str] = []

    @property
    def alternatives(self) -> int | None:
        """`logprobs` is another name for the same, asked second."""
        return super().alternatives or (self.logprobs if self.logprobs > 0 else None)


class CompletionFields(NativeFields, PromptFields):
    pass


class ExtraFields(ClientFields):
    """A piece of context from another file."""

    text: str
    filename: str = UNNAMED_FILE


class InfillFields(NativeFields):
    input_prefix: Annotated[Any, by_hand(OnePrompt)]
    input_suffix: Annotated[Any, by_hand(OnePrompt)]
    input_extra: list[ExtraFields] = []
    prompt: str = ""


class CompletionShape:
    """Objects with `stop`: in a stream false until the last one of each answer, which has no text of its own."""

    framing = sse.FRAMING

    def __init__(self, origin: Origin, fields: NativeFields, request: Completion | Infill) -> None:
        self._origin = origin
        self._fields = fields
        self._request = request
        self._prompt_tokens: dict[int, int] = {}
        """By the place of the job."""
        self._n_predicted: defaultdict[int, int] = defaultdict(int)
        """By the index of the answer."""
        self._report = ProgressReport(has_timings=request.timings_per_token)

    def say(self, heard: Heard) -> bytes:
        match heard.event:
            case Accepted(prompt_tokens=prompt_tokens):
                self._prompt_tokens[heard.place] = prompt_tokens
            case Progress() as progress if self._fields.return_progress:
                steps = self._report.push(self._index(heard.place, progress.index), progress)
                chunk = self._chunk(heard.place, Tokens(index=progress.index, ids=(), text=""))
                return b"".join(sse.data(chunk | step) for step in steps)
            case Tokens() as tokens:
                return sse.data(self._chunk(heard.place, tokens))
            case Finished() as finished:
                return b"".join(sse.data(self._wanted(heard.place, answer)) for answer in answers_of(finished))
        return b""

    def end(self) -> bytes:
        return b""

    def failed(self, error: Exception) -> bytes:
        return sse.data(body_of(error))

    def body(self, endings: Sequence[Finished]) -> Any:
        finals = [self._wanted(place, answer) for place, ending in enumerate(endings) for answer in answers_of(ending)]
        return finals[0] if len(finals) == 1 else finals

    def _index(self, place: int, index: int) -> int:
        """Among the answers of all jobs."""
        return place * self._request.n + index

    def _chunk(self, place: int, tokens: Tokens) -> dict[str, Any]:
        index = self._index(place, tokens.index)
        self._n_predicted[index] += len(tokens.ids)
        chunk: dict[str, Any] = {
            "index": index,
            "content": tokens.text,
            "tokens": list(tokens.ids),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._n_predicted[index],
            "tokens_evaluated": self._prompt_tokens.get(place, 0),
        }
        if tokens.logprobs:
            chunk["completion_probabilities"] = self._probabilities(tokens.logprobs)
        if tokens.timings is not None:
            chunk["timings"] = timings_json(tokens.timings)
        return chunk

    def _wanted(self, place: int, answer: Answer) -> dict[str, Any]:
        final, paths = self._final(place, answer), self._fields.response_fields
        return _picked(final, paths) if paths else final

    def _final(self, place: int, answer: Answer) -> dict[str, Any]:
        is_stream = self._fields.stream
        final = final_json(
            self._request,
            answer,
            index=self._index(place, answer.index),
            model=self._origin.model,
            is_stream=is_stream,
            ids=answer.ids if self._fields.return_tokens and not is_stream else (),
        )
        if self._request.wants_logprobs and not is_stream:
            final["completion_probabilities"] = self._probabilities(answer.logprobs)
        return final

    def _probabilities(self, entries: Sequence[ChosenLogprob]) -> list[dict[str, Any]]:
        return native_json(entries, is_post_sampling=self._request.post_sampling_probs)


def _picked(final: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Only the wanted fields; a path with slashes stays its own flat key, and a missing one is left out."""
    picked = {}
    for path in paths:
        value: Any = final
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            picked[path] = value
    return picked


MakesShape = Callable[[Origin, NativeFields, Completion | Infill], Shape]
"""How the answer is to look: today's shape unless another dialect has its own."""


def completion(fields: dict[str, Any], shape: MakesShape = CompletionShape) -> Ask:
    """The job of a `/completion` body. Raises InvalidRequest or NotSupported."""
    typed = read(CompletionFields, fields)
    refuse_later(fields, LATER)
    pictures = PromptPictures(fields)
    return _ask(typed, completion_of(typed, fields, pictures), pictures.album, shape)


def infill(fields: dict[str, Any], shape: MakesShape = CompletionShape) -> Ask:
    """The job of an `/infill` body. Raises InvalidRequest or NotSupported; whether the model can, its worker knows."""
    typed = read(InfillFields, fields)
    refuse_later(fields, LATER | {"system_prompt": ALWAYS, "image_data": LIST})
    extra = tuple((piece.filename, piece.text) for piece in typed.input_extra)
    request = Infill(
        prefix=prompt_of("input_prefix", typed.input_prefix),
        suffix=prompt_of("input_suffix", typed.input_suffix),
        prompt=typed.prompt,
        extra=extra,
        constraint=constraint_of(fields),
        **typed.generation(),
    )
    return _ask(typed, request, Album(), shape)


def _ask(typed: NativeFields, request: Completion | Infill, album: Album, shape: MakesShape) -> Ask:
    return Ask(
        request=request,
        shape=lambda origin: shape(origin, typed, request),
        model=typed.model,
        lane=typed.lane,
        is_stream=typed.stream,
        keep_alive_s=typed.keep_alive_s,
        album=album,
    )
