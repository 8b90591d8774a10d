"""From a claimed job to tasks for the engine: template, tokens, limits. Runs off the decode thread.

What only a worker can know is checked here, before any cell is spent: whether ids are in the vocabulary, whether the
prompt fits. Nothing a client sends reaches llama.cpp unchecked.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shared.bus import Claimed
from shared.errors import InvalidRequest, NotSupported, PromptTooLong
from shared.events import Accepted, Text, TokenIds
from shared.jobs import ApplyTemplate, Chat, Completion, Detokenize, Embedding, Infill, Job, Prompt, Tokenize
from worker.chat import ChatTemplate
from worker.engine import EmbedTask, GenerateTask, Model, SequenceKey


@dataclass(frozen=True, slots=True)
class Intake:
    """What a job becomes: the yes that its client hears, and its tasks, or the answer at once."""

    accepted: Accepted
    tasks: tuple[GenerateTask | EmbedTask, ...] = ()
    answer: TokenIds | Text | None = None
    """Of what needs no engine."""

    @property
    def n_parts(self) -> int:
        """Parts that its ending will have."""
        return len(self.tasks) or 1


class Registrar:
    """Turns claimed jobs into tasks for one model. Thread-safe: the model and the template are only read."""

    def __init__(self, model: Model, *, n_ctx: int, n_ubatch: int) -> None:
        """`n_ctx` is the context of one slot in tokens, `n_ubatch` the longest input of an embedding."""
        self._model = model
        self._n_ctx = n_ctx
        self._n_ubatch = n_ubatch
        facts = model.facts
        self._n_vocab = facts.n_vocab
        self._bos = facts.bos_token if facts.adds_bos else ""
        self._template = ChatTemplate(facts.chat_template, bos_token=facts.bos_token, eos_token=facts.eos_token)

    def admit(self, claimed: Claimed, produced: Mapping[int, tuple[int, ...]]) -> Intake:
        """Tasks for `claimed`; `produced` holds, by sequence, the token ids that earlier attempts put in the log.

        Raises Rejected when the job can never run here: InvalidRequest, PromptTooLong.
        """
        job = claimed.job
        match job.request:
            case Embedding():
                return self._embedding(claimed, job.request)
            case Completion() | Chat():
                return self._generation(claimed, job.request, produced)
            case Infill():
                raise NotSupported("Infill is not supported by this model")
            case Tokenize():
                return self._tokenized(job.request)
            case Detokenize(tokens=tokens):
                if not self._model.has_tokens(tokens):
                    raise InvalidRequest("a token id is outside the vocabulary", param="tokens")
                return Intake(self._accepted(tokens), answer=Text(text=self._model.detokenize(tokens)))
            case ApplyTemplate(chat=chat):
                return Intake(self._accepted(()), answer=Text(text=self._template.render(chat)))

    def _accepted(self, tokens: Sequence[int]) -> Accepted:
        return Accepted(prompt_tokens=len(tokens), n_ctx=self._n_ctx)

    def _tokenized(self, request: Tokenize) -> Intake:
        ids = self._tokens(
            request.content, "content", add_special=request.add_special, parse_special=request.parse_special
        )
        pieces = [self._model.token_bytes(token, special=True) for token in ids]
        return Intake(self._accepted(ids), answer=TokenIds.of(ids, pieces))

    def _generation(
        self, claimed: Claimed, request: Completion | Chat, produced: Mapping[int, tuple[int, ...]]
    ) -> Intake:
        self._check_may_fit(request)
        prompt = self._chat(request) if isinstance(request, Chat) else self._tokens(request.prompts[0], "prompt")
        self._check_fits(prompt)
        for token, _ in request.sampling.logit_bias:
            if isinstance(token, str) or not 0 <= token < self._n_vocab:
                raise InvalidRequest(f"token {token} is not in the vocabulary", param="logit_bias")
        task = GenerateTask(
            key=SequenceKey(claimed.job.id, 0, claimed.lease.mark),
            prompt=prompt,
            request=request,
            seed=_seed(claimed.job, 0) if request.sampling.seed is None else request.sampling.seed,
            lane=claimed.job.lane,
            produced=produced.get(0, ()),
            queue_ms=max(0.0, claimed.now - claimed.enqueued_at) * 1e3,
            deadline=_deadline(claimed),
        )
        return Intake(self._accepted(prompt), (task,))

    def _embedding(self, claimed: Claimed, request: Embedding) -> Intake:
        inputs = [self._tokens(value, "input") for value in request.inputs]
        for position, tokens in enumerate(inputs):
            if not tokens:
                raise InvalidRequest(f"input {position} has no tokens", param="input")
            if len(tokens) > self._n_ubatch:
                raise InvalidRequest(
                    f"input {position} has {len(tokens)} tokens, more than the {self._n_ubatch} of n_ubatch"
                    " that this worker embeds at once",
                    param="input",
                )
        tasks = tuple(
            EmbedTask(
                SequenceKey(claimed.job.id, index, claimed.lease.mark),
                tokens,
                request.normalize,
                claimed.job.lane,
                _deadline(claimed),
            )
            for index, tokens in enumerate(inputs)
        )
        return Intake(Accepted(prompt_tokens=sum(map(len, inputs)), n_ctx=self._n_ubatch), tasks)

    def _tokens(
        self, prompt: Prompt, field: str, *, add_special: bool = True, parse_special: bool = True
    ) -> tuple[int, ...]:
        """Text is tokenized with its control tokens, as llama.cpp's server does; the first piece gets the BOS."""
        pieces = (prompt,) if isinstance(prompt, str) else prompt
        tokens: list[int] = []
        for position, piece in enumerate(pieces):
            if isinstance(piece, str):
                tokens += self._model.tokenize(
                    piece, add_special=add_special and position == 0, parse_special=parse_special
                )
            elif 0 <= piece < self._n_vocab:
                tokens.append(piece)
            else:
                raise InvalidRequest("Prompt contains invalid tokens", param=field)
        return tuple(tokens)

    def _chat(self, request: Chat) -> tuple[int, ...]:
        """The rendered messages. Control tokens count only where the template wrote them, never in a content."""
        text = self._template.render(request)
        contents = [message.get("content") or "" for message in request.messages]
        # A template may write the BOS itself; llama.cpp would add a second one.
        add_special = not (self._bos and text.startswith(self._bos))
        if not any(control in content for content in contents for control in self._model.control_texts):
            return tuple(self._model.tokenize(text, add_special=add_special, parse_special=True))
        # Tokenized in one piece wherever possible: cutting at the contents' edges changes how words merge there.
        stretches = self._template.stretches(request)
        if stretches is None:
            raise InvalidRequest("a message contains a control token of the model", param="messages")
        tokens: list[int] = []
        for position, stretch in enumerate(stretches):
            tokens += self._model.tokenize(
                stretch.text, add_special=add_special and position == 0, parse_special=not stretch.is_user
            )
        return tuple(tokens)

    def _check_may_fit(self, request: Completion | Chat) -> None:
        """Refuse by bytes what cannot fit by tokens: to tokenize megabytes takes seconds that others would wait."""
        if isinstance(request, Chat):
            texts = [message.get("content") or "" for message in request.messages]
            n_least = len(texts)  # a template writes something for each message
        else:
            pieces = (request.prompts[0],) if isinstance(request.prompts[0], str) else request.prompts[0]
            texts = [piece for piece in pieces if isinstance(piece, str)]
            n_least = len(pieces) - len(texts)
        n_bytes = sum(len(text.encode()) for text in texts)
        n_least = max(n_least, n_bytes // self._model.longest_token)
        if n_least >= self._n_ctx:
            raise PromptTooLong(
                f"the request has at least {n_least} prompt tokens"
                f" and exceeds the available context size of {self._n_ctx}",
                n_prompt_tokens=n_least,
                n_ctx=self._n_ctx,
            )

    def _check_fits(self, prompt: tuple[int, ...]) -> None:
        if len(prompt) >= self._n_ctx:
            raise PromptTooLong(
                f"the request has {len(prompt)} prompt tokens and exceeds the available context size of {self._n_ctx}",
                n_prompt_tokens=len(prompt),
                n_ctx=self._n_ctx,
            )


def _deadline(claimed: Claimed) -> float:
    """On this machine's monotonic clock."""
    return time.monotonic() + claimed.deadline_at - claimed.now


def _seed(job: Job, index: int) -> int:
    """A seed for a job that named none: the same on every attempt, so that a retry continues what was said."""
    return int.from_bytes(hashlib.blake2s(f"{job.id}/{index}".encode(), digest_size=4).digest(), "little")
