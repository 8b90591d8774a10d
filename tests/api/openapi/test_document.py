"""The document of the API: whole, sound, and made of what reads and answers requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.app import ROUTES
from api.openapi.description import ByMethod, Operation, described, operations_of
from api.openapi.document import document_of
from api.routes import docs
from api.schemas.strict import ClientFields
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve

OPERATIONS = [operation for route in ROUTES if isinstance(route, Route) for operation in operations_of(route)]
DOCUMENT = document_of(ROUTES)


def names(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def references(value: Any) -> Iterator[str]:
    match value:
        case {"$ref": str(reference)}:
            yield reference
        case dict():
            for item in value.values():
                yield from references(item)
        case list():
            for item in value:
                yield from references(item)


@pytest.mark.parametrize("operation", OPERATIONS, ids=names)
def test_every_route_says_what_it_is(operation: Operation) -> None:
    assert operation.description is not None, f"{operation.endpoint.__name__} wants @described"
    told = DOCUMENT["paths"][operation.path][operation.method.lower()]
    assert told["summary"] and told["responses"]
    description = operation.description
    assert ("requestBody" in told) == (description.reads is not None or description.form is not None)


def test_a_route_that_says_nothing_would_be_noticed() -> None:
    async def silent(request: Request) -> Response:
        raise AssertionError("never called")

    [operation] = operations_of(Route("/silent", silent, methods=["POST"]))
    assert operation.description is None


def test_every_method_of_a_path_is_an_operation_of_its_own() -> None:
    @described("One")
    async def one(request: Request) -> Response:
        return Response()

    @described("Other")
    async def other(request: Request) -> Response:
        return Response()

    route = Route("/both", ByMethod(GET=one, POST=other).answer, methods=["GET", "POST"])
    assert [(each.method, each.endpoint) for each in operations_of(route)] == [("GET", one), ("POST", other)]


def test_it_is_an_openapi_document() -> None:
    jsonschema.validate(DOCUMENT, OPENAPI_31)


def test_every_reference_leads_somewhere() -> None:
    for reference in references(DOCUMENT):
        here: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            here = here[step]


def test_nothing_is_described_that_nobody_needs() -> None:
    wanted = set(references(DOCUMENT))
    for kind in ("schemas", "responses", "headers"):
        assert [name for name in DOCUMENT["components"][kind] if f"#/components/{kind}/{name}" not in wanted] == []


def test_no_name_tells_where_the_code_stands() -> None:
    assert [name for name in DOCUMENT["components"]["schemas"] if not name.isalnum()] == []


def test_no_two_operations_have_one_id() -> None:
    ids = [told["operationId"] for methods in DOCUMENT["paths"].values() for told in methods.values()]
    assert len(ids) == len(set(ids)) == len(OPERATIONS)


def test_a_field_has_what_its_reader_takes_null_and_what_stands_below_it() -> None:
    class AnyFields(ClientFields):
        needed: int
        number: int = 3
        """Of things."""

    @described("Reads", reads=AnyFields)
    async def reads(request: Request) -> Response:
        return Response()

    schemas = document_of([Route("/reads", reads, methods=["POST"])])["components"]["schemas"]
    assert schemas["AnyFields"]["properties"] == {
        "needed": {"type": "integer"},
        "number": {"type": ["integer", "null"], "default": 3, "description": "Of things."},
    }
    assert schemas["AnyFields"]["required"] == ["needed"]


def test_a_family_with_a_status_of_its_own_is_told_with_it() -> None:
    of = {path: DOCUMENT["paths"][path]["post"]["responses"] for path in ("/api/chat", "/v1/chat/completions")}
    assert "429" in of["/v1/chat/completions"]
    assert "429" not in of["/api/chat"] and "503" in of["/api/chat"]


def test_a_prefix_stands_before_all_paths() -> None:
    assert document_of(ROUTES, "/llm")["servers"] == [{"url": "/llm"}]


async def test_a_server_below_a_prefix_says_so(settings: ApiSettings) -> None:
    async with serve(settings.model_copy(update={"api_prefix": "/llm"})) as api:
        told = (await api.client.get("/openapi.json")).json()  # its address has the prefix
    assert told["servers"] == [{"url": "/llm"}] and told["paths"] == DOCUMENT["paths"]


async def test_the_document_is_served_and_made_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def making(*given: Any) -> dict[str, Any]:
        made.append(document_of(*given))
        return made[-1]

    monkeypatch.setattr(docs, "document_of", making)
    first, *others = await asyncio.gather(*(api.client.get("/openapi.json") for _ in range(4)))
    assert first.status_code == 200 and first.headers["content-type"].startswith("application/json")
    assert first.json() == DOCUMENT
    others.append(await api.client.get("/openapi.json"))
    assert all(other.content == first.content for other in others)
    assert len(made) == 1
