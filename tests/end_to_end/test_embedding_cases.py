"""Vectors of inputs of every form (C45), from a worker that generates beside them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from tests.end_to_end.asking import answer, post, refusal
from tests.models import N_EMBD
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATH = "/v1/embeddings"


async def vectors(stack: Stack, given: Any, **more: Any) -> NDArray[np.float64]:
    """Of all inputs, in their order. Each has length 1."""
    answered = await answer(stack, {"input": given, **more}, PATH)
    assert [item["index"] for item in answered["data"]] == list(range(len(answered["data"])))
    assert answered["usage"]["prompt_tokens"] == answered["usage"]["total_tokens"]
    found = np.array([item["embedding"] for item in answered["data"]])
    assert found.shape[1] == N_EMBD and np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-3)
    return found


async def tokens_of(stack: Stack, given: Any) -> int:
    usage = (await answer(stack, {"input": given}, PATH))["usage"]
    return int(usage["total_tokens"])


@pytest.mark.parametrize(
    ("given", "n_inputs"),
    [("hello", 1), (["hello"], 1), ([28120, 905], 1), ([[28120], [905, 28]], 2), (["x"] * 40, 40)],
    ids=lambda value: str(value)[:30],
)
async def test_c45_an_array_with_a_token_is_one_input(served: Stack, given: Any, n_inputs: int) -> None:
    assert len(await vectors(served, given)) == n_inputs


async def test_c45_equal_inputs_have_equal_vectors_whatever_their_neighbours(served: Stack) -> None:
    first, other, again = await vectors(served, ["a", "b c", "a"])
    [alone] = await vectors(served, "a")
    crowd = await vectors(served, [*["some words"] * 20, "a", *["a much longer text of many words"] * 20])
    for vector in (again, alone, crowd[20]):
        assert np.abs(vector - first).max() < 1e-5
    assert np.abs(first - other).max() > 1e-3


async def test_c45_usage_is_the_sum_over_the_inputs(served: Stack) -> None:
    inputs = ["a", "b c", [28120, 905]]
    assert await tokens_of(served, inputs) == sum([await tokens_of(served, [each]) for each in inputs])


@pytest.mark.parametrize("given", ["", [""], ["a", ""], [], None, 5, [[]], {"input": "a"}, [-1], [10**9]])
async def test_c45_what_holds_no_input_is_refused(served: Stack, given: Any) -> None:
    error = await refusal(served, {"input": given}, PATH)
    assert error["type"] == "invalid_request_error"


async def test_c45_an_input_too_long_names_the_limit_and_harms_nobody(served: Stack) -> None:
    for given in ([28] * 5000, ["a", [28] * 5000]):
        response = await post(served, PATH, {"input": given})
        error = response.json()["error"]
        assert response.status_code == 400 and error["type"] in ("invalid_request_error", "exceed_context_size_error")
        assert "5000" in error["message"] and "choices" not in response.json()
    assert len(await vectors(served, ["a", "b"])) == 2


async def test_c45_base64_is_the_same_floats_in_little_endian(served: Stack) -> None:
    [floats] = await vectors(served, "hello")
    [item] = (await answer(served, {"input": "hello", "encoding_format": "base64"}, PATH))["data"]
    assert np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4") == pytest.approx(floats)


@pytest.mark.parametrize("field", [{"encoding_format": "hex"}, {"dimensions": 10}, {"embd_normalize": -2}], ids=str)
async def test_c45_what_cannot_be_done_is_refused_and_not_ignored(served: Stack, field: dict[str, Any]) -> None:
    error = await refusal(served, {"input": "a", **field}, PATH)
    assert error["param"] == next(iter(field))


async def test_c45_the_openai_client_gets_floats_whichever_form_it_asks_for(served: Stack) -> None:
    """Unless told otherwise it asks for base64."""
    async with openai.AsyncOpenAI(base_url=f"{served.http.base_url}/v1", api_key="none", max_retries=0) as client:
        packed = await client.embeddings.create(model="x", input=["a", "b c"])
        plain = await client.embeddings.create(model="x", input=["a", "b c"], encoding_format="float")
        with pytest.raises(openai.BadRequestError):
            await client.embeddings.create(model="x", input=["a", ""])
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-5)


async def test_llamacpps_paths_give_rows_and_take_both_names(served: Stack) -> None:
    wanted = await vectors(served, ["a", "b c"])
    for path, body in (
        ("/embedding", {"content": ["a", "b c"]}),
        ("/embeddings", {"input": ["a", "b c"]}),
        ("/embedding", {"input": [{"content": [{"type": "text", "text": "a"}]}, {"prompt_string": "b c"}]}),
    ):
        response = await post(served, path, body)
        rows = response.json()
        assert [item["index"] for item in rows] == [0, 1]
        assert np.allclose([item["embedding"] for item in rows], wanted[:, None], atol=1e-5)


@pytest.mark.parametrize(("norm", "order", "length"), [(0, np.inf, 32760), (1, 1, 1), (2, 2, 1), (3, 3, 1)])
async def test_a_vector_is_divided_by_the_norm_that_was_asked_for(
    served: Stack, norm: int, order: float, length: float
) -> None:
    response = await post(served, "/embedding", {"content": "hello", "embd_normalize": norm})
    [vector] = np.array(response.json()[0]["embedding"])
    assert np.linalg.norm(vector, order) == pytest.approx(length, rel=1e-3)
    [unit] = await vectors(served, "hello")
    assert np.allclose(vector / np.linalg.norm(vector), unit, atol=1e-5)


async def test_a_model_that_does_not_rerank_says_so(served: Stack) -> None:
    for path in ("/rerank", "/v1/rerank"):
        response = await post(served, path, {"query": "a", "documents": ["b", "c"]})
        assert response.status_code == 501, response.text


async def test_without_pooling_each_token_has_its_row_and_openai_is_refused(specialists: Stack) -> None:
    response = await post(specialists, "/embedding", {"model": "rows", "input": ["four", [65, 66]]})
    assert [np.array(item["embedding"]).shape for item in response.json()] == [(4, N_EMBD), (2, N_EMBD)]
    error = await refusal(specialists, {"model": "rows", "input": "four"}, PATH)
    assert "pooling" in error["message"]


DOCUMENTS = ["a panda", "the giant panda is a bear", "", "a panda"]


async def test_documents_are_ranked_in_both_formats_with_the_same_scores(specialists: Stack) -> None:
    query = {"model": "judge", "query": "what is a panda"}
    jina = await answer(specialists, query | {"documents": DOCUMENTS}, "/v1/rerank")
    scores = [item["relevance_score"] for item in jina["results"]]
    assert scores == sorted(scores, reverse=True)
    assert {item["index"]: item["relevance_score"] for item in jina["results"]}.keys() == {0, 1, 2, 3}
    assert jina["usage"]["total_tokens"] > sum(map(len, DOCUMENTS))
    tei = (await post(specialists, "/rerank", query | {"texts": DOCUMENTS, "return_text": True})).json()
    assert [(item["index"], item["score"]) for item in tei] == [
        (item["index"], item["relevance_score"]) for item in jina["results"]
    ]
    assert [item["text"] for item in tei] == [DOCUMENTS[item["index"]] for item in tei]
    by_index = {item["index"]: item["score"] for item in tei}
    assert by_index[0] == pytest.approx(by_index[3], abs=1e-5)
    best = await answer(specialists, query | {"documents": DOCUMENTS, "top_n": 1}, "/reranking")
    assert best["results"] == jina["results"][:1]


async def test_a_document_too_long_is_refused_and_harms_nobody(specialists: Stack) -> None:
    query = {"model": "judge", "query": "q"}
    await refusal(specialists, query | {"documents": ["a", "b" * 5000]}, "/v1/rerank")
    assert len((await answer(specialists, query | {"documents": ["a", "b"]}, "/v1/rerank"))["results"]) == 2
    response = await post(specialists, "/completion", {"model": "judge", "prompt": "a"})
    assert response.status_code == 501
