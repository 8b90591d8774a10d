"""The HTTP API: its routes in order, and how it starts and stops. Read this first.

The process keeps nothing: what it knows is in Redis, so any number of it can run side by side and any may die.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
import uvloop
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from api.access import Access
from api.context import Context
from api.cors import Cors
from api.fleet import Fleet
from api.keys import Keys, keys_of
from api.openapi.description import ByMethod
from api.outgoing import Outgoing
from api.port.listener import open_listener
from api.port.server import SHUTDOWN_S, Server, config_of
from api.port.tls import server_context
from api.problems import on_error
from api.profiles import Profiles
from api.routes import (
    adapters,
    batches,
    docs,
    files,
    jobs,
    llamacpp,
    metrics,
    models,
    ollama,
    openai,
    props,
    responses,
    slots,
    status,
    webhooks,
)
from shared import telemetry
from shared.bus import ADVICE, open_bus
from shared.descriptors import make_room_for
from shared.errors import BusUnavailable, SlotstreamError
from shared.settings import ApiSettings, ConfigError
from shared.store import open_store

log = structlog.get_logger(__name__)

PROBE = ["GET", "HEAD"]

BATCHES = ByMethod(GET=batches.index, POST=batches.create).answer
RESPONSE = ByMethod(GET=responses.show, DELETE=responses.delete).answer
WEBHOOKS = ByMethod(GET=webhooks.index, POST=webhooks.create).answer
WEBHOOK = ByMethod(GET=webhooks.show, POST=webhooks.update, DELETE=webhooks.delete).answer

ROUTES: list[BaseRoute] = [
    Route("/v1/chat/completions", openai.chat_completions, methods=["POST"]),
    Route("/chat/completions", openai.chat_completions, methods=["POST"]),
    Route("/v1/completions", openai.completions, methods=["POST"]),
    Route("/v1/embeddings", openai.embeddings, methods=["POST"]),
    Route("/v1/responses", responses.create, methods=["POST"]),
    Route("/responses", responses.create, methods=["POST"]),
    Route("/v1/responses/{response_id}", RESPONSE, methods=["GET", "DELETE"]),
    Route("/responses/{response_id}", RESPONSE, methods=["GET", "DELETE"]),
    Route("/v1/responses/{response_id}/cancel", responses.cancel, methods=["POST"]),
    Route("/responses/{response_id}/cancel", responses.cancel, methods=["POST"]),
    Route("/v1/models", models.index, methods=["GET"]),
    Route("/models", models.index, methods=["GET"]),
    Route("/v1/models/{model:path}", models.show, methods=["GET"]),
    Route("/v1/files", ByMethod(GET=files.index, POST=files.create).answer, methods=["GET", "POST"]),
    Route("/v1/files/{file_id}", ByMethod(GET=files.show, DELETE=files.delete).answer, methods=["GET", "DELETE"]),
    Route("/v1/files/{file_id}/content", files.content, methods=["GET"]),
    Route("/v1/batches", BATCHES, methods=["GET", "POST"]),
    Route("/v1/batches/{batch_id}", batches.show, methods=["GET"]),
    Route("/v1/batches/{batch_id}/cancel", batches.cancel, methods=["POST"]),
    Route("/v1/batches/{batch_id}/retry", batches.retry, methods=["POST"]),
    Route("/v1/batches/{batch_id}/events", batches.events, methods=["GET"]),
    Route("/v1/jobs", ByMethod(GET=jobs.index, POST=jobs.create).answer, methods=["GET", "POST"]),
    Route("/v1/jobs/{job_id}", jobs.show, methods=["GET"]),
    Route("/v1/jobs/{job_id}/cancel", jobs.cancel, methods=["POST"]),
    Route("/v1/jobs/{job_id}/events", jobs.events, methods=["GET"]),
    Route("/v1/webhook_endpoints", WEBHOOKS, methods=["GET", "POST"]),
    Route("/v1/webhook_endpoints/{webhook_endpoint_id}", WEBHOOK, methods=["GET", "POST", "DELETE"]),
    Route("/v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret", webhooks.rotate_secret, methods=["POST"]),
    Route("/v1/webhook_endpoints/{webhook_endpoint_id}/test", webhooks.test, methods=["POST"]),
    Route("/v1/webhook_endpoints/{webhook_endpoint_id}/replay", webhooks.replay_all, methods=["POST"]),
    Route("/v1/webhook_endpoints/{webhook_endpoint_id}/deliveries", webhooks.deliveries, methods=["GET"]),
    Route("/v1/webhook_endpoints/{webhook_endpoint_id}/deliveries/{delivery_id}", webhooks.delivery, methods=["GET"]),
    Route(
        "/v1/webhook_endpoints/{webhook_endpoint_id}/deliveries/{delivery_id}/replay", webhooks.replay, methods=["POST"]
    ),
    Route("/v1/webhook_event_types", webhooks.event_types, methods=["GET"]),
    Route("/completion", llamacpp.completion, methods=["POST"]),
    Route("/completions", llamacpp.completion, methods=["POST"]),
    Route("/infill", llamacpp.infill, methods=["POST"]),
    Route("/embedding", llamacpp.embedding, methods=["POST"]),
    Route("/embeddings", llamacpp.embedding, methods=["POST"]),
    Route("/rerank", llamacpp.rerank, methods=["POST"]),
    Route("/reranking", llamacpp.rerank, methods=["POST"]),
    Route("/v1/rerank", llamacpp.rerank, methods=["POST"]),
    Route("/v1/reranking", llamacpp.rerank, methods=["POST"]),
    Route("/tokenize", llamacpp.tokenize, methods=["POST"]),
    Route("/detokenize", llamacpp.detokenize, methods=["POST"]),
    Route("/apply-template", llamacpp.apply_template, methods=["POST"]),
    Route("/metrics", metrics.show, methods=["GET"]),
    Route("/props", ByMethod(GET=props.show, POST=props.change).answer, methods=["GET", "POST"]),
    Route("/slots", status.slots, methods=["GET"]),
    Route("/slots/{id_slot}", slots.act, methods=["POST"]),
    Route("/lora-adapters", ByMethod(GET=adapters.index, POST=adapters.change).answer, methods=["GET", "POST"]),
    Route("/", ollama.root, methods=PROBE),
    Route("/api/version", ollama.version, methods=PROBE),
    Route("/api/tags", ollama.tags, methods=PROBE),
    Route("/api/ps", ollama.ps, methods=["GET"]),
    Route("/api/show", ollama.show, methods=["POST"]),
    Route("/api/generate", ollama.generate, methods=["POST"]),
    Route("/api/chat", ollama.chat, methods=["POST"]),
    Route("/api/embed", ollama.embed, methods=["POST"]),
    Route("/api/embeddings", ollama.embeddings, methods=["POST"]),
    Route("/api/pull", ollama.manage, methods=["POST"]),
    Route("/api/push", ollama.manage, methods=["POST"]),
    Route("/api/create", ollama.manage, methods=["POST"]),
    Route("/api/copy", ollama.manage, methods=["POST"]),
    Route("/api/delete", ollama.manage, methods=["DELETE"]),
    Route("/api/blobs/{digest}", ollama.manage, methods=["HEAD", "POST"]),
    Route("/health", status.health, methods=PROBE),
    Route("/v1/health", status.health, methods=PROBE),
    Route("/ready", status.ready, methods=PROBE),
    Route("/live", status.live, methods=PROBE),
    Route("/openapi.json", docs.document, methods=["GET"]),
    Route("/docs", docs.page, methods=["GET"]),
]


def create_app(settings: ApiSettings) -> Starlette:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        async with (
            open_store(settings.store_url.get_secret_value()) as store,
            open_bus(settings, name="api", store=store if settings.shared_store_url else None) as bus,
            Outgoing.open(settings.allow_hosts) as outgoing,
            asyncio.TaskGroup() as tasks,
        ):
            fleet = Fleet(bus)
            await fleet.look()
            watch = tasks.create_task(fleet.watch())
            yield {"context": Context(bus, fleet, outgoing, settings, Profiles(bus, fleet), store, tasks.create_task)}
            watch.cancel()

    keys, cors = Keys(keys_of(settings)), Cors(settings.cors_origins)
    app = Starlette(
        routes=ROUTES,
        middleware=[Middleware(Access, keys=keys, cors=cors, prefix=settings.api_prefix)],
        exception_handlers={SlotstreamError: on_error, HTTPException: on_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """`slotstream api`. 0 after a stop that was asked for, 2 when a setting will not do."""
    settings = ApiSettings.from_command_line(
        sys.argv[1:] if argv is None else argv,
        prog="slotstream api",
        description="The HTTP API: makes jobs of requests and relays what they say.",
    )
    telemetry.configure(settings.log_level, settings.log_format, "api")
    try:
        with (
            open_listener(settings.host, settings.port) as listener,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            make_room_for(settings.max_connections)
            return runner.run(_serve(settings, listener, server_context(settings)))
    except ConfigError as error:
        print(f"slotstream api: {settings.blame(str(error))}", file=sys.stderr)
        return 2


async def _serve(settings: ApiSettings, listener: socket.socket, tls: ssl.SSLContext | None) -> int:
    # What is wrong with their URLs is said before anything is promised.
    async with open_bus(settings, name="api") as bus, open_store(settings.store_url.get_secret_value()):
        try:
            await bus.check_server()
        except BusUnavailable as error:
            log.warning("starting without the queue's server", reason=error.message, advice=ADVICE)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    config = config_of(create_app(settings), settings, tls, grace_s=SHUTDOWN_S)
    server = Server(config, f"{'https' if tls else 'http'}://{shown}:{port}{settings.api_prefix}")
    await server.serve(sockets=[listener])
    return 0 if server.started else 1
