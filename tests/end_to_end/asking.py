"""Requests that a test sends, both ways, and what holds of every answer whatever was asked."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx

from tests.stack import Stack


def parse(text: str) -> Any:
    """JSON as it must be: no NaN, no infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON: {text[:500]}")

    return json.loads(text, parse_constant=refuse)


def forced(text: str, **more: Any) -> dict[str, Any]:
    """A body whose answer is this text on any model, in several tokens."""
    return {"prompt": "Hi", "temperature": 0, "grammar": f"root ::= {json.dumps(text, ensure_ascii=False)}", **more}


async def post(stack: Stack, path: str, body: Any) -> httpx.Response:
    """`body` is JSON, or bytes as they are. Whatever it is, the answer is JSON, and not the server's fault."""
    sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    response = await stack.http.post(path, headers={"Content-Type": "application/json"}, **sent)
    answer = parse(response.text)
    if response.status_code != 200:
        error = answer["error"]
        assert error["code"] == response.status_code and error["message"] and error["type"], answer
    assert response.status_code < 500 or response.status_code == 501, (body, answer)
    return response


async def answer(stack: Stack, body: dict[str, Any], path: str = "/completion") -> dict[str, Any]:
    """The answer to a request that must be granted."""
    response = await post(stack, path, body)
    assert response.status_code == 200, response.text
    said: dict[str, Any] = response.json()
    return said


async def refusal(stack: Stack, body: Any, path: str = "/completion") -> dict[str, Any]:
    """The error object of a request that must be refused as the client's fault."""
    response = await post(stack, path, body)
    assert response.status_code == 400, (body, response.text)
    error: dict[str, Any] = response.json()["error"]
    return error


async def stream(stack: Stack, body: dict[str, Any], path: str = "/completion") -> list[dict[str, Any]]:
    """The events of a stream, each whole JSON by itself; `[DONE]` is looked for on OpenAI's paths only."""
    async with stack.http.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        lines = [line[6:] async for line in response.aiter_lines() if line.startswith("data: ")]
    if path.startswith("/v1/"):
        assert lines.pop() == "[DONE]"
    return [parse(line) for line in lines]


async def say(stack: Stack, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of `/completion`, the same whether it is streamed or not. It must not hang on chance."""
    plain = await answer(stack, body)
    *chunks, last = await stream(stack, body)
    assert "".join(chunk["content"] for chunk in chunks) == plain["content"]
    assert [chunk["stop"] for chunk in chunks] == [False] * len(chunks)
    for key in ("tokens_predicted", "tokens_evaluated", "stop_type", "stopping_word", "truncated", "has_new_line"):
        assert last[key] == plain[key], key
    assert (last["stop"], last["content"]) == (True, "")
    assert all(math.isfinite(value) for value in plain["timings"].values())
    return plain | {"chunks": [chunk["content"] for chunk in chunks]}
