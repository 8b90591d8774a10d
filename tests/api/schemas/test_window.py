"""Spans of time as clients write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.schemas.window import PATTERN, window_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("1s", 1), ("90s", 90), ("30m", 1800), ("24h", 86400), ("7d", 7 * 86400), ("30d", 30 * 86400)],
        *[("1h30m", 5400), ("1d12h", 129600), ("0d1s", 1), ("2d3h4m5s", 183845), ("2592000s", 30 * 86400)],
    ],
)
def test_a_span_is_read(text: str, seconds: float) -> None:
    assert window_s(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "24", "h", "24 h", " 24h", "24h ", "24h\n", "1.5h", "-1h", "+1h", "1e3s", "24H", "1w", "1ms"),
        *("30m1h", "1h1h", "٣h", "1h30", "٣0m", "1_0s", "PT24H", "24h;", "1d\x00"),
    ],
)
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a span"):
        window_s(text)


@pytest.mark.parametrize("text", ["0s", "0h", "30d1s", "31d", "721h", "2592001s", "999d99999h"])
def test_a_span_too_short_or_too_long_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="from 1s to 30d"):
        window_s(text)


@given(st.text(alphabet="0123456789dhms", max_size=9))
def test_the_document_s_pattern_takes_what_the_reader_takes(text: str) -> None:
    try:
        window_s(text)
    except ValueError:
        return
    assert re.fullmatch(PATTERN, text)
