"""The import rules of the design, held by reading every import of every module; and the page that maps the tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("shared", "worker", "api")


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a module imports, wherever in it the statement stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


FORBIDDEN: list[tuple[str, set[str], set[str]]] = [
    # (folder, what it may not import, places in it that may)
    ("shared", {"api", "worker", "llama_cpp", "arq", "starlette"}, set()),
    ("shared", {"redis"}, {"shared/bus"}),
    ("api", {"worker", "llama_cpp", "redis"}, set()),
    ("api", {"arq"}, {"api/tasks"}),
    ("worker", {"api", "arq", "redis", "starlette"}, set()),
    ("worker", {"llama_cpp"}, {"worker/engine/llama"}),
    ("worker/engine", {"asyncio", "shared.bus"}, set()),
]


def broken_rules(path: Path, names: set[str]) -> list[str]:
    return [
        f"{path} imports {name}"
        for folder, forbidden, exempt in FORBIDDEN
        if path.is_relative_to(folder) and not any(path.is_relative_to(place) for place in exempt)
        for name in names
        if any(name == taboo or name.startswith(f"{taboo}.") for taboo in forbidden)
    ]


@pytest.mark.parametrize("path", modules(), ids=str)
def test_imports_run_one_way(path: Path) -> None:
    assert broken_rules(path, set(imports(ROOT / path))) == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("shared/jobs.py", "redis"),
        ("api/relay.py", "redis.asyncio"),
        ("api/routes/jobs.py", "arq"),
        ("worker/puller.py", "llama_cpp"),
        ("worker/engine/engine.py", "shared.bus.queue"),
        ("worker/engine/engine.py", "asyncio"),
        ("api/cli/serve.py", "worker.app"),
    ],
)
def test_a_broken_rule_is_noticed(path: str, name: str) -> None:
    assert broken_rules(Path(path), {name}) == [f"{path} imports {name}"]


def test_no_module_is_named_after_nothing() -> None:
    nameless = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert [str(path) for path in modules() if path.stem in nameless] == []


@pytest.mark.parametrize("path", modules(), ids=str)
def test_a_module_opens_with_what_it_is(path: Path) -> None:
    source = (ROOT / path).read_text()
    assert not source or ast.get_docstring(ast.parse(source)), f"{path} has no docstring"


def places_named_in(page: str) -> set[str]:
    """Files and folders that a page names, `in/such/marks.py` or `so/`; paths of the API begin with a slash."""
    return set(re.findall(r"`(\w[\w./-]*(?:\.py|\.lua|/))`", page))


def missing(names: set[str]) -> set[str]:
    """Those that are not there, and may be named by the end of their path."""
    files = [path.relative_to(ROOT) for place in (*PACKAGES, "tests") for path in (ROOT / place).rglob("*.*")]
    there = {f"/{path}" for path in files} | {f"/{folder}/" for path in files for folder in path.parents}
    return {name for name in names if not any(path.endswith(f"/{name}") for path in there)}


def test_what_the_map_of_the_tree_names_is_there() -> None:
    names = places_named_in((ROOT / "ARCHITECTURE.md").read_text())
    assert len(names) > 150 and missing(names) == set()


def test_a_place_that_was_moved_is_noticed() -> None:
    moved = "`worker/engine/need.py`, `api/nowhere/`, `gone.lua`; `need.py`, `scripts/lib/`, `/v1/files/`"
    assert missing(places_named_in(moved)) == {"worker/engine/need.py", "api/nowhere/", "gone.lua"}
