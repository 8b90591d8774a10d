"""Clients of llama.cpp's server, by the list of what its own tests hold, each case under its number.

What is asked here goes over HTTP to a real stack with a tiny model. A case that is held elsewhere is named in
`ELSEWHERE` with where; the rest, by test.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.asking import answer, forced, post, refusal, stream
from tests.stack import Stack, ask

pytestmark = pytest.mark.asyncio(loop_scope="session")

N_CTX = 256
"""Of a slot of the shared stack."""
GREEDY = {"temperature": 0, "ignore_eos": True}
HI = [{"role": "user", "content": "Hi"}]

ROOT = Path(__file__).parent.parent
CASES = (*range(1, 33), 41, 42, 47, 48, 49)
ELSEWHERE = {
    1: (
        "api/test_access.py::test_c49_every_path_but_the_probes_needs_a_key",
        "api/routes/test_status_routes.py::test_a_served_model_is_healthy",
    ),
    2: ("api/routes/test_status_routes.py::test_a_loading_model_is_told_with_its_progress",),
    3: ("api/test_access.py::test_an_unknown_path_is_llamacpps_error",),
    4: ("api/test_access.py::test_a_wrong_key_is_an_error_object",),
    5: (
        "api/test_access.py::test_a_preflight_is_answered_on_every_path_without_a_key",
        "api/test_access.py::test_every_answer_echoes_its_origin_and_has_a_request_id",
    ),
    6: (
        "api/routes/test_metrics_routes.py::test_a_server_that_does_not_count_says_so",
        "api/routes/test_props_routes.py::test_nothing_can_be_changed_for_all",
    ),
    21: ("end_to_end/test_text_cases.py::test_c26_the_tokens_of_a_stop_are_not_told_and_a_stream_tells_the_same",),
    29: (
        "end_to_end/test_stack.py::test_a_client_that_goes_away_frees_its_slot",
        "api/routes/test_llamacpp_routes.py::test_a_queued_job_of_a_gone_client_never_runs_and_hurts_nobody",
    ),
    42: ("end_to_end/test_embedding_cases.py",),
    48: (
        "end_to_end/test_slots.py::test_a_slot_is_kept_in_a_file_and_had_back_in_another",
        "end_to_end/test_slots.py::test_what_was_erased_is_computed_anew",
        "api/routes/test_slots_routes.py",
    ),
    49: (
        "api/routes/test_adapter_routes.py::test_adapters_are_listed_with_the_scales_that_were_set_last",
        "end_to_end/test_adapters.py::test_scales_are_a_list",
    ),
}


def is_there(place: str) -> bool:
    file, _, name = place.partition("::")
    return f"async def {name}" in (ROOT / file).read_text()


async def test_every_case_of_the_list_is_held_here_or_elsewhere() -> None:
    here = {int(number) for number in re.findall(r"test_(\d\d)_", " ".join(globals()))}
    assert sorted(here | ELSEWHERE.keys()) == sorted(CASES)
    assert all(is_there(place) for places in ELSEWHERE.values() for place in places)


async def test_06_what_this_server_or_its_model_cannot_do_is_a_501(served: Stack) -> None:
    for path, body in (
        ("/rerank", {"query": "a", "documents": ["b"]}),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
    ):
        response = await post(served, path, body)
        assert (response.status_code, response.json()["error"]["type"]) == (501, "not_supported_error")


BAD_MESSAGES: list[Any] = [None, "text", [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}], [*HI, {}]]


async def test_07_what_is_no_json_or_no_list_of_messages_is_refused_as_an_error_object(served: Stack) -> None:
    for path in ("/completion", "/v1/chat/completions", "/tokenize"):
        assert (await refusal(served, b'{"prompt": ', path))["type"] == "invalid_request_error"
    for messages in BAD_MESSAGES:
        await refusal(served, {"messages": messages}, "/v1/chat/completions")


async def test_08_a_field_out_of_its_range_is_named_or_brought_back_and_null_is_absent(served: Stack) -> None:
    for name, value in (("n_predict", -5), ("n_cmpl", 0), ("n_cmpl", 129), ("repeat_last_n", -2), ("n_keep", -2)):
        error = await refusal(served, {"prompt": "Hi", name: value})
        assert error["message"].startswith(f"Field '{name}'")
    settings = (await answer(served, ask(top_p=5, temperature=None, top_k=-3)))["generation_settings"]
    assert (settings["top_p"], settings["temperature"], settings["top_k"]) == (1.0, 0.8, 0)


BAD_CONSTRAINTS: list[dict[str, Any]] = [
    {"grammar": "no grammar"},
    {"json_schema": {"type": 123}},
    {"json_schema": {"type": "hiccup"}},
    {"json_schema": 123},
]


async def test_09_what_cannot_be_kept_to_is_refused(served: Stack) -> None:
    for constraint in BAD_CONSTRAINTS:
        await refusal(served, {"prompt": "Hi", **constraint})
    for chat in (
        {"response_format": {"type": "sound"}},
        {"add_generation_prompt": True, "continue_final_message": True},
        {"top_logprobs": 3},
    ):
        await refusal(served, {"messages": HI, **chat}, "/v1/chat/completions")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    response = await post(served, "/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]})
    assert response.status_code in (400, 501)


async def test_10_a_prompt_as_long_as_the_context_is_refused_with_both_numbers_also_of_a_stream(served: Stack) -> None:
    for more in ({}, {"stream": True}):
        error = await refusal(served, ask("x " * N_CTX, **more))
        assert (error["type"], error["n_ctx"]) == ("exceed_context_size_error", N_CTX)
        assert error["n_prompt_tokens"] >= N_CTX and "exceeds the available context size" in error["message"]


async def test_11_what_is_no_prompt_is_refused_and_an_empty_one_answered(served: Stack) -> None:
    assert (await refusal(served, {"prompt": [99999]}))["message"] == "Prompt contains invalid tokens"
    assert "must not be empty" in (await refusal(served, {"prompt": []}))["message"]
    assert "prompt" in (await refusal(served, {"n_predict": 1}))["message"]
    said = await answer(served, {"prompt": ""})
    assert (said["content"], said["tokens_predicted"], said["stop"]) == ("", 0, True)


KEYS = {
    *("index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated"),
    *("generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached"),
    *("timings", "stopped_eos", "stopped_word", "stopped_limit"),
}


async def test_12_an_answer_has_all_its_keys(served: Stack) -> None:
    said = await answer(served, ask("Hello there"))
    assert said.keys() == KEYS
    assert (said["prompt"], said["stop"], said["index"]) == ("Hello there", True, 0)
    assert type(said["has_new_line"]) is bool and type(said["id_slot"]) is int


async def test_13_the_counts_of_an_answer_agree(served: Stack) -> None:
    said = await answer(served, ask(n_predict=7))
    timings = said["timings"]
    assert timings["predicted_n"] == said["tokens_predicted"] == 7 and said["stop_type"] == "limit"
    assert timings["prompt_n"] + timings["cache_n"] == said["tokens_evaluated"]
    rate = 1e3 / timings["predicted_ms"] * (timings["predicted_n"] - 1)
    assert timings["predicted_per_second"] == pytest.approx(rate)


async def test_14_tokens_are_told_when_asked_for(served: Stack) -> None:
    assert (await answer(served, ask()))["tokens"] == []
    said = await answer(served, ask(return_tokens=True))
    assert len(said["tokens"]) == said["tokens_predicted"]
    assert (await answer(served, {"tokens": said["tokens"]}, "/detokenize"))["content"] == said["content"]


@pytest.mark.parametrize(
    ("body", "stop_type", "stopping_word", "content"),
    [
        (forced("alpha beta", n_predict=1), "limit", "", None),
        (forced("alpha beta", stop=["beta"]), "word", "beta", "alpha "),
        (forced("alpha beta", stop="beta"), "word", "beta", "alpha "),
        (forced("alpha beta"), "eos", "", "alpha beta"),
        (ask(n_predict=0), "limit", "", ""),
    ],
    ids=["limit", "word", "a stop that is no list", "eos", "the prompt only"],
)
async def test_15_the_reason_why_it_ended_is_told(
    served: Stack, body: dict[str, Any], stop_type: str, stopping_word: str, content: str | None
) -> None:
    said = await answer(served, body)
    assert (said["stop_type"], said["stopping_word"], said["truncated"]) == (stop_type, stopping_word, False)
    assert [said[f"stopped_{reason}"] for reason in ("limit", "word", "eos")] == [
        reason == stop_type for reason in ("limit", "word", "eos")
    ]
    assert content is None or said["content"] == content


async def test_16_a_stream_is_the_answer_in_pieces_and_ends_with_the_whole_object(served: Stack) -> None:
    whole = await answer(served, ask())
    async with served.http.stream("POST", "/completion", json=ask(stream=True)) as response:
        lines = [line async for line in response.aiter_lines() if line]
    assert "data: [DONE]" not in lines
    *pieces, last = [json.loads(line.removeprefix("data: ")) for line in lines]
    for number, piece in enumerate(pieces, 1):
        assert (piece["stop"], piece["tokens_predicted"], len(piece["tokens"])) == (False, number, 1)
        assert piece["tokens_evaluated"] == whole["tokens_evaluated"]
    assert last.keys() == KEYS and (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    assert "".join(piece["content"] for piece in pieces) == whole["content"]


async def test_17_timings_and_progress_are_told_with_each_piece_when_asked_for(served: Stack) -> None:
    body = ask("A prompt of its own, which goes on " * 9, timings_per_token=True, return_progress=True)
    events = await stream(served, body | {"cache_prompt": False})
    told = [event for event in events if "prompt_progress" in event]
    steps = [event["prompt_progress"] for event in told]
    assert steps[0]["processed"] == steps[0]["cache"] == 0 and steps[-1]["processed"] == steps[-1]["total"]
    processed = [step["processed"] for step in steps]
    assert processed == sorted(set(processed))
    assert len({(step["total"], step["cache"]) for step in steps}) == 1
    first = told[0]["timings"]
    assert not any(first.values())
    spent = [event["timings"]["prompt_ms"] for event in events]
    assert spent == sorted(spent)
    assert [event["timings"]["predicted_n"] for event in events if event not in told][:-1] == list(range(1, 13))


async def test_18_only_the_fields_that_were_asked_for_are_told(served: Stack) -> None:
    fields = ["content", "generation_settings/n_predict", "timings/predicted_n", "prompt/none", "nothing"]
    said = await answer(served, ask(response_fields=fields))
    assert said.keys() == {"content", "generation_settings/n_predict", "timings/predicted_n"}
    assert said["generation_settings/n_predict"] == said["timings/predicted_n"] == 12
    *pieces, last = await stream(served, ask(response_fields=fields))
    assert last.keys() == said.keys() and pieces[0]["stop"] is False


async def test_19_each_token_comes_with_its_likeliest_alternatives(served: Stack) -> None:
    body = {"prompt": "Hi", "n_predict": 5, "n_probs": 10, **GREEDY}
    entries = (await answer(served, body))["completion_probabilities"]
    assert len(entries) == 5
    for entry in entries:
        assert type(entry["id"]) is int and type(entry["token"]) is str and type(entry["bytes"]) is list
        assert entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 10
        assert entry["top_logprobs"][0]["id"] == entry["id"]
        assert entry["probs"][0]["tok_str"] == entry["content"]
    *pieces, last = await stream(served, body)
    assert [piece["completion_probabilities"][0]["id"] for piece in pieces] == [entry["id"] for entry in entries]
    assert "completion_probabilities" not in last


async def test_20_after_sampling_probabilities_sum_to_one(served: Stack) -> None:
    body = {"prompt": "Hi", "n_predict": 3, "n_probs": 10, "post_sampling_probs": True, "ignore_eos": True}
    for entry in (await answer(served, body | {"temperature": 0}))["completion_probabilities"]:
        assert (entry["prob"], len(entry["top_probs"])) == (pytest.approx(1), 1)
    for entry in (await answer(served, body | {"top_k": 4, "seed": 1}))["completion_probabilities"]:
        assert 0 < entry["prob"] <= 1 and all(top["prob"] > 0 for top in entry["top_probs"])
        assert sum(top["prob"] for top in entry["top_probs"]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("prompt", "n_answers"),
    [
        ("Hello there", 1),
        ([19556, 665], 1),
        ([19556, " there", 665], 1),
        ({"prompt_string": "Hello there"}, 1),
        (["Hello there"], 1),
        (["Hello there", "Hello there"], 2),
        ([[19556, 665], [19556, 665]], 2),
        (["Hello", [19556, 665], [19556, " there"], {"prompt_string": "Hello"}], 4),
    ],
    ids=str,
)
async def test_22_a_prompt_has_many_forms_and_an_array_as_many_answers(
    served: Stack, prompt: Any, n_answers: int
) -> None:
    response = await post(served, "/completion", {"prompt": prompt, "n_predict": 4, **GREEDY})
    said = response.json()
    assert isinstance(said, list) == (n_answers > 1), "an array of one is answered with an object"
    answers = said if n_answers > 1 else [said]
    assert [each["index"] for each in answers] == list(range(n_answers))
    by_prompt: dict[str, set[str]] = {}
    for each in answers:
        by_prompt.setdefault(each["prompt"], set()).add(each["content"])
    assert all(len(contents) == 1 for contents in by_prompt.values()), "equal prompts have equal answers"


async def test_23_files_for_a_model_that_only_reads_are_refused(served: Stack) -> None:
    for text in ("What is it? <__media__>", "What is it?"):
        response = await post(served, "/completion", {"prompt": {"prompt_string": text, "multimodal_data": ["AAAA"]}})
        assert response.status_code in (400, 501)


async def test_24_a_text_does_not_depend_on_slots_and_neighbours_and_differs_by_its_seed(served: Stack) -> None:
    body = {"prompt": "Hello there", "n_predict": 12, "cache_prompt": False, "ignore_eos": True}
    greedy = [answer(served, body | {"temperature": 0, "id_slot": slot}) for slot in range(4)]
    assert len({said["content"] for said in await asyncio.gather(*greedy)}) == 1
    warm = [await answer(served, body | {"temperature": 1, "seed": seed}) for seed in (0, 1, 2, 3, 0)]
    texts = [said["content"] for said in warm]
    assert len(set(texts)) == 4 and texts[0] == texts[4]


async def test_25_a_bias_of_a_token_is_told_in_many_forms(served: Stack) -> None:
    plain = await answer(served, {"prompt": "Hi", "n_predict": 1, "return_tokens": True, **GREEDY})
    token, text = plain["tokens"][0], plain["content"]
    for bias in ([[token, -100]], [[text, -100]], {str(token): -100}, {text: -100}, [[token, False]]):
        said = await answer(served, {"prompt": "Hi", "n_predict": 1, "logit_bias": bias, **GREEDY})
        assert said["content"] != text
    settings = plain["generation_settings"]
    assert settings["logit_bias"] and {bias["bias"] for bias in settings["logit_bias"]} == {None}
    assert (await answer(served, {"prompt": "Hi", "n_predict": 1}))["generation_settings"]["logit_bias"] == []


async def test_26_the_settings_of_an_answer_are_those_it_was_made_with(served: Stack) -> None:
    settings = (await answer(served, ask(seed=42, adaptive_target=0.3, adaptive_decay=0.5)))["generation_settings"]
    told = [settings[name] for name in ("seed", "n_predict", "adaptive_target", "adaptive_decay", "n_ctx")]
    assert told == [42, 12, 0.3, 0.5, N_CTX]
    assert {"tfs_z", "penalize_nl", "penalty_prompt_tokens", "use_penalty_prompt_tokens"} <= settings.keys()


async def test_27_a_common_beginning_is_computed_once_unless_that_is_forbidden(served: Stack) -> None:
    start = "What nobody here has asked before, a beginning of some length. "
    first, second = [await answer(served, ask(start + "One", id_slot=1)) for _ in range(2)]
    assert (second["timings"]["cache_n"], second["timings"]["prompt_n"]) == (first["tokens_evaluated"] - 1, 1)
    n_common = len((await answer(served, {"content": start}, "/tokenize"))["tokens"])
    other = await answer(served, ask(start + "Other", id_slot=1))
    assert n_common - 1 <= other["timings"]["cache_n"] <= n_common
    anew = await answer(served, ask(start + "One", id_slot=1, cache_prompt=False))
    assert anew["timings"]["cache_n"] == 0
    usage = (await answer(served, ask(start + "One"), "/v1/completions"))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


async def test_28_more_requests_than_slots_are_all_answered_and_a_slot_can_be_named(served: Stack) -> None:
    asked = [answer(served, ask(f"{number}", n_predict=40)) for number in range(9)]
    said = await asyncio.gather(*asked, answer(served, ask(id_slot=6)))
    assert {each["tokens_predicted"] for each in said[:-1]} == {40}
    assert said[-1]["id_slot"] == 6 % 4
    await served.until(served.is_idle)


async def test_30_choices_of_one_prompt_have_indexes_and_seeds_of_their_own(served: Stack) -> None:
    for _ in range(3):
        choices = (await post(served, "/completion", ask(n_cmpl=2, id_slot=0, seed=7))).json()
        assert [choice["index"] for choice in choices] == [0, 1]
        assert [choice["generation_settings"]["seed"] for choice in choices] == [7, 8]
    chat = {"messages": HI, "n": 2, "max_tokens": 4, "ignore_eos": True}
    answered = (await answer(served, chat, "/v1/chat/completions"))["choices"]
    assert [(choice["index"], choice["finish_reason"]) for choice in answered] == [(0, "length"), (1, "length")]


async def test_31_a_constraint_is_kept(served: Stack) -> None:
    body = {"prompt": "Hi", "temperature": 1, "seed": 3, "n_predict": 60}
    assert (await answer(served, body | {"grammar": 'root ::= "a"{5,5}'}))["content"] == "aaaaa"
    assert (await answer(served, body | {"json_schema": {"const": "42"}}))["content"] == '"42"'
    chat = {"messages": HI, "max_tokens": 5, "response_format": {"type": "json_object"}}
    (choice,) = (await answer(served, chat, "/v1/chat/completions"))["choices"]
    assert choice["message"]["content"].startswith("{")


async def test_32_a_full_context_ends_a_text_or_is_shifted(served: Stack) -> None:
    prompt = "one two three four five six seven eight " * 25
    ended = await answer(served, {"prompt": prompt, "n_predict": 96, **GREEDY})
    assert ended["tokens_predicted"] == N_CTX - ended["tokens_evaluated"] < 96
    shifted = await answer(served, {"prompt": prompt, "n_predict": 96, "shift": True, **GREEDY})
    assert shifted["tokens_predicted"] == 96
    assert ended["truncated"] and shifted["truncated"]
    assert ended["tokens_cached"] == N_CTX - 1
    assert N_CTX // 2 <= shifted["tokens_cached"] < N_CTX, "what was shifted out is not in the cache"


async def test_41_without_tools_nothing_is_called(served: Stack) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    for more in ({"tools": []}, {"tools": [tool], "tool_choice": "none"}):
        chat = {"messages": HI, "max_tokens": 3, **more}
        (choice,) = (await answer(served, chat, "/v1/chat/completions"))["choices"]
        assert not choice["message"].get("tool_calls")


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"content": "<|im_end|>"}, [2]),
        ({"content": "<|im_end|>", "parse_special": False}, [44, 108, 306, 79, 486, 108, 46]),
        ({"content": "<|im_end|>", "add_special": True}, [2]),
        ({"content": ""}, []),
        ({}, []),
    ],
    ids=str,
)
async def test_47_control_tokens_are_read_unless_told_otherwise_and_none_is_added(
    served: Stack, body: dict[str, Any], tokens: list[int]
) -> None:
    assert await answer(served, body, "/tokenize") == {"tokens": tokens}
    told = (await answer(served, body | {"with_pieces": True}, "/tokenize"))["tokens"]
    assert [each["id"] for each in told] == tokens
    assert "".join(each["piece"] for each in told) == body.get("content", "")


@pytest.mark.parametrize("text", ["Hello there", " two  blanks ", "Grüße, 世界! 👋\n", "a\u0000b", "x<|im_start|>y"])
async def test_47_a_text_comes_back_from_its_tokens(served: Stack, text: str) -> None:
    for parse_special in (True, False):
        tokens = (await answer(served, {"content": text, "parse_special": parse_special}, "/tokenize"))["tokens"]
        assert await answer(served, {"tokens": tokens}, "/detokenize") == {"content": text}
    (pieces,) = [(await answer(served, {"content": "👋", "with_pieces": True}, "/tokenize"))["tokens"]]
    assert bytes(byte for piece in pieces for byte in piece["piece"]).decode() == "👋"
