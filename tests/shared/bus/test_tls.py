"""Over TLS the server must be who it says it is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from shared.bus import open_bus
from shared.bus.taskpool import task_pool
from shared.errors import BusUnavailable
from shared.events import Finished
from shared.settings import ConfigError, TasksSettings
from tests.shared.bus.conftest import claimed, eventually, keeper, queued
from tests.shared.bus.servers import Node, running, until

OPENSSL = shutil.which("openssl")


class Authority:
    """A CA, and certificates from it."""

    def __init__(self, folder: Path, name: str) -> None:
        if OPENSSL is None:
            pytest.skip("no openssl on this machine")
        self._folder = folder
        self.file = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        self._make("-x509", "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.file)

    def certificate(self, name: str, host: str = "DNS:nobody") -> tuple[Path, Path]:
        """(certificate, key)."""
        file, key, request = (self._folder / f"{name}.{kind}" for kind in ("pem", "key", "request"))
        self._make("-subj", f"/CN={name}", "-addext", f"subjectAltName={host}", "-keyout", key, "-out", request)
        issuer = ("-CA", self.file, "-CAkey", self._key, "-CAcreateserial", "-copy_extensions", "copy")
        _openssl("x509", "-req", "-in", request, *issuer, "-out", file)
        return file, key

    def _make(self, *arguments: str | Path) -> None:
        _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *arguments)


def _openssl(*arguments: str | Path) -> None:
    assert OPENSSL
    subprocess.run([OPENSSL, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "ca")


@pytest.fixture(scope="module")
def server(folder: Path, authority: Authority) -> Iterator[Node]:
    with running(server := a_server(folder / "server", authority)):
        yield server


def a_server(folder: Path, authority: Authority, host: str = "IP:127.0.0.1", **options: object) -> Node:
    certificate, key = authority.certificate(folder.name, host)
    return Node(
        folder,
        tls_ca_cert_file=authority.file,
        tls_cert_file=certificate,
        tls_key_file=key,
        **{"tls_auth_clients": "no"} | options,
    )


def settings_for(server: Node, **options: object) -> TasksSettings:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return TasksSettings(redis_url=f"rediss://127.0.0.1:{server.port}/0?{query}")


async def test_a_job_goes_all_its_way_over_tls(server: Node, authority: Authority) -> None:
    settings = settings_for(server, ssl_ca_certs=authority.file)
    async with open_bus(settings, name="test") as bus:
        await bus.reach()
        async with bus.log.follow((job := await queued(bus)).id) as reader:
            held = await claimed(bus)
            assert held.job.id == job.id
            with keeper(settings, "w1"):
                await eventually(lambda: _heard(server, settings))
            await bus.queue.finish(held.lease, Finished(status="succeeded"), 1)
            assert await reader.next(10.0) is not None
    async with Redis(connection_pool=task_pool(settings, name="arq")) as arq:
        assert await arq.ping()
        await arq.connection_pool.disconnect()


async def _heard(server: Node, settings: TasksSettings) -> bool:
    return bool(server.client.hexists(f"{settings.namespace}:{{p0}}:beats", "w1"))


async def check_is_refused(settings: TasksSettings, why: str) -> None:
    async with open_bus(settings, name="test") as bus:
        for look in (bus.check_server, bus.reach):
            with pytest.raises(ConfigError, match=f"^--redis-url: the server's certificate is not trusted .*{why}"):
                await look()
        with pytest.raises(BusUnavailable):
            await bus.ping()


async def test_a_server_of_another_ca_is_refused(folder: Path, server: Node) -> None:
    other = Authority(folder, "other")
    await check_is_refused(settings_for(server, ssl_ca_certs=other.file), "certificate in certificate chain")
    await check_is_refused(settings_for(server), "certificate in certificate chain")
    async with open_bus(settings_for(server, ssl_cert_reqs="none"), name="test") as bus:
        await bus.reach()


async def test_a_server_of_another_name_is_refused(folder: Path, authority: Authority) -> None:
    with running(server := a_server(folder / "renamed", authority, host="DNS:elsewhere.test")):
        await check_is_refused(settings_for(server, ssl_ca_certs=authority.file), "IP address mismatch")
        trusting = settings_for(server, ssl_ca_certs=authority.file, ssl_check_hostname="no")
        async with open_bus(trusting, name="test") as bus:
            await bus.reach()


async def test_a_server_that_wants_certificates_of_clients_gets_ours(folder: Path, authority: Authority) -> None:
    certificate, key = authority.certificate("client")
    server = a_server(folder / "strict", authority, tls_auth_clients="yes")
    server.client.connection_pool.connection_kwargs |= {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    with running(server):
        both = folder / "both.pem"
        both.write_text(certificate.read_text() + key.read_text())
        for ours in ({"ssl_certfile": certificate, "ssl_keyfile": key}, {"ssl_certfile": both}):
            async with open_bus(settings_for(server, ssl_ca_certs=authority.file, **ours), name="test") as bus:
                await bus.reach()
        async with open_bus(settings_for(server, ssl_ca_certs=authority.file), name="test") as bus:
            with pytest.raises(BusUnavailable):
                await bus.ping()


async def test_sentinels_are_asked_over_tls_too(folder: Path, authority: Authority, server: Node) -> None:
    sentinel = a_server(folder / "sentinel", authority, is_sentinel=True, tls_replication="yes")
    with running(sentinel):
        sentinel.client.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", server.port, 1)
        until(lambda: "disconnected" not in sentinel.client.sentinel_master("main")["flags"])
        url = f"rediss+sentinel://127.0.0.1:{sentinel.port}/main?ssl_ca_certs="
        async with open_bus(TasksSettings(redis_url=f"{url}{authority.file}"), name="test") as bus:
            await bus.reach()
        other = Authority(folder, "stranger")
        await check_is_refused(TasksSettings(redis_url=f"{url}{other.file}"), "certificate in certificate chain")


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_a_ca_file_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=r"^--redis-url: .*ca\.pem"):
        async with open_bus(TasksSettings(redis_url=f"rediss://h?ssl_ca_certs={file}"), name="test"):
            pass
