"""What answers look like, as types, each with the keys that a client may rely on. Tests hold real answers against them.

More keys may come at any time, so none of these types is closed.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from api.problems import ErrorDetail, ParamErrorDetail
from shared.batches import BatchStatus
from shared.files import Purpose
from shared.jobs import JobStatus, Lane


class Timings(TypedDict):
    """In milliseconds. `prompt_n` and `cache_n` together are the tokens of the prompt."""

    queue_ms: float
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class CachedTokens(TypedDict):
    cached_tokens: int


class PromptUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class Usage(PromptUsage):
    completion_tokens: int
    prompt_tokens_details: CachedTokens


class Probability(TypedDict):
    id: int
    token: str
    bytes: list[int]
    logprob: NotRequired[float]
    prob: NotRequired[float]


class TokenProbability(Probability):
    """After sampling `prob` and `top_probs`, else `logprob` and `top_logprobs`. `content` and `probs` are of 2024."""

    top_logprobs: NotRequired[list[Probability]]
    top_probs: NotRequired[list[Probability]]
    content: NotRequired[str]
    probs: NotRequired[list[dict[str, Any]]]


class Completion(TypedDict, total=False):
    """With `response_fields`, these alone, and a path with slashes is a key of its own."""

    index: int
    content: str
    tokens: list[int]
    """Empty unless `return_tokens`."""
    id_slot: int
    stop: Literal[True]
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    """Of the whole prompt."""
    generation_settings: dict[str, Any]
    prompt: Any
    """As the model got it; with --compat 2024, as it was sent."""
    has_new_line: bool
    truncated: bool
    stop_type: Literal["eos", "word", "limit", "none"]
    stopped_eos: bool
    stopped_word: bool
    stopped_limit: bool
    stopping_word: str
    tokens_cached: int
    timings: Timings
    completion_probabilities: list[TokenProbability]


class CompletionPiece(TypedDict):
    """What comes before the last event of each answer, which is a `Completion` without its text."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False]
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: NotRequired[list[TokenProbability]]
    timings: NotRequired[Timings]
    prompt_progress: NotRequired[dict[str, Any]]


Completions = Completion | list[Completion]
"""A list when there are several prompts or choices."""

FinishReason = Literal["stop", "length", "tool_calls"]


class CalledFunction(TypedDict):
    name: str
    arguments: str
    """JSON."""


class Call(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[list[Call]]


class ChatLogprobs(TypedDict):
    content: list[TokenProbability]


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    finish_reason: FinishReason
    logprobs: NotRequired[ChatLogprobs | None]


class Head(TypedDict):
    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[str]
    """Told to who asked for one."""


class ChatCompletion(Head):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings


class ChatPieceChoice(TypedDict):
    index: int
    delta: dict[str, Any]
    finish_reason: FinishReason | None
    logprobs: NotRequired[ChatLogprobs | None]


class ChatPiece(Head):
    """`[DONE]` comes last."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatPieceChoice]
    usage: NotRequired[Usage]
    timings: NotRequired[Timings]


class TextLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]
    content: list[TokenProbability]


class TextChoice(TypedDict):
    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class TextCompletion(Head):
    """Pieces are the same, and `[DONE]` comes last."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: NotRequired[Usage]
    timings: NotRequired[Timings]


class EmbeddingItem(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    """A string is base64 of 32-bit floats."""
    encoding_format: NotRequired[Literal["base64"]]


class EmbeddingList(TypedDict):
    object: Literal["list"]
    model: str
    data: list[EmbeddingItem]
    usage: PromptUsage


class NativeEmbedding(TypedDict):
    index: int
    embedding: list[list[float]]
    """A row, or one for each token where the worker does not pool."""


Embeddings = EmbeddingList | list[NativeEmbedding]
"""llama.cpp's list when the inputs are in `content`."""


class JinaDocument(TypedDict):
    text: str


class JinaResult(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[JinaDocument]


class JinaRanking(TypedDict):
    object: Literal["list"]
    model: str
    results: list[JinaResult]
    usage: PromptUsage


class TeiResult(TypedDict):
    index: int
    score: float
    text: NotRequired[str]


Ranking = JinaRanking | list[TeiResult]
"""Jina's with `documents`, TEI's with `texts`; the best first."""


class TokenPiece(TypedDict):
    id: int
    piece: str | list[int]
    """Bytes where it is half a character."""


class Tokens(TypedDict):
    tokens: list[int] | list[TokenPiece]


class Content(TypedDict):
    content: str


class RenderedPrompt(TypedDict):
    prompt: str


class Status(TypedDict):
    status: str


class NextToken(TypedDict):
    has_next_token: bool
    has_new_line: bool
    n_remain: int
    n_decoded: int


class Slot(TypedDict):
    id: int
    id_task: int
    worker: str
    worker_slot: int
    model: str
    n_ctx: int
    speculative: bool
    is_processing: bool
    state: Literal[0, 1]
    params: NotRequired[dict[str, Any]]
    """How the text is made that is there, or was last."""
    next_token: list[NextToken]


class Health(Status):
    slots_idle: int
    slots_processing: int
    slots: NotRequired[list[Slot]]


class Illness(Status):
    """Why nothing would be worked on now."""

    error: NotRequired[ErrorDetail]
    progress: NotRequired[float]
    slots_idle: NotRequired[int]
    slots_processing: NotRequired[int]


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    aliases: list[str]
    tags: list[str]
    meta: dict[str, Any]


class ModelList(TypedDict):
    """OpenAI's `data` and, as in llama.cpp, ollama's `models`."""

    object: Literal["list"]
    data: list[Model]
    models: list[dict[str, Any]]


class Modalities(TypedDict):
    vision: bool
    video: bool
    audio: bool


class ServerProperties(TypedDict):
    default_generation_settings: dict[str, Any]
    total_slots: int
    """Of all workers of the model."""
    model_alias: str
    model_path: str
    modalities: Modalities
    media_marker: str
    chat_template: str
    chat_template_caps: dict[str, bool]
    bos_token: str
    eos_token: str
    build_info: str


class AdapterState(TypedDict):
    id: int
    path: str
    scale: float
    task_name: str
    prompt_prefix: str


class Success(TypedDict):
    success: Literal[True]


class SlotReport(TypedDict):
    """`n_saved` and `n_written`, `n_restored` and `n_read`, or `n_erased`."""

    id_slot: int
    filename: NotRequired[str]
    n_saved: NotRequired[int]
    n_written: NotRequired[int]
    n_restored: NotRequired[int]
    n_read: NotRequired[int]
    n_erased: NotRequired[int]
    timings: NotRequired[dict[str, float]]


class Job(TypedDict):
    """Times are Unix seconds."""

    id: str
    object: Literal["job"]
    status: JobStatus
    endpoint: str
    model: str
    priority: Lane
    created_at: int
    started_at: int | None
    ended_at: int | None
    deadline_at: int
    attempts: int
    position: int | None
    eta_s: float | None
    waiting_for: str | None
    usage: dict[str, Any] | None
    result: Any
    """What its endpoint would have answered; null until it has succeeded."""
    result_omitted: NotRequired[Literal[True]]
    """In a list, of a job whose result or body is large: ask for the job itself to have its `result` and `usage`."""
    error: ParamErrorDetail | None
    metadata: dict[str, str]


class JobList(TypedDict):
    object: Literal["list"]
    data: list[Job]
    first_id: str | None
    last_id: str | None
    has_more: bool


class File(TypedDict):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    """As it was given."""
    purpose: Purpose
    status: Literal["uploaded", "processed"]
    """`uploaded` while its batch still runs."""


class FileList(TypedDict):
    object: Literal["list"]
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(TypedDict):
    id: str
    object: Literal["file"]
    deleted: bool


class JobToken(TypedDict):
    """`event: token`. The last event is `done` or `error`, and has the job."""

    text: str
    index: int
    logprobs: NotRequired[list[TokenProbability]]
    timings: NotRequired[Timings]


JobEvent = JobToken | Job


class BatchFault(TypedDict):
    """Of a line that is no request, or of the whole file."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchFaults(TypedDict):
    object: Literal["list"]
    data: list[BatchFault]


class RequestCounts(TypedDict):
    """Lines whose records have been written; those that are no requests have failed."""

    total: int
    completed: int
    failed: int


class ReasoningTokens(TypedDict):
    reasoning_tokens: int


class BatchUsage(TypedDict):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class Batch(TypedDict):
    """OpenAI's, and from `partial_output_file_id` on ours. Times are Unix seconds."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    """That all lines name, if they do."""
    errors: BatchFaults | None
    """The first thousand."""
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
    partial_output_file_id: str | None
    """While it runs: the file as far as it has been written."""
    partial_error_file_id: str | None
    retry_of: str | None
    """The batch whose failed lines these are."""
    eta_s: float | None


class BatchList(TypedDict):
    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class LineResponse(TypedDict):
    status_code: int
    request_id: str | None
    body: Any
    """What the path would have answered."""


class LineError(TypedDict):
    code: str
    message: str


class BatchLine(TypedDict):
    """`event: line`, and a line of one of the two files: one of `response` and `error` is null."""

    id: str
    custom_id: str | None
    response: LineResponse | None
    error: LineError | None


class BatchProgress(TypedDict):
    """`event: progress`, which has no id. The last event is `done`, and has the batch."""

    status: BatchStatus
    request_counts: RequestCounts
    in_flight: int
    eta_s: float | None
    lines_per_s: float | None
    tokens_per_s: float | None
    """Of texts that are made."""
    usage: BatchUsage


BatchEvent = BatchLine | BatchProgress | Batch
