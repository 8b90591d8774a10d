"""What the API says of itself: an OpenAPI document, and the same as a page. Made when somebody first asks for it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from api.context import context_of, written_response
from api.openapi.description import described
from api.openapi.document import document_of
from api.openapi.page import HEADERS, page_of
from api.schemas.strict import to_json


class Texts(NamedTuple):
    document: bytes
    page: bytes


@described("This API as an OpenAPI 3.1 document", gives=dict)
async def document(request: Request) -> Response:
    return written_response((await _texts(request)).document)


@described("The same as a page to read", gives_text=("text/html",))
async def page(request: Request) -> Response:
    return Response((await _texts(request)).page, headers=HEADERS, media_type="text/html; charset=utf-8")


async def _texts(request: Request) -> Texts:
    """Takes a moment the first time, in a thread. Whoever comes meanwhile waits for the same: many of them would keep
    the event loop from its turn, and CPython's `ast`, which is asked for comments, fails in threads side by side."""
    state = request.app.state
    if not hasattr(state, "texts"):
        state.texts = asyncio.create_task(asyncio.to_thread(_made, request))
    texts: Texts = await asyncio.shield(state.texts)
    return texts


def _made(request: Request) -> Texts:
    told = document_of(request.app.routes, context_of(request).settings.api_prefix)
    return Texts(to_json(told), page_of(told).encode())
