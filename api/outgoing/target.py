"""URLs that may be called at all, by how they are written. Pure; what they lead to is the guard's business."""

from __future__ import annotations

import re

from yarl import URL

from api.schemas.strict import bad_field

MAX_URL = 8192
"""Characters."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def target_of(url: str, field: str) -> URL:
    """The URL, if it is one of the web. InvalidRequest, which names `field`, for any other."""
    if len(url) > MAX_URL:
        raise bad_field(field, f"a URL may have {MAX_URL} characters at most")
    if _CONTROL.search(url):  # readers of URLs drop some, and then another would be called than is shown
        raise bad_field(field, "a URL has no control characters in it")
    try:
        target = URL(url)
        host, _ = target.host, target.port
    except ValueError:
        raise bad_field(field, "this is not a URL") from None
    if target.scheme not in ("http", "https") or not host:
        raise bad_field(field, "a URL must begin with http:// or https:// and name a host")
    if target.user is not None or target.password is not None:
        raise bad_field(field, "a URL with a user or password in it is not asked")
    return target


def host_of(target: URL) -> str:
    """As `--allow-hosts` may name it."""
    return (target.host or "").lower().rstrip(".")


def shown(target: URL) -> str:
    """The host as the client wrote it: it learns no address from us."""
    host = target.host or ""
    return f"{f'[{host}]' if ':' in host else host}:{target.port}"[:100]
