"""ollama's paths. Of its models this server can tell; it neither fetches nor removes any."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from api.body import read_as
from api.context import context_of, json_response
from api.fleet import AWAY, Fleet
from api.openapi import ollama_answers as answers
from api.openapi.description import Pieces, Reach, described
from api.schemas.ollama import requests
from api.schemas.ollama.fields import (
    ChatBody,
    EmbedBody,
    EmbeddingsBody,
    GenerateBody,
    ModelBody,
    ShowBody,
    TextBody,
)
from api.schemas.ollama.models import running_json, show_json, tag_json
from api.schemas.ollama.replies import Form, Wire, as_message, as_response, idle_json
from api.schemas.strict import ClientFields, read
from api.schemas.tools import tools_of
from api.synchronous import answer_to
from shared.bus import ModelCard
from shared.errors import BusUnavailable, InvalidRequest

Body = TypeVar("Body", bound=ClientFields)

VERSION = "0.13.0"
"""Of ollama, whose API this is: by it clients decide what they may ask for."""

WIRES = "`text/event-stream` for Server-Sent Events; else a stream is lines of JSON."


@described("For clients that look whether a server is there", gives_text=("text/plain",))
async def root(request: Request) -> Response:
    """Word for word what clients look for before they take a server for alive."""
    return PlainTextResponse("Ollama is running")


@described("The version of ollama's API", gives=answers.Version)
async def version(request: Request) -> Response:
    return json_response({"version": VERSION})


@described(
    "Continue a prompt, in ollama's form",
    reads=GenerateBody,
    gives=answers.Generated,
    streams=(Pieces.ndjson(answers.Generated), Pieces.sse(answers.Generated)),
    headers={"Accept": WIRES},
    reach=Reach.JOB,
)
async def generate(request: Request) -> ASGIApp:
    fields = await _read(request, GenerateBody)
    if fields.is_load:
        return await _loaded(request, fields, as_response)
    await _check_text(request, fields, "generate")
    if fields.suffix:
        await _check(request, fields, "insert", lambda card: card.can_infill)
    return await answer_to(request, requests.generate(fields, _wire(request)))


@described(
    "The next message of a chat, in ollama's form",
    reads=ChatBody,
    gives=answers.Chatted,
    streams=(Pieces.ndjson(answers.Chatted), Pieces.sse(answers.Chatted)),
    headers={"Accept": WIRES},
    reach=Reach.JOB,
)
async def chat(request: Request) -> ASGIApp:
    fields = await _read(request, ChatBody)
    if fields.is_load:
        tools_of(fields.tools)  # nothing comes of them, and yet what is wrong with them is said
        return await _loaded(request, fields, as_message)
    await _check_text(request, fields, "chat")
    return await answer_to(request, requests.chat(fields, _wire(request)))


@described("Vectors of texts, of length 1", reads=EmbedBody, gives=answers.Embedded, reach=Reach.JOB)
async def embed(request: Request) -> ASGIApp:
    fields = await _read(request, EmbedBody)
    if not fields.inputs:
        return json_response({"model": await _name(request, fields), "embeddings": []})
    return await answer_to(request, requests.embed(fields))


@described("The vector of one text", reads=EmbeddingsBody, gives=answers.EmbeddedPrompt, reach=Reach.JOB)
async def embeddings(request: Request) -> ASGIApp:
    fields = await _read(request, EmbeddingsBody)
    if not fields.prompt:
        await _name(request, fields)
        return json_response({"embedding": []})
    return await answer_to(request, requests.embeddings(fields))


@described("The models that are served, in ollama's form", gives=answers.Tags, reach=Reach.FLEET)
async def tags(request: Request) -> Response:
    """The models that are served; while no worker is there, those that jobs may be left for."""
    fleet = await _fleet(request)
    return json_response({"models": [tag_json(card) for card in _sorted(fleet.serving().values())]})


@described("The models that are loaded", gives=answers.RunningList, reach=Reach.FLEET)
async def ps(request: Request) -> Response:
    """Those that workers have loaded."""
    fleet = await _fleet(request)
    cards = {worker.model.name: worker.model for worker in fleet.workers if worker.status == "ready"}
    return json_response({"models": [running_json(card) for card in _sorted(cards.values())]})


@described("All about one model", reads=ShowBody, gives=answers.Shown, reach=Reach.FLEET, fails=(404,))
async def show(request: Request) -> Response:
    fields = await _read(request, ShowBody)
    context = context_of(request)
    name = await context.fleet.resolve(fields.model or fields.name)
    card = context.fleet.serving().get(name) or context.fleet.models[name]
    return json_response(show_json(card, await context.profiles.of(name)))


@described("Not of this server", fails=(501,))
async def manage(request: Request) -> Response:
    raise HTTPException(501, "models are managed where workers are started, not by way of this API")


async def _read(request: Request, kind: type[Body]) -> Body:
    return await read_as(request, context_of(request).max_body, lambda fields: read(kind, fields))


def _wire(request: Request) -> Wire:
    return Wire.EVENTS if "text/event-stream" in request.headers.get("accept", "").lower() else Wire.LINES


async def _loaded(request: Request, fields: TextBody, form: Form) -> Response:
    """Models come and go with their workers: that this one is there is all that can be said."""
    name = await _name(request, fields)
    told = idle_json(form, name, "unload" if fields.is_unloading else "load")
    if not fields.stream:
        return json_response(told)
    wire = _wire(request)
    return Response(wire.write(told), headers=dict(wire.framing(dict).headers))


async def _name(request: Request, fields: ModelBody) -> str:
    """What the client calls a model that is served. Raises UnknownModel, NotReady, BusUnavailable."""
    name = await context_of(request).fleet.resolve_staffed(fields.model)
    return fields.model or name


async def _check_text(request: Request, fields: TextBody, what: str) -> None:
    await _check(request, fields, what, lambda card: card.can_generate)
    if fields.think:
        await _check(request, fields, "thinking", lambda card: card.can_reason)


async def _check(request: Request, fields: ModelBody, what: str, can: Callable[[ModelCard], bool]) -> None:
    """Refuses in ollama's words what no worker of the model can do. Raises InvalidRequest."""
    fleet = context_of(request).fleet
    name = await fleet.resolve(fields.model)
    if not fleet.can(name, can):
        raise InvalidRequest(f'"{fields.model or name}" does not support {what}')


async def _fleet(request: Request) -> Fleet:
    """As it is now. Raises BusUnavailable."""
    fleet = context_of(request).fleet
    await fleet.look()
    if fleet.is_bus_away:
        raise BusUnavailable(AWAY)
    return fleet


def _sorted(cards: Iterable[ModelCard]) -> list[ModelCard]:
    return sorted(cards, key=lambda card: card.name)
