"""A service as its clients reach it over HTTP: patient while it is full or away, plain about what it refuses.

Knows addresses, keys and what statuses mean; nothing of what is asked. Those who ask see to it that every question may
be asked again: after a lost reply, a restart of the service or a restart of this process.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import aiohttp

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_RETRY_AFTER_S = 0.2, 10.0, 60.0
SILENCE_S = 60.0
"""An answer that says nothing for so long, not even a keep-alive, is asked for again."""
TRIES_OF_A_FAULT = 3
"""Answers of 500 to the same question, after which it is taken to be the question's fault."""


class ServiceLost(Exception):
    """The service cannot be worked with. The message is one sentence."""


class Refusal(NamedTuple):
    """An HTTP answer that says no, and would say no again."""

    status: int
    request_id: str | None
    body: Any

    def __str__(self) -> str:
        return f"the service answered {self.status}{said_of(fault_of(self.body))}"


class Away(Exception):
    """No answer, or one that says to come later."""

    def __init__(self, why: str, *, after_s: float | None = None, is_busy: bool = False) -> None:
        super().__init__(why)
        self.why, self.after_s, self.is_busy = why, after_s, is_busy


class Look(NamedTuple):
    """An answer as it came."""

    status: int
    content: bytes


@dataclass(slots=True)
class Pause:
    """Pauses that double, with jitter; a pause that the service asked for goes first."""

    next_s: float = FIRST_PAUSE_S

    def seconds(self, asked_s: float | None) -> float:
        pause_s = self.next_s if asked_s is None else max(0.05, min(asked_s, LONGEST_RETRY_AFTER_S))
        self.next_s = min(self.next_s * 2, LONGEST_PAUSE_S)
        return pause_s * random.uniform(0.8, 1.2)


class Service:
    """Base of the clients of one API each. `patience_s`: how long the service may be away altogether before ServiceLost
    is raised; `tell` hears why a question waits, once for each reason."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        connector: aiohttp.TCPConnector | None = None,
        patience_s: float = 600.0,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1").rstrip("/")  # clients of OpenAI have it in their base URL
        self.trouble: str | None = None
        """Why questions are waiting just now, for a display."""
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._connector = connector
        self._patience_s = patience_s
        self._tell = tell
        self._away_since: float | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENCE_S),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def _first_look(self, path: str) -> Look:
        """Without patience: ServiceLost when nobody answers at the URL, or not with this key."""
        try:
            async with self._session.get(self.url + path) as response:
                content = await response.read()
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):  # to which HOST:PORT is a scheme and a path
            raise ServiceLost(f"{self.url} is not a URL that begins with http:// or https:// (see --url)") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServiceLost(f"nothing answers at {self.url}: {_why(error)} (see --url)") from None
        if response.status in (401, 403):
            raise self._refused_key()
        return Look(response.status, content)

    @asynccontextmanager
    async def _answer(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is a yes or a no; everything else is Away or ServiceLost."""
        try:
            async with self._session.request(method, self.url + path, **more) as response:
                if response.status in (401, 403):
                    raise self._refused_key()
                if response.status == 429 or response.status >= 502:
                    raise Away(
                        f"the service answered {response.status}{said_of(fault_in(await response.read()))}",
                        after_s=retry_after(response.headers.get("Retry-After", "")),
                        is_busy=response.status == 429,
                    )
                yield response
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise Away(_why(error)) from None

    async def _patiently(self, once: Callable[[], Awaitable[T]]) -> T:
        pause = Pause()
        n_faults = 0
        while True:
            try:
                answer = await once()
            except Away as away:
                self._note_trouble(away)
                await asyncio.sleep(pause.seconds(away.after_s))
                continue
            self._note_good()
            if isinstance(answer, Refusal) and answer.status == 500 and n_faults < TRIES_OF_A_FAULT - 1:
                n_faults += 1
                await asyncio.sleep(pause.seconds(None))
                continue
            return answer

    def _refusal(self, response: aiohttp.ClientResponse, content: bytes) -> Refusal:
        """What a no is. Raises ServiceLost when it is none in the words of an API."""
        request_id = response.headers.get("X-Request-Id")
        body = json_in(content)
        if response.status >= 400 and isinstance(body, dict) and "error" in body:
            return Refusal(response.status, request_id, body)
        if response.status == 413:  # a proxy in between has limits and words of its own
            error = {"code": 413, "message": "the request is too large", "type": "invalid_request_error"}
            return Refusal(413, request_id, {"error": error})
        raise ServiceLost(f"{response.url.origin()} is not a slotstream: it answered {response.status}")

    def _refused_key(self) -> ServiceLost:
        return ServiceLost(f"{self.url} refuses the API key (see --api-key)")

    def _note_good(self) -> None:
        self.trouble = self._away_since = None

    def _note_trouble(self, away: Away) -> None:
        if self._tell and self.trouble != away.why:
            self._tell(away.why)
        self.trouble = away.why
        if away.is_busy:  # it is there: however long its queue is full, that is no reason to give up
            self._away_since = None
            return
        now = time.monotonic()
        self._away_since = self._away_since or now
        if now - self._away_since > self._patience_s:
            raise ServiceLost(f"the service has been away for {self._patience_s:.0f} s: {away.why}") from None


def is_path_unknown(status: int, content: bytes) -> bool:
    """Whether a 404 or 405 is about the path; a slotstream also says 404 of a thing or a model that is not there."""
    fault = fault_in(content)
    is_of_a_thing = fault.get("type") == "not_found_error" and fault.get("message") != "File Not Found"
    return status != 404 or not (is_of_a_thing or fault.get("type") == "model_not_found")


def json_in(content: bytes) -> Any:
    """None when it is no JSON."""
    try:
        return json.loads(content)
    except ValueError:
        return None


def fault_in(content: bytes) -> dict[str, Any]:
    """The error object of an answer, empty when it has none."""
    return fault_of(json_in(content))


def fault_of(body: Any) -> dict[str, Any]:
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def said_of(fault: dict[str, Any]) -> str:
    """What an error object says, to stand behind a sentence."""
    message = fault.get("message")
    return f": {message}" if message else ""


def retry_after(header: str) -> float | None:
    """Seconds of a Retry-After header, which may also be a date; None when there is none or it makes no sense."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return None
    return seconds if seconds >= 0 else None


def _why(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", error.certificate_error)
        return f"its certificate is not trusted, {reason}; SSL_CERT_FILE may name a file of certificates that are"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__
