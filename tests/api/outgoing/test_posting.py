"""What is sent to a receiver, and what is believed of its answer: against real servers on this machine."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any

import pytest
from structlog.testing import capture_logs

from api.outgoing import Answered, Limits, Outgoing, Unanswered
from api.outgoing.calls import MAX_ANSWER, NOT_REACHED
from shared.errors import InvalidRequest
from tests.api.conftest import Certificate
from tests.api.outgoing.test_outgoing import LOOPBACK, Names
from tests.receiver import (
    Receiver,
    Says,
    drip,
    endless,
    hang,
    informing,
    long_head,
    no_http,
    nothing,
    raw_receiving,
    receiving,
    slow_head,
    status,
)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


async def post(
    url: str, allow_hosts: tuple[str, ...] = LOOPBACK, *, timeout_s: float = 5.0, names: Names | None = None
) -> Answered | Unanswered:
    async with Outgoing.open(allow_hosts, resolver=names) as outgoing:
        return await outgoing.post(url, b'{"n":1.0}', {"webhook-id": "wh_1"}, timeout_s=timeout_s)


async def test_the_bytes_go_as_they_are_with_nothing_of_us_or_of_others(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9/")
    assert await post(receiver.url("/a%20b?c=d#e")) == Answered(200, None, b"")
    [call] = receiver.calls
    assert (call.path, call.body) == ("/a%20b?c=d", b'{"n":1.0}')
    assert set(call.headers) == {"Host", "User-Agent", "Accept", "Accept-Encoding"} | {
        "webhook-id",
        "Content-Length",
        "Content-Type",
    }


@pytest.mark.parametrize("code", [200, 204, 301, 302, 307, 308, 404, 410, 429, 500, 599])
async def test_whatever_status_it_has_an_answer_is_one_and_no_redirect_is_followed(
    receiver: Receiver, code: int
) -> None:
    receiver.answer = status(code, Location=receiver.url("/elsewhere"), Retry_After="7")
    answered = await post(receiver.url())
    assert answered == Answered(code, "7", b"")
    assert len(receiver.calls) == 1


@pytest.mark.parametrize("answer", [endless, drip])
async def test_of_an_endless_body_only_the_beginning_is_waited_for(receiver: Receiver, answer: Any) -> None:
    receiver.answer = answer
    started = time.monotonic()
    answered = await post(receiver.url(), timeout_s=20)
    assert isinstance(answered, Answered)
    assert answered.status == 200
    assert 0 < len(answered.beginning) <= MAX_ANSWER
    assert time.monotonic() - started < 3


async def test_of_a_large_body_only_the_beginning_is_read(receiver: Receiver) -> None:
    receiver.answer = status(200, "y" * 10_000_000)
    assert await post(receiver.url()) == Answered(200, None, b"y" * MAX_ANSWER)


async def test_who_hangs_is_left(receiver: Receiver) -> None:
    receiver.answer = hang
    assert await post(receiver.url(), timeout_s=0.2) == Unanswered("did not answer within 0.2 s")


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (nothing, "closed the connection without an answer"),
        (no_http, "answered with what is no HTTP"),
        (long_head, "answered with what is no HTTP"),
        (slow_head, "did not answer within 0.4 s"),
        (informing, "did not answer within 0.4 s"),
    ],
)
async def test_what_is_no_answer_is_told_for_what_it_is(says: Says, reason: str) -> None:
    async with raw_receiving(says) as receiver:
        assert await post(receiver.url, timeout_s=0.4) == Unanswered(reason)
        assert receiver.n_calls == 1


@pytest.mark.parametrize("says", [nothing, no_http, long_head])
async def test_no_part_of_a_url_that_may_be_secret_is_logged(says: Says) -> None:
    with capture_logs() as logs:
        async with raw_receiving(says) as receiver:
            await post(receiver.url + "/T0K3N?key=T0K3N", timeout_s=2.0)
        await post("http://127.0.0.1:1/T0K3N")
        await post("http://nowhere..invalid/T0K3N")
    assert len(logs) == 3
    assert "T0K3N" not in repr(logs)


async def test_a_connection_serves_one_call_after_the_other(receiver: Receiver) -> None:
    peers = set()

    async def note(request: Any) -> Any:
        peers.add(request.transport.get_extra_info("peername"))
        return await status(200, "ok")(request)

    receiver.answer = note
    async with Outgoing.open(LOOPBACK, limits=Limits(calls=0, calls_per_host=0)) as outgoing:
        for _ in range(5):
            assert await outgoing.post(receiver.url(), b"{}", {}, timeout_s=5.0) == Answered(200, None, b"ok")
    assert len(peers) == 1


async def test_as_many_calls_as_are_allowed_are_under_way_at_one_host(receiver: Receiver) -> None:
    receiver.answer = hang
    async with Outgoing.open(LOOPBACK, limits=Limits(calls=0, calls_per_host=0)) as outgoing:
        calls = [asyncio.create_task(outgoing.post(receiver.url(), b"{}", {}, timeout_s=10.0)) for _ in range(40)]
        await receiver.until_called(40)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_a_machine_without_room_for_a_call_blames_no_receiver(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any, **__: Any) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("api.outgoing.guard.Guard.open_socket", no_room)
    with pytest.raises(OSError, match="Too many open files"):
        await post(receiver.url())


async def test_a_certificate_must_be_trusted_and_of_that_name(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate.file, certificate.key)
    async with receiving(tls) as receiver:
        refused = await post(receiver.url())
        assert isinstance(refused, Unanswered)
        assert "a certificate that is not trusted: self-signed certificate" in refused.reason
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
        assert await post(receiver.url()) == Answered(200, None, b"")
        names = Names(other=[["127.0.0.1"]])
        refused = await post(receiver.url().replace("127.0.0.1", "other.test"), names=names)
        assert isinstance(refused, Unanswered)
        assert "Hostname mismatch" in refused.reason
    assert len(receiver.calls) == 1


async def test_tls_is_not_spoken_with_who_does_not(receiver: Receiver) -> None:
    answered = await post(receiver.url().replace("http:", "https:"))
    assert answered == Unanswered("could not agree on TLS")


SPECIAL = [
    "http://[::ffff:127.0.0.1]:6379/",
    "http://2130706433/",
    "http://0x7f.1/",
    "http://127.1/",
    "http://localhost./",
    "http://169.254.169.254/",
    "http://0.0.0.0/",
    "http://[::]/",
    "http://[::1]/",
    "http://[::127.0.0.1]/",
    "http://[2002:7f00:1::]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[fd00::1]/",
    "http://100.64.0.1/",
    "http://10.0.0.1/",
    "http://1.1.1.1:6379/",
]
NO_URL = ["file:///etc/passwd", "http://user:pw@host/", "http://[fe80::1%25lo]/", "ftp://host/", "http://a\ud800b/", ""]


@pytest.mark.parametrize("url", SPECIAL)
async def test_what_is_not_the_internets_is_refused_at_creation_and_at_sending(url: str) -> None:
    async with Outgoing.open() as outgoing:
        with pytest.raises(InvalidRequest, match=r"Field 'url': .*may not be called from here") as caught:
            await outgoing.examine(url, "url")
        assert caught.value.param == "url"
        assert url.split("/")[2].count("[") == caught.value.message.count("["), "an address is shown as it is written"
        assert await outgoing.post(url, b"{}", {}, timeout_s=5.0) == Unanswered(NOT_REACHED)


@pytest.mark.parametrize("url", NO_URL)
async def test_what_is_no_url_of_the_web_is_refused_at_creation_and_at_sending(url: str) -> None:
    async with Outgoing.open() as outgoing:
        with pytest.raises(InvalidRequest, match="Field 'url'"):
            await outgoing.examine(url, "url")
        try:
            assert await outgoing.post(url, b"{}", {}, timeout_s=5.0) == Unanswered(NOT_REACHED)
        except InvalidRequest as error:
            assert error.param == "url"


async def test_a_name_with_one_private_address_is_refused_at_creation_and_only_its_public_one_called() -> None:
    names = Names(both=[["1.1.1.1", "10.0.0.1"]], open=[["1.1.1.1", "2606:4700::1111"]])
    async with Outgoing.open(resolver=names) as outgoing:
        with pytest.raises(InvalidRequest):
            await outgoing.examine("https://both.test/", "url")
        await outgoing.examine("https://open.test/", "url")
        guard = outgoing._guard
        assert [guard.may_reach(ip_address(one), 443) for one in ("1.1.1.1", "10.0.0.1")] == [True, False]


async def test_a_name_that_was_public_at_creation_is_looked_at_again_at_sending(receiver: Receiver) -> None:
    port = receiver.url().rsplit(":", 1)[1].split("/")[0]
    names = Names(turncoat=[["1.1.1.1"], ["127.0.0.1"]])
    async with Outgoing.open(resolver=names) as outgoing:
        await outgoing.examine("http://turncoat.test/hook", "url")
        url = f"http://turncoat.test:{port}/hook"
        assert await outgoing.post(url, b"{}", {}, timeout_s=5.0) == Unanswered(NOT_REACHED)
    assert receiver.calls == []


async def test_a_refused_address_a_dead_one_and_an_unknown_name_are_told_alike(receiver: Receiver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = listener.getsockname()[1]
    assert await post(receiver.url(), ()) == Unanswered(NOT_REACHED)
    assert await post(f"http://127.0.0.1:{dead}/") == Unanswered(NOT_REACHED)
    assert await post("http://nowhere.invalid/") == Unanswered(NOT_REACHED)
    assert receiver.calls == []


async def test_what_the_operator_allowed_may_be_named() -> None:
    async with Outgoing.open(("10.1.0.0/16", "intern.test")) as outgoing:
        await outgoing.examine("http://10.1.2.3:8080/hook", "url")
        await outgoing.examine("http://Intern.test.:8080/hook", "url")
        with pytest.raises(InvalidRequest):
            await outgoing.examine("http://10.2.2.3:8080/hook", "url")
