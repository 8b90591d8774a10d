"""schemathesis believes the API's document, and tries what it says and what it excludes.

Requests are the same in every run.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from concurrent.futures import Future
from threading import Thread
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from pydantic import SecretStr
from schemathesis import Case, HookContext
from schemathesis.config import (
    AnalysisConfig,
    ChecksConfig,
    ConstantsConfig,
    CoveragePhaseConfig,
    GenerationConfig,
    NotAServerErrorConfig,
    PhasesConfig,
    PositiveDataAcceptanceConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
)
from schemathesis.filters import HasAPIOperation
from schemathesis.generation import GenerationMode

from api.app import ROUTES
from api.openapi.document import document_of
from shared.bus import open_bus
from shared.settings import ApiSettings
from tests.api.conftest import RedisProcess, serve
from tests.api.scripted_worker import ScriptedWorker

PATIENCE_S = 5.0
"""No answer takes longer."""

SOUND = ("2xx", "3xx", "4xx", "501", "503")
"""What this build cannot do is 501, who is away is 503; anything else from 500 on is a fault."""


def schema_of(*, covers: bool) -> Any:
    """`covers`: with the boundaries of every field, too, which are thousands of requests."""
    checks = ChecksConfig(
        not_a_server_error=NotAServerErrorConfig(expected_statuses=SOUND),
        # A schema cannot say what fields mean together: one grammar at most, or as many images as places for them.
        positive_data_acceptance=PositiveDataAcceptanceConfig(enabled=False),
    )
    project = ProjectConfig(
        checks=checks,
        analysis=AnalysisConfig(constants=ConstantsConfig(enabled=False)),
        generation=GenerationConfig(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE], deterministic=True),
        phases=PhasesConfig(coverage=CoveragePhaseConfig(enabled=covers)),
    )
    config = SchemathesisConfig(projects=ProjectsConfig(default=project))
    schema = schemathesis.openapi.from_dict(document_of(ROUTES), config=config)
    schema.hook("map_body")(as_clients_write)
    return schema if covers else schema.exclude(is_another_name)


def is_another_name(context: HasAPIOperation) -> bool:
    """Of paths that one function answers, one is enough."""
    return "x-same-as" in context.operation.definition.raw


def as_clients_write(context: HookContext, value: Any) -> Any:
    """JSON Schema takes 2.0 for an integer. Clients do not write it, and the API does not take it."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            return {name: as_clients_write(context, item) for name, item in value.items()}
        case list():
            return [as_clients_write(context, item) for item in value]
    return value


def fuzzing(n_examples: int) -> settings:
    return settings(
        max_examples=n_examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


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
    if response.status_code == 501:
        assert "not_supported_error" in response.text or case.path.startswith("/api/")


@schema_of(covers=False).parametrize()
@fuzzing(5)
def test_the_document_is_true(case: Case, address: str) -> None:
    check(case, address)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@schema_of(covers=True).parametrize()
@fuzzing(60)
def test_the_document_is_true_at_every_boundary(case: Case, address: str) -> None:
    check(case, address)
