"""The document as one page of HTML: no script, nothing from elsewhere. Knows OpenAPI, and none of our paths.

All words are escaped: the names in a document are ours, but nobody has to remember that.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from api.openapi.schemas import without_null

_STYLE = (Path(__file__).parent / "page.css").read_text()

_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Even if a word were not escaped: this page runs nothing, and loads and sends nothing."""

_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} keys",
}


def page_of(document: Mapping[str, Any]) -> str:
    title, words = document["info"]["title"], document["info"]["description"]
    tags = document["tags"]
    failures = document["components"]["responses"]
    sections = "".join(_section(tag, document["paths"], failures) for tag in tags)
    nav = "".join(f'<a href="#{escape(tag["name"])}">{escape(tag["name"])}</a>' for tag in tags)
    forms = "".join(_form(name, schema) for name, schema in document["components"]["schemas"].items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}: the API</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><main><h1>{escape(title)} <small>{escape(document['info']['version'])}</small></h1>{_paragraphs(words)}"
        f'<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>'
        f'<nav>{nav}<a href="#types">types</a></nav>{sections}<h2 id="types">types</h2>'
        f'<p class="faint">What bodies and answers are made of. More keys may come at any time.</p>{forms}'
        "</main></body></html>"
    )


def _section(tag: Mapping[str, str], paths: Mapping[str, Any], failures: Mapping[str, Any]) -> str:
    operations = [
        (method, path, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if tag["name"] in operation["tags"]
    ]
    told = "".join(_operation(*operation, failures) for operation in operations)
    return f'<h2 id="{escape(tag["name"])}">{escape(tag["name"])}</h2>{_paragraphs(tag["description"])}{told}'


def _operation(method: str, path: str, operation: Mapping[str, Any], failures: Mapping[str, Any]) -> str:
    says = f"As {operation['x-same-as']}" if "x-same-as" in operation else operation.get("summary", "")
    parts = [
        "<details><summary>",
        f'<span class="method {method}">{method.upper()}</span>',
        f'<span class="path">{escape(path)}</span><span class="says">{escape(says)}</span></summary>',
        f'<div id="{escape(operation["operationId"])}">',
        _paragraphs(operation.get("description", "")),
        _table("Parameters", _parameter_rows(operation.get("parameters", ()))),
        _table("Body", _body_rows(operation)),
        _table("Answers", _answer_rows(operation["responses"], failures)),
        "</div></details>",
    ]
    return "".join(parts)


def _parameter_rows(parameters: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for parameter in parameters:
        name = f"<code>{escape(parameter['name'])}</code> <span class=faint>{parameter['in']}</span>"
        yield name, _said(_type(parameter["schema"]), parameter.get("description", ""))


def _body_rows(operation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    body = operation.get("requestBody")
    if body is not None:
        for media_type, content in body["content"].items():
            yield (
                f"<code>{escape(media_type)}</code>",
                _said(_type(content["schema"]), "" if body["required"] else "May be left out."),
            )


def _answer_rows(responses: Mapping[str, Any], failures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for status, given in responses.items():
        response = failures[_last(given["$ref"])] if "$ref" in given else given
        told = [_code(response["description"])]
        for media_type, content in response.get("content", {}).items():
            kind = f"pieces of {_type(content['x-piece'])}" if "x-piece" in content else _type(content["schema"])
            told.append(f"<code>{escape(media_type)}</code>: {kind}")
        yield f"<code>{status}</code>", (" in " if "$ref" in given else "<br>").join(told)


def _form(name: str, schema: Mapping[str, Any]) -> str:
    rows = list(_field_rows(schema)) or [("is", _type(schema))]
    return (
        f'<details><summary><span class="path">{escape(name)}</span></summary><div id="type-{escape(name)}">'
        f"{_paragraphs(schema.get('description', ''))}{_table('', rows)}</div></details>"
    )


def _field_rows(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Those that are needed come first. Of others null is left out: it is the same as nothing."""
    fields, needed = schema.get("properties", {}), schema.get("required", ())
    has_choice = len(needed) < len(fields)
    for name in sorted(fields, key=lambda name: name not in needed):
        field = fields[name]
        mark = ' <span class="needed">needed</span>' if name in needed and has_choice else ""
        default = f", else {_json(field['default'])}" if "default" in field else ""
        kind = _type(field if name in needed else without_null(field))
        yield f"<code>{escape(name)}</code>{mark}", _said(kind + default, field.get("description", ""))


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in words."""
    if reference := schema.get("$ref"):
        name = escape(_last(reference))
        return f'<a href="#type-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(form) for form in schema["anyOf"])) or "any JSON"
    if "const" in schema:
        return _json(schema["const"])
    if "enum" in schema:
        return " or ".join(_json(value) for value in schema["enum"])
    kinds = schema.get("type", "any JSON")
    name = " or ".join(_kind(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds))
    bounds = ", ".join(words.format(_json(schema[key])) for key, words in _BOUNDS.items() if _is_told(schema.get(key)))
    return f"{name} ({bounds})" if bounds else name


def _is_told(bound: float | None) -> bool:
    """Those of 32 bits say nothing of the field."""
    return bound is not None and abs(bound) < 2**31 - 1


def _kind(kind: str, schema: Mapping[str, Any]) -> str:
    if kind == "array" and "prefixItems" in schema:
        return f"[{', '.join(_type(item) for item in schema['prefixItems'])}]"
    if kind == "array" and "items" in schema:
        return f"list of {_member(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_member(schema['additionalProperties'])}"
    return kind


def _member(schema: Mapping[str, Any]) -> str:
    kind = _type(schema)
    return f"({kind})" if len(schema.get("anyOf", ())) > 1 else kind


def _last(reference: str) -> str:
    return reference.rpartition("/")[2]


def _json(value: Any) -> str:
    return f"<code>{escape(json.dumps(value, ensure_ascii=False))}</code>"


def _said(kind: str, words: str) -> str:
    return f"{kind}<br>{_code(words)}" if words else kind


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    told = "".join(f"<tr><th scope=row>{name}</th><td>{words}</td></tr>" for name, words in rows)
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return f"{head}<table>{told}</table>" if told else ""


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{_code(paragraph)}</p>" for paragraph in text.split("\n\n") if paragraph)


def _code(text: str) -> str:
    """Escaped, with what stands between backticks as code."""
    return "".join(
        f"<code>{escape(piece)}</code>" if place % 2 else escape(piece) for place, piece in enumerate(text.split("`"))
    )
