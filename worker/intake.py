"""From a claimed job to tasks for the engine: template, tokens, limits. Runs off the decode thread.

What only a worker can know is checked here, before any cell is spent: whether ids are in the vocabulary, whether the
prompts fit. Nothing a client sends reaches llama.cpp unchecked.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shared.bus import Claimed
from shared.errors import InvalidRequest, NotSupported
from shared.events import Accepted, AdapterScales, Properties, Text, TokenIds
from shared.jobs import (
    ApplyTemplate,
    Chat,
    Completion,
    Constraint,
    Detokenize,
    Embedding,
    Generation,
    GetProperties,
    Infill,
    Job,
    Lane,
    Prompt,
    Rerank,
    SamplerKind,
    Sampling,
    SetAdapters,
    SlotAction,
    Tokenize,
)
from worker.chat import Dialect, Template, template_of
from worker.engine import (
    IMAGE_MARK,
    Adapters,
    EmbedTask,
    GenerateTask,
    Grammar,
    Grammars,
    Model,
    SequenceKey,
    Task,
    Vision,
)
from worker.engine.launch import NO_TEXT
from worker.engine.sampling import Breakers, Repeats
from worker.grammar.reply import ReplyGrammar
from worker.inputs import InputReader
from worker.pairs import Pairs
from worker.past import Past
from worker.pictures import Pictures
from worker.prompting import Prompter
from worker.properties import Describer
from worker.rules import Rules, SystemPrompt
from worker.slotfiles import SlotFiles
from worker.vocabulary import Vocabulary, pieces_of

N_SEEDS = 2**32

G = TypeVar("G", bound=Generation)


@dataclass(frozen=True, slots=True)
class Intake:
    """What a job becomes: the yes that its client hears, and its tasks, or the answer at once."""

    accepted: Accepted
    tasks: tuple[Task, ...] = ()
    answer: TokenIds | Text | Properties | AdapterScales | None = None
    """Of what needs no engine."""

    @property
    def n_parts(self) -> int:
        """Parts that its ending will have."""
        return len(self.tasks) or 1


class Registrar:
    """Turns claimed jobs into tasks for one model. Thread-safe: the model and the template are only read."""

    def __init__(
        self,
        model: Model,
        rules: Rules,
        grammars: Grammars | None = None,
        adapters: Adapters | None = None,
        vision: Vision | None = None,
        *,
        template: Template | None = None,
        slot_files: SlotFiles | None = None,
    ) -> None:
        """Without `grammars` a constraint is refused, without `vision` an image, without `slot_files` what is done with
        slots; without `adapters` there are none; without a `template` it is the model's own. ValueError when that is
        none."""
        self._model = model
        self._adapters = adapters or Adapters()
        self._grammars = grammars
        self._vision = vision
        self._slot_files = slot_files
        self._rules = rules
        ends = [model.token_bytes(token, special=True).decode("utf-8", "replace") for token in sorted(model.eog)]
        self.dialect = Dialect(template or template_of(model.facts), ends)
        self._vocabulary = Vocabulary(model)
        pairs = Pairs(model.facts, self._vocabulary, model.control_texts)
        self._input_reader = InputReader(model.facts, self._vocabulary, pairs, rules.inputs)
        self._prompter = Prompter(model, self._vocabulary, self.dialect, rules)
        self._describer = Describer(model.facts, self.dialect, can_generate=rules.can_generate)

    def admit(
        self, claimed: Claimed, pasts: Mapping[int, Past], is_wanted: Callable[[], bool] = lambda: True
    ) -> Intake:
        """Tasks for `claimed`; `pasts` are what earlier attempts have said, by sequence. `is_wanted` is asked before
        each image, whether the job is still held.

        Raises Rejected when the job can never run here: InvalidRequest, PromptTooLong, NotSupported; EngineFailed when
        an image cannot be encoded, and Cancelled when the job is not wanted any more.
        """
        job = claimed.job
        match job.request:
            case Embedding():
                return self._inputs(claimed, self._input_reader.to_embed(job.request), job.request.norm)
            case Rerank():
                return self._inputs(claimed, self._input_reader.to_rank(job.request))
            case Completion() | Chat() | Infill():
                return self._generation(claimed, job.request, pasts, is_wanted)
            case Tokenize():
                return self._tokenized(job.request)
            case Detokenize(tokens=tokens):
                if not self._model.has_tokens(tokens):
                    raise InvalidRequest("a token id is outside the vocabulary", param="tokens")
                return Intake(self._accepted(len(tokens)), answer=Text(text=self._model.detokenize(tokens)))
            case ApplyTemplate(chat=chat):
                return Intake(self._accepted(0), answer=Text(text=self._rendered(chat)))
            case GetProperties():
                return Intake(self._accepted(0), answer=self._describer.properties)
            case SetAdapters(adapters=adapters, set_at=set_at):
                scales = self._adapters.set_defaults(adapters, set_at)
                return Intake(self._accepted(0), answer=AdapterScales(scales=scales))
            case SlotAction():
                return self._slot_action(claimed, job.request)

    def _slot_action(self, claimed: Claimed, request: SlotAction) -> Intake:
        if not self._rules.can_generate:
            raise NotSupported(NO_TEXT)
        if self._slot_files is None:
            raise NotSupported("This server does not support slots action. Start it with `--slot-save-path`")
        key = SequenceKey(claimed.job.id, 0, claimed.lease.mark)
        return Intake(self._accepted(0), (self._slot_files.task(key, request, _deadline(claimed)),))

    def _accepted(self, n_tokens: int) -> Accepted:
        return Accepted(prompt_tokens=n_tokens, n_ctx=self._rules.n_ctx)

    def _rendered(self, chat: Chat) -> str:
        text = self.dialect.template.render(self.dialect.spoken(chat).chat)
        return text if chat.media is None else text.replace(chat.media.mark, IMAGE_MARK)

    def _tokenized(self, request: Tokenize) -> Intake:
        pieces = pieces_of(request.content, parse_special=request.parse_special)
        ids = self._vocabulary.tokens(pieces, "content", add_special=request.add_special)
        texts = [self._model.token_bytes(token, special=True) for token in ids]
        return Intake(self._accepted(len(ids)), answer=TokenIds.of(ids, texts))

    def _settled(self, request: G, system: SystemPrompt, n_system: int) -> G:
        """With the worker's say in it; tokens of a system prompt are kept whatever else goes."""
        return request.model_copy(
            update={
                "n_predict": self._rules.limit(request),
                "n_ctx": self._rules.n_ctx_of(request),
                "n_keep": request.n_keep if request.n_keep < 0 else request.n_keep + n_system,
                # What shows an image keeps it: a text with images ends where its context is full.
                "shift": request.shift if request.media is None else False,
                "stop": (*request.stop, system.anti_prompt) if system.anti_prompt else request.stop,
            }
        )

    def _generation(
        self,
        claimed: Claimed,
        request: Completion | Chat | Infill,
        pasts: Mapping[int, Past],
        is_wanted: Callable[[], bool],
    ) -> Intake:
        """A task for each choice of each prompt; prompts are counted once, however many choices they have."""
        if not self._rules.can_generate:
            raise NotSupported(NO_TEXT)
        deadline = _deadline(claimed)
        system = self._rules.system_of(request)
        before = self._prompter.system(system.prompt)
        request = self._settled(request, system, len(before))
        pictures = self._pictures(request, claimed.job.lane, lambda: is_wanted() and time.monotonic() < deadline)
        prompts = self._prompter.prompts(request, before, pictures)
        queue_ms = max(0.0, claimed.now - claimed.enqueued_at) * 1e3 + (pictures.took_ms if pictures else 0.0)
        sampling = request.sampling
        biases, breakers = self._vocabulary.biases(sampling), self._vocabulary.breakers(sampling)
        repeats = [_repeats(sampling, prompt.text, breakers) for prompt in prompts]
        banned = tuple(sorted(self._model.eog)) if sampling.ignore_eos else ()
        penalized = self._penalized(sampling.penalty_prompt)
        scales = self._adapters.scales(request.lora)
        reply = prompts[0].reply if prompts else None
        constraint = self.dialect.grammar(request, reply) if isinstance(request, Chat) else request.constraint
        grammar = self._grammar(constraint)
        shown = self._vocabulary.controls_in(reply)
        tasks = []
        for index in range(request.n_sequences):
            prompt, past = prompts[index // request.n], pasts.get(index, NOTHING)
            task = GenerateTask(
                key=SequenceKey(claimed.job.id, index, claimed.lease.mark),
                prompt=prompt.tokens,
                request=request,
                seed=_seed(claimed.job, index, request),
                lane=claimed.job.lane,
                produced=tuple(past.ids),
                logprobs=tuple(past.logprobs),
                memory=past.memory,
                biases=biases,
                banned=banned,
                penalized=penalized,
                breakers=breakers,
                repeats=repeats[index // request.n],
                grammar=grammar,
                is_truncated=prompt.is_truncated,
                scales=scales,
                queue_ms=queue_ms,
                deadline=deadline,
                slot=self._rules.slot_of(request, index),
                images=prompt.images,
                reply=prompt.reply,
                shown=shown,
            )
            tasks.append(task)
        accepted = Accepted(
            prompt_tokens=sum(len(prompt.tokens) for prompt in prompts),
            n_ctx=self._rules.n_ctx_of(request),
            reply=reply,
        )
        return Intake(accepted, tuple(tasks))

    def _pictures(self, request: Generation, lane: Lane, is_wanted: Callable[[], bool]) -> Pictures | None:
        media, n_ctx = request.media, self._rules.n_ctx_of(request)
        if media is None:
            return None
        if self._vision is None:
            raise NotSupported(
                "image input is not supported by this model: its worker has no projector for it (`--mmproj FILE`)"
            )
        return Pictures(media, self._vision, n_ctx, lane, is_wanted)

    def _grammar(self, constraint: Constraint | ReplyGrammar | None) -> Grammar | None:
        """For all sequences of one job."""
        if constraint is None:
            return None
        if self._grammars is None:
            raise NotSupported("This worker's model takes no constraint", param=constraint.name)
        return self._grammars.compile(constraint)

    def _penalized(self, prompt: Prompt | None) -> tuple[int, ...] | None:
        """As much of it as penalties can look back on."""
        if prompt is None:
            return None
        n_ctx = self._rules.n_ctx
        pieces = self._vocabulary.tail(pieces_of(prompt), n_ctx)
        return self._vocabulary.tokens(pieces, "penalty_prompt", add_special=False)[-n_ctx:]

    def _inputs(self, claimed: Claimed, inputs: Sequence[tuple[int, ...]], norm: int = 2) -> Intake:
        scales, deadline = self._adapters.scales(None), _deadline(claimed)
        tasks = tuple(
            EmbedTask(
                SequenceKey(claimed.job.id, index, claimed.lease.mark),
                tokens,
                norm,
                claimed.job.lane,
                scales,
                deadline,
            )
            for index, tokens in enumerate(inputs)
        )
        return Intake(Accepted(prompt_tokens=sum(map(len, inputs)), n_ctx=self._rules.inputs.n_most), tasks)


NOTHING = Past()
"""Of a sequence that has said nothing yet."""


def _repeats(sampling: Sampling, prompt: tuple[int, ...], breakers: Breakers) -> Repeats | None:
    """For DRY, where it may be on; all choices of a prompt begin with the same."""
    if not sampling.dry_multiplier or SamplerKind.DRY not in sampling.samplers:
        return None
    n_last = sampling.dry_penalty_last_n
    return Repeats.of(prompt[-n_last:] if n_last > 0 else prompt, breakers)


def _deadline(claimed: Claimed) -> float:
    """On this machine's monotonic clock."""
    return time.monotonic() + claimed.deadline_at - claimed.now


def _seed(job: Job, index: int, request: Generation) -> int:
    """Choices count up from the seed that was named, as llama.cpp's do. Without one it is the same on every attempt, so
    that a retry continues what was said."""
    if request.sampling.seed is not None:
        return (request.sampling.seed + index % request.n) % N_SEEDS
    return int.from_bytes(hashlib.blake2s(f"{job.id}/{index}".encode(), digest_size=4).digest(), "little")
