"""Calls to addresses that a client named: images that are fetched, endings that are told.

The guard stands where a socket is made and looks at the address that the socket is about to be connected to. However a
name is written, and whatever it resolves to the next time, no other address is ever reached. Knows no route, and
nothing of what it fetches or sends.
"""

from __future__ import annotations

from api.outgoing.calls import USER_AGENT, Answered, Limits, Outgoing, Unanswered
from api.outgoing.guard import PORTS, Guard
from api.outgoing.resolver import Resolver
from api.outgoing.target import MAX_URL

__all__ = [
    "MAX_URL",
    "PORTS",
    "USER_AGENT",
    "Answered",
    "Guard",
    "Limits",
    "Outgoing",
    "Resolver",
    "Unanswered",
]
