"""Clients as their makers wrote them, with an API on a loopback port whose worker does as its prompts say."""

from __future__ import annotations

from tests.api.conftest import api, bus, redis_process, settings, worker

__all__ = ["api", "bus", "redis_process", "settings", "worker"]
