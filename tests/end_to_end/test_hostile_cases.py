"""Requests that broke servers like this one: what a client may send, it may send without harm.

The numbers are those of the bank of cases that this project keeps. Every test leaves the stack as `served` finds it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.end_to_end.asking import answer, post, refusal, say
from tests.stack import Stack, ask

pytestmark = pytest.mark.asyncio(loop_scope="session")

SURROGATES = [
    ("/completion", r'{"prompt":"a\ud800b","n_predict":1}'),
    ("/completion", r'{"prompt":["a","\ud800"],"n_predict":1}'),
    ("/completion", r'{"prompt":"a","n_predict":1,"stop":["\udfff"]}'),
    ("/completion", r'{"prompt":"a","n_predict":1,"grammar":"root ::= \"\ud800\""}'),
    ("/completion", r'{"prompt":"a","n_predict":1,"logit_bias":{"\ud800":1}}'),
    ("/completion", r'{"prompt":"a","n_predict":1,"json_schema":{"const":"\ud800"}}'),
    ("/tokenize", r'{"content":"a\ud800b"}'),
    ("/v1/chat/completions", r'{"messages":[{"role":"user","content":"a\ud800b"}],"max_tokens":1}'),
    ("/v1/embeddings", r'{"input":"a\ud800b"}'),
    ("/v1/jobs", r'{"endpoint":"/completion","body":{"prompt":"a\ud800b","n_predict":1}}'),
    ("/v1/jobs", r'{"endpoint":"/completion","body":{"prompt":"a"},"metadata":{"k":"\ud800"}}'),
]


@pytest.mark.parametrize(("path", "body"), SURROGATES)
async def test_c05_half_a_pair_of_surrogates_is_refused_before_anything_is_queued(
    served: Stack, path: str, body: str
) -> None:
    error = await refusal(served, body.encode(), path)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/completion", "/tokenize", "/v1/chat/completions", "/v1/jobs"])
async def test_c05_bytes_that_are_no_text_are_refused(served: Stack, path: str) -> None:
    for raw in (b'{"prompt":"a\xffb"}', b'\xff\xfe{\x00"\x00', b'{"prompt":"\xc0\xaf"}'):
        assert (await refusal(served, raw, path))["type"] == "invalid_request_error"


@pytest.mark.parametrize("prompt", ["", "\u0004", [""], [[]], ["\u0004"], {"prompt_string": ""}])
async def test_c08_a_prompt_of_no_tokens_is_answered_at_once(served: Stack, prompt: Any) -> None:
    """The model adds no token of its own, and its vocabulary has none for the character."""
    said = await say(served, {"prompt": prompt, "n_predict": 4, "temperature": 0})
    assert (said["content"], said["tokens_predicted"], said["tokens_evaluated"]) == ("", 0, 0)
    said = await answer(served, {"prompt": prompt, "max_tokens": 4}, "/v1/completions")
    assert said["choices"][0]["text"] == ""
    assert said["usage"]["total_tokens"] == 0


async def test_c08_no_prompt_at_all_is_refused(served: Stack) -> None:
    for path in ("/completion", "/v1/completions"):
        for body in ({"prompt": []}, {"prompt": None}, {}):
            await refusal(served, body | {"n_predict": 4}, path)


NOT_NUMBERS = [
    '"temperature":NaN',
    '"temperature":Infinity',
    '"temperature":-Infinity',
    '"temperature":1e400',
    '"temperature":"hot"',
    '"temperature":true',
    '"top_p":{}',
    '"top_k":2.5',
    '"n_predict":"3"',
    '"n_predict":true',
    '"n_predict":2.7',
    '"n_predict":1' + "0" * 30,
    '"n_predict":1' + "0" * 5000,
    '"seed":1' + "0" * 30,
    '"stream":"false"',
    '"stream":1',
    '"stop":1',
    '"stop":[1]',
    '"stop":{"a":1}',
    '"stop":true',
    '"repeat_penalty":1e39',
    '"logit_bias":[[1,NaN]]',
    '"logit_bias":[[1,"a"]]',
    '"ignore_eos":"yes"',
    '"cache_prompt":0',
]


@pytest.mark.parametrize("field", NOT_NUMBERS, ids=[field[:30] for field in NOT_NUMBERS])
async def test_c09_a_value_of_the_wrong_kind_is_refused(served: Stack, field: str) -> None:
    for path in ("/completion", "/v1/completions"):
        await refusal(served, f'{{"prompt":"Hi",{field}}}'.encode(), path)


async def test_c09_null_is_the_default(served: Stack) -> None:
    names = ("temperature", "top_k", "top_p", "seed", "stop", "stream", "logit_bias", "n", "grammar", "json_schema")
    said = await answer(served, {"prompt": "Hi", "max_tokens": 1, "n_predict": None} | dict.fromkeys(names))
    assert said["generation_settings"]["temperature"] == 0.8
    assert said["tokens_predicted"] == 1


@pytest.mark.parametrize(
    "raw", ["[1]", "", "{bad", "[" * 100_000, '{"a":' * 100_000, '"x"', "null", '{"prompt":"a"} x', "\x00"],
    ids=lambda raw: raw[:12] or "nothing",
)  # fmt: skip
async def test_c09_what_is_no_object_of_json_is_refused(served: Stack, raw: str) -> None:
    for path in ("/completion", "/v1/chat/completions", "/v1/jobs"):
        assert (await refusal(served, raw.encode(), path))["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "prompt", [[-1], [49152], [2**40], [1.5], [True], ["a", [49152]], [["a", -1]], [2**64]], ids=str
)
async def test_c10_an_id_that_is_no_token_is_refused(served: Stack, prompt: Any) -> None:
    for path in ("/completion", "/v1/completions"):
        await refusal(served, {"prompt": prompt, "n_predict": 1}, path)
    await refusal(served, {"input": prompt}, "/v1/embeddings")


async def test_c10_ids_are_looked_up_only_when_they_are_tokens(served: Stack) -> None:
    for tokens in ([49152], [-1], ["a"], "x", [True], [1.5], [2**40], None):
        await refusal(served, {"tokens": tokens}, "/detokenize")
    await refusal(served, {}, "/detokenize")
    assert (await answer(served, {"tokens": []}, "/detokenize")) == {"content": ""}
    assert (await answer(served, {"tokens": [10813]}, "/detokenize")) == {"content": "\ufffd"}


async def test_c10_a_bias_outside_the_vocabulary_changes_nothing_or_is_refused(served: Stack) -> None:
    plain = await answer(served, ask(temperature=0))
    for token in (99_999_999, 49152):
        response = await post(served, "/completion", ask(temperature=0, logit_bias=[[token, 5]]))
        assert response.status_code == 400 or response.json()["content"] == plain["content"]
    for token in (-1, 2**31, 1.5, True, None, [1]):
        await refusal(served, ask(logit_bias=[[token, 5]]))


async def test_c56_nul_is_a_character_like_others(served: Stack) -> None:
    text = "a\u0000b"
    ids = (await answer(served, {"content": text}, "/tokenize"))["tokens"]
    assert ids[-1] == (await answer(served, {"content": "b"}, "/tokenize"))["tokens"][0]
    assert (await answer(served, {"tokens": ids}, "/detokenize"))["content"] == text
    said = await answer(served, ask(text, n_predict=2, stop=["\u0000"]))
    assert said["tokens_evaluated"] == len(ids)
    assert said["prompt"] == text
    chat = {"messages": [{"role": "user", "content": text}]}
    assert text in (await answer(served, chat, "/apply-template"))["prompt"]
    await answer(served, chat | {"max_tokens": 1}, "/v1/chat/completions")


async def test_c56_a_job_keeps_the_nul_in_its_prompt(served: Stack) -> None:
    body = {"endpoint": "/completion", "body": ask("a\u0000b", n_predict=2)}
    made = await served.http.post("/v1/jobs", content=json.dumps(body))
    assert made.status_code == 202

    async def has_ended() -> bool:
        job = (await served.http.get(f"/v1/jobs/{made.json()['id']}")).json()
        return job["status"] == "succeeded" and job["result"]["prompt"] == "a\u0000b"

    await served.until(has_ended)
