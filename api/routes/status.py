"""Who is alive and what is served, without a key where a load balancer asks. Never waits for a worker."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api.context import context_of, json_response
from api.fleet import AWAY, Fleet, State
from api.openapi import answers
from api.openapi.description import Reach, described
from api.problems import body_of, response_to
from api.schemas.slots import slot_json
from api.schemas.strict import ClientFields
from shared.errors import BusUnavailable, NotReady, NotSupported, SlotstreamError

QUICK_LOOK_S = 0.05
"""A probe must be answered at once, so a second look at Redis may not take longer."""


class SlotsQuery(ClientFields):
    """Only whether they are named counts, as in llama.cpp: any value will do."""

    fail_on_no_slot: str | None = None
    """Makes a full house a 503."""


class HealthQuery(SlotsQuery):
    include_slots: str | None = None
    """Adds the slots."""


@described("Whether this process runs", gives=answers.Status)
async def live(request: Request) -> Response:
    return json_response({"status": "ok"})


@described("Whether jobs are taken", gives=answers.Status, also={503: answers.Illness})
async def ready(request: Request) -> Response:
    """Whether jobs are taken; that needs Redis, but no worker, else a fleet could not start from none."""
    fleet = context_of(request).fleet
    if fleet.trouble:
        await fleet.look(QUICK_LOOK_S)
    return _fault(fleet, "redis unavailable") if fleet.trouble else json_response({"status": "ok"})


@described("Whether a worker is ready", query=HealthQuery, gives=answers.Health, also={503: answers.Illness})
async def health(request: Request) -> Response:
    """llama.cpp's, old and new: `?include_slots` adds the slots, `?fail_on_no_slot` makes a full house a 503."""
    fleet = context_of(request).fleet
    if fleet.state != "ok":
        await fleet.look(QUICK_LOOK_S)
    if fleet.state != "ok":
        return _fault(fleet, fleet.state)
    n_slots = len(fleet.slots())
    n_idle = _idle(fleet)
    is_full = n_idle == 0 and "fail_on_no_slot" in request.query_params
    body: dict[str, Any] = {
        "status": "no slot available" if is_full else "ok",
        "slots_idle": n_idle,
        "slots_processing": n_slots - n_idle,
    }
    if "include_slots" in request.query_params and context_of(request).settings.slots:
        body["slots"] = _slots_json(request)
    body = context_of(request).dialect.health(body)
    return json_response(body, 503 if is_full else 200, {"Retry-After": "1"} if is_full else None)


@described("The slots of all workers", query=SlotsQuery, gives=list[answers.Slot], reach=Reach.FLEET, fails=(501,))
async def slots(request: Request) -> Response:
    fleet = context_of(request).fleet
    if not context_of(request).settings.slots:
        raise NotSupported("This server does not support slots endpoint. It was started with `--no-slots`")
    await fleet.look()
    if fleet.is_bus_away:
        return response_to(BusUnavailable(AWAY), request.scope)
    if "fail_on_no_slot" in request.query_params and _idle(fleet) == 0:
        return response_to(NotReady("no slot available"), request.scope)
    return json_response(_slots_json(request))


def _fault(fleet: Fleet, state: State) -> Response:
    error: SlotstreamError
    more: dict[str, Any] = {}
    match state:
        case "redis unavailable":
            error = BusUnavailable(fleet.trouble or AWAY)
        case "loading model":
            error = NotReady(fleet.loading)
            more = {"progress": fleet.progress}
        case "load failed":
            error = NotReady(fleet.failure)
        case _:
            error = NotReady("No worker is ready")
    return json_response({"status": state} | more | body_of(error), 503, {"Retry-After": "1"})


def _idle(fleet: Fleet) -> int:
    return sum(not slot.is_processing for worker, slot in fleet.slots() if worker.status == "ready")


def _slots_json(request: Request) -> list[dict[str, Any]]:
    fleet, dialect = context_of(request).fleet, context_of(request).dialect
    slots = enumerate(fleet.slots())
    return [dialect.slot(slot_json(number, worker, slot)) for number, (worker, slot) in slots]
