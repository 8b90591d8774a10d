"""A span of time as a client writes it: `90s`, `30m`, `24h`, `7d`, `1h30m`. Pure."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

PATTERN = "^([0-9]{1,3}d)?([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$"
"""Each unit once, the largest first; that it is not empty is said beside it."""
UNITS_S = (86400, 3600, 60, 1)
LEAST_S, MOST_S = 1, 30 * 86400

_SPAN = re.compile(PATTERN, re.ASCII)


def window_s(text: str) -> float:
    """Seconds. ValueError when it is no span, or not one of 1 second to 30 days."""
    found = _SPAN.fullmatch(text)
    if not text or found is None:
        raise ValueError("must be a span of time such as 90s, 30m, 24h, 7d or 1h30m")
    seconds = sum(int(part[:-1]) * unit for part, unit in zip(found.groups(), UNITS_S, strict=True) if part)
    if not LEAST_S <= seconds <= MOST_S:
        raise ValueError("must be from 1s to 30d")
    return float(seconds)


def _checked(text: str) -> str:
    window_s(text)
    return text


Window = Annotated[str, AfterValidator(_checked), Field(min_length=2, json_schema_extra={"pattern": PATTERN})]
"""As it was written: it is shown so again."""
