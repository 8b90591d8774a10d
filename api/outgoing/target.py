"""URLs that may be called at all, by how they are written. Pure; what they lead to is the guard's business."""

from __future__ import annotations

from yarl import URL

from api.schemas.strict import bad_field

MAX_URL = 8192
"""Characters."""


def target_of(url: str, field: str) -> URL:
    """The URL, if it is one of the web. InvalidRequest, which names `field`, for any other."""
    if len(url) > MAX_URL:
        raise bad_field(field, f"a URL may have {MAX_URL} characters at most")
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
    return target.authority[:100]
