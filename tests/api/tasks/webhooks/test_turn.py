"""A turn of one endpoint: what receivers get, and what their answers do to the deliveries that wait behind."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from api.tasks.webhooks import turn
from api.tasks.webhooks.pace import MAX_KNOWN, WIDEST, Paces
from api.tasks.webhooks.turn import Turn
from api.webhooks import attempt
from api.webhooks.signing import Forged, new_secret
from shared.bus import Bus, EndpointChange
from shared.errors import BusUnavailable
from shared.webhooks import Delivery, DeliveryStatus, Endpoint, Secret
from tests.api.tasks.webhooks.conftest import PRINTED, Future, Post
from tests.receiver import Receiver, hang, nothing, raw_receiving, receiving, status

PENDING, DELIVERED, FAILED = DeliveryStatus.PENDING, DeliveryStatus.DELIVERED, DeliveryStatus.FAILED


async def test_every_attempt_has_the_same_id_and_bytes_and_a_time_and_signature_of_its_own(
    bus: Bus, post: Post, future: Future, receiver: Receiver
) -> None:
    endpoint = await post.endpoint(receiver.url())
    receiver.script = [status(500), hang, status(200)]
    [delivery] = await post.send(endpoint)
    for _ in range(3):
        await post.turn(endpoint, timeout_s=1.05)  # the next one is of another second
        await future.brings(endpoint)
    await post.turn(endpoint)
    assert (await post.state(delivery)).status is DELIVERED
    first, second, third = receiver.calls
    assert first.id == second.id == third.id == delivery.id
    assert first.body == second.body == third.body == delivery.body.encode()
    assert PRINTED.encode() in first.body
    assert len({call.headers["webhook-timestamp"] for call in (first, third)}) == 2
    assert len({call.headers["webhook-signature"] for call in (first, third)}) == 2
    for call in receiver.calls:
        call.check(endpoint.secrets[0].value)
        assert abs(int(call.headers["webhook-timestamp"]) - call.at) < 1.5
        assert call.headers["Content-Type"] == "application/json"


async def test_each_attempt_is_there_to_be_looked_at(bus: Bus, post: Post, future: Future, receiver: Receiver) -> None:
    endpoint = await post.endpoint(receiver.url())
    receiver.script = [status(500, "no\x00 \x1b[31mroom\n for é" + "x" * 9000), hang]
    [delivery] = await post.send(endpoint)
    before = time.time()
    await post.turn(endpoint)
    await future.brings(endpoint)
    await post.turn(endpoint, timeout_s=0.2)
    state = await post.state(delivery)
    failed, hung = state.attempts
    assert (failed.status_code, failed.error) == (500, None)
    assert failed.response.startswith("no   [31mroom  for éx")
    assert len(failed.response) <= 1000
    assert (hung.status_code, hung.error, hung.response) == (None, "The receiver did not answer within 0.2 s.", "")
    assert 200 <= hung.duration_ms < 2000
    assert before <= failed.at <= hung.at
    assert state.n_attempts == 2
    assert state.next_at is not None and 250 < state.next_at - time.time() < 350
    assert (await post.whole(endpoint)).failing_since is not None


@pytest.mark.parametrize("error_s", [-7200, 7200])
async def test_a_machine_whose_clock_is_wrong_tries_again_when_it_is_time(
    post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, error_s: float
) -> None:
    """Else one that is slow would use up all attempts in a moment."""
    clock = time.time
    monkeypatch.setattr(attempt, "time", SimpleNamespace(time=lambda: clock() + error_s, monotonic=time.monotonic))
    endpoint = await post.endpoint(receiver.url())
    receiver.script = [status(500)]
    [delivery] = await post.send(endpoint)
    await post.turn(endpoint)
    state = await post.state(delivery)
    assert state.attempts[0].at == pytest.approx(clock() + error_s, abs=30)
    assert 3 < (state.next_at or 0) - state.created_at < 30


@pytest.mark.parametrize("code", [302, 400, 500])
async def test_no_other_answer_than_a_2xx_is_taken_for_a_success(
    bus: Bus, post: Post, receiver: Receiver, code: int
) -> None:
    async with receiving() as elsewhere:
        endpoint = await post.endpoint(receiver.url())
        receiver.answer = status(code, Location=elsewhere.url())
        [delivery] = await post.send(endpoint)
        await post.turn(endpoint)
        assert (await post.state(delivery)).status is PENDING
        assert (len(receiver.calls), len(elsewhere.calls)) == (1, 0)


async def test_after_the_tenth_attempt_it_is_given_up_and_a_replay_begins_anew(
    bus: Bus, post: Post, future: Future, receiver: Receiver
) -> None:
    endpoint = await post.endpoint(receiver.url())
    receiver.answer = status(500)
    [delivery] = await post.send(endpoint)
    for _ in range(12):
        await post.turn(endpoint)
        await future.brings(endpoint)
    state = await post.state(delivery)
    assert (state.status, state.n_attempts, len(receiver.calls)) == (FAILED, 10, 10)
    assert (await post.whole(endpoint)).disabled_at is None
    receiver.answer = status(200)
    await bus.webhooks.replay(delivery.id)
    await post.turn(endpoint)
    assert (await post.state(delivery)).status is DELIVERED
    assert {call.id for call in receiver.calls} == {delivery.id}


async def test_an_answer_that_was_lost_costs_another_attempt_with_the_same_id(
    bus: Bus, post: Post, future: Future, receiver: Receiver
) -> None:
    async with raw_receiving(nothing) as deaf:
        endpoint = await post.endpoint(deaf.url)
        [delivery] = await post.send(endpoint)
        await post.turn(endpoint)
        assert deaf.n_calls == 1
    state = await post.state(delivery)
    assert (state.status, state.attempts[0].error) == (
        PENDING,
        "The receiver closed the connection without an answer.",
    )
    await bus.webhooks.update(endpoint.id, EndpointChange(url=receiver.url()))
    await future.brings(endpoint)
    await post.turn(endpoint)
    assert [(call.id, call.body) for call in receiver.calls] == [(delivery.id, delivery.body.encode())]


async def test_what_was_sent_and_not_noted_is_sent_again_with_the_same_id(
    bus: Bus, post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise BusUnavailable("away")

    endpoint = await post.endpoint(receiver.url())
    [delivery] = await post.send(endpoint)
    with monkeypatch.context() as patched:
        patched.setattr(bus.webhooks, "attempted", away)
        with pytest.raises(BusUnavailable):
            await post.turn(endpoint)
    await post.turn(endpoint)
    assert [call.id for call in receiver.calls] == [delivery.id] * 2
    assert receiver.calls[0].body == receiver.calls[1].body
    assert (await post.state(delivery)).status is DELIVERED


async def test_410_disables_the_endpoint_and_what_waits_is_given_up(bus: Bus, post: Post, receiver: Receiver) -> None:
    endpoint = await post.endpoint(receiver.url())
    receiver.answer = status(410)
    deliveries = await post.send(endpoint, 3)
    with capture_logs() as logs:
        await post.turn(endpoint)
    whole = await post.whole(endpoint)
    assert whole.disabled_at is not None
    assert whole.disabled_reason == "It answered 410 Gone."
    assert [(await post.state(delivery)).status for delivery in deliveries] == [FAILED] * 3
    assert len(receiver.calls) == 1
    [said] = [line for line in logs if line["event"] == "webhook endpoint disabled"]
    assert (said["endpoint"], said["reason"], said["log_level"]) == (endpoint.id, whole.disabled_reason, "warning")


async def test_five_days_of_failures_disable_and_any_success_forgives_them(
    bus: Bus, post: Post, future: Future, receiver: Receiver
) -> None:
    receiver.answer = status(500)
    endpoint = await post.endpoint(receiver.url())
    await post.send(endpoint, 2)
    await post.turn(endpoint)
    await future.ages(endpoint, hours=119)
    await future.brings(endpoint)
    await post.turn(endpoint)
    assert (await post.whole(endpoint)).disabled_at is None

    receiver.script = [status(200)]
    await future.brings(endpoint)
    await post.turn(endpoint)
    await future.ages(endpoint, hours=2)
    await future.brings(endpoint)
    await post.turn(endpoint)
    assert (await post.whole(endpoint)).disabled_at is None

    await future.ages(endpoint, hours=121)
    await future.brings(endpoint)
    await post.turn(endpoint)
    whole = await post.whole(endpoint)
    assert whole.disabled_at is not None
    assert "Every attempt has failed since" in (whole.disabled_reason or "")
    assert "answered with status 500" in (whole.disabled_reason or "")


async def test_a_busy_receiver_is_left_alone_until_it_asked_for_more(
    bus: Bus, post: Post, future: Future, receiver: Receiver
) -> None:
    endpoint = await post.endpoint(receiver.url())
    receiver.script = [status(429, Retry_After="1000")]
    deliveries = await post.send(endpoint, 20)
    await post.turn(endpoint)
    await post.turn(endpoint)
    assert len(receiver.calls) == 1
    assert await bus.webhooks.due(10) == []
    assert sorted(await statuses(post, deliveries)) == [PENDING] * 20
    refused = [state for delivery in deliveries if (state := await post.state(delivery)).n_attempts]
    assert [990 < (state.next_at or 0) - time.time() < 1010 for state in refused] == [True]
    await future.brings(endpoint)
    await post.turn(endpoint)
    assert Counter(await statuses(post, deliveries)) == {DELIVERED: 20}


async def test_a_dead_receiver_with_much_waiting_is_tried_now_and_then_and_gets_all_when_it_is_back(
    bus: Bus, post: Post, future: Future, receiver: Receiver
) -> None:
    endpoint = await post.endpoint(receiver.url())
    deliveries = await post.send(endpoint, 50)
    receiver.answer = hang
    for n_calls in (2, 3, 4):  # the first time nothing is known yet, and a second one is tried
        await post.turn(endpoint, timeout_s=0.1)
        assert len(receiver.calls) == n_calls
        assert await bus.webhooks.take(endpoint.id, 10) == [], "it rests"
        await future.brings(endpoint)
    receiver.answer = status(200)
    await post.turn(endpoint)
    assert Counter(await statuses(post, deliveries)) == {DELIVERED: 50}
    assert (await post.whole(endpoint)).failing_since is None


async def statuses(post: Post, deliveries: list[Delivery]) -> list[DeliveryStatus]:
    return [(await post.state(delivery)).status for delivery in deliveries]


async def test_attempts_go_side_by_side_as_long_as_they_succeed(bus: Bus, post: Post, receiver: Receiver) -> None:
    at_once = most = 0

    async def counted(request: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return await status(200)(request)

    receiver.answer = counted
    endpoint = await post.endpoint(receiver.url())
    deliveries = await post.send(endpoint, 150)
    await post.turn(endpoint)
    assert most == WIDEST
    assert Counter(await statuses(post, deliveries)) == {DELIVERED: 150}
    assert sorted(call.id for call in receiver.calls) == sorted(delivery.id for delivery in deliveries)


async def test_a_turn_ends_so_that_others_have_theirs(
    bus: Bus, post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "TURN_S", 0.2)

    async def slow(request: Any) -> Any:
        await asyncio.sleep(0.05)
        return await status(200)(request)

    receiver.answer = slow
    endpoint = await post.endpoint(receiver.url())
    await post.send(endpoint, 100)
    await post.turn(endpoint)
    assert 2 < len(receiver.calls) < 60
    assert await bus.webhooks.due(10) == [endpoint.id]


async def test_an_attempt_uses_what_the_endpoint_is_by_then(bus: Bus, post: Post, receiver: Receiver) -> None:
    async with receiving() as moved:
        endpoint = await post.endpoint(receiver.url())
        old, new = endpoint.secrets[0].value, Secret(value=new_secret())

        async def change(request: Any) -> Any:
            await bus.webhooks.rotate(endpoint.id, new, grace_s=60.0)
            await bus.webhooks.update(endpoint.id, EndpointChange(url=moved.url()))
            return await status(200)(request)

        receiver.answer = change
        await post.send(endpoint, 2)
        await post.turn(endpoint)
        receiver.calls[0].check(old)
        with pytest.raises(Forged):
            receiver.calls[0].check(new.value)
        [call] = moved.calls
        call.check(old)
        call.check(new.value)


async def test_an_endpoint_that_is_disabled_or_deleted_meanwhile_is_sent_no_more(
    bus: Bus, post: Post, receiver: Receiver
) -> None:
    endpoints: list[Endpoint] = [await post.endpoint(receiver.url(), name=name) for name in ("disabled", "deleted")]

    async def end(request: Any) -> Any:
        await bus.webhooks.disable(endpoints[0].id, "for this test")
        await bus.webhooks.delete(endpoints[1].id, "default")
        return await status(200)(request)

    receiver.answer = end
    deliveries = [await post.send(endpoint, 5) for endpoint in endpoints]
    for endpoint in endpoints:
        await post.turn(endpoint)
    assert len(receiver.calls) == 1
    assert Counter(await statuses(post, deliveries[0])) == {DELIVERED: 1, FAILED: 4}
    assert [await bus.webhooks.delivery(delivery.id) for delivery in deliveries[1]] == [None] * 5


async def test_one_that_may_not_be_called_is_said_to_be_out_of_reach_and_nothing_of_it_is_called(
    bus: Bus, receiver: Receiver, post: Post
) -> None:
    endpoint = await post.endpoint(receiver.url("").replace("127.0.0.1", "127.0.0.2"))
    [delivery] = await post.send(endpoint)
    await post.turn(endpoint)
    state = await post.state(delivery)
    assert (state.status, state.attempts[0].error) == (
        PENDING,
        "The receiver could not be reached, or may not be called from here.",
    )
    assert receiver.calls == []


async def test_what_is_stored_wrong_is_said_where_its_tenant_looks(bus: Bus, post: Post) -> None:
    endpoint = await post.endpoint("gopher://nowhere")
    [delivery] = await post.send(endpoint)
    await post.turn(endpoint)
    assert "was not called: Field 'url'" in ((await post.state(delivery)).attempts[0].error or "")


async def test_secrets_are_never_logged(bus: Bus, post: Post, receiver: Receiver, future: Future) -> None:
    endpoint = await post.endpoint(receiver.url())
    await post.send(endpoint, 3)
    receiver.script = [status(500), hang, status(410)]
    with capture_logs() as logs:
        for _ in range(4):
            await post.turn(endpoint, timeout_s=0.1)
            await future.brings(endpoint)
    assert len(logs) > 3
    said = repr(logs)
    assert endpoint.secrets[0].value.get_secret_value() not in said
    assert all(call.headers["webhook-signature"] not in said for call in receiver.calls)
    assert endpoint.secrets[0].value.get_secret_value() not in repr(endpoint)


def test_what_is_new_or_in_trouble_begins_with_one_attempt_at_a_time() -> None:
    paces = Paces()
    widths = [paces.width("a")]
    for _ in range(5):
        paces.widen("a")
        widths.append(paces.width("a"))
    assert widths == [1, 2, 4, 8, 8, 8]
    paces.narrow("a")
    assert (paces.width("a"), paces.width("b")) == (1, 1)


def test_no_number_of_endpoints_fills_the_memory() -> None:
    paces = Paces()
    for number in range(MAX_KNOWN + 10):
        paces.widen(str(number))
    assert len(paces._widths) == 10


async def test_a_turn_of_nothing_is_over_at_once(bus: Bus, post: Post) -> None:
    endpoint = await post.endpoint("http://127.0.0.1/")
    started = time.monotonic()
    await Turn(bus, post.outgoing, post.paces, endpoint.id, timeout_s=5.0).run()
    assert time.monotonic() - started < 1
