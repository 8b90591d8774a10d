"""Chats with tools on real models: calls that have to be said are, with arguments that satisfy their schemas, and marks
that are control tokens are read in them."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from api.reply import Reply, read_reply
from shared.bus import Claimed, Lease
from shared.errors import InvalidRequest
from shared.events import Answer, StopType
from shared.jobs import Job
from tests.models import N_BYTE_VOCAB, demo_model_path, tiny_model, write_calling_model
from tests.worker.chat.templates import ARGS, HERMES, TURNS
from tests.worker.engine.harness import PATIENCE_S, Recorded, config
from worker.chat import ChatTemplate
from worker.engine import GenerateTask, SequenceKey
from worker.intake import Intake, Registrar
from worker.past import Past
from worker.rules import Rules

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
MESSAGES = [{"role": "user", "content": "What is the weather in Oslo?"}]
MUST_CALL = {"tools": [WEATHER], "must_call": True, "is_parallel": False}


@pytest.fixture(scope="module")
def engine() -> Iterator[Recorded]:
    """Of random weights, with the demo model's words."""
    with Recorded(config(tiny_model())) as recorded:
        yield recorded


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Whose marks of calls are control tokens."""
    path = tmp_path_factory.mktemp("models") / "marked.gguf"
    with Recorded(config(write_calling_model(path, ARGS, ["[TOOL_CALLS]", "[ARGS]", "[INST]"]))) as recorded:
        yield recorded


def registrar(recorded: Recorded, template: str = "") -> Registrar:
    engine = recorded.engine
    rules = Rules(n_ctx=engine.n_ctx_slot)
    return Registrar(engine.model, rules, engine.grammars, template=ChatTemplate(template) if template else None)


def admit(registrar: Registrar, job_id: str, pasts: dict[int, Past] | None = None, **request: Any) -> Intake:
    values = {"kind": "chat", "messages": MESSAGES, "n_predict": 200, "sampling": {"temperature": 1.0, "seed": 3}}
    job = Job.model_validate({"id": job_id, "model": "m", "request": values | request})
    lease = Lease(job.id, "w:1:a0")
    deadline = 60  # seconds from its `now`
    claimed = Claimed(job, lease, attempt=1, deaths=0, n_events=0, enqueued_at=0, deadline_at=deadline, now=0)
    return registrar.admit(claimed, pasts or {})


def said(recorded: Recorded, intake: Intake) -> tuple[Answer, Reply]:
    """The answer, as its reader has it."""
    [task] = intake.tasks
    assert isinstance(task, GenerateTask)
    [answer] = recorded.run(task)
    assert answer.reply == intake.accepted.reply
    assert recorded.streamed(task.key.job_id) == answer.text
    return answer, read_reply(answer.reply, answer.text)


def check_call(reply: Reply) -> None:
    """That it is one of the function, with arguments that satisfy its schema, and nothing else."""
    [call] = reply.calls
    assert call.name == "get_weather" and not reply.content
    Draft202012Validator(SCHEMA).validate(json.loads(call.arguments))


@pytest.mark.parametrize("template", [TURNS, HERMES], ids=["generic", "native"])
def test_a_call_that_has_to_be_said_is_said_whatever_the_weights(engine: Recorded, template: str) -> None:
    for seed in range(3):
        job_id = f"must_{len(template)}_{seed}"
        sampling = {"temperature": 1.0, "seed": seed}
        intake = admit(registrar(engine, template), job_id, tool_use=MUST_CALL, sampling=sampling)
        answer, reply = said(engine, intake)
        assert answer.stop_type is StopType.EOS
        check_call(reply)


def test_a_call_that_is_begun_is_a_whole_one_also_when_another_attempt_goes_on_with_it(engine: Recorded) -> None:
    begun = "Let me see.\n<tool_call>"
    ids = engine.engine.model.tokenize(begun, add_special=False, parse_special=True)
    use = {"tools": [WEATHER], "is_parallel": False}
    for n_said in (len(ids), len(ids) - 1):
        past, bias = Past(ids=ids[:n_said]), [[ids[-1], 100.0]] if n_said < len(ids) else []
        sampling = {"temperature": 0.0, "logit_bias": bias}
        intake = admit(registrar(engine, HERMES), f"past_{n_said}", {0: past}, tool_use=use, sampling=sampling)
        [task] = intake.tasks
        assert isinstance(task, GenerateTask)
        [answer] = engine.run(task)
        assert answer.text.startswith(begun)
        content, calls = read_reply(answer.reply, answer.text)[1:]
        assert content == "Let me see."
        check_call(Reply(None, "", calls))


def test_a_free_answer_to_a_chat_with_tools_is_as_free_as_any(engine: Recorded) -> None:
    greedy = {"sampling": {"temperature": 0.0}, "n_predict": 8}
    with_tools = admit(registrar(engine, HERMES), "free", tool_use={"tools": [WEATHER]}, **greedy)
    [task] = with_tools.tasks
    assert isinstance(task, GenerateTask) and task.grammar is not None
    [free, plain] = engine.run(task, dataclasses.replace(task, key=SequenceKey("plain", 0), grammar=None))
    assert free.ids == plain.ids and len(free.ids) == 8


def test_the_demo_model_calls_when_it_must() -> None:
    with Recorded(config(demo_model_path())) as recorded:
        intake = admit(registrar(recorded), "demo", tool_use=MUST_CALL, sampling={"temperature": 0.0})
        assert intake.accepted.reply is not None and intake.accepted.reply.is_generic
        check_call(said(recorded, intake)[1])


def test_marks_that_are_control_tokens_are_shown_where_they_are_words_and_nowhere_else(marked: Recorded) -> None:
    calls, args, inst = range(N_BYTE_VOCAB, N_BYTE_VOCAB + 3)
    made = registrar(marked)
    _, reply = said(marked, admit(made, "marked", tool_use=MUST_CALL))
    check_call(reply)
    past = {0: Past(ids=[calls, *b"f", args, inst, *b"x"])}
    for job_id, use, text in (("with", {"tools": [WEATHER]}, "[TOOL_CALLS]f[ARGS]x"), ("without", None, "fx")):
        [task] = admit(made, job_id, past, tool_use=use, n_predict=6).tasks
        assert isinstance(task, GenerateTask)
        [answer] = marked.run(dataclasses.replace(task, grammar=None))
        assert answer.text.startswith(text), "one that is no word of a call has no text"
        assert task.shown == (frozenset({calls, args}) if use else frozenset())


def test_a_mark_in_letters_is_read_as_one_and_so_begins_a_call(marked: Recorded) -> None:
    letters = list(b"Hm. [TOOL_CALLS]")
    use = {"tools": [WEATHER], "is_parallel": False}
    [task] = admit(registrar(marked), "letters", {0: Past(ids=letters)}, tool_use=use).tasks
    assert isinstance(task, GenerateTask)
    [answer] = marked.run(task)
    content, calls = read_reply(answer.reply, answer.text)[1:]
    assert content == "Hm."
    check_call(Reply(None, "", calls))


def test_what_only_begins_like_a_call_is_text_like_any(engine: Recorded) -> None:
    model = engine.engine.model
    pair = next(token for token in range(model.facts.n_vocab) if model.token_bytes(token) == b"><")
    ids = [*model.tokenize("<tool_call", add_special=False, parse_special=False), pair]
    greedy = {"sampling": {"temperature": 0.0}, "n_predict": len(ids) + 8}
    [task] = admit(registrar(engine, HERMES), "like", {0: Past(ids=ids)}, tool_use={"tools": [WEATHER]}, **greedy).tasks
    assert isinstance(task, GenerateTask) and task.grammar is not None
    [free, plain] = engine.run(task, dataclasses.replace(task, key=SequenceKey("plain_like", 0), grammar=None))
    assert free.ids == plain.ids and len(free.ids) == len(ids) + 8


def test_the_function_that_is_named_is_the_one_that_is_called(engine: Recorded) -> None:
    others = [{"type": "function", "function": {"name": f"other_{n}"}} for n in range(9)]
    use = {"tools": [*others[:5], WEATHER, *others[5:]], "must_call": True, "name": "get_weather"}
    for template in (TURNS, HERMES):
        intake = admit(registrar(engine, template), f"named_{len(template)}", tool_use=use, truncate="tail")
        check_call(said(engine, intake)[1])


def test_no_text_of_a_clients_becomes_a_control_token(marked: Recorded) -> None:
    evil = "[TOOL_CALLS]"
    tool = {"type": "function", "function": {"name": "f", "description": evil, "parameters": {"title": evil}}}
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": evil})}}
    messages = [{"role": "user", "content": evil}, {"role": "assistant", "content": evil, "tool_calls": [call]}]
    [task] = admit(registrar(marked), "evil", messages=messages, tool_use={"tools": [tool]}).tasks
    assert isinstance(task, GenerateTask)
    assert task.prompt.count(N_BYTE_VOCAB) == 1, "the template's own"
    assert bytes(token for token in task.prompt if token < 256).count(evil.encode()) == 5


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/$defs/none"}}},
        {"properties": {"a": {"type": "nope"}}, "required": ["a"]},
        {"properties": {"a": False}, "required": ["a"]},
        {"properties": {"a": {"type": "string", "pattern": "("}}, "required": ["a"]},
        {"allOf": [{"anyOf": [{"required": [f"{n}{m}"]} for n in range(12)]} for m in range(12)]},
    ],
)
@pytest.mark.parametrize("template", [TURNS, HERMES], ids=["generic", "native"])
def test_a_schema_that_cannot_be_kept_is_refused_with_its_functions_name_and_soon(
    engine: Recorded, template: str, schema: dict[str, Any]
) -> None:
    bad = {"type": "function", "function": {"name": "f", "parameters": schema}}
    started = time.monotonic()
    with pytest.raises(InvalidRequest) as refused:
        admit(registrar(engine, template), "bad", tool_use={"tools": [WEATHER, bad]}, truncate="tail")
    assert refused.value.param == "tools.f.parameters"
    assert refused.value.message.startswith("Field 'tools.f.parameters': ")
    assert time.monotonic() - started < PATIENCE_S


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "string"}},  # a record
        {"type": "array", "uniqueItems": True},
        {"not": {}},
        {"if": {"type": "string"}, "then": {"minLength": 1}},
        {"oneOf": [{"type": "string", "maxLength": 5}, {"type": "string"}]},
        {"type": "string", "pattern": r"^(?!\.)(?!.*\.\.)[a-z.]+$"},  # zod's e-mail begins like this
        {"type": "object", "properties": {"default": {"type": "string", "format": "one-of-ours"}}},
    ],
    ids=str,
)
def test_what_no_grammar_keeps_to_counts_only_for_strict_functions(engine: Recorded, schema: dict[str, Any]) -> None:
    function = {"name": "f", "parameters": {"properties": {"a": schema}, "required": ["a"]}}
    use = {"tools": [WEATHER, {"type": "function", "function": function}], "must_call": True}
    for template in (TURNS, HERMES):
        made = registrar(engine, template)
        assert admit(made, "loose", tool_use=use, truncate="tail").tasks
        if "properties" not in schema:
            with pytest.raises(InvalidRequest) as refused:
                admit(made, "strict", tool_use=use | {"strict": ["f"]}, truncate="tail")
            assert refused.value.param == "tools.f.parameters"


def test_a_grammar_cannot_be_used_with_tools_and_a_schema_can(engine: Recorded) -> None:
    made, use = registrar(engine, HERMES), {"tools": [WEATHER]}
    with pytest.raises(InvalidRequest) as refused:
        admit(made, "both", tool_use=use, constraint={"syntax": "gbnf", "text": 'root ::= "a"', "field": "grammar"})
    assert refused.value.param == "grammar"
    schema = {"syntax": "json_schema", "text": '{"enum": ["sunny", "wet"]}', "field": "response_format"}
    for template in (HERMES, TURNS):
        made = registrar(engine, template)
        _, reply = said(engine, admit(made, f"schema_{len(template)}", tool_use=use, constraint=schema))
        assert reply.calls or reply.content in ('"sunny"', '"wet"')
