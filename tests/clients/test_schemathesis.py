"""schemathesis believes the API's document, and tries what it says and what it excludes.

Requests are the same in every run.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from pydantic import SecretStr
from schemathesis import Case
from schemathesis.config import (
    AnalysisConfig,
    ChecksConfig,
    ConstantsConfig,
    NotAServerErrorConfig,
    PositiveDataAcceptanceConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
)
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.schemas import OpenApiSchema

from api.app import ROUTES
from api.openapi.document import FORM, document_of
from api.schemas.strict import to_json
from shared.bus import open_bus
from shared.settings import ApiSettings
from tests.api.conftest import RedisProcess, serve
from tests.api.scripted_worker import ScriptedWorker

PATIENCE_S = 5.0
"""No answer takes longer."""

SOUND = ["2xx", "3xx", "4xx", "501", "503"]
"""What this build cannot do is 501, who is away is 503; anything else from 500 on is a fault."""

DOCUMENT = document_of(ROUTES)
OPERATIONS = [
    (method, path)
    for path, methods in DOCUMENT["paths"].items()
    for method, told in methods.items()
    if "x-same-as" not in told
]
"""Of paths that one function answers, one is enough."""


@pytest.fixture(scope="module")
def schema() -> OpenApiSchema:
    checks = ChecksConfig(
        not_a_server_error=NotAServerErrorConfig(expected_statuses=SOUND),
        # A schema cannot say what fields mean together: one grammar at most, or as many images as places for them.
        positive_data_acceptance=PositiveDataAcceptanceConfig(enabled=False),
    )
    constants = AnalysisConfig(constants=ConstantsConfig(enabled=False))
    config = SchemathesisConfig(
        projects=ProjectsConfig(default=ProjectConfig(checks=checks, analysis=constants)),
    )
    return schemathesis.openapi.from_dict(DOCUMENT, config=config)


def as_clients_write(value: Any) -> Any:
    """JSON Schema takes 2.0 for an integer. Clients do not write it, and the API does not take it."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            return {name: as_clients_write(item) for name, item in value.items()}
        case list():
            return [as_clients_write(item) for item in value]
    return value


@pytest.fixture(scope="module")
def address(redis_process: RedisProcess) -> Iterator[str]:
    """Of an API whose worker says at once what its prompts say, in a thread of their own."""
    settings = ApiSettings(
        redis_url=SecretStr(redis_process.url),
        namespace=f"t{secrets.token_hex(6)}",
        deadline_s=PATIENCE_S,
        accept_wait_s=PATIENCE_S,
    )
    is_up, is_done = Future[str](), asyncio.Event()

    async def run() -> None:
        async with open_bus(settings, name="test") as bus, ScriptedWorker(bus, has_vision=True), serve(settings) as api:
            is_up.set_result(api.url)
            await is_done.wait()

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        thread = Thread(target=loop.run_until_complete, args=(run(),))
        thread.start()
        yield is_up.result(20)
        loop.call_soon_threadsafe(is_done.set)
        thread.join()


def check(case: Case, address: str) -> None:
    """No fault of the server's, nothing that the document does not say, nothing accepted that it excludes."""
    response = case.call(base_url=address, timeout=PATIENCE_S)
    case.validate_response(response)
    if response.status_code in (429, 503):
        assert int(response.headers["retry-after"][0]) >= 1
    if response.status_code == 501 and not case.path.startswith("/api/"):
        assert response.json()["error"]["type"] == "not_supported_error"


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_what_the_document_says_is_true(schema: OpenApiSchema, address: str, method: str, path: str) -> None:
    operation = schema[path][method]
    sound = operation.as_strategy(GenerationMode.POSITIVE)
    unsound = operation.as_strategy(GenerationMode.NEGATIVE)

    # What is wrong with a form's field is that it has another type, or is null: texts have none, and are not.
    is_form = FORM in DOCUMENT["paths"][path][method].get("requestBody", {}).get("content", {})

    @given(sound if is_form else sound | unsound)
    @settings(
        max_examples=6,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def holds(case: Case) -> None:
        if not is_form:  # a file's bytes would be taken for another type than they have
            case.body = as_clients_write(case.body)
        check(case, address)

    holds()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_the_document_says_is_true_at_every_boundary(address: str, tmp_path: Path) -> None:
    """schemathesis' own command: the boundaries of every field, and methods that are not there."""
    (tmp_path / "openapi.json").write_bytes(to_json(DOCUMENT))
    (tmp_path / "schemathesis.toml").write_text(
        f"[checks]\nnot_a_server_error.expected-statuses = {SOUND}\npositive_data_acceptance.enabled = false\n"
        # A body without a text asks ollama for nothing but the model, and what else is in it is not looked at.
        '[[operations]]\ninclude-path-regex = "^/api/"\nchecks.negative_data_rejection.enabled = false\n'
    )
    command = [str(Path(sys.executable).parent / "schemathesis"), "run", "openapi.json", "--url", address]
    limits = ["--phases", "coverage", "--request-timeout", str(PATIENCE_S)]
    fixed = ["--seed", "1", "--generation-deterministic"]
    run = subprocess.run([*command, *limits, *fixed], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
