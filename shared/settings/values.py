"""Kinds of values that settings have: how they are written, and what each must be.

A list is one text with commas, or several; what is wrong is a ValueError whose text goes on behind the flag's name.
"""

from __future__ import annotations

import csv
import math
import re
from ipaddress import ip_network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from shared.overrides import MetadataOverride

MOST = 2**31 - 1
"""What llama.cpp counts with."""
LONGEST_S = 10 * 365 * 86400
"""That anything is kept: an expiry that the server cannot count would refuse whatever is written with it."""

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
FULL_TYPES = ("f32", "f16", "bf16")
LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]


def _split(value: Any) -> Any:
    """One text, perhaps with commas, or a list of them."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return texts
    if not all(text.strip() for text in texts):
        raise ValueError("must not be empty")  # else an unset variable in a script would open the door
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def _row(value: Any) -> Any:
    """The same where a part that has commas itself stands in quotes."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return texts
    if not all(text.strip() for text in texts):
        raise ValueError("must not be empty")
    return tuple(part.strip() for row in csv.reader(texts) for part in row if part.strip())


def _layers(value: Any) -> Any:
    return -1 if value in ("auto", "all") else value


def _proportions(value: Any) -> Any:
    """`3,1` or `3/1`."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return texts
    return tuple(part for each in texts for part in (re.split("[,/]", each) if isinstance(each, str) else [each]))


def _check_proportions(value: tuple[float, ...]) -> tuple[float, ...]:
    if not all(0 <= part < math.inf for part in value):
        raise ValueError("a proportion must be a number from 0 on")
    if value and not sum(value):
        raise ValueError("one proportion at least must be more than 0")
    return value


def _check_overrides(value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        MetadataOverride.parse(text)
    return value


def _check_placements(value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        pattern, mark, buffer = text.rpartition("=")
        if not (pattern and mark and buffer) or "\0" in text:
            raise ValueError(f"{text!r} must be PATTERN=BUFFER")
    return value


def _hosts(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Names, addresses and networks, nothing else: a mistyped one would silently allow nothing."""
    for text in texts:
        try:
            ip_network(text, strict=False)
        except ValueError:
            if re.fullmatch(r"(?=.*[a-zA-Z])[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*\.?", text) is None:
                raise ValueError(f"{text} is neither a host's name nor an address nor a network") from None
    return texts


def _check_prefix(value: str) -> str:
    if value and re.fullmatch(r"(/[a-zA-Z0-9_.~-]+)+", value) is None:
        raise ValueError(f"{value} must begin with a slash, end without one, and be of letters, digits and -._~")
    return value


Prefix = Annotated[str, AfterValidator(_check_prefix)]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split)]
Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_row)]
Proportions = Annotated[tuple[float, ...], NoDecode, BeforeValidator(_proportions), AfterValidator(_check_proportions)]
Overrides = Annotated[Texts, AfterValidator(_check_overrides)]
Placements = Annotated[Texts, AfterValidator(_check_placements)]
Layers = Annotated[int, BeforeValidator(_layers)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Hosts = Annotated[tuple[str, ...], NoDecode, AfterValidator(_hosts), BeforeValidator(_row)]
