"""What is asked, drawn from a seed. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

N_CTX_SLOT = 512
"""Tokens of a slot in the stack that is asked."""
N_ADAPTERS = 2
"""That its worker has, and that nobody gets who does not ask for them."""
FIRST_ID, LAST_ID = 100, 49_000
"""Ids of ordinary tokens: no control tokens in between."""


class Way(Enum):
    PLAIN = "plain"
    STREAM = "stream"
    JOB = "job"  # made, followed by its events, and its result compared with them


@dataclass(frozen=True, slots=True)
class Errand:
    kind: str
    path: str
    body: dict[str, Any] | bytes
    way: Way = Way.PLAIN
    statuses: frozenset[int] = frozenset({200})
    """Of the answer; of a job it is the status of its making."""
    endings: frozenset[str] = frozenset({"succeeded"})
    """Of a job."""
    leaves_after_s: float | None = None
    """The client goes away in the middle."""
    cancels_after_s: float | None = None
    """Of a job."""
    deadline_s: float | None = None
    """Of a job."""


def draw(dice: random.Random) -> Errand:
    """One of all kinds, the common ones more often."""
    kinds, weights = zip(*((kind, weight) for kind, weight in KINDS.items()), strict=True)
    kind: Callable[[random.Random], Errand] = dice.choices(kinds, weights)[0]
    return kind(dice)


def _ids(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(FIRST_ID, LAST_ID) for _ in range(count)]


def _body(dice: random.Random, **more: Any) -> dict[str, Any]:
    return {
        "prompt": _ids(dice, dice.randrange(1, 60)),
        "n_predict": dice.choice((1, 4, 16, 48)),
        "temperature": dice.choice((0, 0.8, 1.5)),
        "seed": dice.randrange(2**32),
        "priority": dice.choice(("interactive", "bulk")),
        **more,
    }


def _completion(dice: random.Random) -> Errand:
    body = _body(dice, ignore_eos=True, top_k=dice.choice((0, 1, 40)), min_p=dice.choice((0, 0.05)))
    return Errand("completion", "/completion", body, dice.choice(tuple(Way)))


def _sampling(dice: random.Random) -> Errand:
    """One of the rarer samplers."""
    more: dict[str, Any] = dice.choice(
        (
            {"mirostat": 1},
            {"mirostat": 2, "mirostat_tau": 3.0},
            {"xtc_probability": 0.5},
            {"dry_multiplier": 0.8},
            {"dynatemp_range": 0.5},
            {"top_n_sigma": 1.0},
            {"typical_p": 0.5},
            {"repeat_penalty": 1.3, "repeat_last_n": -1},
            {"presence_penalty": 0.5, "frequency_penalty": 0.5},
            {"samplers": ["top_k", "temperature"]},
            {"logit_bias": [[dice.randrange(FIRST_ID, LAST_ID), dice.choice((5.0, False))] for _ in range(20)]},
        )
    )
    return Errand("sampling", "/completion", _body(dice, ignore_eos=True, **more), dice.choice(tuple(Way)))


def _chat(dice: random.Random) -> Errand:
    words = " ".join(dice.choice(("a", "sea", "of", "Grüße", "日本", "👋", "if", "then")) for _ in range(20))
    body: dict[str, Any] = {"messages": [{"role": "user", "content": words}], "max_tokens": dice.choice((4, 24))}
    if dice.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": 3}
    return Errand("chat", "/v1/chat/completions", body, dice.choice((Way.PLAIN, Way.STREAM)))


def _many_choices(dice: random.Random) -> Errand:
    return Errand("n > 1", "/completion", _body(dice, ignore_eos=True, n=dice.randrange(2, 5)))


def _many_prompts(dice: random.Random) -> Errand:
    prompts = [_ids(dice, dice.randrange(1, 80)) for _ in range(dice.randrange(2, 6))]
    return Errand("prompts", "/completion", _body(dice, ignore_eos=True, prompt=prompts))


def _grammar(dice: random.Random) -> Errand:
    text = dice.choice(("alpha beta gamma", "👋 ok", "日本 👩‍🚀", "red green blue"))
    body = _body(dice, grammar=f"root ::= {json.dumps(text, ensure_ascii=False)}")
    return Errand("grammar", "/completion", body, dice.choice(tuple(Way)))


def _schema(dice: random.Random) -> Errand:
    number = {"type": "integer", "minimum": 0, "maximum": dice.choice((9, 99))}
    schema = {
        "type": "object",
        "properties": {"a": number, "b": {"enum": ["x", "日本", None]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    return Errand("schema", "/completion", _body(dice, json_schema=schema, n_predict=64), dice.choice(tuple(Way)))


def _shift(dice: random.Random) -> Errand:
    """More text than the context holds."""
    more = {"n_keep": dice.choice((-1, 0, 5)), "n_discard": dice.choice((0, 40))}
    prompt = _ids(dice, dice.randrange(300, 500))
    body = _body(dice, prompt=prompt, n_predict=300, ignore_eos=True, shift=True, **more)
    return Errand("shift", "/completion", body, dice.choice(tuple(Way)))


def _likelihoods(dice: random.Random) -> Errand:
    more = {"n_probs": dice.choice((1, 5, 40)), "post_sampling_probs": dice.random() < 0.3}
    return Errand("n_probs", "/completion", _body(dice, ignore_eos=True, **more), dice.choice(tuple(Way)))


def _stops(dice: random.Random) -> Errand:
    stops = [dice.choice("aeiou"), " the", "\n\n", ""]
    return Errand("stops", "/completion", _body(dice, ignore_eos=True, stop=stops), dice.choice(tuple(Way)))


def _cancelled(dice: random.Random) -> Errand:
    return Errand(
        "cancel",
        "/completion",
        _body(dice, n_predict=400, ignore_eos=True),
        Way.JOB,
        endings=frozenset({"cancelled", "succeeded"}),
        cancels_after_s=dice.uniform(0, 0.5),
    )


def _left(dice: random.Random) -> Errand:
    body = _body(dice, n_predict=400, ignore_eos=True)
    way = dice.choice((Way.PLAIN, Way.STREAM))
    return Errand("departure", "/completion", body, way, leaves_after_s=dice.uniform(0, 0.5))


def _late(dice: random.Random) -> Errand:
    return Errand(
        "deadline",
        "/completion",
        _body(dice, n_predict=400, ignore_eos=True),
        Way.JOB,
        endings=frozenset({"expired", "succeeded"}),
        deadline_s=dice.uniform(0.05, 0.5),
    )


HOSTILE: tuple[bytes, ...] = (
    b"{bad",
    b"[1]",
    b"",
    b"[" * 5000,
    b'{"prompt":"a\\ud800b"}',
    b'{"prompt":"a\xffb"}',
    b'{"prompt":"a","temperature":NaN}',
    b'{"prompt":"a","temperature":1e400}',
    b'{"prompt":"a","n_predict":"3"}',
    b'{"prompt":[49152]}',
    b'{"prompt":[-1]}',
    b'{"prompt":[1099511627776]}',
    b'{"prompt":[]}',
    b'{"prompt":"a","n_predict":-2}',
    b'{"prompt":"a","n_discard":-32}',
    b'{"prompt":"a","seed":4294967296}',
    b'{"prompt":"a","grammar":"root ::= bar"}',
    b'{"prompt":"a","grammar":"root ::= root \\"a\\""}',
    b'{"prompt":"a","json_schema":{"$ref":"#/$defs/none"}}',
    b'{"prompt":"a","json_schema":{"type":"nope"}}',
    b'{"prompt":"a","logit_bias":[[1,NaN]]}',
    b'{"prompt":"a","stop":[1]}',
)


def _hostile(dice: random.Random) -> Errand:
    way = dice.choice((Way.PLAIN, Way.STREAM))
    return Errand("hostile", "/completion", dice.choice(HOSTILE), way, statuses=frozenset({400}))


def _too_long(dice: random.Random) -> Errand:
    body = _body(dice, prompt=_ids(dice, dice.randrange(N_CTX_SLOT, 2000)))
    return Errand("too long", "/completion", body, dice.choice((Way.PLAIN, Way.STREAM)), statuses=frozenset({400}))


def _embeddings(dice: random.Random) -> Errand:
    inputs = [_ids(dice, dice.randrange(1, 100)) for _ in range(dice.randrange(1, 8))]
    return Errand("embeddings", "/v1/embeddings", {"input": inputs, "priority": dice.choice(("interactive", "bulk"))})


def _group(dice: random.Random) -> Errand:
    """One of six beginnings that many share."""
    shared = _ids(random.Random(dice.randrange(6)), 300)
    body = _body(dice, prompt=shared + _ids(dice, dice.randrange(1, 40)), ignore_eos=True)
    return Errand("prefix", "/completion", body, dice.choice(tuple(Way)))


def _adapted(dice: random.Random) -> Errand:
    """With adapters of its own, often over a beginning that others compute with others."""
    scales = [{"id": id, "scale": dice.choice((0, 0.5, 1, -1))} for id in range(N_ADAPTERS)]
    shared = _ids(random.Random(dice.randrange(6)), 60)
    body = _body(dice, prompt=shared + _ids(dice, dice.randrange(1, 40)), ignore_eos=True, lora=scales)
    return Errand("adapters", "/completion", body, dice.choice(tuple(Way)))


def _long(dice: random.Random) -> Errand:
    body = _body(dice, prompt=_ids(dice, dice.randrange(400, N_CTX_SLOT - 20)), ignore_eos=True, n_predict=16)
    return Errand("long prompt", "/completion", body, dice.choice(tuple(Way)))


def _words(dice: random.Random) -> Errand:
    return Errand(
        "tokenize", "/tokenize", {"content": "Grüße, 世界! 🌍\u0000" * dice.randrange(1, 9), "with_pieces": True}
    )


KINDS: dict[Callable[[random.Random], Errand], int] = {
    _completion: 12,
    _sampling: 8,
    _chat: 6,
    _many_choices: 4,
    _many_prompts: 4,
    _grammar: 5,
    _schema: 5,
    _shift: 3,
    _likelihoods: 5,
    _stops: 6,
    _cancelled: 4,
    _left: 4,
    _late: 4,
    _hostile: 8,
    _too_long: 2,
    _embeddings: 4,
    _group: 10,
    _adapted: 6,
    _long: 4,
    _words: 2,
}
"""How often each comes, beside the others."""
