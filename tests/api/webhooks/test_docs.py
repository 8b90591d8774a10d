"""The ways to check a message that docs/webhooks.md shows: each believes ours, and nobody else's."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from api.webhooks.events import job_event
from api.webhooks.schedule import STEPS_S
from api.webhooks.signing import new_secret, sign, verify
from shared.jobs import JobStatus
from shared.webhooks import EVENT_TYPES, Secret

PAGE = (Path(__file__).parents[3] / "docs/webhooks.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def reader(example: str) -> Callable[[bytes, dict[str, str], str], dict[str, Any]]:
    names: dict[str, Any] = {}
    exec(example, names)
    read: Callable[[bytes, dict[str, str], str], dict[str, Any]] = names["read"]
    return read


def test_there_are_three_ways() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("example", EXAMPLES, ids=("standardwebhooks", "openai", "by hand"))
def test_an_example_believes_us_and_nobody_else(example: str) -> None:
    read = reader(example)
    old, new, now = new_secret(), new_secret(), time.time()
    event = job_event("job_0_" + "a" * 24, "/completion", JobStatus.FAILED, now)
    body = event.body.encode()
    secrets = [Secret(value=new), Secret(value=old, expires_at=now + 60)]
    said = sign(secrets, "wh_1", now, body).headers
    for secret in (old, new):
        assert read(body, said, secret.get_secret_value())["id"] == event.id
    stale = sign(secrets, "wh_1", now - 400, body).headers
    forged = [(body, said | {"webhook-signature": "v1,ü"}), (body + b" ", said), (body, stale), (body, {})]
    forged += [(body, said | {"webhook-timestamp": "NaN"}), (body, said | {"webhook-id": "wh_2"})]
    for other_body, other_headers in forged:
        with pytest.raises(Exception):  # noqa: B017 - each has errors of its own
            read(other_body, other_headers, new.get_secret_value())


def test_the_message_on_the_page_is_signed_as_it_says() -> None:
    [message] = re.findall(r"```\nPOST (.*?)\n```", PAGE, re.DOTALL)
    head, _, body = message.partition("\n\n")
    headers = dict(line.split(": ", 1) for line in head.split("\n")[1:])
    [secret] = re.findall(r"signed with `(\S+)`", PAGE)
    verify([SecretStr(secret)], headers, body.encode(), now=float(headers["webhook-timestamp"]))


def test_the_page_names_all_events_and_the_true_schedule() -> None:
    assert {name for name in EVENT_TYPES if f"`{name}`" in PAGE} == set(EVENT_TYPES)
    assert len(STEPS_S) + 1 == 10
    assert "5 seconds, 5 minutes, half an hour, and 2, 5, 10, 14, 20 and 24 hours" in re.sub(r"\s+", " ", PAGE)
