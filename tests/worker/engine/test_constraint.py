"""Constrained sequences on real models: they say what they have to, whatever is beside them, and fail alone."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from shared.errors import InvalidRequest
from shared.events import CallForm, Failure, StopType
from shared.jobs import Constraint, Sampling
from tests.models import demo_model_path, tiny_model
from tests.worker.engine.harness import PATIENCE_S, Recorded, config, task
from worker.engine import GenerateTask, Grammar, constraint
from worker.engine.constraint import Grammars, Mask, Masks, Matcher
from worker.grammar.lexicon import Lexicon
from worker.grammar.reply import Function, ReplyGrammar

FORCED = Sampling(temperature=0.0)
PROMPT = [20904]
MANY = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


@pytest.fixture(scope="module")
def engine() -> Iterator[Recorded]:
    with Recorded(config(tiny_model(), n_slots=8)) as recorded:
        yield recorded


@pytest.fixture(scope="module")
def bytewise(byte_model: Path) -> Iterator[Recorded]:
    with Recorded(config(byte_model)) as recorded:
        yield recorded


def compiled(recorded: Recorded, syntax: Any, text: str) -> Grammar:
    return recorded.engine.grammars.compile(Constraint(syntax=syntax, text=text))


def forcing(recorded: Recorded, text: str) -> Grammar:
    """A grammar of one sentence."""
    return compiled(recorded, "gbnf", f"root ::= {json.dumps(text, ensure_ascii=False)}")


def forced(recorded: Recorded, text: str, job_id: str, **more: Any) -> GenerateTask:
    prompt = more.pop("prompt", PROMPT)
    values = {"sampling": FORCED, "n_predict": -1, "grammar": forcing(recorded, text)} | more
    return task(job_id, prompt, **values)


@pytest.mark.parametrize("text", ["alpha beta gamma", "👋 ok", "日本 👩‍🚀", '"\\\n\t'])
def test_a_grammar_of_one_sentence_is_said_and_ends_by_itself(engine: Recorded, text: str) -> None:
    [answer] = engine.run(forced(engine, text, text))
    assert (answer.text, answer.stop_type) == (text, StopType.EOS)
    assert engine.streamed(text) == text


def test_the_demo_model_says_it_too() -> None:
    with Recorded(config(demo_model_path())) as recorded:
        [answer] = recorded.run(forced(recorded, "alpha beta gamma", "a"))
        assert (answer.text, answer.stop_type) == ("alpha beta gamma", StopType.EOS)


def test_a_character_of_many_tokens_is_cut_by_a_limit_and_not_by_the_grammar(bytewise: Recorded) -> None:
    for n_predict in range(1, 5):
        [answer] = bytewise.run(forced(bytewise, "é😀", f"{n_predict}", prompt=list(b"Hi"), n_predict=n_predict))
        assert answer.ids == tuple("é😀".encode()[:n_predict])
        assert answer.stop_type is StopType.LIMIT


def test_what_the_client_says_of_ends_and_tokens_never_breaks_the_grammar(engine: Recorded) -> None:
    banned = Sampling(temperature=0.0, ignore_eos=True, logit_bias=((0, 100.0), (2, None), (28120, 100.0)))
    [answer] = engine.run(forced(engine, "alpha beta", "bans", sampling=banned))
    assert (answer.text, answer.stop_type) == ("alpha beta", StopType.EOS)


def test_a_stop_string_ends_a_forced_text_early(engine: Recorded) -> None:
    [answer] = engine.run(forced(engine, "alpha beta gamma", "stop", stop=("ta ga",)))
    assert (answer.text, answer.stopping_word) == ("alpha be", "ta ga")


def test_a_ban_on_all_that_the_grammar_leaves_is_told(engine: Recorded) -> None:
    grammar = compiled(engine, "gbnf", 'root ::= "a" | "b"')
    bans = tuple((token, None) for token in (81, 82))
    engine.submit(task("banned", PROMPT, sampling=Sampling(logit_bias=bans), grammar=grammar))
    ending = engine.ending("banned")
    assert isinstance(ending, Failure)
    assert ending.param == "logit_bias"


def test_eight_constraints_in_one_batch_do_not_mix(engine: Recorded) -> None:
    texts = [f"{number} says this, number {number}" for number in range(7)]
    tasks = [forced(engine, text, text, seed=number) for number, text in enumerate(texts)]
    free = task("free", PROMPT, n_predict=12, sampling=Sampling(temperature=0.0, ignore_eos=True))
    [alone] = engine.run(free)
    together = engine.run(*tasks, task("beside", PROMPT, n_predict=12, sampling=free.request.sampling))
    assert [answer.text for answer in together] == [*texts, alone.text]


def test_an_attempt_that_was_cut_short_goes_on_as_if_it_were_not(engine: Recorded) -> None:
    schema = '{"type":"array","items":{"type":"integer","maximum":99},"minItems":9,"maxItems":9}'

    def counting(job_id: str) -> GenerateTask:
        grammar = compiled(engine, "json_schema", schema)
        return task(job_id, PROMPT, n_predict=300, sampling=MANY, seed=4, grammar=grammar)

    whole = counting("whole")
    [uncut] = engine.run(whole)
    assert uncut.stop_type is StopType.EOS
    for n_produced in (1, len(uncut.ids) // 2, len(uncut.ids) - 1):
        [answer] = engine.run(dataclasses.replace(counting(f"{n_produced}"), produced=uncut.ids[:n_produced]))
        assert answer.ids == uncut.ids


SCHEMAS: list[dict[str, Any]] = [
    {"const": 'é"\\\n😀'},
    {"const": {"a": [1, {"b": 2.5}], "": None}},
    {"enum": ["日本", 'a"b', None, 3]},
    {
        "$defs": {"color": {"enum": ["red", "green"]}},
        "type": "array",
        "items": {"$ref": "#/$defs/color"},
        "minItems": 2,
        "maxItems": 2,
    },
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
    {
        "type": "object",
        "properties": {"a": {"type": "number", "minimum": 0, "maximum": 1}},
        "required": ["a"],
        "additionalProperties": {"type": "integer"},
        "maxProperties": 3,
    },
    {"type": "string", "pattern": "^[a-f]{2,4}-[0-9]+$", "maxLength": 9},
    {"type": "string", "format": "date"},
    {"type": "object", "properties": {"format": {"type": "string", "format": "one-of-ours", "maxLength": 3}}},
    {"const": {"format": "one-of-ours"}},
    {"oneOf": [{"type": "string", "maxLength": 5}, {"type": "boolean"}]},
    {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 10, "exclusiveMaximum": 20}]},
    {"type": ["boolean", "null"], "title": "t", "description": "d", "default": True},
    {},
    {"type": "object"},
]


def test_what_a_schema_allows_is_what_comes_out(engine: Recorded) -> None:
    tasks = {f"{number}/{seed}": (schema, seed) for number, schema in enumerate(SCHEMAS) for seed in range(3)}
    answers = engine.run(
        *(
            task(
                name,
                PROMPT,
                n_predict=200,
                sampling=Sampling(temperature=1.0),
                seed=seed,
                grammar=compiled(engine, "json_schema", json.dumps(schema)),
            )
            for name, (schema, seed) in tasks.items()
        )
    )
    n_whole = 0
    for (schema, _), answer in zip(tasks.values(), answers, strict=True):
        assert " " * 22 not in answer.text, "white space has a bound"
        if answer.stop_type is StopType.LIMIT:
            assert len(answer.ids) == 200
            continue
        n_whole += 1
        said = json.loads(answer.text)
        Draft202012Validator(schema).validate(said)
        if "const" in schema:
            assert said == schema["const"]
    assert n_whole >= len(tasks) * 2 // 3


def test_a_model_without_a_token_for_the_end_ends_where_the_grammar_does() -> None:
    lexicon = Lexicon([b"a", b"b"], frozenset(), frozenset())
    with Grammars(lexicon) as grammars, Masks(lexicon, n_threads=1) as masks:
        matcher = Matcher(grammars.compile(Constraint(syntax="gbnf", text='root ::= "ab"')), masks)
        row = np.zeros(2, dtype=np.float32)
        for token in (0, 1):
            assert not matcher.is_over
            matcher.mask(row := np.zeros(2, dtype=np.float32))
            assert np.flatnonzero(row == 0).tolist() == [token]
            matcher.accept(token)
        assert matcher.is_over and matcher.failure is None
        matcher.mask(row)
        assert (row == -np.inf).all()


def test_a_grammar_that_gets_too_much_on_the_way_ends_its_own_sequence(engine: Recorded) -> None:
    digits = "7391" * 8  # beyond what is tried
    hostile = compiled(engine, "gbnf", f'root ::= "{digits}" s "b"\ns ::= s s s | [a-z] | ""')
    neighbour = forced(engine, "the neighbour goes on and on", "neighbour")
    engine.submit(task("hostile", PROMPT, n_predict=100, sampling=MANY, grammar=hostile), neighbour)
    ending = engine.ending("hostile")
    assert isinstance(ending, Failure)
    assert (ending.code, ending.param) == (InvalidRequest.code, "gbnf")
    assert engine.answer("neighbour").text == "the neighbour goes on and on"


def test_what_one_sequence_wears_out_is_whole_for_the_next() -> None:
    lexicon = Lexicon([b"a", b"b", b"end"], frozenset({2}), frozenset({2}))
    many_states = Constraint(syntax="regex", text="(a|b)*a(a|b){16}")
    with Grammars(lexicon) as grammars, Masks(lexicon, n_threads=1) as masks:
        worn = Matcher(grammars.compile(many_states), masks)
        tokens = np.random.default_rng(0).integers(0, 2, size=200_000).tolist()
        for token in tokens:
            worn.accept(token)
        assert worn.failure is not None and worn.failure.param == "regex"
        fresh = Matcher(grammars.compile(many_states), masks)
        for token in tokens[:1000]:
            fresh.accept(token)
        assert fresh.failure is None


def test_a_trial_that_somebody_ends_is_no_constraints_fault() -> None:
    with Grammars(Lexicon([b"a"], frozenset(), frozenset())) as grammars:
        grammars.compile(Constraint(syntax="regex", text="a"))
        trial = grammars._examiner._trial
        assert trial is not None
        trial.kill()
        trial.wait()
        grammars.compile(Constraint(syntax="regex", text="aa"))


def test_functions_take_the_processors_time_and_not_that_of_a_machine_that_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lexicon = Lexicon([*(bytes([byte]) for byte in range(256)), b"</s>"], frozenset({256}), frozenset({256}))
    functions = tuple(Function(f"f{number}", '{"type": "object"}', "tools") for number in range(2))
    call = ReplyGrammar(functions, CallForm(opening="", middle=": ", closing=""))
    monkeypatch.setattr(constraint, "TRYING_S", 0.1)  # the process that tries them needs more than that to start
    with Grammars(lexicon) as grammars:
        grammars.compile(call)
        monkeypatch.setattr(constraint, "TRYING_S", -1.0)  # a short while is 0 by some systems' clocks
        with pytest.raises(InvalidRequest, match="name fewer of them"):
            grammars.compile(call)  # known by now, and refused all the same


@pytest.mark.parametrize("caps", [True, False])
def test_a_mask_leaves_logits_as_they_are_or_takes_them_away(caps: bool) -> None:
    allowed = np.array([True, False, True, False])
    mask = (
        Mask(0, False, caps=np.where(allowed, np.inf, -np.inf).astype(np.float32))
        if caps
        else Mask(0, False, ids=np.flatnonzero(allowed))
    )
    row = np.array([1.5, 2.5, np.nan, np.inf], dtype=np.float32)
    mask.apply(row)
    assert row[0] == 1.5 and np.isnan(row[2])
    assert (row[[1, 3]] == -np.inf).all()


HOSTILE: dict[str, tuple[Any, Any]] = {
    "many names at once": (
        "json_schema",
        {"type": "object", "patternProperties": {f"^a{number}[a-z]*$": {} for number in range(300)}},
    ),
    "itself": ("json_schema", {"$ref": "#"}),
    "a circle": ("json_schema", {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {}]}}, "$ref": "#/$defs/a"}),
    "a large schema": ("json_schema", {"enum": ["x" * 50] * 20_000}),
    "a keyword that is not known": ("json_schema", {"type": "array", "uniqueItems": True}),
    "one of what overlaps": ("json_schema", {"oneOf": [{"type": "number"}, {"type": "integer"}]}),
    "look-ahead": ("regex", "(?=a)b"),
    "repeated repetitions": ("regex", "(.{1,1000}){1,1000}"),
    "nested groups": ("regex", "(" * 20_000 + "a" + ")" * 20_000),
    "doubled rules": ("gbnf", "".join(f"a{n} ::= a{n + 1} a{n + 1}\n" for n in range(40)) + 'a40 ::= "x"\nroot ::= a0'),
    "a long chain": ("gbnf", "".join(f"a{n} ::= a{n + 1}\n" for n in range(8000)) + 'a8000 ::= "x"\nroot ::= a0'),
    "anything in any way": ("gbnf", 'root ::= s "b"\ns ::= s s s | [a-z] | ""'),
    "no way out of the left": ("gbnf", 'root ::= root "a"'),
    "a million": ("gbnf", 'root ::= "a"{1000000}'),
    "nested parentheses": ("gbnf", "root ::= " + "(" * 50_000),
    "a NUL": ("gbnf", 'root ::= "a\0"'),
}

HARMLESS: dict[str, tuple[Any, Any]] = {
    "catastrophic for those who go back": ("regex", "(x+x+)+y"),
    "a million": ("regex", "a{1000000}"),
    "many states": ("regex", "(a|b)*a(a|b){60}"),
    "many alternatives": ("regex", "|".join(f"w{number}" for number in range(5000))),
    "long texts": ("json_schema", {"type": "string", "minLength": 10**6}),
    "long lists": ("json_schema", {"type": "array", "items": {"type": "integer"}, "minItems": 10**6}),
    "trees": ("json_schema", {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#"}}}}),
}


class Neighbour:
    """A sequence that goes on for as long as one looks at its tokens."""

    def __init__(self, engine: Recorded) -> None:
        self._engine = engine

    def longest_pause_during(self, work: Any) -> float:
        """Seconds between two decodes while `work` runs."""
        is_done = threading.Event()
        pauses = [0.0]

        def watch() -> None:
            before, at = self._engine.engine.snapshot().steps, time.monotonic()
            while not is_done.wait(0.001):
                steps, now = self._engine.engine.snapshot().steps, time.monotonic()
                if steps != before:
                    pauses.append(now - at)
                    before, at = steps, now

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            work()
        finally:
            is_done.set()
            watcher.join()
        return max(pauses)


def test_hostile_constraints_are_refused_in_bounded_time_beside_others(engine: Recorded) -> None:
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    engine.submit(task("beside", PROMPT, n_predict=-1, sampling=sampling, deadline=time.monotonic() + PATIENCE_S))
    engine.wait_for(lambda: bool(engine._events["beside"]))
    pauses: dict[str, float] = {}
    for name, (syntax, value) in HOSTILE.items():
        text = value if isinstance(value, str) else json.dumps(value)

        def refuse(syntax: Any = syntax, text: str = text) -> None:
            with pytest.raises(InvalidRequest) as caught:
                engine.engine.grammars.compile(Constraint(syntax=syntax, text=text, field="response_format"))
            assert caught.value.param == "response_format"
            assert "\n" not in caught.value.message and len(caught.value.message) < 300

        started = time.monotonic()
        pauses[name] = Neighbour(engine).longest_pause_during(refuse)
        assert time.monotonic() - started < 15.0, name
    engine.engine.cancel("beside")
    assert max(pauses.values()) < 1.0, pauses


def test_what_only_looks_hostile_is_taken(engine: Recorded) -> None:
    for name, (syntax, value) in HARMLESS.items():
        grammar = compiled(engine, syntax, value if isinstance(value, str) else json.dumps(value))
        [answer] = engine.run(task(name, PROMPT, n_predict=8, sampling=MANY, grammar=grammar))
        assert answer.text
