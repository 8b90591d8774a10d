"""A whole slotstream on this machine: the embedded server when no Redis is named, and processes for the roles.

Knows the settings of the roles and that each is started with `python -m`; imports none of them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from api.cli.state import make_folder
from api.cli.supervisor import Command, Supervisor
from api.port.listener import open_listener
from api.port.tls import fingerprint
from shared.bus.embedded import EmbeddedServer
from shared.modelfile import check_file
from shared.settings import CONFIG_VARIABLE, ConfigError, RunSettings, ServeSettings

WATCH_S = 0.5
LONGEST_PAUSE_S = 30.0
"""Between two tries to start the embedded server."""
API_STOP_S = 40.0
"""More than the API takes by itself (`SHUTDOWN_S` in api/app.py) until it cuts its last streams off."""
TELL_S = 5.0
"""How often a start that takes its time is told about."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stack lives."""

    folder: Path
    """Of the embedded server's data."""
    host: str
    port: int
    logs: Path | None = None
    """Folder for what the processes say; None is the terminal."""
    certificate: Path | None = None
    """File of the one that the API shows; None where it speaks plain HTTP."""
    prefix: str = ""
    """Of all the API's paths."""

    @property
    def files(self) -> Path:
        """Folder of the store, where the settings name no other."""
        return self.folder.parent / "files"

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}{self.prefix}"

    def connector(self, *, limit: int = 100) -> aiohttp.TCPConnector:
        """For clients of the API, which know it by its very certificate: the names in that are other people's."""
        trust = aiohttp.Fingerprint(fingerprint(self.certificate)) if self.certificate else True
        return aiohttp.TCPConnector(limit=limit, ssl=trust)


@dataclass(frozen=True, slots=True)
class Stack:
    supervisor: Supervisor
    place: Place
    redis: str
    """What the roles are connected to, without its password."""

    async def abilities(self, api_key: str | None) -> list[str]:
        """What the models that are served can do, in the words of `/v1/models`; empty when that cannot be told."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            async with (
                aiohttp.ClientSession(
                    connector=self.place.connector(), timeout=aiohttp.ClientTimeout(total=5), headers=headers
                ) as session,
                session.get(f"{self.place.url}/v1/models") as response,
            ):
                content = await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return []
        return [ability for model in content.get("models", []) for ability in model["capabilities"]]

    async def become_ready(self, *, needs_worker: bool, tell: Callable[[str], None]) -> None:
        """Wait until requests are answered. Raises ChildRefused when that cannot come."""
        await self.supervisor.beside(_wait_until_healthy(self.place, needs_worker, tell))
        self.supervisor.mark_ready()


@asynccontextmanager
async def open_stack(
    settings: ServeSettings | RunSettings,
    place: Place,
    *,
    say: Callable[[str], None],
    extra: Mapping[str, str] | None = None,
) -> AsyncIterator[Stack]:
    """Start everything, and leave nothing running. `extra`: variables for all children."""
    with EmbeddedServer() as server:
        if settings.redis_url is None:
            folder = make_folder(place.folder)
            url, shown = server.start(folder), f"an embedded server, data in {folder}"
        else:
            url = settings.redis_url.get_secret_value()
            shown = _without_password(url)
        environment = {
            **os.environ,
            **settings.to_environment(),
            "SLOTSTREAM_STORE_URL": settings.store_url.get_secret_value() or str(place.files),
            **(extra or {}),
            "SLOTSTREAM_REDIS_URL": url,
            "SLOTSTREAM_HOST": place.host,
            "SLOTSTREAM_PORT": str(place.port),
        }
        supervisor = Supervisor(_commands(settings, environment, place.logs), say=say)
        async with supervisor:
            watch = None
            if settings.redis_url is None:  # another's server is not ours to start again
                watch = asyncio.create_task(_watch(server, place.folder, supervisor, environment, say))
            try:
                yield Stack(supervisor, place, shown)
            finally:
                if watch is not None:
                    watch.cancel()


def config_of(argv: Sequence[str]) -> dict[str, str]:
    """The variable that hands `--config FILE` on: it may have tables for the roles that are started."""
    for flag, value in itertools.pairwise([*argv, ""]):
        if flag == "--config":
            return {CONFIG_VARIABLE: value}
        if flag.startswith("--config="):
            return {CONFIG_VARIABLE: flag.partition("=")[2]}
    return {}


def check_model(model: str) -> None:
    """Raise LoadFailed for what no worker could load: known at once, nothing has to be started to find out."""
    if model != "demo":
        check_file(Path(model))


def check_slot_folder(folder: Path | None) -> None:
    """Raise ConfigError for what no worker could keep files of slots in, as it would itself."""
    if folder is not None and not folder.is_dir():
        why = "not a directory" if folder.exists() else "no such file or directory"
        raise ConfigError(f"--slot-save-path: {folder}: {why}")


def free_port(host: str) -> int:
    """A port that nobody listens on just now. Raises ConfigError when there is no such host here."""
    with open_listener(host, 0) as listener:
        port: int = listener.getsockname()[1]
        return port


def check_port_is_free(place: Place) -> None:
    """Raise ConfigError when somebody listens there: said now, it is not lost among what the roles say."""
    open_listener(place.host, place.port).close()


def role_command(module: str, *arguments: str) -> tuple[str, ...]:
    """`python -m`, without the current folder in its path: a user's folder named `api` is not our package."""
    return (sys.executable, "-P", "-m", module, *arguments)


def _commands(
    settings: ServeSettings | RunSettings, environment: Mapping[str, str], logs: Path | None
) -> list[Command]:
    def log(name: str) -> Path | None:
        return logs / f"{name.replace(' ', '-')}.log" if logs else None

    names = ["worker"] if settings.workers == 1 else [f"worker {n + 1}" for n in range(settings.workers)]
    workers = [
        Command(name, role_command("worker"), environment, log(name), stop_s=settings.grace_s + 10, stage=0)
        for name in names
    ]
    # The API is told to stop together with the workers: it takes nothing new that nobody would work on, and the
    # answers that workers finish while they drain still reach those who wait. Tasks go last: they tell others of ends.
    return [
        *workers,
        Command("api", role_command("api"), environment, log("api"), stop_s=API_STOP_S, stage=0),
        Command("tasks", role_command("api.tasks"), environment, log("tasks"), stage=1),
    ]


async def _watch(
    server: EmbeddedServer,
    folder: Path,
    supervisor: Supervisor,
    environment: dict[str, str],
    say: Callable[[str], None],
) -> None:
    """Start the embedded server again when it ends, as often as it takes: a disk is full for a while only. The roles
    find it again by themselves."""
    pause_s = WATCH_S
    while True:
        await asyncio.sleep(pause_s)
        if server.pid is not None:
            if not _has_ended(server.pid):
                pause_s = WATCH_S
                continue
            say("the embedded server ended; starting it again")
            server.stop()
        try:
            url = server.start(folder)
        except (ConfigError, OSError) as error:
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            say(f"{error}; nothing can be queued now, and it is tried again in {pause_s:g} s")
            continue
        if url != environment["SLOTSTREAM_REDIS_URL"]:  # its socket is in a temporary folder, a new one each time
            environment["SLOTSTREAM_REDIS_URL"] = url
            supervisor.restart()


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


async def _wait_until_healthy(place: Place, needs_worker: bool, tell: Callable[[str], None]) -> None:
    clock = asyncio.get_running_loop().time
    started = told = clock()
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(connector=place.connector(), timeout=timeout) as session:
        while missing := await _missing(session, place.url, needs_worker):
            if clock() - told >= TELL_S:
                told = clock()
                tell(f"not ready after {told - started:.0f} s: {missing}")
            await asyncio.sleep(0.1)


async def _missing(session: aiohttp.ClientSession, url: str, needs_worker: bool) -> str | None:
    """Why requests are not answered yet, in the API's own words; None when they are."""
    try:
        async with session.get(f"{url}/health") as response:
            content = await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return "the API is starting"
    if response.status == 200 or (not needs_worker and content["status"] != "redis unavailable"):
        return None
    message: str = content["error"]["message"]
    return f"{message} ({content['progress']:.0%})" if "progress" in content else message


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host = rest.rpartition("@")[2].partition("?")[0]  # the options may hold one too
    return f"{scheme}://{host}"
