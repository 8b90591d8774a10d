"""The port with TLS, and what is said of files that will not do."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.port import connection
from api.port.tls import fingerprint, server_context
from shared.settings import ApiSettings, ConfigError, ServeSettings
from tests.api.conftest import Certificate, serve
from tests.api.raw import connected
from tests.api.scripted_worker import ScriptedWorker


@pytest.fixture
def tls(settings: ApiSettings, certificate: Certificate) -> ApiSettings:
    return settings.model_copy(update={"ssl_cert_file": certificate.file, "ssl_key_file": certificate.key})


async def test_answers_and_streams_go_over_tls(tls: ApiSettings, worker: ScriptedWorker) -> None:
    async with serve(tls) as api:
        assert api.url.startswith("https://")
        assert (await api.client.post("/completion", json={"prompt": "say a"})).json()["content"] == "a"
        assert len(await api.stream("/completion", {"prompt": "say a|b"})) > 2
        with pytest.raises(httpx.ConnectError):
            await httpx.AsyncClient().get(f"{api.url}/health")


async def test_whoever_speaks_no_tls_harms_nobody(
    tls: ApiSettings, worker: ScriptedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(tls) as api:
        for data in (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x00" * 100):
            async with connected(api.url) as raw:
                raw.send(data)
                assert b"HTTP" not in await raw.rest()
        async with connected(api.url) as raw:
            raw.send(b"\x16")  # and then nothing
            assert (await api.client.get("/health")).status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_with_half_a_request_is_told_over_tls_too(
    tls: ApiSettings, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.1)
    trust = ssl.create_default_context(cafile=tls.ssl_cert_file)
    async with serve(tls.model_copy(update={"timeout": 0.2})) as api, connected(api.url, ssl=trust) as raw:
        raw.send(b"POST /completion HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        assert (await raw.answer()).status == 408
        async with asyncio.timeout(10):
            assert await raw.rest() == b""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ssl_key_file": "KEY"}, "--ssl-key-file is of no use without --ssl-cert-file"),
        ({"ssl_cert_file": "CERT"}, "--ssl-cert-file is of no use without --ssl-key-file"),
    ],
)
def test_one_file_without_the_other_is_one_sentence(more: dict[str, Any], said: str) -> None:
    for role in (ApiSettings, ServeSettings):
        with pytest.raises(ConfigError, match=said):
            role.load(**more)


def test_files_that_will_not_do_are_one_sentence_that_names_the_flag(
    settings: ApiSettings, certificate: Certificate, tmp_path: Path
) -> None:
    nonsense, missing, locked = tmp_path / "nonsense", tmp_path / "missing", tmp_path / "locked"
    nonsense.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
    command = ["openssl", "ec", "-aes128", "-passout", "pass:word", "-in", certificate.key, "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    for cert, key, said in (
        (missing, certificate.key, f"--ssl-cert-file: {missing}: no such file or directory"),
        (certificate.file, missing, f"--ssl-key-file: {missing}: no such file or directory"),
        (certificate.file, tmp_path, f"--ssl-key-file: {tmp_path}: is a directory"),
        (nonsense, certificate.key, f"--ssl-cert-file: {nonsense} is no certificate in PEM"),
        (certificate.key, certificate.key, f"--ssl-cert-file: {certificate.key} is no certificate in PEM"),
        (certificate.file, nonsense, f"--ssl-key-file: {nonsense} is no private key in PEM"),
        (certificate.other, certificate.key, f"{certificate.key} is not the key of --ssl-cert-file, "),
        (certificate.file, locked, "--ssl-key-file is encrypted"),
    ):
        with pytest.raises(ConfigError) as refusal:
            server_context(settings.model_copy(update={"ssl_cert_file": cert, "ssl_key_file": key}))
        assert said in str(refusal.value)


def test_a_fingerprint_is_that_of_the_first_certificate(certificate: Certificate, tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    chain.write_text(certificate.file.read_text() + certificate.other.read_text())
    assert fingerprint(chain) == fingerprint(certificate.file) != fingerprint(certificate.other)


async def test_the_command_line_goes_to_a_service_with_tls_whose_certificate_it_trusts(
    tls: ApiSettings, worker: ScriptedWorker
) -> None:
    async with serve(tls) as api:
        command = [sys.executable, "-m", "api.cli", "jobs", "list", "--url", api.url]
        for variables, code, said in (
            ({"SSL_CERT_FILE": str(tls.ssl_cert_file)}, 0, ""),
            ({}, 2, "its certificate is not trusted, self-signed certificate; SSL_CERT_FILE may name"),
        ):
            process = await asyncio.create_subprocess_exec(
                *command, env=os.environ | variables, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            _, error = await process.communicate()
            assert process.returncode == code, error
            assert said in error.decode().replace("\n", " ")
