"""How one sequence chooses: what it was asked for, and what it remembers of the tokens so far.

Knows a task and the model's facts; nothing of batches. `choice` has the paragraph that all of this serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from shared.errors import SlotstreamError
from shared.jobs import SamplerKind, Sampling
from worker.engine.sampling.bias import NO_BIAS, Bias
from worker.engine.sampling.breakers import NO_BREAKERS, Breakers
from worker.engine.sampling.dry import Dry
from worker.engine.sampling.feedback import feedback_of
from worker.engine.sampling.parameters import Chain, Parameters
from worker.engine.sampling.penalties import Penalties
from worker.engine.sampling.pool import Floats, Ids

if TYPE_CHECKING:  # a task brings what was made here of its request
    from worker.engine.task import GenerateTask


class Setting(NamedTuple):
    """What a sampler has to know of its model and its slot."""

    n_vocab: int
    n_ctx: int
    """Longest that the sequence can get, in tokens."""
    eog: frozenset[int] = frozenset()
    """Tokens that end a generation."""
    newline: int = -1
    """The token of a line break; -1 when there is none."""


class Constraining(Protocol):
    """What a sampler asks of a constraint: rules that say, from all tokens so far, which may come next."""

    @property
    def is_over(self) -> bool:
        """Nothing may come any more but an end of the generation. No bias is heeded then: it could ban that too."""

    @property
    def failure(self) -> SlotstreamError | None:
        """Why nothing may come, where the rules themselves are at fault."""

    def mask(self, row: Floats) -> None:
        """Set the logits, (n_vocab), of all tokens that may not come next to -inf, in place."""

    def accept(self, token: int) -> None:
        """This one comes next."""


class Reshaping(Protocol):
    """A step that changes the logits of a few tokens, by those that came before."""

    def replay(self, tokens: Sequence[int]) -> None:
        """What came before the first choice; called once."""

    def push(self, token: int) -> None:
        """A token was chosen."""

    def touched(self) -> Ids:
        """Tokens whose logits change."""

    def reshape(self, ids: Ids, logits: Floats) -> Floats:
        """The new logits of some that are touched."""


class Telling(Enum):
    """What is told of the tokens that are chosen."""

    NOTHING = "nothing"
    MODEL = "model"  # how likely the model takes them to be
    CHAIN = "chain"  # how likely the chain leaves them


class Sampler:
    """Written by the decode thread alone."""

    def __init__(
        self,
        sampling: Sampling,
        seed: int,
        setting: Setting,
        *,
        biases: Bias = NO_BIAS,
        breakers: Breakers = NO_BREAKERS,
        telling: Telling = Telling.NOTHING,
        n_probs: int = 0,
        constraint: Constraining | None = None,
    ) -> None:
        self.seed = seed
        self.parameters = Parameters.of(sampling, setting.n_vocab)
        self.chain = Chain.of(sampling, self.parameters, setting.n_vocab)
        self.feedback = feedback_of(sampling, setting.n_vocab)
        self.telling = telling
        self.n_probs = min(n_probs, setting.n_vocab)
        self.constraint = constraint
        self.reshaping = _reshaping(sampling, self.parameters, self.chain, setting, breakers)
        self._bias = biases.within(setting.n_vocab).banning(setting.eog if sampling.ignore_eos else ())

    @classmethod
    def of(cls, task: GenerateTask, setting: Setting, constraint: Constraining | None = None) -> Self:
        """As it stands behind the last token that an earlier attempt produced. The constraint is a fresh one."""
        request = task.request
        telling = Telling.NOTHING
        if request.wants_logprobs:
            telling = Telling.CHAIN if request.post_sampling_probs else Telling.MODEL
        sampler = cls(
            request.sampling,
            task.seed,
            setting,
            biases=task.biases,
            breakers=task.breakers,
            telling=telling,
            n_probs=request.n_probs,
            constraint=constraint,
        )
        penalized = task.text if task.penalized is None else task.penalized
        for kind, step in sampler.reshaping.items():
            if isinstance(step, Dry) and task.repeats is not None and not task.produced:
                step.restore(task.repeats)
            else:
                step.replay((penalized if kind is SamplerKind.PENALTIES else task.text) + task.produced)
        if constraint is not None:
            for token in task.produced:
                constraint.accept(token)
        if sampler.feedback is not None and task.produced:
            sampler.feedback.restore(task.memory)
        return sampler

    @property
    def memory(self) -> tuple[float, ...]:
        """What a replay of ids would not rebuild; a task that goes on from here brings it back."""
        return () if self.feedback is None else self.feedback.memory

    @property
    def is_whole(self) -> bool:
        """Whether rows are left whole, so that a token is drawn from all."""
        return not self.chain.pool_steps and self.feedback is None

    def accept(self, token: int) -> None:
        """A token was chosen."""
        for step in self.reshaping.values():
            step.push(token)
        if self.constraint is not None:
            self.constraint.accept(token)

    @property
    def bias(self) -> Bias:
        """What is added to the next row. What is over must end, also when ends are banned."""
        return NO_BIAS if self.constraint is not None and self.constraint.is_over else self._bias


def _reshaping(
    sampling: Sampling, parameters: Parameters, chain: Chain, setting: Setting, breakers: Breakers
) -> dict[SamplerKind, Reshaping]:
    """Those that the chain has."""
    steps: dict[SamplerKind, Reshaping] = {}
    if SamplerKind.PENALTIES in chain.steps:
        exempt = -1 if sampling.penalize_nl else setting.newline
        steps[SamplerKind.PENALTIES] = Penalties(parameters.rates, _size(sampling.repeat_last_n, setting), exempt)
    if SamplerKind.DRY in chain.steps:
        steps[SamplerKind.DRY] = Dry(parameters.repetition, _size(sampling.dry_penalty_last_n, setting), breakers)
    return steps


def _size(n_last: int, setting: Setting) -> int:
    """Tokens of a window; none is larger than the context."""
    return setting.n_ctx if n_last < 0 else min(n_last, setting.n_ctx)
