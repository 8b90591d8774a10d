import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from shared.jobs import DEFAULT_SAMPLERS, Generation, SamplerKind, Sampling
from tests.worker.engine.sampling.parts import row_of
from worker.engine.sampling import NO_TOKEN, Floats, Sampler, Setting, Telling, choose
from worker.engine.sampling.noise import Noise
from worker.engine.task import GenerateTask, SequenceKey

ALL_OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def chosen(logits: Floats, samplers: Sequence[Sampler], positions: Sequence[int]) -> list[int]:
    return [choice.token for choice in choose(logits, samplers, positions)]


def sampler(n_vocab: int, *, seed: int = 0, eog: frozenset[int] = frozenset(), **more: Any) -> Sampler:
    biases = more.pop("biases", ())
    return Sampler(Sampling(**more), seed, Setting(n_vocab, 64, eog), biases=biases)


KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"top_k": 0},
    ALL_OFF,
    ALL_OFF | {"temperature": 0.3},
    {"typical_p": 0.5},
    {"top_k": 3000},
    {"top_n_sigma": 1.0},
    {"mirostat": 1},
    {"mirostat": 2},
    {"samplers": (SamplerKind.MIN_P, SamplerKind.ADAPTIVE_P), "adaptive_target": 0.3},
    {"samplers": (SamplerKind.TOP_P, SamplerKind.PENALTIES), "repeat_penalty": 2.0},
    {"xtc_probability": 0.5},
    {"dynatemp_range": 0.5},
]


def test_a_row_is_cut_alike_alone_and_among_others() -> None:
    logits = np.stack([row_of(seed, 5000, 3.0) for seed in range(len(KINDS))])

    def samplers() -> list[Sampler]:
        return [sampler(5000, seed=index, **kind) for index, kind in enumerate(KINDS)]

    together = chosen(logits.copy(), samplers(), range(len(KINDS)))
    alone = [chosen(logits[index : index + 1].copy(), [each], [index])[0] for index, each in enumerate(samplers())]
    assert together == alone
    assert len(set(together)) == len(KINDS)


@pytest.mark.parametrize("kind", [{"top_k": 3}, ALL_OFF, {"top_k": 0, "top_p": 0.999999}])
def test_tokens_come_as_often_as_they_should(kind: dict[str, Any]) -> None:
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    row = np.log(shares * 7).astype(np.float32)
    options = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0} | kind
    n = 3000
    counts = np.zeros(4)
    chooser = sampler(4, seed=9, **options)
    for start in range(0, n, 500):
        rows = np.repeat(row[None], 500, axis=0)
        counts += np.bincount(chosen(rows, [chooser] * 500, range(start, start + 500)), minlength=4)
    wanted = shares[: kind.get("top_k") or 4]
    expected = n * wanted / wanted.sum()
    found = counts[: len(wanted)]
    assert found.sum() == n
    assert ((found - expected) ** 2 / expected).sum() < 16.3, "chi-square of three degrees, once in a thousand"


def test_logits_a_rounding_apart_seldom_make_another_text() -> None:
    logits = np.stack([row_of(seed, 4096, 2.0) for seed in range(200)])
    shaken = logits + np.random.default_rng(0).uniform(-1e-3, 1e-3, logits.shape).astype(np.float32)
    for kind in ({}, ALL_OFF):
        samplers = [sampler(4096, seed=seed, **kind) for seed in range(200)]
        first, second = chosen(logits.copy(), samplers, range(200)), chosen(shaken.copy(), samplers, range(200))
        assert sum(a != b for a, b in zip(first, second, strict=True)) <= 2


def test_a_bias_bans_forces_and_adds_up() -> None:
    logits = np.array([[1.0, 2.0, 3.0, 4.0]], dtype=np.float32)
    biases = ((3, None), (2, -5.0), (1, 1.0), (1, 1.0), (99, 50.0), (-1, 50.0), (0, float("nan")))
    assert chosen(logits.copy(), [sampler(4, temperature=0, biases=biases)], [0]) == [1]
    assert chosen(logits.copy(), [sampler(4, temperature=0, biases=((0, 100.0),))], [0]) == [0]
    assert chosen(logits.copy(), [sampler(4, biases=((0, float("inf")),))], [0]) == [0]


def test_ignore_eos_bans_every_end_of_generation() -> None:
    logits = np.array([[1.0, 2.0, 3.0, 4.0]], dtype=np.float32)
    assert chosen(logits.copy(), [sampler(4, temperature=0, ignore_eos=True, eog=frozenset({2, 3}))], [0]) == [1]


def test_a_temperature_of_zero_or_less_chooses_the_likeliest_whatever_else_is_asked_for() -> None:
    logits = np.stack([row_of(seed, 5000, 3.0) for seed in range(8)])
    for kind in ({}, ALL_OFF, {"mirostat": 1}, {"mirostat": 2}, {"tfs_z": 0.1, "samplers": (*SamplerKind,)}):
        for temperature in (0.0, -1.0, 1e-9):
            samplers = [sampler(5000, seed=seed, **(kind | {"temperature": temperature})) for seed in range(8)]
            assert chosen(logits.copy(), samplers, range(8)) == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_vocab", [8, 5000])
def test_a_row_without_choice_says_so_and_spares_its_neighbours(kind: dict[str, Any], n_vocab: int) -> None:
    logits = np.stack([row_of(seed, n_vocab, 3.0) for seed in range(6)])
    logits[0] = -np.inf
    logits[1] = np.nan
    logits[2, 5] = np.nan
    logits[3, 5] = np.inf
    samplers = [sampler(n_vocab, seed=1, **kind) for _ in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokens = chosen(logits.copy(), samplers, range(6))
    assert tokens[:4] == [NO_TOKEN] * 4
    assert tokens[4:] == chosen(logits[4:].copy(), [sampler(n_vocab, seed=1, **kind) for _ in range(2)], (4, 5))
    assert NO_TOKEN not in tokens[4:]


ABSURD: list[dict[str, Any]] = [
    {"temperature": 1e38},
    {"temperature": 1e-9},
    {"temperature": -1.0},
    {"temperature": float("inf")},
    {"temperature": float("nan")},
    {"dynatemp_range": 1e38, "dynatemp_exponent": -1e38},
    {"dynatemp_range": float("nan"), "temperature": 0.0},
    {"top_k": 10**6, "min_keep": 10**6},
    {"top_k": 0, "top_p": -7.0, "min_p": -1.0, "min_keep": 10**6},
    {"top_k": 0, "top_p": float("nan"), "min_p": float("inf"), "typical_p": -1e38},
    {"top_n_sigma": 1e38},
    {"tfs_z": -1e38, "samplers": (SamplerKind.TAIL_FREE,)},
    {"xtc_probability": 1e38, "xtc_threshold": -1e38},
    {"repeat_penalty": 1e38, "frequency_penalty": -1e38, "presence_penalty": 1e38},
    {"repeat_penalty": -1.0, "frequency_penalty": float("inf"), "presence_penalty": float("nan")},
    {"dry_multiplier": 1e38, "dry_base": 1e38, "dry_allowed_length": 0},
    {"dry_multiplier": -1e38, "dry_base": 1.0, "dry_allowed_length": 0},
    {"mirostat": 1, "mirostat_tau": 1e38, "mirostat_eta": 1e38},
    {"mirostat": 1, "mirostat_tau": -1e38, "mirostat_eta": float("nan")},
    {"mirostat": 2, "mirostat_tau": 1e38, "mirostat_eta": -1e38},
    {"mirostat": 2, "mirostat_tau": float("nan"), "mirostat_eta": float("inf")},
    {"adaptive_target": 1e38, "adaptive_decay": 1e38, "samplers": (SamplerKind.ADAPTIVE_P,)},
    {"adaptive_target": float("nan"), "adaptive_decay": float("nan"), "samplers": (SamplerKind.ADAPTIVE_P,)},
]


@pytest.mark.parametrize("kind", ABSURD)
def test_absurd_numbers_choose_some_token_without_a_word(kind: dict[str, Any]) -> None:
    logits = np.stack([row_of(1, 5000, 4.0), row_of(2, 5000, 1e29), np.zeros(5000, np.float32)])
    logits[0, 17] = -np.inf
    options = {"samplers": DEFAULT_SAMPLERS} | kind
    samplers = [Sampler(Sampling.model_construct(**(dict(Sampling()) | options)), 3, Setting(5000, 64)) for _ in logits]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for position in range(12):
            tokens = chosen(logits.copy(), samplers, [position] * 3)
            assert all(0 <= token < 5000 for token in tokens)
            assert tokens[0] != 17
            assert np.isfinite([number for each in samplers for number in each.memory]).all()
            for each, token in zip(samplers, tokens, strict=True):
                each.accept(token)


class Only:
    """A constraint: each list of tokens once, in their order, and then nothing but an end."""

    def __init__(self, *allowed: list[int], end: int) -> None:
        self._allowed = [*allowed]
        self._end = end
        self.accepted: list[int] = []

    @property
    def is_over(self) -> bool:
        return not self._allowed

    @property
    def failure(self) -> None:
        return None

    def mask(self, row: Floats) -> None:
        allowed = self._allowed[0] if self._allowed else [self._end]
        row[np.setdiff1d(np.arange(len(row)), allowed)] = -np.inf

    def accept(self, token: int) -> None:
        self.accepted.append(token)
        self._allowed = self._allowed[1:]


@pytest.mark.parametrize("kind", [{"temperature": 0.0}, {"top_k": 1}, {"top_n_sigma": 0.1}])
def test_a_constraint_sees_what_was_chosen_and_has_the_last_word(kind: dict[str, Any]) -> None:
    logits = np.array([[1.0, 2.0, 3.0, 4.0]], dtype=np.float32)
    only = Only([0, 1], [1, 2], end=3)
    request = Generation(sampling=Sampling(ignore_eos=True, **kind))
    task = GenerateTask(SequenceKey("j", 0), (2, 2), request, 1, produced=(0,))
    chooser = Sampler.of(task, Setting(4, 64, eog=frozenset({3})), only)
    assert only.accepted == [0]
    assert chosen(logits.copy(), [chooser], [3]) == [2]
    chooser.accept(2)
    assert chosen(logits.copy(), [chooser], [4]) == [3], "an end, though ends are ignored: nothing else is allowed"


def test_a_constraint_that_allows_nothing_leaves_no_token() -> None:
    chooser = Sampler(Sampling(), 1, Setting(4, 64), constraint=Only([], end=3))
    assert chosen(np.ones((1, 4), dtype=np.float32), [chooser], [0]) == [NO_TOKEN]


def test_scores_are_told_to_those_who_asked() -> None:
    rows = 4
    logits = np.stack([row_of(seed, 5000, 3.0) for seed in range(rows)])
    tellings = [Telling.NOTHING, Telling.MODEL, Telling.CHAIN, Telling.NOTHING]
    samplers = [
        Sampler(Sampling(), seed, Setting(5000, 64), telling=telling, n_probs=3)
        for seed, telling in enumerate(tellings)
    ]
    plain = [Sampler(Sampling(), seed, Setting(5000, 64)) for seed in range(rows)]
    choices = choose(logits.copy(), samplers, range(rows))
    assert [choice.scores is not None for choice in choices] == [False, True, True, False]
    assert [choice.token for choice in choices] == chosen(logits.copy(), plain, range(rows)), "and change nothing"


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e6, 1e9, 1e30])
def test_however_large_logits_are_the_likeliest_can_be_drawn(scale: float) -> None:
    noise = Noise.at(range(50), [7] * 50)
    row = row_of(1, 3000, 3.0) * np.float32(scale)
    ids = np.arange(3000)[None]
    for index in range(50):
        token = noise.choose_from_all(index, row)
        assert token == noise.of([index]).choose(ids, row[None])[0]
        assert scale == 1.0 or token == row.argmax()
