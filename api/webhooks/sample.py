"""Events of what never was, to try an endpoint with."""

from __future__ import annotations

from api.webhooks.events import Event
from shared.ids import Kind, new_id

_SUBJECTS = {"batch": "batch_", "response": "resp_", "job": "job_"}
"""What ids begin with, by what an event is of."""


def sample_of(event_type: str, at: float) -> Event:
    """Another one each time. What it is of can be recognized, and asked for in vain: its id is all zeros."""
    prefix = _SUBJECTS[event_type.partition(".")[0]]
    return Event(new_id(Kind.EVENT, 0), event_type, f"{prefix}0_{'0' * 24}", at)
