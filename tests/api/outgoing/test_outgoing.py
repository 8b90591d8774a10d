"""What is fetched on a client's word, and what never is: against real servers on this machine."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from api.outgoing import MAX_URL, Guard, Limits, Outgoing
from shared.errors import InvalidRequest

LOOPBACK = ("127.0.0.0/8",)
UNANSWERED = "did not answer in time, or may not be asked from here; the server's --allow-hosts says what else may be"


class Site:
    """A server that counts who came."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.visits: list[web.Request] = []
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] = _picture

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.visits.append(request)
        return await self.answer(request)

    def url(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/picture.png"


async def _picture(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b"picture", headers={"Set-Cookie": "id=1; Path=/"})


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opened = Site(listener.getsockname()[1])
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", opened.serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        yield opened
        await runner.cleanup()


class Names(AbstractResolver):
    """Answers for names that this machine's resolver does not know, each answer once, the last for good."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = answers

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        queue = self.answers[host.split(".", maxsplit=1)[0]]
        addresses = queue.pop(0) if len(queue) > 1 else queue[0]
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in addresses
        ]

    async def close(self) -> None:
        pass


async def fetch(url: str, allow_hosts: tuple[str, ...] = (), *, names: Names | None = None, **more: Any) -> bytes:
    async with Outgoing.open(allow_hosts, resolver=names) as outgoing:
        return await outgoing.fetch(url, "image_url", **{"max_bytes": 1000, "timeout_s": 5.0} | more)


async def refusal(url: str, allow_hosts: tuple[str, ...] = (), **more: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await fetch(url, allow_hosts, **more)
    assert caught.value.param == "image_url"
    assert "image_url" in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("allowed", ["127.0.0.1", "127.0.0.0/8"])
async def test_an_allowed_network_is_fetched_from_on_any_port(site: Site, allowed: str) -> None:
    assert await fetch(site.url(), (allowed,)) == b"picture"


async def test_an_allowed_name_is_fetched_from_wherever_it_leads(site: Site) -> None:
    assert await fetch(site.url("LocalHost"), ("localhost",)) == b"picture"
    assert UNANSWERED in await refusal(site.url("127.0.0.1"), ("localhost",))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::ffff:127.0.0.1]", "0"]
)
async def test_no_way_of_writing_it_reaches_this_machine(site: Site, host: str) -> None:
    assert UNANSWERED in await refusal(site.url(host))
    assert not site.visits


async def test_a_refused_host_and_a_dead_one_cannot_be_told_apart(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = listener.getsockname()[1]
    refused = await refusal(site.url())
    assert (await refusal(f"http://127.0.0.1:{dead}/", LOOPBACK)).replace(str(dead), str(site.port)) == refused
    unknown = await refusal(f"http://nowhere.invalid:{site.port}/")
    assert unknown.replace("nowhere.invalid", "127.0.0.1") == refused


async def test_a_name_that_leads_here_the_second_time_is_refused_the_second_time(site: Site) -> None:
    names = Names(turncoat=[["127.0.0.2"], ["127.0.0.1"]])
    async with Outgoing.open(("127.0.0.1",), resolver=names) as outgoing:
        for reached in (False, True):
            call = outgoing.fetch(site.url("turncoat.test"), "image_url", max_bytes=1000, timeout_s=5.0)
            if reached:
                assert await call == b"picture"
            else:
                with pytest.raises(InvalidRequest):
                    await call
    assert len(site.visits) == 1


async def test_of_a_name_with_several_addresses_only_those_are_reached_that_may_be(site: Site) -> None:
    assert await fetch(site.url("both.test"), ("127.0.0.1",), names=Names(both=[["127.0.0.2", "127.0.0.1"]]))
    assert UNANSWERED in await refusal(site.url("both.test"), names=Names(both=[["127.0.0.1", "127.0.0.2"]]))


@pytest.mark.parametrize(
    ("host", "may_be"),
    [
        ("public.test", True),
        ("both.test", False),
        ("hidden.test", False),
        ("allowed.test", True),
        ("nowhere.test", False),
        ("1.1.1.1", True),
        ("10.0.0.1", False),
        ("10.1.0.1", True),
    ],
)
async def test_a_url_is_examined_by_all_its_addresses_before_it_is_kept(host: str, may_be: bool) -> None:
    both = ["1.1.1.1", "10.0.0.1"]
    names = Names(public=[["1.1.1.1", "8.8.8.8"]], both=[both], hidden=[["10.0.0.1"]], allowed=[both], nowhere=[[]])
    for literal in ("1", "10"):
        names.answers[literal] = [[host]]
    async with Outgoing.open(("10.1.0.0/16", "allowed.test"), resolver=names) as outgoing:
        if may_be:
            await outgoing.examine(f"http://{host}/", "url")
            return
        with pytest.raises(InvalidRequest) as caught:
            await outgoing.examine(f"http://{host}/", "url")
        assert caught.value.message == (
            f"Field 'url': {host}:80 cannot be found, or may not be called from here;"
            " the server's --allow-hosts says what else may be"
        )


@pytest.mark.parametrize(
    ("address", "port", "may_be"),
    [
        ("1.1.1.1", 80, True),
        ("2606:4700::1111", 443, True),
        ("1.1.1.1", 25, False),
        ("1.1.1.1", 8080, False),
        ("10.0.0.1", 80, False),
        ("10.1.0.1", 25, True),
        ("10.1.255.255", 443, True),
        ("::ffff:10.1.0.1", 80, False),
    ],
)
def test_the_internet_is_reached_on_ports_of_the_web_and_the_rest_where_it_is_allowed(
    address: str, port: int, may_be: bool
) -> None:
    assert Guard([ip_network("10.1.0.0/16")]).may_reach(ip_address(address), port) is may_be


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(site: Site, status: int) -> None:
    async def elsewhere(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers={"Location": site.url()})

    site.answer = elsewhere
    assert "redirect" in await refusal(site.url(), LOOPBACK)
    assert len(site.visits) == 1


async def test_an_answer_other_than_200_is_named(site: Site) -> None:
    async def gone(_: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text="a secret page")

    site.answer = gone
    said = await refusal(site.url(), LOOPBACK)
    assert "status 404" in said
    assert "secret" not in said


@pytest.mark.parametrize("is_length_told", [True, False])
async def test_a_body_is_read_up_to_its_limit_and_no_further(site: Site, is_length_told: bool) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Length": str(10**12)} if is_length_told else {})
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)
            sent += 65536

    site.answer = endless
    assert "larger than 0.001 MB" in await refusal(site.url(), LOOPBACK)
    assert sent < 50_000_000

    async def exact(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * 1000)

    site.answer = exact
    assert len(await fetch(site.url(), LOOPBACK)) == 1000


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_server_that_dawdles_is_left(site: Site, is_begun: bool) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if is_begun:
            await response.prepare(request)
            await response.write(b"x")
        await asyncio.sleep(60)
        return response

    site.answer = slow
    assert UNANSWERED in await refusal(site.url(), LOOPBACK, timeout_s=0.2)


async def test_what_is_packed_stays_packed(site: Site) -> None:
    async def packed(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"packed bytes", headers={"Content-Encoding": "gzip"})

    site.answer = packed
    assert await fetch(site.url(), LOOPBACK) == b"packed bytes"


async def test_nothing_of_us_or_of_others_is_sent_along(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9/")
    async with Outgoing.open((*LOOPBACK, "localhost")) as outgoing:
        for host in ("127.0.0.1", "localhost", "localhost"):  # aiohttp keeps cookies for names only
            await outgoing.fetch(site.url(host), "image_url", max_bytes=1000, timeout_s=5.0, accept="image/*")
    for request in site.visits:
        assert set(request.headers) == {"Host", "User-Agent", "Accept", "Accept-Encoding"}
        assert request.headers["Accept"] == "image/*"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "picture.png",
        "//127.0.0.1/",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "ftp://127.0.0.1/",
        "gopher://127.0.0.1/",
        "http:///path",
        "http://",
        "http://[::1",
        "http://[1:2]/",
        "http://host:port/",
        "http://host:99999/",
        "http://user:password@127.0.0.1/",
        "http://user@127.0.0.1/",
        "http://a..b/",
        f"http://{'a' * 300}.test/",
        "http://127.0.0.1/" + "a" * MAX_URL,
        "http://\x00/",
        "http://1.1.1.1/a\r\nX: y",
        "http://1.1.1.1/a\tb",
        "\x7fhttp://1.1.1.1/",
        "http://\ud800/",
    ],
)
async def test_what_is_no_url_of_the_web_is_refused(url: str) -> None:
    await refusal(url, LOOPBACK)


async def test_more_calls_than_there_is_room_for_wait_and_are_answered(site: Site) -> None:
    at_once = most = 0

    async def counted(_: web.Request) -> web.StreamResponse:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return web.Response(body=b"x")

    site.answer = counted
    async with Outgoing.open(LOOPBACK) as outgoing:
        calls = [outgoing.fetch(site.url(), "image_url", max_bytes=10, timeout_s=5.0) for _ in range(20)]
        assert await asyncio.gather(*calls) == [b"x"] * 20
    assert most == 4


async def test_names_that_nobody_answers_for_hold_up_nothing_else(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    def look_up(host: str, *_: Any, **__: Any) -> list[Any]:
        is_over.wait(30.0)
        raise socket.gaierror(socket.EAI_AGAIN, host)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        async with Outgoing.open(LOOPBACK) as outgoing:
            calls = [
                outgoing.fetch(f"http://{place}.test/", "image_url", max_bytes=10, timeout_s=0.05)
                for place in range(2 * Limits().calls)
            ]
            refused = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(error, InvalidRequest) for error in refused)
            async with asyncio.timeout(5.0):
                assert await asyncio.to_thread(lambda: "done") == "done"
                assert await outgoing.fetch(site.url(), "image_url", max_bytes=10, timeout_s=5.0) == b"picture"
    finally:
        is_over.set()
