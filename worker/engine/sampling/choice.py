"""Chooses the next token of every row of logits.

Knows logits and the samplers of the sequences that they are for; nothing of llama.cpp's objects, cells or text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from worker.engine.sampling.feedback import Shares
from worker.engine.sampling.gather import gather
from worker.engine.sampling.noise import Noise
from worker.engine.sampling.penalties import LARGEST_LOGIT
from worker.engine.sampling.pool import NO_TOKEN, Floats, Pool, likeliest
from worker.engine.sampling.sampler import Sampler, Telling
from worker.engine.sampling.scores import Odds, Scores, scores_among
from worker.engine.sampling.steps import take_row_step, take_step


class Choice(NamedTuple):
    """The next token of a row; `token` is NO_TOKEN where there is none. Scores are there when they were asked for."""

    token: int
    scores: Scores | None = None


def choose(logits: Floats, samplers: Sequence[Sampler], positions: Sequence[int]) -> list[Choice]:
    """The next token of each row of (rows, n_vocab) logits, which are changed.

    `positions` are those that the new tokens will have, counted from the beginning of the prompt, whatever was dropped
    from the cache since. Samplers that remember what they chose have learnt from it; to go on, each must accept it.
    """
    with np.errstate(all="ignore"):  # logits may be anything; what is no number is not chosen, and says so there
        return _choose(logits, samplers, positions)


def _choose(logits: Floats, samplers: Sequence[Sampler], positions: Sequence[int]) -> list[Choice]:
    odds = {
        index: Odds.of(logits[index].copy(), sampler.n_probs)
        for index, sampler in enumerate(samplers)
        if sampler.telling is Telling.MODEL
    }
    _prepare(logits, samplers)
    choices = [NO_CHOICE] * len(samplers)
    noise = Noise.at([sampler.seed for sampler in samplers], positions)
    for rows in _alike(samplers):
        group = [samplers[row] for row in rows]
        if group[0].chain.is_greedy:
            found = _choose_likeliest(logits, rows, group)
        elif group[0].is_whole:
            found = _choose_from_all(logits, rows, group, noise)
        else:
            found = _choose_from_pools(logits, rows, group, noise.of(rows))
        for row, choice in zip(rows, found, strict=True):
            choices[row] = choice
    for row, each in odds.items():
        if choices[row] is not NO_CHOICE:
            choices[row] = Choice(choices[row].token, each.scores(choices[row].token))
    return choices


def candidates(row: Floats, sampler: Sampler, position: int = 0) -> Pool:
    """What the chain leaves of one row of logits, which is changed."""
    with np.errstate(all="ignore"):
        _prepare(row[None], [sampler])
        if sampler.chain.is_greedy:
            return Pool.of([likeliest(row, 1)], len(row))
        [(_, pool)] = gather(row[None], [0], [sampler])
        _narrow(pool, [sampler], Noise.at([sampler.seed], [position]))
        return pool


def _prepare(logits: Floats, samplers: Sequence[Sampler]) -> None:
    """What is done to whole rows, in place: biases, then constraints, then what changes a few tokens or all alike."""
    biases = [(row, bias) for row, sampler in enumerate(samplers) if len((bias := sampler.bias).ids)]
    if biases:
        rows = np.repeat([row for row, _ in biases], [len(bias.ids) for _, bias in biases])
        ids = np.concatenate([bias.ids for _, bias in biases])
        values = np.concatenate([bias.values for _, bias in biases])
        logits[rows, ids] = np.minimum(logits[rows, ids] + values, LARGEST_LOGIT)
    for row, sampler in enumerate(samplers):
        if sampler.constraint is not None:
            sampler.constraint.mask(logits[row])
        for kind in sampler.chain.row_steps:
            take_row_step(kind, logits[row], sampler)


def _alike(samplers: Sequence[Sampler]) -> Iterable[list[int]]:
    """The rows whose samplers go through the same steps."""
    rows: defaultdict[Any, list[int]] = defaultdict(list)
    for row, sampler in enumerate(samplers):
        rows[sampler.chain, sampler.feedback is None].append(row)
    return rows.values()


def _choose_likeliest(logits: Floats, rows: Sequence[int], samplers: Sequence[Sampler]) -> list[Choice]:
    is_all = len(rows) == len(logits)
    tokens = logits.argmax(axis=1) if is_all else np.array([logits[row].argmax() for row in rows])
    is_chosen = np.isfinite(logits[rows, tokens])
    return [
        Choice(token, _certain(token, sampler)) if is_token else NO_CHOICE
        for token, is_token, sampler in zip(tokens.tolist(), is_chosen.tolist(), samplers, strict=True)
    ]


def _certain(token: int, sampler: Sampler) -> Scores | None:
    """Scores behind a chain that leaves one token."""
    if sampler.telling is not Telling.CHAIN:
        return None
    ids = np.array([token][: sampler.n_probs], dtype=np.int64)
    return Scores(0.0, ids, np.zeros(len(ids), dtype=np.float32))


def _choose_from_all(logits: Floats, rows: Sequence[int], samplers: Sequence[Sampler], noise: Noise) -> list[Choice]:
    choices: list[Choice] = []
    for row, sampler in zip(rows, samplers, strict=True):
        token = noise.choose_from_all(row, logits[row])
        if token == NO_TOKEN:
            choices.append(NO_CHOICE)
        elif sampler.telling is Telling.CHAIN:
            choices.append(Choice(token, Odds.of(logits[row], sampler.n_probs).scores(token)))
        else:
            choices.append(Choice(token))
    return choices


def _choose_from_pools(logits: Floats, rows: Sequence[int], samplers: Sequence[Sampler], noise: Noise) -> list[Choice]:
    choices = [NO_CHOICE] * len(rows)
    for indices, pool in gather(logits, rows, samplers):
        group = [samplers[index] for index in indices]
        lessons = _narrow(pool, group, noise.of(indices))
        columns = noise.of(indices).choose(pool.ids, pool.logits)
        tokens = pool.ids[np.arange(len(indices)), columns].tolist()
        for place, (index, column, sampler) in enumerate(zip(indices, columns.tolist(), group, strict=True)):
            if column == NO_TOKEN:
                continue
            scores = None
            if sampler.telling is Telling.CHAIN:
                scores = scores_among(pool.ids[place], pool.logits[place], column, sampler.n_probs)
            if sampler.feedback is not None:
                sampler.feedback.learn(float(lessons[place][column]))
            choices[index] = Choice(tokens[place], scores)
    return choices


def _narrow(pool: Pool, samplers: Sequence[Sampler], noise: Noise) -> dict[int, Shares]:
    """Take all steps of a pool. What rows would teach their samplers comes back, by row."""
    for kind in samplers[0].chain.pool_steps:
        take_step(kind, pool, samplers, noise)
    lessons: dict[int, Shares] = {}
    for row, feedback in enumerate(sampler.feedback for sampler in samplers):
        if feedback is not None and (n_left := int(pool.counts()[row])):
            narrowed = feedback.narrow(pool.logits[row, :n_left], pool.shares()[row, :n_left])
            pool.put(row, narrowed.columns, narrowed.logits)
            lessons[row] = narrowed.lessons
    return lessons


NO_CHOICE = Choice(NO_TOKEN)
