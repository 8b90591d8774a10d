"""When a delivery is tried again, and when it or its endpoint is given up: without waiting for any of it."""

from __future__ import annotations

import pytest

from api.webhooks.schedule import HOUR_S, JITTER, STEPS_S, THROTTLED, Consequence, consequence, seconds_of
from shared.ids import Kind, new_id
from shared.webhooks import Attempt, Delivery, DeliveryStatus, Endpoint

NOW = 1_800_000_000.0
DATE = "Fri, 15 Jan 2027 08:01:40 GMT"
"""100 seconds after NOW."""


def after(
    code: int | None = 500,
    *,
    n_attempts: int = 0,
    failing_s: float | None = None,
    age_s: float = 0.0,
    retry_after: str | None = None,
    luck: float = 0.0,
) -> Consequence:
    endpoint = new_id(Kind.ENDPOINT, 0)
    return consequence(
        Attempt(at=NOW, duration_ms=0, status_code=code, error=None if code else "The receiver did not answer."),
        Delivery(
            id=new_id(Kind.DELIVERY, 0),
            endpoint_id=endpoint,
            event_id=new_id(Kind.EVENT, 0),
            event_type="job.failed",
            body="{}",
            created_at=NOW - age_s,
            n_attempts=n_attempts,
        ),
        Endpoint(
            id=endpoint,
            tenant="t",
            url="http://r.test/",
            event_types=(),
            secrets=(),
            failing_since=None if failing_s is None else NOW - failing_s,
        ),
        retry_after=retry_after,
        luck=luck,
    )


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
def test_only_a_2xx_is_a_success(code: int) -> None:
    assert after(code, n_attempts=9, failing_s=999 * HOUR_S) == Consequence(DeliveryStatus.DELIVERED)


@pytest.mark.parametrize("code", [None, 100, 101, 199, 300, 301, 302, 304, 307, 308, 400, 401, 404, 500, 503, 599])
def test_whatever_else_happens_it_is_tried_again(code: int | None) -> None:
    assert after(code).status is DeliveryStatus.PENDING


def test_ten_attempts_are_made_over_75_hours_and_then_no_more() -> None:
    waits = []
    while (told := after(n_attempts=len(waits))).status is DeliveryStatus.PENDING:
        waits.append(told.after_s or 0)
    assert len(waits) + 1 == 10
    assert waits[:4] == [5, 300, 1800, 2 * HOUR_S]
    assert 75 < sum(waits) / HOUR_S < 76
    assert told.status is DeliveryStatus.FAILED


def test_what_failed_together_does_not_come_together() -> None:
    for n_attempts, step_s in enumerate(STEPS_S):
        earliest, latest = (after(n_attempts=n_attempts, luck=luck).after_s or 0 for luck in (-1, 1))
        assert earliest == pytest.approx(step_s * (1 - JITTER))
        assert latest == pytest.approx(step_s * (1 + JITTER))


@pytest.mark.parametrize(
    ("retry_after", "after_s"),
    [
        ("100", 100),
        (" 100 ", 100),
        (DATE, 100),
        ("1", 5),
        ("0", 5),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 5),
        ("90000", 24 * HOUR_S),
        ("Fri, 15 Jan 2100 07:00:00 GMT", 24 * HOUR_S),
        ("9" * 500, 24 * HOUR_S),
        ("-100", 5),
        ("1e3", 5),
        ("NaN", 5),
        ("soon", 5),
        ("١٠٠", 5),
        ("", 5),
        ("Fri, 15 Jan 99999 07:00:00 GMT", 5),
    ],
)
def test_retry_after_is_honoured_within_bounds(retry_after: str, after_s: float) -> None:
    for code in (429, 500, 503):
        assert after(code, retry_after=retry_after).after_s == after_s


def test_a_date_without_a_zone_is_meant_as_universal_time() -> None:
    assert seconds_of(DATE.removesuffix(" GMT"), NOW) == 100


def test_retry_after_does_not_hurry_what_the_schedule_has_put_off() -> None:
    assert after(429, n_attempts=5, retry_after="1").after_s == STEPS_S[5]


@pytest.mark.parametrize("code", THROTTLED)
def test_a_busy_receiver_is_left_alone_with_all_that_waits_for_it(code: int) -> None:
    assert after(code).rest_s == 5
    assert after(code, retry_after="100").rest_s == 100
    assert after(code, failing_s=400).rest_s == 100
    assert after(code, failing_s=40_000).rest_s == 300
    assert after(code, n_attempts=9).rest_s == 5


def test_a_receiver_that_has_been_gone_for_a_while_is_looked_for_now_and_then() -> None:
    assert after(None).rest_s == 0, "what failed only now may still answer others"
    assert after(None, failing_s=1).rest_s == 5
    assert after(None, failing_s=400).rest_s == 100
    assert after(None, failing_s=40_000).rest_s == 300


@pytest.mark.parametrize("code", [301, 400, 404, 500])
def test_an_answer_that_concerns_one_delivery_holds_up_no_other(code: int) -> None:
    assert after(code, failing_s=400, retry_after="100").rest_s == 0


def test_a_rest_never_delays_a_delivery_that_is_alone() -> None:
    failing_s = 0.0
    for n_attempts in range(len(STEPS_S)):
        told = after(503, n_attempts=n_attempts, failing_s=failing_s)
        assert told.rest_s <= (told.after_s or 0)
        failing_s += told.after_s or 0


def test_410_disables_at_once() -> None:
    told = after(410, retry_after="100")
    assert (told.status, told.after_s, told.why_disabled) == (DeliveryStatus.FAILED, None, "It answered 410 Gone.")


def test_five_days_of_failures_disable_and_say_so() -> None:
    told = after(500, failing_s=121 * HOUR_S, age_s=121 * HOUR_S)
    assert told.status is DeliveryStatus.FAILED
    assert told.why_disabled == (
        "Every attempt has failed since 2027-01-10 07:00 UTC. The last one: The receiver answered with status 500."
    )
    assert "did not answer" in (after(None, failing_s=121 * HOUR_S, age_s=121 * HOUR_S).why_disabled or "")
    assert after(500, failing_s=119 * HOUR_S, age_s=119 * HOUR_S).why_disabled is None


def test_after_quiet_days_a_new_delivery_gets_its_chances_first() -> None:
    assert after(500, failing_s=500 * HOUR_S, age_s=11 * HOUR_S).why_disabled is None
    assert after(500, failing_s=500 * HOUR_S, age_s=13 * HOUR_S).why_disabled is not None
