"""A body that is large, beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from api.body import LARGE, read_as


@pytest.mark.parametrize("n_bytes", [1, LARGE])
async def test_only_a_large_body_is_taken_apart_in_a_thread(n_bytes: int) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"a":"%s"}' % (b"x" * n_bytes)}

    def read(fields: dict[str, Any]) -> tuple[str, threading.Thread]:
        return fields["a"], threading.current_thread()

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    text, thread = await read_as(request, 2 * LARGE, read)
    assert text == "x" * n_bytes
    assert (thread is not threading.main_thread()) is (n_bytes == LARGE)


async def test_others_go_on_while_a_large_body_is_taken_apart() -> None:
    is_going_on = threading.Event()

    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"a":"%s"}' % (b"x" * LARGE)}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    reading = asyncio.create_task(read_as(request, 2 * LARGE, lambda _: is_going_on.wait(10)))
    await asyncio.sleep(0)
    is_going_on.set()
    assert await reading
