"""Requests that a page of the documentation prints, each with the answer that it shows, if it shows one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CURL = re.compile(
    r"^curl (?:-N |-X (\w+) )?'?http://127\.0\.0\.1:8080(/[^\s']*)'?"
    r"(?: -d '([^']*)'| -d @- <<END\n(.*?)\nEND|((?: -F \S+)+))?$",
    re.MULTILINE | re.DOTALL,
)


class Printed(NamedTuple):
    section: str
    method: str
    path: str
    """With its query."""
    body: str
    status: int = 200
    form: tuple[tuple[str, str], ...] = ()
    """Fields of a form, with what is behind their `=`."""
    answer: Any = None
    """The JSON that is shown, or None."""

    def content(self, file: bytes) -> dict[str, Any]:
        """What is sent, as httpx takes it; each file of a form is that one."""
        if not self.form:
            return {"content": self.body}
        names = {name: value.removeprefix("@") for name, value in self.form if value.startswith("@")}
        return {
            "data": {name: value for name, value in self.form if name not in names},
            "files": {name: (filename, file) for name, filename in names.items()},
        }


def printed(page: str) -> Iterator[Printed]:
    """In the order of the page. A block of JSON is the answer to the last request before it; its first line may be the
    status."""
    for section in page.split("\n## "):
        title = section.partition("\n")[0]
        waiting: Printed | None = None
        for kind, text in _BLOCK.findall(section):
            if kind == "json" and waiting:
                status, _, shown = text.partition("\n") if text[:1].isdigit() else ("200", "", text)
                waiting = waiting._replace(status=int(status), answer=json.loads(shown))
            elif kind == "sh":
                for method, path, short, long, fields in _CURL.findall(text):
                    if waiting:
                        yield waiting
                    body = short or long
                    form = tuple(tuple(field.split("=", 1)) for field in fields.split(" -F ")[1:])
                    waiting = Printed(title, method or ("POST" if body or form else "GET"), path, body, form=form)
        if waiting:
            yield waiting


def template_of(path: str) -> re.Pattern[str]:
    """What a route's path means."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path)))


def n_curls(page: str) -> int:
    """How many requests a page prints, found more simply."""
    return len(re.findall(r"^curl ", page, re.MULTILINE))


def differences(shown: Any, said: Any, place: str = "the answer") -> Iterator[str]:
    """Where an answer does not have the shape of the one that is shown: a key that is missing, another kind of value.
    An answer may have more keys; of lists the first elements are compared."""
    match shown, said:
        case dict(), dict():
            for key, value in shown.items():
                if key not in said:
                    yield f"{place} has no {key!r}"
                else:
                    yield from differences(value, said[key], f"{place}.{key}")
        case list(), list():
            if shown and not said:
                yield f"{place} is empty"
            for one, other in zip(shown, said, strict=False):
                yield from differences(one, other, f"{place}[]")
        case (bool(), bool()) | (str(), str()) | (None, None):
            return
        case ((int() | float()), (int() | float())) if not isinstance(shown, bool) and not isinstance(said, bool):
            return
        case _:
            yield f"{place} is {said!r:.80}, not {shown!r:.80}"
