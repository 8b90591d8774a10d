"""Webhook endpoints: who is told when work is done, and a log of what was told them and what they answered."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from api.access import REPEATS, is_sent_again, query_of
from api.body import read_as, read_body_if_any
from api.context import context_of, json_response, tenant_of
from api.openapi import webhook_answers as answers
from api.openapi.description import Reach, described
from api.schemas.strict import bad_field, read
from api.schemas.webhook_endpoints import (
    ChangeFields,
    DeliveryListFields,
    EndpointFields,
    EndpointListFields,
    ReplayFields,
    RotateFields,
    SampleFields,
    deliveries_json,
    delivery_json,
    end_of,
    endpoint_json,
    endpoints_json,
    replayed_json,
    tested_json,
)
from api.webhooks.attempt import attempt
from api.webhooks.sample import sample_of
from api.webhooks.signing import new_secret
from shared.bus import EndpointChange
from shared.errors import Unavailable, UnknownWebhook
from shared.webhooks import EVENT_TYPES, Delivery, Endpoint, Secret

GRACE_S = 86400.0
"""For which a secret that was replaced signs too, where that is asked for."""

REPEATED_WITHIN_S = 600.0
"""Of a request whose answer was lost, for which a client tries again."""


@described(
    "Be told when work is done",
    reads=EndpointFields,
    headers={REPEATS: "From 1 on: the endpoint that the same body made in the last ten minutes, if it made one."},
    gives=answers.EndpointWithSecret,
    reach=Reach.FLEET,
)
async def create(request: Request) -> Response:
    """The endpoint, with the secret that signs what is sent there: it is told only now."""
    context, tenant = context_of(request), tenant_of(request)
    fields = await read_as(request, context.max_body, lambda raw: read(EndpointFields, raw))
    endpoint = await _made_before(request, fields)
    if endpoint is None:
        await context.outgoing.examine(fields.url, "url")
        wanted = Endpoint(
            id=context.bus.webhooks.new_id(tenant),
            tenant=tenant,
            name=fields.name,
            url=fields.url,
            event_types=tuple(fields.event_types),
            secrets=(Secret(value=fields.signing_secret or new_secret()),),
        )
        endpoint = await context.bus.webhooks.create(wanted)
    return json_response(endpoint_json(endpoint, with_secret=True))


@described("Webhook endpoints, newest first", query=EndpointListFields, gives=answers.EndpointList, reach=Reach.FLEET)
async def index(request: Request) -> Response:
    fields = read(EndpointListFields, query_of(request, tuple(EndpointListFields.model_fields)))
    webhooks = context_of(request).bus.webhooks
    try:
        page = await webhooks.page(tenant_of(request), limit=fields.limit, after=fields.after)
    except UnknownWebhook:
        raise bad_field("after", "there is no such webhook endpoint") from None
    return json_response(endpoints_json(page))


@described("What can be told of", gives=answers.EventTypeList)
async def event_types(request: Request) -> Response:
    return json_response({"object": "list", "data": list(EVENT_TYPES)})


@described("A webhook endpoint, and how it fares", gives=answers.Endpoint, reach=Reach.FLEET, fails=(404,))
async def show(request: Request) -> Response:
    return json_response(endpoint_json(await _endpoint(request)))


@described("Change a webhook endpoint", reads=ChangeFields, gives=answers.Endpoint, reach=Reach.FLEET, fails=(404,))
async def update(request: Request) -> Response:
    """Deliveries that wait go to the new URL. `"status": "enabled"` enables one that was disabled; what was given up
    meanwhile is sent again by a replay."""
    context = context_of(request)
    fields = await read_as(request, context.max_body, lambda raw: read(ChangeFields, raw))
    endpoint = await _endpoint(request)
    if fields.url is not None:
        await context.outgoing.examine(fields.url, "url")
    change = EndpointChange(
        name=fields.name,
        url=fields.url,
        event_types=tuple(fields.event_types) if fields.event_types is not None else None,
        is_enabled=fields.status is not None,
    )
    return json_response(endpoint_json(await context.bus.webhooks.update(endpoint.id, change)))


@described(
    "Forget a webhook endpoint with its deliveries", gives=answers.DeletedEndpoint, reach=Reach.FLEET, fails=(404,)
)
async def delete(request: Request) -> Response:
    endpoint = await _endpoint(request)
    await context_of(request).bus.webhooks.delete(endpoint.id, endpoint.tenant)
    return json_response({"id": endpoint.id, "object": "webhook_endpoint.deleted", "deleted": True})


@described(
    "Replace a webhook endpoint's secret",
    reads=RotateFields,
    needs_body=False,
    gives=answers.EndpointWithSecret,
    reach=Reach.FLEET,
    fails=(404,),
)
async def rotate_secret(request: Request) -> Response:
    """The endpoint with its new secret, which is told only now. The old one is worth nothing from now on, or signs
    beside it for a day."""
    context = context_of(request)
    fields = read(RotateFields, await read_body_if_any(request, context.max_body))
    endpoint = await _endpoint(request)
    grace_s = GRACE_S if fields.keep_old_secret_active_for_24_hours else 0.0
    rotated = await context.bus.webhooks.rotate(endpoint.id, Secret(value=new_secret()), grace_s=grace_s)
    return json_response(endpoint_json(rotated, with_secret=True))


@described(
    "Send a sample to a webhook endpoint", reads=SampleFields, gives=answers.Tested, reach=Reach.FLEET, fails=(404,)
)
async def test(request: Request) -> Response:
    """Signed and sent now and once, also to a disabled endpoint; it is in no log. `success` is whether an answer came,
    whatever it was."""
    context = context_of(request)
    fields = await read_as(request, context.max_body, lambda raw: read(SampleFields, raw))
    if fields.event_type not in EVENT_TYPES:
        raise bad_field("event_type", f"must be one of {', '.join(EVENT_TYPES)}")
    endpoint = await _endpoint(request)
    delivery = sample_of(fields.event_type, time.time()).to(endpoint.id)
    try:
        tried = await attempt(context.outgoing, endpoint, delivery, timeout_s=context.settings.webhook_timeout_s)
    except OSError as error:
        raise Unavailable("There is no room for another call now.") from error
    return json_response(tested_json(endpoint, fields.event_type, tried.attempt))


@described(
    "What was sent to a webhook endpoint, newest first",
    query=DeliveryListFields,
    gives=answers.DeliveryList,
    reach=Reach.FLEET,
    fails=(404,),
)
async def deliveries(request: Request) -> Response:
    fields = read(DeliveryListFields, query_of(request))
    endpoint = await _endpoint(request)
    try:
        page = await context_of(request).bus.webhooks.deliveries(
            endpoint.id,
            status=fields.status,
            since=fields.since,
            until=end_of(fields.until),
            limit=fields.limit,
            after=fields.after,
        )
    except UnknownWebhook:
        raise bad_field("after", "there is no such delivery") from None
    return json_response(deliveries_json(page))


@described("A delivery, and how its attempts went", gives=answers.Delivery, reach=Reach.FLEET, fails=(404,))
async def delivery(request: Request) -> Response:
    return json_response(delivery_json(await _delivery(request)))


@described("Send a delivery again", gives=answers.Delivery, reach=Reach.FLEET, fails=(400, 404))
async def replay(request: Request) -> Response:
    """From its first attempt on, with the id and the body that it has, whatever became of it before."""
    found = await _delivery(request)
    return json_response(delivery_json(await context_of(request).bus.webhooks.replay(found.id)))


@described(
    "Send the deliveries of a span of time again",
    reads=ReplayFields,
    gives=answers.Replayed,
    reach=Reach.FLEET,
    fails=(404,),
)
async def replay_all(request: Request) -> Response:
    """Those that were given up, unless `statuses` says otherwise, newest first. After some thousands it answers with
    what to send as `after`, so that the rest are sent too."""
    context = context_of(request)
    fields = await read_as(request, context.max_body, lambda raw: read(ReplayFields, raw))
    endpoint = await _endpoint(request)
    try:
        replayed = await context.bus.webhooks.replay_all(
            endpoint.id, fields.since, end_of(fields.until), fields.statuses, after=fields.after
        )
    except ValueError:
        raise bad_field("after", "must be the `next` of the answer before") from None
    return json_response(replayed_json(endpoint.id, replayed))


async def _endpoint(request: Request) -> Endpoint:
    """Raises UnknownWebhook for another tenant's endpoint exactly as for none."""
    webhooks = context_of(request).bus.webhooks
    endpoint = await webhooks.record(request.path_params["webhook_endpoint_id"], tenant_of(request))
    if endpoint is None:
        raise UnknownWebhook("There is no such webhook endpoint")
    return endpoint


async def _delivery(request: Request) -> Delivery:
    endpoint = await _endpoint(request)
    found = await context_of(request).bus.webhooks.delivery(request.path_params["delivery_id"], endpoint.id)
    if found is None:
        raise UnknownWebhook("There is no such delivery")
    return found


async def _made_before(request: Request, fields: EndpointFields) -> Endpoint | None:
    """What the same request made a moment ago, when its client says that it is said again: two endpoints would be told
    of everything twice."""
    if not is_sent_again(request):
        return None
    made = await context_of(request).bus.webhooks.all_of(tenant_of(request))
    return next((endpoint for endpoint in made if _is_of(endpoint, fields)), None)


def _is_of(endpoint: Endpoint, fields: EndpointFields) -> bool:
    is_young = time.time() - endpoint.created_at < REPEATED_WITHIN_S
    same = (endpoint.name, endpoint.url, endpoint.event_types) == (fields.name, fields.url, tuple(fields.event_types))
    return is_young and same and fields.signing_secret in (None, endpoint.secrets[0].value)
