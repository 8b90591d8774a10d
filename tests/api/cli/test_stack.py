from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from api.cli import main, stack
from api.cli.run import NO_API_KEY
from api.cli.serve import welcome
from api.cli.stack import Place, config_of, free_port
from api.cli.supervisor import Command, Supervisor
from shared.bus import Bus, EmbeddedServer, open_bus
from shared.errors import BusUnavailable
from shared.settings import ApiSettings, ServeSettings
from tests.api.cli.conftest import ROOT, RunCommand, environment
from tests.api.conftest import Certificate
from tests.api.conftest import serve as served
from tests.api.scripted_worker import ScriptedWorker
from tests.shared.bus.conftest import eventually


def serve(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "api.cli", "serve", *arguments],
        cwd=folder,
        env=environment(XDG_STATE_HOME=str(folder / "state")),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        refused = serve(tmp_path, "-m", "demo", "--port", str(port))
    assert refused.returncode == 2
    assert refused.stderr == (
        f"slotstream serve: cannot listen on 127.0.0.1 port {port}: Address already in use (see --port)\n"
    )


@pytest.mark.slow
def test_a_bad_model_ends_serve_and_run_with_the_workers_own_sentence(tmp_path: Path, bulk: RunCommand) -> None:
    (tmp_path / "bad.gguf").write_text("GGUF, and then no model")
    refused = serve(tmp_path, "-m", "bad.gguf", "--port", "0")
    assert refused.returncode == 3
    assert "slotstream worker: " in refused.stderr
    assert "bad.gguf" in refused.stderr
    assert "starting it again" not in refused.stderr
    bulk.write({"messages": []})
    run = bulk.run("in.jsonl", "-o", "out.jsonl", "-m", "bad.gguf")
    assert run.returncode == 2
    assert "bad.gguf" in run.stderr.splitlines()[-1]


def test_serve_says_that_a_model_file_is_missing_before_anything_starts(tmp_path: Path) -> None:
    refused = serve(tmp_path, "-m", "nothing.gguf", "--port", "0")
    assert refused.returncode == 3
    assert refused.stderr == "slotstream serve: cannot read the model nothing.gguf: no such file or directory\n"
    assert list(tmp_path.iterdir()) == []


def test_serve_says_that_the_folder_of_slots_is_missing_before_anything_starts(tmp_path: Path) -> None:
    refused = serve(tmp_path, "-m", "demo", "--port", "0", "--slot-save-path", "nothing")
    assert refused.returncode == 2
    assert refused.stderr == "slotstream serve: --slot-save-path: nothing: no such file or directory\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("way", ["flag", "variable"])
@pytest.mark.parametrize("command", ["serve", "run"])
def test_the_model_of_the_readmes_settings_file_is_found(
    command: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "our.toml").write_text(block.replace("/models/", f"{tmp_path}/"))
    monkeypatch.setenv("SLOTSTREAM_STATE_DIR", str(tmp_path / "state"))
    files = ["in.jsonl", "-o", "out.jsonl"] if command == "run" else []
    if way == "flag":
        files += ["--config", str(tmp_path / "our.toml")]
    else:
        monkeypatch.setenv("SLOTSTREAM_CONFIG", str(tmp_path / "our.toml"))
    assert main([command, *files]) == (3 if command == "serve" else 2)
    assert capsys.readouterr().err == (
        f"slotstream {command}: cannot read the model {tmp_path}/model.gguf: no such file or directory\n"
    )


def test_a_stack_of_runs_own_has_no_key_although_the_settings_file_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slotstream.toml").write_text('[api]\napi_key = "secret"\n')
    assert ApiSettings.load().api_key != ()
    monkeypatch.setenv(*NO_API_KEY)
    assert ApiSettings.load().api_key == ()


def test_a_stop_while_it_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "api.cli", "serve", "-m", "demo", "--port", "0"],
        cwd=tmp_path,
        env=environment(XDG_STATE_HOME=str(tmp_path / "state")),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "starting" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        # Its children write to the same pipe: this ends when the last of them is gone.
        rest = process.stderr.read()
        assert process.wait(30) == 0, rest
    assert rest.endswith("slotstream serve: stopped\n")


@pytest.mark.parametrize("needs_worker", [True, False])
async def test_a_start_that_waits_says_what_health_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs_worker: bool
) -> None:
    monkeypatch.setattr(stack, "TELL_S", 0.2)
    place = Place(tmp_path, "127.0.0.1", free_port("127.0.0.1"))
    variables = environment(
        SLOTSTREAM_REDIS_URL=f"unix://{tmp_path}/nobody.sock",
        SLOTSTREAM_HOST=place.host,
        SLOTSTREAM_PORT=str(place.port),
    )
    api = Command("api", stack.role_command("api"), variables, tmp_path / "api.log")
    is_said = asyncio.Event()

    def tell(text: str) -> None:
        if "Redis" in text:
            is_said.set()
        else:
            assert text.endswith("the API is starting")

    async with Supervisor([api], say=print) as supervisor:
        ready = asyncio.create_task(
            stack.Stack(supervisor, place, "").become_ready(needs_worker=needs_worker, tell=tell)
        )
        said = asyncio.create_task(is_said.wait())
        async with asyncio.timeout(45):
            await asyncio.wait((ready, said), return_when=asyncio.FIRST_COMPLETED)
        assert is_said.is_set() and not ready.done()
        ready.cancel()


@pytest.mark.parametrize(
    ("abilities", "path"),
    [
        ([], "/v1/chat/completions"),
        (["completion", "multimodal"], "/v1/chat/completions"),
        (["embedding"], "/v1/embeddings"),
        (["rerank"], "/v1/rerank"),
        (["embedding", "completion"], "/v1/chat/completions"),
    ],
)
def test_what_to_try_first_is_what_the_model_can_do(tmp_path: Path, abilities: list[str], path: str) -> None:
    place = Place(tmp_path, "127.0.0.1", 80)
    said = welcome(stack.Stack(Supervisor([], say=print), place, ""), has_key=False, abilities=abilities)
    assert f"curl http://127.0.0.1:80{path} -H" in said
    assert json.loads(re.findall(r"-d '(.*)'", said)[0])


@pytest.mark.parametrize("more", [{}, {"can_generate": False, "pooling": "rank"}])
async def test_a_stack_knows_what_its_models_can_do(
    tmp_path: Path, bus: Bus, settings: ApiSettings, more: dict[str, Any]
) -> None:
    keyed = settings.model_copy(update={"api_key": (SecretStr("k"),)})
    async with ScriptedWorker(bus, **more), served(keyed) as api:
        port = int(api.url.rpartition(":")[2])
        ours = stack.Stack(Supervisor([], say=print), Place(tmp_path, "127.0.0.1", port), "")
        assert await ours.abilities("k") == (["rerank"] if more else ["completion"])
        assert await ours.abilities(None) == []


def test_the_config_file_is_handed_on() -> None:
    assert config_of(["-m", "x", "--config", "a.toml"]) == {"SLOTSTREAM_CONFIG": "a.toml"}
    assert config_of(["--config=b.toml"]) == {"SLOTSTREAM_CONFIG": "b.toml"}
    assert config_of(["-m", "x"]) == {}
    assert config_of([]) == {}


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("box.example", "http://box.example:80"),
    ],
)
def test_a_place_has_a_url_that_can_be_asked_from_here(host: str, url: str) -> None:
    assert Place(Path(), host, 80).url == url


async def test_a_stack_is_asked_over_tls_and_below_its_prefix(
    tmp_path: Path, bus: Bus, settings: ApiSettings, certificate: Certificate
) -> None:
    """Which it knows by the very certificate that it was started with."""
    more = {"ssl_cert_file": certificate.file, "ssl_key_file": certificate.key, "api_prefix": "/llm/v2"}
    async with ScriptedWorker(bus), served(settings.model_copy(update=more)) as api:
        place = Place(tmp_path, "127.0.0.1", httpx.URL(api.url).port or 0, None, certificate.file, "/llm/v2")
        assert place.url == f"https://127.0.0.1:{place.port}/llm/v2"
        ours = stack.Stack(Supervisor([], say=print), place, "")
        async with asyncio.timeout(10):
            await stack._wait_until_healthy(place, needs_worker=True, tell=print)
        assert await ours.abilities(None) == ["completion"]
        stranger = dataclasses.replace(place, certificate=certificate.other)
        assert await stack.Stack(Supervisor([], say=print), stranger, "").abilities(None) == []


def test_a_free_port_is_free() -> None:
    port = free_port("127.0.0.1")
    socket.create_server(("127.0.0.1", port)).close()


async def test_an_embedded_server_that_does_not_start_again_is_tried_until_it_does(tmp_path: Path) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    with EmbeddedServer() as server:
        url = server.start(tmp_path)
        mend = spoil(tmp_path)
        assert server.pid
        os.kill(server.pid, signal.SIGKILL)
        environment = {"SLOTSTREAM_REDIS_URL": url}
        watch = asyncio.create_task(
            stack._watch(server, tmp_path, Supervisor((), say=said.put_nowait), environment, said.put_nowait)
        )
        async with asyncio.timeout(10):
            assert await said.get() == "the embedded server ended; starting it again"
            assert "nothing can be queued now, and it is tried again in 1 s" in await said.get()
            mend()
            async with open_bus(ApiSettings(redis_url=SecretStr(url)), name="test") as bus:
                await eventually(lambda: answers(bus))
        watch.cancel()
        assert server.url == url


async def test_beside_a_server_of_somebody_else_there_is_none_of_our_own(
    tmp_path: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All roles would go over to it."""
    monkeypatch.setattr(stack, "WATCH_S", 0.01)
    monkeypatch.setattr(stack, "_commands", lambda *_: [])
    place = Place(tmp_path / "state", "127.0.0.1", free_port("127.0.0.1"), None)
    said: list[str] = []
    settings = ServeSettings(redis_url=SecretStr(valkey_url), model="demo")
    async with stack.open_stack(settings, place, say=said.append) as opened:
        assert opened.redis == valkey_url
        await asyncio.sleep(0.3)  # nothing must happen
    assert (said, place.folder.exists()) == ([], False)


def spoil(folder: Path) -> Callable[[], object]:
    """Makes a server's data such that none starts with them; what is returned undoes it."""
    [manifest] = folder.glob("appendonlydir/*.manifest")
    text = manifest.read_text()
    manifest.write_text("nonsense\n")
    return lambda: manifest.write_text(text)


async def answers(bus: Bus) -> bool:
    try:
        await bus.reach()
    except BusUnavailable:
        return False
    return True
