"""Endpoints, and deliveries that are kept until they have arrived or were given up."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from functools import partial
from typing import Any

import pytest
from pydantic import SecretStr

from shared.bus import Bus, EndpointChange, open_bus
from shared.bus.endpoints import IS_DISABLED, MAX_ENDPOINTS, MAX_SECRETS
from shared.bus.webhooks import MAX_ATTEMPTS
from shared.errors import InvalidRequest, UnknownWebhook
from shared.ids import Kind, derived_id, new_id, partition_in
from shared.settings import BusSettings
from shared.webhooks import EVENT_TYPES, Attempt, Delivery, DeliveryStatus, Endpoint, Secret, Webhook
from tests.shared.bus.conftest import Behind
from tests.shared.bus.test_lost_replies import Cutter, cutter

__all__ = ["cutter"]

PENDING, DELIVERED, FAILED = DeliveryStatus.PENDING, DeliveryStatus.DELIVERED, DeliveryStatus.FAILED
LATER_S = 3600.0


def a_secret() -> Secret:
    return Secret(value=SecretStr(f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"))


async def an_endpoint(bus: Bus, **fields: Any) -> Endpoint:
    fields = {"tenant": "default", "url": "https://example.com/é", "event_types": EVENT_TYPES} | fields
    made = Endpoint(id=bus.webhooks.new_id(fields["tenant"]), secrets=(a_secret(),), **fields)
    return await bus.webhooks.create(made)


def a_delivery(endpoint: Endpoint, name: str = "") -> Delivery:
    partition = partition_in(endpoint.id, Kind.ENDPOINT)
    event_id = new_id(Kind.EVENT, partition)
    return Delivery(
        id=derived_id(Kind.DELIVERY, partition, event_id, endpoint.id),
        endpoint_id=endpoint.id,
        event_id=event_id,
        event_type="batch.completed",
        body=f'{{"é😀":1.0,"name":"{name}"}}',
    )


async def posted(bus: Bus, endpoint: Endpoint, count: int = 1) -> list[Delivery]:
    deliveries = [a_delivery(endpoint, str(number)) for number in range(count)]
    await bus.webhooks.post(deliveries)
    return deliveries


def an_attempt(status_code: int | None = 500, response: str = "") -> Attempt:
    return Attempt(at=time.time(), duration_ms=3, status_code=status_code, response=response)


async def attempted(
    bus: Bus,
    delivery: Delivery,
    status: DeliveryStatus,
    *,
    after_s: float | None = None,
    attempt: Attempt | None = None,
) -> None:
    attempt = attempt or an_attempt(200 if status is DELIVERED else 500)
    await bus.webhooks.attempted(delivery.id, delivery.endpoint_id, attempt, status=status, after_s=after_s)


async def statuses(bus: Bus, endpoint: Endpoint) -> list[DeliveryStatus]:
    page = await bus.webhooks.deliveries(endpoint.id, limit=1000)
    return [delivery.status for delivery in page.records]


class TestEndpoints:
    async def test_an_endpoint_is_kept_as_it_was_made(self, bus: Bus) -> None:
        before = time.time()
        made = await an_endpoint(bus, name="é😀", tenant="a:b{p0}")
        assert made == await bus.webhooks.record(made.id, "a:b{p0}")
        assert made.name == "é😀" and made.url == "https://example.com/é"
        assert abs(made.created_at - before) < 60 and made.updated_at == made.created_at
        assert made.disabled_at is made.failing_since is None

    async def test_no_tenant_sees_anothers(self, bus: Bus) -> None:
        made = await an_endpoint(bus, tenant="one")
        assert await bus.webhooks.record(made.id, "other") is None
        assert await bus.webhooks.all_of("other") == await bus.webhooks.matching("other", "job.failed") == []

    @pytest.mark.parametrize("name", ["", "whep_", "whep_9999_" + "a" * 24, "wh_0_" + "a" * 24, "whep_0_é", "../x"])
    async def test_what_can_be_no_id_is_unknown(self, bus: Bus, name: str) -> None:
        assert await bus.webhooks.record(name) is None
        assert await bus.webhooks.delivery(name) is None

    async def test_a_list_has_pages_and_the_newest_first(self, bus: Bus) -> None:
        ids = [(await an_endpoint(bus, name=str(number))).id for number in range(5)]
        made = [endpoint.id for endpoint in await bus.webhooks.all_of("default")]
        assert sorted(made) == sorted(ids)
        first = await bus.webhooks.page("default", limit=3)
        second = await bus.webhooks.page("default", limit=3, after=first.records[-1].id)
        assert [endpoint.id for endpoint in first.records + second.records] == made
        assert (first.has_more, second.has_more) == (True, False)
        with pytest.raises(UnknownWebhook):
            await bus.webhooks.page("default", after=new_id(Kind.ENDPOINT, 0))

    async def test_a_tenant_may_only_have_some(self, bus: Bus) -> None:
        made = await asyncio.gather(
            *(an_endpoint(bus, name=str(number)) for number in range(MAX_ENDPOINTS + 20)), return_exceptions=True
        )
        refused = [outcome for outcome in made if isinstance(outcome, BaseException)]
        assert len(refused) == 20 and all(isinstance(error, InvalidRequest) for error in refused)
        await an_endpoint(bus, tenant="other")

    async def test_matching_ones_want_the_event(self, bus: Bus) -> None:
        batches = await an_endpoint(bus, event_types=("batch.completed",))
        everything = await an_endpoint(bus)
        found = await bus.webhooks.matching("default", "batch.completed")
        assert {endpoint.id for endpoint in found} == {batches.id, everything.id}
        assert [endpoint.id for endpoint in await bus.webhooks.matching("default", "job.failed")] == [everything.id]

    async def test_only_what_is_named_changes(self, bus: Bus) -> None:
        made = await an_endpoint(bus, name="old")
        changed = await bus.webhooks.update(made.id, EndpointChange(name="", event_types=("job.failed",)))
        assert (changed.name, changed.url, changed.event_types) == ("", made.url, ("job.failed",))
        assert changed.created_at == made.created_at and changed.secrets == made.secrets
        same = EndpointChange(name="", url=made.url, event_types=("job.failed",), is_enabled=True)
        assert await bus.webhooks.update(made.id, same) == changed, "nothing has changed"
        with pytest.raises(UnknownWebhook):
            await bus.webhooks.update(new_id(Kind.ENDPOINT, 0), EndpointChange(name="x"))

    async def test_a_secret_ends_at_once_or_after_its_grace(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        second, third = a_secret(), a_secret()
        rotated = await bus.webhooks.rotate(made.id, second, grace_s=1000)
        assert [secret.value for secret in rotated.secrets] == [second.value, made.secrets[0].value]
        assert rotated.secrets[0].expires_at is None
        assert abs((rotated.secrets[1].expires_at or 0) - time.time() - 1000) < 60
        assert (await bus.webhooks.rotate(made.id, third)).secrets == (third,)

    async def test_grace_is_never_prolonged_and_secrets_are_few(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        short = (await bus.webhooks.rotate(made.id, a_secret(), grace_s=100)).secrets[1].expires_at
        for _ in range(MAX_SECRETS + 2):
            rotated = await bus.webhooks.rotate(made.id, a_secret(), grace_s=1000)
            if len(rotated.secrets) < MAX_SECRETS:
                assert rotated.secrets[-1].expires_at == short
        assert len(rotated.secrets) == MAX_SECRETS

    async def test_secrets_are_in_no_text_of_an_endpoint(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        assert made.secrets[0].value.get_secret_value() not in f"{made} {made!r} {made.model_dump()}"

    async def test_a_deleted_endpoint_takes_its_deliveries_along(self, bus: Bus, behind: Behind) -> None:
        made = await an_endpoint(bus)
        first, second, _ = await posted(bus, made, 3)
        await attempted(bus, first, DELIVERED)
        await attempted(bus, second, FAILED)
        await bus.webhooks.delete(made.id, "default")
        await bus.webhooks.delete(made.id, "default")
        assert await bus.webhooks.record(made.id) is None and await bus.webhooks.due(10) == []
        assert await behind.client.keys(f"{behind.keys.namespace}:*") == []

    async def test_a_late_attempt_or_post_brings_no_deleted_endpoint_back(self, bus: Bus, behind: Behind) -> None:
        made = await an_endpoint(bus)
        [delivery] = await posted(bus, made)
        await bus.webhooks.delete(made.id, "default")
        await attempted(bus, delivery, FAILED)
        await posted(bus, made)
        assert await behind.client.keys(f"{behind.keys.namespace}:*") == []


class TestHiddenEndpoints:
    async def test_the_same_webhook_has_the_same_endpoint_in_no_list(self, bus: Bus) -> None:
        webhook = Webhook(url="https://example.com", secret=a_secret())
        made = await bus.webhooks.hidden("default", webhook)
        assert made == await bus.webhooks.hidden("default", webhook.model_copy(update={"events": ("job.failed",)}))
        assert made.is_hidden and made.secrets == (webhook.secret,)
        others = [("other", webhook), ("default", webhook.model_copy(update={"secret": a_secret()}))]
        assert made.id not in {(await bus.webhooks.hidden(*other)).id for other in others}
        assert await bus.webhooks.all_of("default") == [] and await bus.webhooks.record(made.id, "default") is None

    async def test_it_goes_with_what_is_kept_of_its_deliveries(self, bus: Bus, behind: Behind) -> None:
        made = await bus.webhooks.hidden("default", Webhook(url="https://example.com", secret=a_secret()))
        [delivery] = await posted(bus, made)
        key = behind.keys.endpoint(made.id)
        assert await behind.client.ttl(key) > 29 * 86400
        await attempted(bus, delivery, DELIVERED)
        assert 6 * 86400 < await behind.client.ttl(key) <= 7 * 86400

    async def test_who_names_it_again_enables_it(self, bus: Bus) -> None:
        webhook = Webhook(url="https://example.com", secret=a_secret())
        made = await bus.webhooks.hidden("default", webhook)
        await bus.webhooks.disable(made.id, "410")
        assert (await bus.webhooks.hidden("default", webhook)).disabled_at is None


class TestDeliveries:
    async def test_what_is_posted_is_due_with_the_same_bytes(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        assert await bus.webhooks.due(10) == []
        [delivery] = await posted(bus, made)
        assert await bus.webhooks.due(10) == [made.id]
        for _ in range(2):  # to look changes nothing
            [taken] = await bus.webhooks.take(made.id, 10)
            assert (taken.id, taken.body) == (delivery.id, delivery.body)
            assert taken.status is PENDING and taken.n_attempts == 0 and taken.created_at == taken.next_at

    async def test_posting_again_changes_nothing(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        [delivery] = await posted(bus, made)
        await attempted(bus, delivery, DELIVERED)
        await bus.webhooks.post([delivery])
        assert await statuses(bus, made) == [DELIVERED] and await bus.webhooks.due(10) == []

    async def test_a_failed_attempt_waits_for_its_next(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        first, second = await posted(bus, made, 2)
        await attempted(bus, first, PENDING, after_s=LATER_S)
        assert [taken.id for taken in await bus.webhooks.take(made.id, 10)] == [second.id]
        await attempted(bus, second, PENDING, after_s=LATER_S)
        assert await bus.webhooks.due(10) == [] and await bus.webhooks.take(made.id, 10) == []
        await attempted(bus, first, PENDING, after_s=-1)
        assert await bus.webhooks.due(10) == [made.id]
        [taken] = await bus.webhooks.take(made.id, 10)
        assert taken.n_attempts == 2 and [attempt.status_code for attempt in taken.attempts] == [500, 500]

    async def test_an_endpoint_fails_from_its_first_failure_after_a_success(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        deliveries = await posted(bus, made, 3)

        async def failing_since() -> float | None:
            found = await bus.webhooks.record(made.id)
            assert found
            return found.failing_since

        await attempted(bus, deliveries[0], PENDING, after_s=0)
        first = await failing_since()
        await attempted(bus, deliveries[0], FAILED)
        assert first is not None and await failing_since() == first
        await attempted(bus, deliveries[1], DELIVERED)
        assert await failing_since() is None
        await attempted(bus, deliveries[2], FAILED)
        assert await failing_since() is not None
        await bus.webhooks.update(made.id, EndpointChange(url=made.url))
        assert await failing_since() is not None
        await bus.webhooks.update(made.id, EndpointChange(url="https://example.org"))
        assert await failing_since() is None

    async def test_what_was_delivered_stays_so(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        [delivery] = await posted(bus, made)
        await attempted(bus, delivery, DELIVERED)
        await attempted(bus, delivery, PENDING, after_s=0)
        await attempted(bus, delivery, FAILED)
        assert await statuses(bus, made) == [DELIVERED] and await bus.webhooks.due(10) == []

    async def test_what_was_given_up_may_still_arrive_but_is_not_tried_again(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        [delivery] = await posted(bus, made)
        await attempted(bus, delivery, FAILED)
        await attempted(bus, delivery, PENDING, after_s=0)
        assert await statuses(bus, made) == [FAILED] and await bus.webhooks.due(10) == []
        await attempted(bus, delivery, DELIVERED)
        assert await statuses(bus, made) == [DELIVERED]

    async def test_the_latest_attempts_are_shown_and_answers_are_cut(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        [delivery] = await posted(bus, made)
        for number in range(MAX_ATTEMPTS + 3):
            attempt = an_attempt(500 + number, "é" * 10_000)
            await attempted(bus, delivery, PENDING, after_s=0, attempt=attempt)
        found = await bus.webhooks.delivery(delivery.id)
        assert found and found.n_attempts == MAX_ATTEMPTS + 3
        assert [attempt.status_code for attempt in found.attempts] == list(range(503, 503 + MAX_ATTEMPTS))
        assert {len(attempt.response) for attempt in found.attempts} == {500}

    async def test_every_due_endpoint_has_its_turn(self, bus: Bus) -> None:
        made = [await an_endpoint(bus, name=str(number)) for number in range(10)]
        for endpoint in made:
            await posted(bus, endpoint)
        assert sorted(await bus.webhooks.due(10)) == sorted(endpoint.id for endpoint in made)
        named = [set(await bus.webhooks.due(3)) for _ in range(4)]
        assert {len(some) for some in named} == {3}
        assert set().union(*named) == {endpoint.id for endpoint in made}

    async def test_an_endpoint_that_rests_is_left_alone_until_its_tenant_says_otherwise(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        [delivery] = await posted(bus, made)
        for end_it in (
            lambda: bus.webhooks.update(made.id, EndpointChange(url="https://example.org")),
            lambda: bus.webhooks.replay(delivery.id),
        ):
            await bus.webhooks.rest(made.id, LATER_S)
            await bus.webhooks.rest(made.id, -1)
            await posted(bus, made)
            assert await bus.webhooks.due(10) == [] and await bus.webhooks.take(made.id, 10) == []
            await end_it()
            assert await bus.webhooks.due(10) == [made.id] and await bus.webhooks.take(made.id, 10)
        await bus.webhooks.rest(made.id, -1)
        assert await bus.webhooks.due(10) == [made.id] and await bus.webhooks.take(made.id, 10)

    async def test_no_rest_keeps_a_disabled_endpoint_from_being_settled(self, bus: Bus, behind: Behind) -> None:
        made = await an_endpoint(bus)
        await posted(bus, made)
        await bus.webhooks.rest(made.id, LATER_S)
        await bus.webhooks.disable(made.id, "x")
        await bus.webhooks.rest(made.id, LATER_S)
        assert await statuses(bus, made) == [FAILED]
        assert not await behind.client.hexists(behind.keys.endpoint(made.id), "rest_ms")

    async def test_a_delivery_that_went_by_itself_is_not_waited_for(self, bus: Bus, behind: Behind) -> None:
        made = await an_endpoint(bus)
        [delivery] = await posted(bus, made)
        await behind.client.delete(behind.keys.delivery(delivery.id))
        assert await bus.webhooks.take(made.id, 10) == [] and await bus.webhooks.take(made.id, 10) == []
        assert await bus.webhooks.due(10) == []

    async def test_endings_are_kept_for_a_while_and_only_so_many(
        self, bus: Bus, behind: Behind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = await an_endpoint(bus)
        [delivery] = await posted(bus, made)
        assert await behind.client.ttl(behind.keys.delivery(delivery.id)) > 29 * 86400
        await attempted(bus, delivery, DELIVERED)
        delivered = behind.keys.deliveries(made.id, "delivered")
        for key in (behind.keys.delivery(delivery.id), delivered):
            assert 6 * 86400 < await behind.client.ttl(key) <= 7 * 86400
        # Ten thousand that are younger, and only listed.
        await behind.client.zadd(delivered, {f"wh_0_{number:024x}": 2**45 + number for number in range(10_000)})
        [other] = await posted(bus, made)
        await attempted(bus, other, DELIVERED)
        assert await bus.webhooks.delivery(delivery.id) is None
        assert await bus.webhooks.delivery(other.id) is None, "it is one of the two oldest"


class TestDisabledEndpoints:
    async def test_what_waits_and_what_comes_is_given_up_and_a_replay_recovers_it(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        waiting = await posted(bus, made, 3)
        await attempted(bus, waiting[0], PENDING, after_s=LATER_S)
        await bus.webhooks.disable(made.id, "it answered 410")
        await bus.webhooks.disable(made.id, "another reason")
        [coming] = await posted(bus, made)
        record = await bus.webhooks.record(made.id)
        assert record and record.disabled_at and record.disabled_reason == "it answered 410"
        page = await bus.webhooks.deliveries(made.id)
        assert {delivery.id for delivery in page.records} == {each.id for each in (*waiting, coming)}
        assert {(delivery.status, delivery.reason) for delivery in page.records} == {(FAILED, IS_DISABLED)}
        assert await bus.webhooks.due(10) == []

        with pytest.raises(InvalidRequest):
            await bus.webhooks.replay_all(made.id)
        with pytest.raises(InvalidRequest):
            await bus.webhooks.replay(coming.id)
        enabled = await bus.webhooks.update(made.id, EndpointChange(is_enabled=True))
        assert enabled.disabled_at is enabled.disabled_reason is enabled.failing_since is None
        assert (await bus.webhooks.replay_all(made.id)).n_replayed == 4
        assert {taken.n_attempts for taken in await bus.webhooks.take(made.id, 10)} == {0}
        assert await statuses(bus, made) == [PENDING] * 4

    async def test_a_try_that_was_under_way_does_not_wait_for_another_nor_keep_others_waiting(
        self, bus: Bus, behind: Behind
    ) -> None:
        made = await an_endpoint(bus)
        tried, other = await posted(bus, made, 2)
        await attempted(bus, other, PENDING, after_s=LATER_S)
        # As a process leaves it that dies before it settles anything.
        await behind.client.hset(behind.keys.endpoint(made.id), mapping={"disabled_ms": 1, "disabled_reason": "x"})
        await attempted(bus, tried, PENDING, after_s=LATER_S)
        found = await bus.webhooks.delivery(tried.id)
        assert found and (found.status, found.reason, found.n_attempts) == (FAILED, IS_DISABLED, 1)
        assert await bus.webhooks.due(10) == [made.id] and await bus.webhooks.take(made.id, 10) == []
        assert await statuses(bus, made) == [FAILED, FAILED]

    async def test_a_try_that_was_under_way_brings_no_deleted_endpoint_back(self, bus: Bus, behind: Behind) -> None:
        made = await an_endpoint(bus)
        [delivery] = await posted(bus, made)
        await behind.client.delete(behind.keys.endpoint(made.id), behind.keys.endpoints(0, "default"))
        await attempted(bus, delivery, PENDING, after_s=0)
        assert not await behind.client.exists(behind.keys.endpoint(made.id))
        assert await bus.webhooks.take(made.id, 10) == [] and await statuses(bus, made) == []

    @pytest.mark.parametrize("what", ["disabled", "deleted"])
    async def test_what_a_crash_left_is_settled_when_it_is_taken(self, bus: Bus, behind: Behind, what: str) -> None:
        made = await an_endpoint(bus)
        deliveries = await posted(bus, made, 3)
        await attempted(bus, deliveries[0], PENDING, after_s=LATER_S)
        # As a process leaves it that dies right after the script.
        if what == "disabled":
            await behind.client.hset(behind.keys.endpoint(made.id), mapping={"disabled_ms": 1, "disabled_reason": "x"})
        else:
            await behind.client.delete(behind.keys.endpoint(made.id), behind.keys.endpoints(0, "default"))
        assert await bus.webhooks.due(10) == [made.id]
        assert await bus.webhooks.take(made.id, 10) == [] and await bus.webhooks.due(10) == []
        assert await statuses(bus, made) == ([FAILED] * 3 if what == "disabled" else [])

    @pytest.mark.parametrize("what", ["disable", "delete"])
    async def test_thousands_are_settled_in_short_calls(self, bus: Bus, behind: Behind, what: str) -> None:
        made = await an_endpoint(bus)
        await posted(bus, made, 600)
        await behind.client.config_resetstat()
        if what == "disable":
            await bus.webhooks.disable(made.id, "x")
            assert len((await bus.webhooks.deliveries(made.id, status=FAILED, limit=1000)).records) == 600
        else:
            await bus.webhooks.delete(made.id, "default")
            assert await behind.client.keys(f"{behind.keys.namespace}:*") == []
        assert (await behind.client.info("commandstats"))["cmdstat_evalsha"]["calls"] >= 6

    async def test_who_disables_an_endpoint_leaves_what_takes_long_to_who_takes_from_it(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = await an_endpoint(bus)
        await posted(bus, made, 450)
        await bus.webhooks.rest(made.id, LATER_S)
        monkeypatch.setattr("shared.bus.endpoints.SETTLE_S", 0)
        await bus.webhooks.disable(made.id, "x")
        for n_failed in (100, 200, 300, 400, 450):
            assert (await statuses(bus, made)).count(FAILED) == n_failed
            assert await bus.webhooks.due(10) == ([made.id] if n_failed < 450 else [])
            assert await bus.webhooks.take(made.id, 10) == []
        await bus.webhooks.delete(made.id, "default")
        while await bus.webhooks.due(10):
            await bus.webhooks.take(made.id, 10)
        assert await statuses(bus, made) == []


class TestTheLog:
    async def test_pages_go_from_the_newest_to_the_oldest_over_all_statuses(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        deliveries = await posted(bus, made, 25)
        for number, delivery in enumerate(deliveries):
            if number % 3:
                await attempted(bus, delivery, DELIVERED if number % 3 == 1 else FAILED)
        seen: list[Delivery] = []
        has_more, after = True, None
        while has_more:
            page = await bus.webhooks.deliveries(made.id, limit=4, after=after)
            has_more, after = page.has_more, page.records[-1].id
            seen += page.records
        assert {delivery.id for delivery in seen} == {delivery.id for delivery in deliveries} and len(seen) == 25
        assert [each.created_at for each in seen] == sorted((each.created_at for each in seen), reverse=True)
        failed = await bus.webhooks.deliveries(made.id, status=FAILED)
        assert {delivery.id for delivery in failed.records} == {delivery.id for delivery in deliveries[2::3]}
        with pytest.raises(UnknownWebhook):
            await bus.webhooks.deliveries(made.id, after=a_delivery(made).id)

    async def test_a_span_of_time_has_both_its_ends(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        ids = []
        for _ in range(3):
            [delivery] = await posted(bus, made)
            ids.append(delivery.id)
            await asyncio.sleep(0.002)  # its millisecond is over
        times = [(await bus.webhooks.delivery(each)).created_at for each in ids]  # type: ignore[union-attr]
        for since, until, expected in [
            (times[1], None, ids[1:]),
            (None, times[1], ids[:2]),
            (times[1], times[1], ids[1:2]),
            (times[2] + 1, None, []),
        ]:
            page = await bus.webhooks.deliveries(made.id, since=since, until=until)
            assert [delivery.id for delivery in page.records] == expected[::-1]
            assert (await bus.webhooks.replay_all(made.id, since, until, [PENDING])).n_replayed == len(expected)

    async def test_a_replay_begins_again_with_the_same_id_and_bytes(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        [delivery] = await posted(bus, made)
        await attempted(bus, delivery, DELIVERED)
        replayed = await bus.webhooks.replay(delivery.id)
        assert replayed.status is PENDING and replayed.n_attempts == 0 and len(replayed.attempts) == 1
        [taken] = await bus.webhooks.take(made.id, 10)
        assert (taken.id, taken.body) == (delivery.id, delivery.body)
        await attempted(bus, delivery, DELIVERED)
        found = await bus.webhooks.delivery(delivery.id)
        assert found and found.n_attempts == 1 and len(found.attempts) == 2
        with pytest.raises(UnknownWebhook):
            await bus.webhooks.replay(a_delivery(made).id)

    async def test_hundreds_are_replayed_once(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        await posted(bus, made, 450)
        await bus.webhooks.disable(made.id, "x")
        await bus.webhooks.update(made.id, EndpointChange(is_enabled=True))
        assert await bus.webhooks.replay_all(made.id) == (450, None)
        assert await bus.webhooks.replay_all(made.id) == (0, None)
        assert len(await bus.webhooks.take(made.id, 1000)) == 450

    async def test_of_thousands_a_replay_takes_some_and_says_where_the_rest_begin(self, bus: Bus) -> None:
        made = await an_endpoint(bus)
        ids = [delivery.id for delivery in await posted(bus, made, 450)]
        for delivery_id in ids[::45]:
            await bus.webhooks.attempted(delivery_id, made.id, an_attempt(), status=FAILED, after_s=None)
        asked = partial(bus.webhooks.replay_all, made.id, None, None, [FAILED, PENDING], most=200)
        first = await asked()
        assert first.n_replayed == 200 and first.next
        last = first.next.partition("-")[2]
        await bus.webhooks.attempted(
            last, made.id, an_attempt(), status=DELIVERED, after_s=None
        )  # it may end meanwhile
        second = await asked(after=first.next)
        assert second.n_replayed == 200 and second.next
        assert await asked(after=second.next) == (50, None), "none is taken twice for having been replayed"
        for nonsense in ("", "x", last, f"-{last}", f"1e3-{last}", f"{'9' * 16}-{last}", "1-\n", "1-../x"):
            with pytest.raises(ValueError):
                await asked(after=nonsense)


async def test_nothing_happens_twice_when_replies_are_lost(cutter: tuple[Cutter, Bus]) -> None:
    cut, bus = cutter
    secret, attempt = a_secret(), an_attempt()
    made = await an_endpoint(bus)
    [delivery] = await posted(bus, made)
    cut.n_to_cut = 1
    assert await bus.webhooks.create(made) == made
    cut.n_to_cut = 1
    await bus.webhooks.post([delivery])
    cut.n_to_cut = 1
    await attempted(bus, delivery, PENDING, after_s=0, attempt=attempt)
    cut.n_to_cut = 1
    rotated = await bus.webhooks.rotate(made.id, secret, grace_s=100)
    assert cut.n_cuts == 4
    assert [each.value for each in rotated.secrets] == [secret.value, made.secrets[0].value]
    [taken] = await bus.webhooks.take(made.id, 10)
    assert taken.n_attempts == 1 and taken.attempts == (attempt,)


async def test_partitions_are_looked_at_together(bus_settings: BusSettings) -> None:
    async with open_bus(bus_settings.model_copy(update={"partitions": 8}), name="test") as wide:
        made = [await an_endpoint(wide, tenant=f"tenant {number}") for number in range(20)]
        assert len({partition_in(endpoint.id, Kind.ENDPOINT) for endpoint in made}) > 3
        for endpoint in made:
            await posted(wide, endpoint)
        assert sorted(await wide.webhooks.due(100)) == sorted(endpoint.id for endpoint in made)
        assert len(await wide.webhooks.due(5)) == 5
