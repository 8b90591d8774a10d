"""The page of the API: whole, without script, and with nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from api.app import ROUTES
from api.openapi.document import document_of
from api.openapi.page import page_of
from tests.api.conftest import Api

DOCUMENT = document_of(ROUTES)
PAGE = page_of(DOCUMENT)


class Read(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name == "href" and value]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_operation_and_every_type_is_on_the_page() -> None:
    ids = Read(PAGE).ids
    operations = [told["operationId"] for methods in DOCUMENT["paths"].values() for told in methods.values()]
    assert set(ids) >= {*operations, *(f"type-{name}" for name in DOCUMENT["components"]["schemas"])}
    assert len(ids) == len(set(ids))


def test_every_link_leads_somewhere_on_this_server() -> None:
    page = Read(PAGE)
    assert [link for link in page.links if link != "openapi.json" and link.removeprefix("#") not in page.ids] == []


def test_it_is_sound_html_without_script() -> None:
    page = Read(PAGE)
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "form", "object", "base"} & set(page.tags)
    assert not {name for name in page.attributes if name.startswith("on") or name in ("style", "src")}
    assert "url(" not in PAGE and "@import" not in PAGE


def test_whatever_stands_in_the_document_is_text() -> None:
    evil = "<script>alert(1)</script>\"'><b id=x"
    info = {"title": evil, "version": evil, "description": evil}
    told = {"operationId": evil, "tags": [evil], "summary": evil, "description": f"`{evil}`", "responses": {}}
    field = {"description": evil, "enum": [evil], "default": evil}
    schemas = {evil: {"description": evil, "properties": {evil: field}}}
    page = page_of(
        {
            "info": info,
            "tags": [{"name": evil, "description": evil}],
            "paths": {evil: {"get": told}},
            "components": {"schemas": schemas, "responses": {}},
        }
    )
    read = Read(page)
    assert "script" not in read.tags and "b" not in read.tags


async def test_a_browser_is_told_to_run_and_load_nothing(api: Api) -> None:
    response = await api.client.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.text == PAGE
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert re.search(r"style-src 'sha256-[\w+/]+=*'", policy)
    assert response.headers["x-content-type-options"] == "nosniff"
