"""Webhook endpoints over HTTP, against a real queue and a receiver on this machine."""

from __future__ import annotations

import base64
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr

from api.webhooks.events import Event
from api.webhooks.signing import verify
from shared.bus import Bus, Webhooks
from shared.ids import Kind, new_id
from shared.settings import ApiSettings
from shared.webhooks import EVENT_TYPES, Attempt, Delivery, DeliveryStatus, Webhook
from tests.api.conftest import Api, serve
from tests.api.routes.test_jobs_routes import completion, make, refused_field
from tests.api.scripted_worker import ScriptedWorker

ENDPOINTS = "/v1/webhook_endpoints"
ABROAD = "https://1.1.1.1/done"
"""An address of the Internet, which these tests never call."""
OWN = f"whsec_{base64.b64encode(bytes(range(24))).decode()}"
NOT_TO_BE_CALLED = (
    *("http://[::ffff:10.0.0.1]:6379/", "http://167772161/", "http://0xa.1/", "http://10.1/", "http://012.1/"),
    *("http://[::ffff:127.0.0.1]/", "http://[::ffff:a9fe:a9fe]/", "http://169.254.169.254/", "http://0.0.0.0/"),
    *("http://[fe80::1%25lo]/", "http://[fe80::1%lo]/", "http://[::1]/", "http://[::]/", "http://[::127.0.0.1]/"),
    *("http://[2002:7f00:1::]/", "http://[64:ff9b::7f00:1]/", "http://[2001:0:53aa:64c:0:fff:80ff:fffe]/"),
    *("http://100.64.0.1/", "http://10.0.0.1/", "http://192.168.1.1", "http://172.16.0.1/", "http://[fd00::1]/"),
    *("http://224.0.0.1/", "http://1.1.1.1:6379/", "http://1.1.1.1:22/", "http://1.1.1.1:99999/", "http://1.1.1.1:0/"),
    *("file:///etc/passwd", "ftp://1.1.1.1/", "gopher://1.1.1.1/", "javascript:1", "//1.1.1.1/", "1.1.1.1", "x", ""),
    *("http://user:pw@1.1.1.1/", "https://user@1.1.1.1/", "https://:pw@1.1.1.1/", "http://", "http:///x"),
    *(f"https://1.1.1.1/{'a' * 2048}", "http://a..b/", "http://-/", "http://\u0000/", "http://[::1", "http://a b/"),
    "http://no.such.invalid/",
)
"""By a server that may call 127.0.0.0/8."""
ONE, OTHER = {"X-Api-Key": "one"}, {"X-Api-Key": "other"}


class Receiver:
    """Answers with `status`, and keeps what came."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hook"
        self.status = 200
        self.heard: list[tuple[dict[str, str], bytes]] = []

    async def serve(self, request: web.Request) -> web.Response:
        self.heard.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        return web.Response(status=self.status, text="thanks")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opened = Receiver(listener.getsockname()[1])
        app = web.Application()
        app.router.add_post("/hook", opened.serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        yield opened
        await runner.cleanup()


@pytest.fixture
async def api(settings: ApiSettings) -> AsyncIterator[Api]:
    """Two tenants; the client is the first. This machine's loopback network may be called."""
    more = {"allow_hosts": ("127.0.0.0/8", "receiver.internal"), "webhook_timeout_s": 5.0}
    more |= {"api_key": (SecretStr("one"), SecretStr("other"))}
    async with serve(settings.model_copy(update=more)) as served:
        served.client.headers.update(ONE)
        yield served


async def an_endpoint(api: Api, **fields: Any) -> dict[str, Any]:
    fields = {"name": "mine", "url": ABROAD, "event_types": ["batch.completed", "job.failed"]} | fields
    response = await api.client.post(ENDPOINTS, json=fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def refused_url(api: Api, url: str) -> str:
    response = await api.client.post(ENDPOINTS, json={"url": url, "event_types": ["batch.failed"]})
    assert refused_field(response) == "url", url
    return str(response.json()["error"]["message"])


async def found(api: Api, path: str, **more: Any) -> dict[str, Any]:
    response = await api.client.get(f"{ENDPOINTS}{path}", **more)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def delivered(bus: Bus, endpoint: dict[str, Any], count: int, status: DeliveryStatus) -> list[Delivery]:
    """Deliveries that came to that end, each after one attempt."""
    events = [
        Event(new_id(Kind.EVENT, 0), "batch.completed", f"batch_0_{number:024x}", time.time())
        for number in range(count)
    ]
    deliveries = [event.to(endpoint["id"]) for event in events]
    await bus.webhooks.post(deliveries)
    code = 200 if status is DeliveryStatus.DELIVERED else 503
    for each in deliveries:
        attempt = Attempt(at=time.time(), duration_ms=7, status_code=code, response="é")
        await bus.webhooks.attempted(each.id, each.endpoint_id, attempt, status=status, after_s=None)
    return deliveries


async def test_an_endpoint_is_made_shown_changed_and_forgotten(api: Api) -> None:
    made = await an_endpoint(api, name="é😀", event_types=["job.failed", "batch.completed", "job.failed"])
    secret = made.pop("signing_secret")
    assert secret.startswith("whsec_") and len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
    assert made["signing_secret_hint"] == f"whsec_...{secret[-4:]}"
    assert (made["object"], made["name"], made["url"]) == ("webhook_endpoint", "é😀", ABROAD)
    assert made["event_types"] == ["job.failed", "batch.completed"] and made["status"] == "enabled"
    assert made["disabled_reason"] is made["failing_since"] is None
    assert (await an_endpoint(api, signing_secret=OWN))["signing_secret"] == OWN
    path = f"/{made['id']}"
    assert await found(api, path) == made
    response = await api.client.post(f"{ENDPOINTS}{path}", json={"name": "new", "url": "https://8.8.8.8", "x": 1})
    changed = response.json()
    assert changed == made | {"name": "new", "url": "https://8.8.8.8", "updated_at": changed["updated_at"]}
    response = await api.client.delete(f"{ENDPOINTS}{path}")
    assert response.json() == {"id": made["id"], "object": "webhook_endpoint.deleted", "deleted": True}
    for method in ("GET", "DELETE"):
        assert (await api.client.request(method, f"{ENDPOINTS}{path}")).status_code == 404


async def test_endpoints_are_listed_newest_first_and_without_secrets(api: Api) -> None:
    made = [(await an_endpoint(api, name=str(number)))["signing_secret"] for number in range(5)]
    first, text = await found(api, "?limit=3"), ""
    second = await found(api, f"?limit=3&after={first['last_id']}&unknown=1")
    names = [endpoint["name"] for page in (first, second) for endpoint in page["data"]]
    assert sorted(names) == list("01234") and (first["has_more"], second["has_more"]) == (True, False)
    assert first["first_id"] == first["data"][0]["id"] and first["object"] == "list"
    text = json.dumps([first, second])
    assert not any(secret in text for secret in made)
    for query in ("limit=0", "limit=101", "limit=x", "after=x"):
        assert refused_field(await api.client.get(f"{ENDPOINTS}?{query}")) == query.partition("=")[0]


async def test_what_makes_no_endpoint_is_refused_by_its_field(api: Api) -> None:
    sound = {"url": ABROAD, "event_types": ["job.failed"]}
    wrong = [
        ({"url": ABROAD}, "event_types"),
        ({"event_types": ["job.failed"]}, "url"),
        (sound | {"url": ""}, "url"),
        (sound | {"event_types": []}, "event_types"),
        (sound | {"event_types": ["job.failed"] * 101}, "event_types"),
        (sound | {"name": "x" * 257}, "name"),
    ]
    for secret in ("", "secret", "whsec_", "whsec_c2hvcnQ=", "whsec_é", OWN[:-1], OWN.removeprefix("whsec_")):
        wrong.append((sound | {"signing_secret": secret}, "signing_secret"))
    for fields, param in wrong:
        response = await api.client.post(ENDPOINTS, json=fields)
        assert refused_field(response) == param, fields
        assert OWN[6:-1] not in response.text
    response = await api.client.post(ENDPOINTS, json=sound | {"event_types": ["job.failed", "no.such", "*"]})
    assert refused_field(response) == "event_types"
    message = response.json()["error"]["message"]
    assert "'no.such', '*'" in message and all(name in message for name in EVENT_TYPES)


async def test_an_address_that_may_not_be_called_is_refused_wherever_it_is_named(api: Api, worker: object) -> None:
    made = await an_endpoint(api)
    for url in NOT_TO_BE_CALLED:
        for path, body, param in (
            (ENDPOINTS, {"url": url, "event_types": ["job.failed"]}, "url"),
            (f"{ENDPOINTS}/{made['id']}", {"url": url}, "url"),
            ("/v1/jobs", completion("say a", webhook={"url": url, "secret": OWN}), "webhook.url"),
        ):
            response = await api.client.post(path, json=body)
            assert refused_field(response) == param, (url, path)
    assert len((await found(api, ""))["data"]) == 1 and (await found(api, f"/{made['id']}"))["url"] == ABROAD


async def test_a_lone_surrogate_in_an_address_is_refused(api: Api) -> None:
    content = b'{"url":"https://1.1.1.1/\\ud800","event_types":["job.failed"]}'
    assert (await api.client.post(ENDPOINTS, content=content)).status_code == 400


async def test_a_dead_name_and_a_private_one_cannot_be_told_apart(settings: ApiSettings) -> None:
    async with serve(settings) as strict:
        private = await refused_url(strict, "http://localhost/")
        dead = await refused_url(strict, "http://no.such.invalid/")
        assert dead.replace("no.such.invalid", "localhost") == private


async def test_what_the_operator_allows_may_be_called(api: Api) -> None:
    for url in ("http://127.0.0.1:9999/x", "http://receiver.internal:8080/x", "http://RECEIVER.internal."):
        assert (await an_endpoint(api, url=url))["url"] == url


async def test_another_tenants_endpoint_is_not_there(api: Api, bus: Bus) -> None:
    made = await an_endpoint(api)
    [delivery] = await delivered(bus, made, 1, DeliveryStatus.FAILED)
    at = f"{ENDPOINTS}/{made['id']}"
    log = f"{at}/deliveries"
    for method, path, body in (
        ("GET", at, None),
        ("POST", at, {"name": "theirs"}),
        ("DELETE", at, None),
        ("POST", f"{at}/rotate_secret", {}),
        ("POST", f"{at}/test", {"event_type": "job.failed"}),
        ("POST", f"{at}/replay", {"since": 0}),
        ("GET", log, None),
        ("GET", f"{log}/{delivery.id}", None),
        ("POST", f"{log}/{delivery.id}/replay", None),
    ):
        theirs = await api.client.request(method, path, json=body, headers=OTHER)
        nobodys = await api.client.request(method, path.replace(made["id"], "whep_0_x"), json=body)
        assert theirs.status_code == nobodys.status_code == 404 and theirs.json() == nobodys.json()
    assert (await found(api, "", headers=OTHER))["data"] == []
    assert await found(api, f"/{made['id']}") == {key: made[key] for key in made if key != "signing_secret"} | {
        "failing_since": (await found(api, f"/{made['id']}"))["failing_since"]
    }


async def test_a_delivery_of_another_endpoint_is_not_there(api: Api, bus: Bus) -> None:
    [delivery] = await delivered(bus, await an_endpoint(api), 1, DeliveryStatus.FAILED)
    other = await an_endpoint(api)
    path = f"{ENDPOINTS}/{other['id']}/deliveries"
    assert (await api.client.get(f"{path}/{delivery.id}")).status_code == 404
    assert (await api.client.post(f"{path}/{delivery.id}/replay")).status_code == 404
    assert refused_field(await api.client.get(f"{path}?after={delivery.id}")) == "after"


async def test_a_hidden_endpoint_is_nobodys(api: Api, bus: Bus) -> None:
    tenant = (await bus.webhooks.record((await an_endpoint(api))["id"])).tenant  # type: ignore[union-attr]
    webhook = Webhook.model_validate({"url": ABROAD, "secret": {"value": OWN}})
    hidden = await bus.webhooks.hidden(tenant, webhook)
    assert (await api.client.get(f"{ENDPOINTS}/{hidden.id}")).status_code == 404
    assert len((await found(api, ""))["data"]) == 1


async def test_a_test_is_sent_at_once_signed_and_left_out_of_the_log(api: Api, receiver: Receiver) -> None:
    made = await an_endpoint(api, url=receiver.url)
    path = f"{ENDPOINTS}/{made['id']}"
    for receiver.status in (200, 500, 302):
        response = await api.client.post(f"{path}/test", json={"event_type": "response.completed"})
        told = {"webhook_endpoint_id": made["id"], "event_type": "response.completed", "error": None}
        assert response.json() == told | {
            "object": "webhook_endpoint.test",
            "status_code": receiver.status,
            "success": True,
        }
        headers, body = receiver.heard[-1]
        verify([SecretStr(made["signing_secret"])], headers, body, now=time.time())
        event = json.loads(body)
        assert (event["object"], event["type"]) == ("event", "response.completed")
        assert event["data"] == {"id": f"resp_0_{'0' * 24}"}
    assert len({headers["webhook-id"] for headers, _ in receiver.heard}) == 3
    assert (await found(api, f"/{made['id']}/deliveries"))["data"] == []
    assert (await found(api, f"/{made['id']}"))["failing_since"] is None
    response = await api.client.post(f"{path}/test", json={"event_type": "no.such"})
    assert refused_field(response) == "event_type"


async def test_a_test_that_nobody_answers_says_so(api: Api) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    made = await an_endpoint(api, url=f"http://127.0.0.1:{port}/")
    response = await api.client.post(f"{ENDPOINTS}/{made['id']}/test", json={"event_type": "job.failed"})
    told = response.json()
    assert (response.status_code, told["status_code"], told["success"]) == (200, None, False) and told["error"]


async def test_a_rotated_secret_signs_alone_or_beside_the_old_one_for_a_day(api: Api, receiver: Receiver) -> None:
    made = await an_endpoint(api, url=receiver.url)
    path, old = f"{ENDPOINTS}/{made['id']}", made["signing_secret"]
    for body, n_signatures in (({"keep_old_secret_active_for_24_hours": True}, 2), (None, 1)):
        rotated = (await api.client.post(f"{path}/rotate_secret", json=body)).json()
        new = rotated["signing_secret"]
        assert new != old and rotated["signing_secret_hint"].endswith(new[-4:])
        await api.client.post(f"{path}/test", json={"event_type": "job.failed"})
        headers, content = receiver.heard[-1]
        assert len(headers["webhook-signature"].split()) == n_signatures
        verify([SecretStr(new)], headers, content, now=time.time())
        if n_signatures == 2:
            verify([SecretStr(old)], headers, content, now=time.time())
        old = new
    assert "signing_secret" not in await found(api, f"/{made['id']}")


async def test_the_log_says_how_each_delivery_went(api: Api, bus: Bus) -> None:
    made = await an_endpoint(api)
    failed = await delivered(bus, made, 2, DeliveryStatus.FAILED)
    [fine] = await delivered(bus, made, 1, DeliveryStatus.DELIVERED)
    path = f"/{made['id']}/deliveries"
    page = await found(api, path)
    assert {each["id"] for each in page["data"]} == {each.id for each in (*failed, fine)}
    assert page["first_id"] == page["data"][0]["id"] and not page["has_more"]
    [shown] = (await found(api, f"{path}?status=delivered"))["data"]
    assert shown == await found(api, f"{path}/{fine.id}")
    assert (shown["object"], shown["status"], shown["n_attempts"]) == ("webhook_delivery", "delivered", 1)
    assert shown["event"] == json.loads(fine.body) and shown["event"]["id"] == shown["event_id"]
    [attempt] = shown["attempts"]
    assert attempt | {"attempted_at": 0} == {
        "attempted_at": 0,
        "duration_ms": 7,
        "status_code": 200,
        "error": None,
        "response": "é",
    }
    second = shown["created_at"]
    for query, count in (
        (f"since={second - 60}&until={second + 60}", 3),
        (f"until={second - 60}", 0),
        (f"since={second + 60}", 0),
        (f"since={second}&until={second}&status=delivered", 1),  # as it is shown
        ("limit=1", 1),
        ("status=pending", 0),
    ):
        assert len((await found(api, f"{path}?{query}"))["data"]) == count, query
    for query in ("status=x", "since=x", "since=-1", "until=1e5", "limit=0", "limit=101", "after=x", "no=1"):
        assert refused_field(await api.client.get(f"{ENDPOINTS}{path}?{query}")) == query.partition("=")[0]
    assert (await found(api, f"/{made['id']}"))["failing_since"] is None, "the last one has arrived"


async def test_a_replay_makes_deliveries_due_again(api: Api, bus: Bus) -> None:
    made = await an_endpoint(api)
    failed = await delivered(bus, made, 3, DeliveryStatus.FAILED)
    [fine] = await delivered(bus, made, 1, DeliveryStatus.DELIVERED)
    path = f"{ENDPOINTS}/{made['id']}"
    response = await api.client.post(f"{path}/deliveries/{failed[0].id}/replay")
    assert response.status_code == 200 and response.json()["status"] == "pending"
    response = await api.client.post(f"{path}/replay", json={"since": 0})
    told = {"object": "webhook_endpoint.replay", "webhook_endpoint_id": made["id"]}
    assert response.json() == told | {"count": 2, "next": None}
    body = {"since": 0, "until": int(time.time()) + 60, "statuses": ["delivered", "failed", "delivered"]}
    assert (await api.client.post(f"{path}/replay", json=body)).json()["count"] == 1
    assert {each.id for each in await bus.webhooks.take(made["id"], 10)} == {each.id for each in (*failed, fine)}
    for wrong, param in (
        ({}, "since"),
        ({"since": 0, "statuses": []}, "statuses"),
        ({"since": 0, "statuses": ["x"]}, "statuses[0]"),
        ({"since": -1}, "since"),
        ({"since": 0, "no": 1}, "no"),
        ({"since": 0, "after": failed[0].id}, "after"),
    ):
        assert refused_field(await api.client.post(f"{path}/replay", json=wrong)) == param


async def test_a_replay_of_more_than_it_takes_at_once_goes_on_behind_what_it_says(
    api: Api, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await an_endpoint(api)
    await delivered(bus, made, 250, DeliveryStatus.FAILED)
    monkeypatch.setitem(Webhooks.replay_all.__kwdefaults__, "most", 200)
    path, counts, body = f"{ENDPOINTS}/{made['id']}/replay", [], {"since": 0}
    while True:
        answer = (await api.client.post(path, json=body)).json()
        counts.append(answer["count"])
        if answer["next"] is None:
            break
        body = {"since": 0, "after": answer["next"]}
    assert counts == [200, 50]


async def test_a_disabled_endpoint_replays_nothing_until_it_is_enabled(api: Api, bus: Bus) -> None:
    made = await an_endpoint(api)
    path = f"{ENDPOINTS}/{made['id']}"
    [delivery] = await delivered(bus, made, 1, DeliveryStatus.FAILED)
    await bus.webhooks.disable(made["id"], "It answered 410 Gone.")
    shown = await found(api, f"/{made['id']}")
    assert (shown["status"], shown["disabled_reason"]) == ("disabled", "It answered 410 Gone.") and shown["disabled_at"]
    for replay, body in (("/replay", {"since": 0}), (f"/deliveries/{delivery.id}/replay", None)):
        response = await api.client.post(path + replay, json=body)
        assert response.status_code == 400 and "disabled" in response.json()["error"]["message"]
    refused = await api.client.post(path, json={"status": "disabled"})
    assert refused_field(refused) == "status" and "should be 'enabled'" in refused.json()["error"]["message"]
    enabled = (await api.client.post(path, json={"status": "enabled"})).json()
    assert enabled["status"] == "enabled" and enabled["disabled_reason"] is enabled["failing_since"] is None
    assert (await api.client.post(f"{path}/replay", json={"since": 0})).json()["count"] == 1


async def test_a_request_said_again_makes_no_second_endpoint(api: Api) -> None:
    fields = {"name": "mine", "url": ABROAD, "event_types": ["job.failed"]}
    first = await an_endpoint(api, **fields)
    again = {"x-stainless-retry-count": "1"}
    for more, headers, is_first in (
        ({}, again, True),
        ({}, {"x-stainless-retry-count": "0"}, False),
        ({"name": "other"}, again, False),
        ({"signing_secret": OWN}, again, False),
        ({}, again | OTHER, False),
    ):
        response = await api.client.post(ENDPOINTS, json=fields | more, headers=headers)
        assert (response.json()["id"] == first["id"]) == is_first, (more, headers)
        if is_first:
            assert response.json() == first


async def test_event_types_are_listed(api: Api) -> None:
    response = await api.client.get("/v1/webhook_event_types")
    assert response.json() == {"object": "list", "data": list(EVENT_TYPES)}


class TestWebhooksOfJobs:
    async def test_a_job_takes_its_webhook_along_and_shows_it_to_nobody(
        self, api: Api, bus: Bus, worker: ScriptedWorker
    ) -> None:
        webhook = {"url": ABROAD, "events": ["job.succeeded"], "secret": OWN}
        made = await make(api, completion("say a", webhook=webhook))
        record = await bus.queue.record(made["id"])
        assert record and record.webhook
        assert (record.webhook.url, record.webhook.events) == (ABROAD, ("job.succeeded",))
        assert record.webhook.secret.value.get_secret_value() == OWN
        shown = (await api.client.get(f"/v1/jobs/{made['id']}")).text
        assert OWN not in shown and "webhook" not in shown

    async def test_a_wrong_webhook_is_refused_by_its_field(self, api: Api, worker: ScriptedWorker) -> None:
        for webhook, param in (
            ({"secret": OWN}, "webhook.url"),
            ({"url": ABROAD}, "webhook.secret"),
            ({"url": ABROAD, "secret": "x"}, "webhook.secret"),
            ({"url": ABROAD, "secret": OWN, "events": ["no.such"]}, "webhook.events"),
            ({"url": ABROAD, "secret": OWN, "events": ["batch.completed"]}, "webhook.events"),
            ({"url": ABROAD, "secret": OWN, "events": "job.failed"}, "webhook.events"),
            ({"url": ABROAD, "secret": OWN, "no": 1}, "webhook.no"),
        ):
            response = await api.client.post("/v1/jobs", json=completion("say a", webhook=webhook))
            assert refused_field(response) == param and OWN not in response.text, webhook
            assert param != "webhook.secret" or "secret" in webhook or "--webhook-secret" in response.text

    async def test_a_response_ends_with_events_of_its_own(self, api: Api, worker: ScriptedWorker) -> None:
        for path, name, status in (
            ("/v1/responses", "response.incomplete", 202),
            ("/responses", "response.completed", 202),
            ("/v1/responses", "job.succeeded", 400),
        ):
            webhook = {"url": ABROAD, "events": [name], "secret": OWN}
            body = {"endpoint": path, "body": {"input": "say a"}, "webhook": webhook}
            assert (await api.client.post("/v1/jobs", json=body)).status_code == status, (path, name)

    async def test_the_servers_secret_signs_where_a_webhook_brings_none(
        self, settings: ApiSettings, bus: Bus, worker: ScriptedWorker
    ) -> None:
        async with serve(settings.model_copy(update={"webhook_secret": SecretStr(OWN)})) as served:
            made = await make(served, completion("say a", webhook={"url": ABROAD}))
            record = await bus.queue.record(made["id"])
            assert record and record.webhook and record.webhook.secret.value.get_secret_value() == OWN

    async def test_another_webhook_is_another_body_to_an_idempotency_key(
        self, api: Api, worker: ScriptedWorker
    ) -> None:
        webhook, key = {"url": ABROAD, "secret": OWN}, {"Idempotency-Key": "k"}
        made = await make(api, completion("say a", webhook=webhook), **key)
        assert (await make(api, completion("say a", webhook=webhook), **key))["id"] == made["id"]
        for other in (None, {"url": "https://8.8.8.8/", "secret": OWN}):
            response = await api.client.post("/v1/jobs", json=completion("say a", webhook=other), headers=key)
            assert response.status_code == 409


async def test_no_secret_is_logged(api: Api, receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = await an_endpoint(api, url=receiver.url)
    await api.client.post(f"{ENDPOINTS}/{made['id']}/test", json={"event_type": "job.failed"})
    await api.client.post(
        ENDPOINTS, json={"url": "http://10.0.0.1", "event_types": ["job.failed"], "signing_secret": OWN}
    )
    key = made["signing_secret"].removeprefix("whsec_")
    assert caplog.text and key not in caplog.text and OWN not in caplog.text


async def test_a_request_said_again_finds_its_endpoint_wherever_its_host_leads_by_now(
    api: Api, settings: ApiSettings
) -> None:
    fields = {"url": "http://127.0.0.1:9000/hook", "event_types": ["job.failed"]}
    first = await an_endpoint(api, **fields)
    keys = (SecretStr("one"), SecretStr("other"))
    async with serve(settings.model_copy(update={"api_key": keys})) as wary:
        again = ONE | {"x-stainless-retry-count": "1"}
        response = await wary.client.post(ENDPOINTS, json={"name": "mine"} | fields, headers=again)
    assert response.json() == first, "its secret is told by this answer or never"
