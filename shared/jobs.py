"""What a client asked for, on its way from the API to a worker. Knows no HTTP and no Redis.

A `Job` is immutable; what happens to it (status, attempts, result) is a `JobRecord`, which only the bus writes.
A request is one of a few kinds, told apart by `kind`. Limits that need no model are checked here, once.
"""

from __future__ import annotations

import secrets
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from shared.events import Failure, Finished
from shared.webhooks import Webhook
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


class Compat(StrEnum):
    """Whose clients an answer is shaped for."""

    TODAY = "today"
    OF_2024 = "2024"  # llama.cpp's server of May 2024


Prompt = str | tuple[int | str, ...]
"""Text, or token ids and pieces of text in any mix."""


class SamplerKind(StrEnum):
    """A step of the chain that narrows or reshapes what can be chosen; llama.cpp's names, and the seed's `tfs_z`."""

    PENALTIES = "penalties"
    DRY = "dry"
    TOP_N_SIGMA = "top_n_sigma"
    TOP_K = "top_k"
    TYPICAL_P = "typ_p"
    TOP_P = "top_p"
    MIN_P = "min_p"
    XTC = "xtc"
    TEMPERATURE = "temperature"
    TAIL_FREE = "tfs_z"
    ADAPTIVE_P = "adaptive_p"


DEFAULT_SAMPLERS = (
    SamplerKind.PENALTIES,
    SamplerKind.DRY,
    SamplerKind.TOP_N_SIGMA,
    SamplerKind.TOP_K,
    SamplerKind.TYPICAL_P,
    SamplerKind.TOP_P,
    SamplerKind.MIN_P,
    SamplerKind.XTC,
    SamplerKind.TEMPERATURE,
)


class Sampling(Wire):
    """How the next token is chosen. Names, defaults and meaning are llama.cpp's."""

    seed: int | None = Field(None, ge=0, le=0xFFFFFFFF)
    samplers: tuple[SamplerKind, ...] = DEFAULT_SAMPLERS
    """In this order; a step that is not named is left out, as are all of them under mirostat."""
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    tfs_z: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    min_keep: int = Field(0, ge=0)
    repeat_last_n: int = Field(64, ge=-1)
    """Tokens that the penalties look back on; -1 is the context's size."""
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalize_nl: bool = True
    penalty_prompt: Prompt | None = None
    """What the penalties look back on at first, instead of the prompt."""
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = Field(2, ge=0)
    dry_penalty_last_n: int = Field(64, ge=-1)
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int | str, float | None], ...] = ()
    """(token id, or a text whose tokens are all meant; bias); None bans the token."""


MAX_CHOICES = 128
"""Of one prompt."""
MAX_SEQUENCES = 2048
"""Of one job: as many as OpenAI takes prompts."""


class Constraint(Wire):
    """What the text must be a sentence of."""

    syntax: Literal["gbnf", "json_schema", "regex"]
    text: str
    """The grammar or pattern; of a schema its JSON."""
    field: str = ""
    """What the client calls it."""

    @property
    def name(self) -> str:
        """For errors."""
        return self.field or self.syntax


MAX_SCALE = 100.0
"""Either way. Adapters are made for 1. What is far beyond overflows in the model, and what is no number spreads through
the cache, so that everybody's text has to be computed again."""


def no_adapter(id: int, n_adapters: int) -> str:
    """Why a worker with so many adapters does not have that one."""
    if not n_adapters:
        return "this worker has no adapters (`--lora` loads them)"
    return f"there is no adapter {id}: there {'is' if n_adapters == 1 else 'are'} {n_adapters}, from 0 on"


class Adapter(Wire):
    """How much of a LoRA adapter is added to the model."""

    id: int = Field(ge=0)
    """Its place among those that the worker has loaded."""
    scale: float = Field(ge=-MAX_SCALE, le=MAX_SCALE)


class Image(Wire):
    """A picture as the client sent it."""

    data: str
    """The bytes of its file in base64: PNG, JPEG and what else is read, checked for size by the API."""


class Media(Wire):
    """What a prompt has besides text."""

    mark: str = Field(min_length=8)
    """Stands in the prompts or messages for the next of `images`, once for each. Made for this request, of nothing that
    its texts contain: no client can write it."""
    images: tuple[Image, ...] = Field(min_length=1)


class Truncation(StrEnum):
    """How a prompt that does not fit is cut behind the tokens that are kept."""

    BLOCKS = "blocks"  # llama.cpp of 2024: whole halves of what is not kept go, so there is room to generate
    TAIL = "tail"  # ollama's runner: as many go as do not fit
    MESSAGES = "messages"  # ollama's chat: whole messages go, oldest first, but no system message and not the last one


class Generation(Wire):
    """What every generating request has."""

    n_predict: int = Field(-1, ge=-1)
    """Tokens to generate at most; -1 to the end of the context, 0 evaluates the prompt only."""
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    """Choices for each prompt."""
    stop: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    constraint: Constraint | None = None
    cache_prompt: bool = True
    n_keep: int = Field(0, ge=-1)
    """Tokens at the beginning that neither truncation nor a shift takes away; -1 keeps the whole prompt."""
    n_discard: int = Field(0, ge=0)
    """Tokens behind the kept ones that a context shift drops; 0 is half of them."""
    truncate: Truncation | None = None
    """What to do with a prompt that does not fit; None refuses it."""
    shift: bool | None = None
    """Whether a full context is shifted or ends the text; None leaves it to the worker."""
    t_max_predict_ms: int = Field(-1, ge=-1)
    """Once a line was begun, no longer than this from the first token on; -1 for no limit, as is 0."""
    n_indent: int = Field(0, ge=0)
    """A line that is less indented than this ends the text."""
    n_probs: int = Field(0, ge=0)
    """Likeliest alternatives that are told with each token."""
    has_logprobs: bool = False
    """Whether each token's own is told, also when `n_probs` is 0."""
    post_sampling_probs: bool = False
    """Whether they are those after the sampler chain."""
    timings_per_token: bool = False
    media: Media | None = None
    """Images of its prompts; those of several come one after the other."""
    lora: tuple[Adapter, ...] | None = None
    """Scales of the worker's adapters, 0 for those that are not named; None leaves them to the worker."""
    id_slot: int = Field(-1, ge=-1)
    """The slot to run in, counted modulo those of the worker; -1 for any."""
    n_ctx: int | None = Field(None, ge=1)
    """Use no more of the slot's context than this."""
    is_capped: bool = False
    """Whether the worker's limit for requests without one holds for this one too, whatever its own is."""

    @property
    def n_prompts(self) -> int:
        return 1

    @property
    def n_sequences(self) -> int:
        """Choice `c` of prompt `p` has the index `p * n + c`."""
        return self.n_prompts * self.n

    @property
    def wants_logprobs(self) -> bool:
        return self.has_logprobs or self.n_probs > 0


class Completion(Generation):
    kind: Literal["completion"] = "completion"
    prompts: tuple[Prompt, ...] = Field(min_length=1)
    system_prompt: Prompt | None = None
    """Stands before each prompt; None is the worker's own."""

    @model_validator(mode="before")
    @classmethod
    def _read_version_1(cls, fields: Any) -> Any:
        """Its one prompt had a name of its own, and jobs of that time may still be queued."""
        if isinstance(fields, dict) and "prompts" not in fields and "prompt" in fields:
            return {**fields, "prompts": (fields["prompt"],)}
        return fields

    @property
    def n_prompts(self) -> int:
        return len(self.prompts)

    @model_validator(mode="after")
    def _check_n_sequences(self) -> Self:
        if self.n_sequences > MAX_SEQUENCES:
            raise ValueError(f"{self.n_sequences} choices of all prompts are more than the {MAX_SEQUENCES} of one job")
        return self


class Infill(Generation):
    """What stands between two texts; refused by a model that was not made for it."""

    kind: Literal["infill"] = "infill"
    prefix: Prompt = ""
    suffix: Prompt = ""
    prompt: Prompt = ""
    """What is written already, at the cursor."""
    extra: tuple[tuple[str, str], ...] = ()
    """Other files, as (name, text)."""


class ToolUse(Wire):
    """Functions that the model may call instead of answering, or has to."""

    tools: tuple[dict[str, Any], ...] = Field(min_length=1)
    """As OpenAI describes them, `{"type": "function", "function": {…}}`; checked for shape by the API."""
    must_call: bool = False
    name: str = ""
    """The only one that may be called; empty for any of them."""
    strict: tuple[str, ...] = ()
    """Names of those whose arguments must satisfy all of their schemas; of others' as much as a grammar can keep."""
    is_parallel: bool | None = None
    """Whether one answer may call several times; None: if the model was taught to. Others rarely know when to stop."""


class Chat(Generation):
    """Messages, rendered by the worker with the template of its model."""

    kind: Literal["chat"] = "chat"
    messages: tuple[dict[str, Any], ...]
    """Checked for shape by the API; content is a string or None."""
    add_generation_prompt: bool = True
    continues_last: bool = False
    """The last message is the assistant's and not at its end: what is generated goes on with it."""
    template_kwargs: dict[str, Any] = {}
    tool_use: ToolUse | None = None


MAX_NORM = 100


class Embedding(Wire):
    kind: Literal["embedding"] = "embedding"
    inputs: tuple[Prompt, ...]
    norm: int = Field(2, ge=-1, le=MAX_NORM)
    """What each vector is divided by: -1 nothing, 0 so that its greatest value is 32760, else its p-norm: 1 taxicab, 2
    Euclidean. llama.cpp's `embd_normalize`. Vectors of single tokens are left as they are."""
    is_pooled: bool = False
    """One vector for each input is wanted: a worker that does not pool refuses."""
    truncates: bool = False
    """An input that does not fit loses its end; else it is refused."""

    @model_validator(mode="before")
    @classmethod
    def _read_version_2(cls, fields: Any) -> Any:
        """It knew whether to normalize, and one way to."""
        if isinstance(fields, dict) and "norm" not in fields and "normalize" in fields:
            return {**fields, "norm": 2 if fields["normalize"] else -1}
        return fields


class Rerank(Wire):
    """How well each document answers the query, as a model judges that was made for it."""

    kind: Literal["rerank"] = "rerank"
    query: str
    documents: tuple[str, ...] = Field(min_length=1)

    @property
    def inputs(self) -> tuple[Prompt, ...]:
        return tuple(self.query + document for document in self.documents)


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


class GetProperties(Wire):
    """What the worker can tell of its model and of itself, beyond the card that all may read."""

    kind: Literal["get_properties"] = "get_properties"


class SlotAction(Wire):
    """Keeps what a slot has in the cache in a file of its worker, brings it back, or forgets it."""

    kind: Literal["slot_action"] = "slot_action"
    action: Literal["save", "restore", "erase"]
    slot: int = Field(ge=0)
    """Counted modulo those of the worker."""
    filename: str = ""
    """In the worker's folder."""


class SetAdapters(Wire):
    """What requests get that name no adapters, from now on."""

    kind: Literal["set_adapters"] = "set_adapters"
    adapters: tuple[Adapter, ...]
    """0 for those that are not named."""
    set_at: float = 0.0
    """Unix seconds, the same for all workers that are asked: two changes at once may come to them in different orders,
    and the later one is to count everywhere. 0: when it comes."""


InputRequest = Embedding | Rerank
"""What has a context of its own beside generation, and needs no slot."""

QuickRequest = Tokenize | Detokenize | ApplyTemplate | GetProperties | SlotAction | SetAdapters
"""What is answered in a moment and needs no slot to itself."""

Request = Annotated[
    Completion
    | Infill
    | Chat
    | Embedding
    | Rerank
    | Tokenize
    | Detokenize
    | ApplyTemplate
    | GetProperties
    | SlotAction
    | SetAdapters,
    Field(discriminator="kind"),
]


PLACE_CHARACTERS = 256
"""Of an input: a decode of some hundred tokens costs what several short ones do."""


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
    compat: Compat = Compat.TODAY
    """In whose shape; read by the API only, too."""
    is_durable: bool = False
    """Made to outlive its maker: kept and told of when it ends. Else it dies with the request that waits for it, unless
    it is of a batch."""
    batch: str | None = None
    """The batch that it is a line of: it ends into that batch, which collects and forgets it."""
    webhook: Webhook | None = Field(None, exclude=True)
    """Who else is told of its end; kept beside it, and never sent to a worker."""
    body: str | None = None
    """The client's JSON of a durable job, from which its answer is rendered later; never sent to a worker."""
    metadata: dict[str, str] = Field(default_factory=dict)  # a default of its own would be deep-copied for each job

    @property
    def is_quick(self) -> bool:
        return isinstance(self.request, QuickRequest)

    @property
    def has_inputs(self) -> bool:
        return isinstance(self.request, InputRequest)

    @property
    def is_bound(self) -> bool:
        """Only the worker that it was sent to can do it: it means that one's slots, files or adapters."""
        return isinstance(self.request, SlotAction | SetAdapters)

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar has to be made for it."""
        request = self.request
        has_tools = isinstance(request, Chat) and request.tool_use is not None
        return has_tools or (isinstance(request, Generation) and request.constraint is not None)

    @property
    def has_images(self) -> bool:
        return isinstance(self.request, Generation) and self.request.media is not None

    @property
    def n_slots(self) -> int:
        """How many it would like to have at once."""
        return self.request.n_sequences if isinstance(self.request, Generation) else 1

    @property
    def n_places(self) -> int:
        """What it takes of the room for its line: slots, or places of inputs, of which a long one has several."""
        if not isinstance(self.request, InputRequest):
            return self.n_slots
        return max(1, sum(1 + _length(text) // PLACE_CHARACTERS for text in self.request.inputs))

    @property
    def version(self) -> int:
        """The oldest kind of worker that reads it as it is meant."""
        if self.batch is not None:
            return VERSION_OF_BATCHES
        match self.request:
            case GetProperties() | Embedding(truncates=True):
                return 4
            case Chat() as chat if chat.tool_use is not None or chat.continues_last:
                return 4
            case Generation() as request if request.n_ctx is not None or request.truncate is Truncation.MESSAGES:
                return 4
            case ApplyTemplate(chat=chat) if chat.tool_use is not None or chat.continues_last:
                return 4
            case Embedding() | Rerank() | SlotAction() | SetAdapters():
                return 3
            case Generation(media=None, lora=None, id_slot=-1):
                return 2
            case Generation():
                return 3
        return 2

    @property
    def queue(self) -> str:
        """Which line it stands in: its lane's, or one of what needs no slot: quick work, people's inputs, bulk's."""
        if self.has_inputs:
            return "inputs" if self.lane is Lane.INTERACTIVE else "bulk_inputs"
        return "quick" if self.is_quick else self.lane.value


class JobRecord(Wire):
    """A job as the bus has it. Times are Unix seconds on the bus's clock."""

    id: str
    model: str
    endpoint: str
    compat: Compat = Compat.TODAY
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
    webhook: Webhook | None = Field(None, exclude=True)
    """Its secret is in no answer."""
    finished: Finished | None = None
    is_brief: bool = False
    """Its `body` or `finished`, or both, were left out, since they are large."""

    @property
    def failure(self) -> Failure | None:
        return self.finished.failure if self.finished else None


VERSION_OF_BATCHES = 5
"""Of a line of a batch, which an older worker would end as if nobody had to collect it."""

VERSION_OF_REFERENCES = 5
"""Of a job whose request lies elsewhere, with a reference in its place."""

VERSION = 5
"""Of jobs as they travel; a job may be of an older one (`Job.version`). Raise it when a request means something that
an older worker would misread or refuse: such jobs wait for newer workers. A new field that may be dropped needs no new
version. The other way round there is no waiting: what older versions have queued must be readable for good."""


def _length(text: Prompt) -> int:
    """In characters; a token stands for about four."""
    return len(text) if isinstance(text, str) else sum(4 if isinstance(piece, int) else len(piece) for piece in text)


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
