"""What a client asked for, on its way from the API to a worker. Knows no HTTP and no Redis.

A `Job` is immutable; what happens to it (status, attempts, result) is a `JobRecord`, which only the bus writes.
A request is one of a few kinds, told apart by `kind`. Limits that need no model are checked here, once.
"""

from __future__ import annotations

import secrets
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from shared.events import Failure, Finished
from shared.wire import Wire


class Lane(StrEnum):
    """How a job is scheduled: somebody waits for it, or it fills idle slots."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_ended(self) -> bool:
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


Prompt = str | tuple[int | str, ...]
"""Text, or token ids and pieces of text in any mix."""


class Sampling(Wire):
    """How the next token is chosen. Names, defaults and meaning are llama.cpp's; order is the default chain's."""

    seed: int | None = Field(None, ge=0, le=0xFFFFFFFF)
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    min_keep: int = Field(0, ge=0)
    repeat_last_n: int = Field(64, ge=-1)
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float | None], ...] = ()
    """(token id, bias); None bans the token."""


class Generation(Wire):
    """What every generating request has."""

    n_predict: int = Field(-1, ge=-1)
    """Tokens to generate at most; -1 to the end of the context, 0 evaluates the prompt only."""
    stop: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    cache_prompt: bool = True


class Completion(Generation):
    kind: Literal["completion"] = "completion"
    prompt: Prompt


class Chat(Generation):
    """Messages, rendered by the worker with the template of its model."""

    kind: Literal["chat"] = "chat"
    messages: tuple[dict[str, Any], ...]
    """Checked for shape by the API; content is a string or None."""
    add_generation_prompt: bool = True
    template_kwargs: dict[str, Any] = {}


class Embedding(Wire):
    kind: Literal["embedding"] = "embedding"
    inputs: tuple[Prompt, ...]
    normalize: bool = True


class Tokenize(Wire):
    """Token ids of a prompt, as the model's vocabulary has them."""

    kind: Literal["tokenize"] = "tokenize"
    content: Prompt
    add_special: bool = False
    parse_special: bool = True


class Detokenize(Wire):
    kind: Literal["detokenize"] = "detokenize"
    tokens: tuple[int, ...]


class ApplyTemplate(Wire):
    """The prompt that a chat becomes."""

    kind: Literal["apply_template"] = "apply_template"
    chat: Chat


QuickRequest = Tokenize | Detokenize | ApplyTemplate
"""What is answered in a moment and needs no slot."""

Request = Annotated[Completion | Chat | Embedding | Tokenize | Detokenize | ApplyTemplate, Field(discriminator="kind")]


class Job(Wire):
    id: str
    model: str
    request: Request
    lane: Lane = Lane.INTERACTIVE
    tenant: str = "default"
    deadline_s: float = Field(3600.0, gt=0)
    """Seconds from enqueueing, on the bus's clock, after which the job is ended unfinished."""
    endpoint: str = "/completion"
    """The path whose answer the result has; read by the API only."""
    is_durable: bool = False
    """Made to outlive its maker: kept and told of when it ends. Else it dies with the request that waits for it."""
    body: str | None = None
    """The client's JSON of a durable job, from which its answer is rendered later; never sent to a worker."""
    metadata: dict[str, str] = Field(default_factory=dict)  # a default of its own would be deep-copied for each job

    @property
    def is_quick(self) -> bool:
        return isinstance(self.request, QuickRequest)

    @property
    def queue(self) -> str:
        """Which line it stands in: its lane's, or that of what needs no slot."""
        return "quick" if self.is_quick else self.lane.value


class JobRecord(Wire):
    """A job as the bus has it. Times are Unix seconds on the bus's clock."""

    id: str
    model: str
    endpoint: str
    lane: Lane
    tenant: str
    status: JobStatus
    attempts: int = 0
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    deadline_at: float
    position: int | None = None
    """1 is next; None when it runs or has ended."""
    eta_s: float | None = None
    body: str | None = None
    metadata: dict[str, str] = {}
    finished: Finished | None = None

    @property
    def failure(self) -> Failure | None:
        return self.finished.failure if self.finished else None


VERSION = 1
"""Of jobs as they travel. Raise it when a request means something that an older worker would misread or refuse: such
jobs wait for newer workers. A new field that may be dropped needs no new version."""


def new_job_id(partition: int = 0) -> str:
    """An unguessable id that names its partition: `job_<partition>_<24 hex>`."""
    return f"job_{partition}_{secrets.token_hex(12)}"


@lru_cache(maxsize=4096)
def partition_of(job_id: str) -> int:
    """The partition in a job's id. ValueError when it is no id of ours."""
    prefix, partition, rest = job_id.split("_", 2)
    if prefix != "job" or not partition.isdecimal() or len(partition) > 4 or not rest.isalnum():
        raise ValueError(f"not a job id: {job_id!r}")
    return int(partition)
