"""Signatures after Standard Webhooks 1.0.0: HMAC-SHA256 over id, time and body, under each secret in force. Pure.

What is signed is bytes, never a value that is written anew: a receiver that reads `1.0` and writes `1` would find
another signature.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets as randomness
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pydantic import SecretStr

from shared.webhooks import SECRET_PREFIX, Secret, key_of

TOLERANCE_S = 300.0
"""By which a receiver's clock may differ from ours; a message that was recorded is no good any longer than that."""

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
"""Headers."""

_TIMESTAMP = re.compile(r"[0-9]{1,15}", re.ASCII)


class Forged(ValueError):
    """A message that does not come from who has the secret, or comes too late. The text says which, for a log."""


class Signed(NamedTuple):
    """What a message says of itself."""

    id: str
    timestamp: int
    """Unix seconds at which this attempt was made."""
    signature: str
    """One for each secret, with spaces between them."""

    @property
    def headers(self) -> dict[str, str]:
        return {ID: self.id, TIMESTAMP: str(self.timestamp), SIGNATURE: self.signature}


def new_secret() -> SecretStr:
    return SecretStr(SECRET_PREFIX + base64.b64encode(randomness.token_bytes(32)).decode())


def sign(secrets: Iterable[Secret], message_id: str, timestamp: float, body: bytes) -> Signed:
    """By each of the secrets that is in force at `timestamp`, Unix seconds: while one replaces another, a receiver may
    know either. ValueError when one is none."""
    content = _content(message_id, int(timestamp), body)
    signatures = [_signature(key_of(secret.value), content) for secret in secrets if _is_in_force(secret, timestamp)]
    return Signed(message_id, int(timestamp), " ".join(signatures))


def verify(
    secrets: Iterable[SecretStr],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float,
    tolerance_s: float = TOLERANCE_S,
) -> None:
    """As a receiver has to. Raises Forged unless one signature is by one of the secrets and was made within
    `tolerance_s` of `now`, Unix seconds. Names of headers may be in any case."""
    said = {name.lower(): value for name, value in headers.items()}
    message_id, written, signatures = (said.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not message_id or not signatures:
        raise Forged(f"{ID if not message_id else SIGNATURE} is missing")
    if not _TIMESTAMP.fullmatch(written):
        raise Forged(f"{TIMESTAMP} is not in Unix seconds")
    if not abs(now - int(written)) <= tolerance_s:  # so that a clock that is NaN believes nothing
        raise Forged(f"{TIMESTAMP} is more than {tolerance_s:g} s away from now")
    content = _content(message_id, int(written), body)
    # In bytes: `compare_digest` would fail on text that is not ASCII, and anybody can send that.
    given = [signature.encode("utf-8", "replace") for signature in signatures.split()]
    made = [_signature(key_of(secret), content).encode() for secret in secrets]
    if not any(hmac.compare_digest(one, other) for one in given for other in made):
        raise Forged(f"no {SIGNATURE} is by a secret that is known")


def _content(message_id: str, timestamp: int, body: bytes) -> bytes:
    return f"{message_id}.{timestamp}.".encode("utf-8", "replace") + body


def _signature(key: bytes, content: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()


def _is_in_force(secret: Secret, now: float) -> bool:
    return secret.expires_at is None or now < secret.expires_at
