"""Signatures: known vectors, both libraries that receivers use, and what no receiver may believe."""

from __future__ import annotations

import math
import time
from typing import Any

import openai
import pytest
import standardwebhooks
from pydantic import SecretStr

from api.webhooks.events import job_event
from api.webhooks.signing import SIGNATURE, TIMESTAMP, Forged, new_secret, sign, verify
from shared.jobs import JobStatus
from shared.webhooks import Secret, key_of

KNOWN = SecretStr("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
BODY = '{"type":"job.completed","data":{"text":"hé 😀","n":1.0}}'.encode()


def secret(value: SecretStr = KNOWN, expires_at: float | None = None) -> Secret:
    return Secret(value=value, expires_at=expires_at)


def headers(*, now: float, secrets: tuple[Secret, ...] = (secret(),)) -> dict[str, str]:
    return sign(secrets, "msg_test1", now, BODY).headers


@pytest.mark.parametrize(
    ("timestamp", "signature"),
    [
        (1700000000, "v1,zxkb79CWfGi2M9BMzIQcyJOuzONKPNGSHOZai/5yXak="),
        (1700000300, "v1,W+EjAAtSBSeV12hCt2uj17lpHWufAZunr8o8ALFQScE="),
    ],
)
def test_known_bytes_have_known_signatures(timestamp: int, signature: str) -> None:
    assert len(BODY) == 59
    assert sign([secret()], "msg_test1", timestamp + 0.9, BODY).headers == {
        "webhook-id": "msg_test1",
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature,
    }


EVENT = job_event("job_0_" + "a" * 24, "/v1/responses", JobStatus.SUCCEEDED, time.time())


def by_standard(secret: SecretStr, body: bytes, said: dict[str, str]) -> Any:
    return standardwebhooks.Webhook(secret.get_secret_value()).verify(body, said)


def by_openai(secret: SecretStr, body: bytes, said: dict[str, str]) -> Any:
    client = openai.OpenAI(api_key="none", webhook_secret=secret.get_secret_value())
    return client.webhooks.unwrap(body, said).to_dict()


@pytest.mark.parametrize("unwrap", [by_standard, by_openai])
def test_both_libraries_believe_either_secret_while_one_replaces_the_other(unwrap: Any) -> None:
    old, new, now, body = new_secret(), new_secret(), time.time(), EVENT.body.encode()
    said = sign([secret(new), secret(old, expires_at=now + 60)], "wh_1", now, body).headers
    assert said[SIGNATURE].count(" ") == 1
    for known in (old, new):
        assert unwrap(known, body, said) == {
            "id": EVENT.id,
            "object": "event",
            "type": "response.completed",
            "created_at": int(EVENT.at),
            "timestamp": unwrap(new, body, said)["timestamp"],
            "data": {"id": "resp_0_" + "a" * 24},
        }


@pytest.mark.parametrize("unwrap", [by_standard, by_openai])
def test_no_library_believes_a_secret_whose_time_is_over(unwrap: Any) -> None:
    old, now, body = new_secret(), time.time(), EVENT.body.encode()
    said = sign([secret(), secret(old, expires_at=now)], "wh_1", now, body).headers
    assert unwrap(KNOWN, body, said)["type"] == "response.completed"
    with pytest.raises((standardwebhooks.WebhookVerificationError, openai.InvalidWebhookSignatureError)):
        unwrap(old, body, said)


def test_one_signature_of_several_is_enough() -> None:
    said = headers(now=1000)
    verify([KNOWN], said | {SIGNATURE: f"v1,AAAA v2,{'x' * 44} {said[SIGNATURE]}"}, BODY, now=1000)
    verify([new_secret(), KNOWN], {name.title(): value for name, value in said.items()}, BODY, now=1000)


@pytest.mark.parametrize("late_s", [299, -299])
def test_clocks_may_differ_a_little(late_s: float) -> None:
    verify([KNOWN], headers(now=10_000), BODY, now=10_000 + late_s)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({TIMESTAMP: "NaN"}, "Unix seconds"),
        ({TIMESTAMP: "inf"}, "Unix seconds"),
        ({TIMESTAMP: ""}, "Unix seconds"),
        ({TIMESTAMP: "-1000"}, "Unix seconds"),
        ({TIMESTAMP: "1000.0"}, "Unix seconds"),
        ({TIMESTAMP: "١٠٠٠"}, "Unix seconds"),
        ({TIMESTAMP: "9" * 400}, "Unix seconds"),
        ({TIMESTAMP: "699"}, "away from now"),
        ({TIMESTAMP: "1301"}, "away from now"),
        ({TIMESTAMP: "1001"}, "by a secret"),
        ({"webhook-id": "msg_test2"}, "by a secret"),
        ({"webhook-id": ""}, "is missing"),
        ({SIGNATURE: ""}, "is missing"),
        ({SIGNATURE: "   "}, "by a secret"),
        ({SIGNATURE: "v1,"}, "by a secret"),
        ({SIGNATURE: "v1,schlüssel"}, "by a secret"),
        ({SIGNATURE: "v1,\ud800"}, "by a secret"),
        ({SIGNATURE: "zxkb79CWfGi2M9BMzIQcyJOuzONKPNGSHOZai/5yXak="}, "by a secret"),
    ],
)
def test_a_message_that_says_anything_else_is_forged(changed: dict[str, str], why: str) -> None:
    with pytest.raises(Forged, match=why):
        verify([KNOWN], headers(now=1000) | changed, BODY, now=1000)


@pytest.mark.parametrize("absent", ["webhook-id", TIMESTAMP, SIGNATURE])
def test_a_message_without_one_of_its_headers_is_forged(absent: str) -> None:
    said = {name: value for name, value in headers(now=1000).items() if name != absent}
    with pytest.raises(Forged):
        verify([KNOWN], said, BODY, now=1000)


def test_other_bytes_of_the_same_value_are_forged() -> None:
    with pytest.raises(Forged):
        verify([KNOWN], headers(now=1000), BODY.replace(b"1.0", b"1"), now=1000)


@pytest.mark.parametrize("now", [math.inf, math.nan])
def test_a_clock_that_is_none_believes_nothing(now: float) -> None:
    with pytest.raises(Forged):
        verify([KNOWN], headers(now=1000), BODY, now=now)


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_AAAA", "whsec_" + "A" * 100, "whsec_ü", "AAEC" * 10, "whsec_@@"])
def test_what_is_no_secret_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="must be whsec_") as caught:
        key_of(SecretStr(text))
    assert len(text) < 8 or text not in str(caught.value)


def test_a_new_secret_is_as_the_standard_wants_it() -> None:
    assert len(key_of(new_secret())) == 32
    assert new_secret() != new_secret()
