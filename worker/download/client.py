"""HTTP as downloads need it: redirects followed by hand, the token for its own host only, failures as sentences.

Knows neither the hub's paths nor files.
"""

from __future__ import annotations

import contextlib
import os
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Self

import aiohttp
from pydantic import SecretStr
from yarl import URL

from worker.download.failures import DownloadFailed, Interrupted

MAX_REDIRECTS = 10
SILENCE_S = 30.0
"""Without a byte, after which a connection counts as cut."""
PASSING = {408, 425, 429, 500, 502, 503, 504}
MAX_JSON = 64_000_000
REDIRECTS = {301, 302, 303, 307, 308}


class Answer:
    """A response and what was said on the way to it."""

    def __init__(self, response: aiohttp.ClientResponse, linked_sha256: str) -> None:
        self.status, self.headers = response.status, response.headers
        self.content = response.content
        self.linked_sha256 = linked_sha256
        """The hub's word, given with its redirect, for what the file must be; empty where it said none."""


class Client:
    def __init__(self, session: aiohttp.ClientSession, token: SecretStr | None, token_for: URL) -> None:
        self._session = session
        self._token, self._token_for = token, token_for.origin()

    @classmethod
    @asynccontextmanager
    async def open(cls, token: SecretStr | None, token_for: URL) -> AsyncIterator[Self]:
        """`token` goes to the origin of `token_for` and nowhere else."""
        async with aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"slotstream/{version('slotstream')}", "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S),
            auto_decompress=False,
        ) as session:
            yield cls(session, token, token_for)

    @asynccontextmanager
    async def get(
        self, url: URL, headers: dict[str, str] | None = None, *, method: str = "GET", what: str = ""
    ) -> AsyncIterator[Answer]:
        """The answer at the end of all redirects: 200, 206, 304 or 416. DownloadFailed or Interrupted else, and
        Interrupted also when the connection breaks while the answer is read. `what` is what people call it."""
        asked, sha256 = url, ""
        try:
            for _ in range(MAX_REDIRECTS):
                async with self._session.request(
                    method, url, headers=self._headers(url, headers), proxy=_proxy(url), allow_redirects=False
                ) as response:
                    sha256 = sha256 or _linked(response)
                    if response.status not in REDIRECTS:
                        self._check(response, asked, what or f"{asked.host}{asked.path}")
                        yield Answer(response, sha256)
                        return
                    url = _next(url, response)
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:
            raise Interrupted(f"{url.host} {_trouble(error)}") from error
        raise DownloadFailed(f"{asked.host} redirects without end")

    async def read_json(self, url: URL, what: str) -> tuple[bytes, URL | None]:
        """The body, unparsed, and where it goes on if it comes in pages."""
        async with self.get(url, {"Accept": "application/json"}, what=what) as answer:
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > MAX_JSON:
                    raise DownloadFailed(f"{url.host} lists more than is read")
            return bytes(body), _next_page(url, answer)

    def _headers(self, url: URL, headers: dict[str, str] | None) -> dict[str, str]:
        own = dict(headers or {})
        if self._token and url.origin() == self._token_for:
            own["Authorization"] = f"Bearer {self._token.get_secret_value()}"
        return own

    def _check(self, response: aiohttp.ClientResponse, asked: URL, what: str) -> None:
        status = response.status
        if status in (200, 206, 304, 416):
            return
        if status in PASSING:
            raise Interrupted(f"{asked.host} answers with status {status}", retry_after_s=_retry_after_s(response))
        if status in (401, 403):
            is_gated = response.headers.get("X-Error-Code") == "GatedRepo"
            reason = "is gated, its owner must have let you in" if is_gated else "may not be read, or is not there"
            advice = "with the token that was given" if self._token else "without a token (--hf-token or HF_TOKEN)"
            raise DownloadFailed(f"{what} {reason} {advice}: status {status}")
        raise DownloadFailed(f"{what} is not there" if status == 404 else f"{what} answers with status {status}")


def _trouble(error: Exception) -> str:
    match error:
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError() | ConnectionError():
            return "broke the connection off"
        case TimeoutError():
            return f"has said nothing for {SILENCE_S:g} s"
        case aiohttp.ClientConnectorCertificateError():
            return f"has a certificate that is not trusted: {error.certificate_error}"
        case OSError(errno=int(number)) if number > 0:
            return f"cannot be reached: {os.strerror(number)}"
        case OSError(strerror=str(reason)):  # a name that is not known
            return f"cannot be reached: {reason}"
        case _:
            return f"cannot be talked to: {error}"


def _next(url: URL, response: aiohttp.ClientResponse) -> URL:
    target = None
    with contextlib.suppress(ValueError):
        if location := response.headers.get("Location"):
            target = _joined(url, URL(location, encoded=True))  # signed: not a letter may change
    if target is None:
        raise DownloadFailed(f"{url.host} redirects to nowhere")
    if url.scheme == "https" and target.scheme == "http":
        raise DownloadFailed(f"{url.host} redirects to an address without TLS, {target.host}")
    return target


def _joined(url: URL, target: URL) -> URL | None:
    """Where a server sends us; None where nobody can be asked. ValueError for what is no URL, found out only when a
    part of it is looked at."""
    joined = url.join(target)
    return joined if joined.scheme in ("http", "https") and joined.host and joined.port else None


def _linked(response: aiohttp.ClientResponse) -> str:
    """The hub's `X-Linked-Etag`: the SHA-256 of a large file, quoted."""
    text = response.headers.get("X-Linked-Etag", "").strip('"').lower()
    return text if len(text) == 64 and not set(text) - set("0123456789abcdef") else ""


def _next_page(url: URL, answer: Answer) -> URL | None:
    links = answer.headers.get("Link", "")
    target = next((part.partition(">")[0] for part in links.split("<")[1:] if 'rel="next"' in part), None)
    if target is None:
        return None
    following = None
    with contextlib.suppress(ValueError):
        following = _joined(url, URL(target))
    if following is None:
        raise DownloadFailed(f"{url.host} goes on listing nowhere")
    if following.origin() != url.origin():
        raise DownloadFailed(f"{url.host} goes on listing at another host, {following.host}")
    return following


def _retry_after_s(response: aiohttp.ClientResponse) -> float | None:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else None


def _proxy(url: URL) -> str | None:
    """The machine's own proxy for that address. aiohttp's `trust_env` would read passwords from ~/.netrc as well."""
    proxy = urllib.request.getproxies().get(url.scheme)
    if not proxy or urllib.request.proxy_bypass(url.host or ""):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise DownloadFailed(f"the proxy for {url.scheme} is of a kind that is not spoken here; http is")
    return proxy
