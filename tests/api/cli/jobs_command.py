"""`slotstream jobs` to its end, in this process: starting another takes longer than most of its actions."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from api.cli import main
from tests.api.conftest import Api


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def run_here(arguments: tuple[str, ...], content: bytes, variables: dict[str, str]) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        for name in [name for name in os.environ if name.startswith("SLOTSTREAM_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        try:
            code = main(["jobs", *arguments])
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
    return Done(code, out.getvalue(), err.getvalue())


async def jobs(api: Api, *arguments: str, body: Any = None, **variables: str) -> Done:
    """The command to its end, in a thread beside the API."""
    content = b"" if body is None else json.dumps(body).encode()
    return await asyncio.to_thread(run_here, arguments, content, {"SLOTSTREAM_URL": api.url} | variables)
