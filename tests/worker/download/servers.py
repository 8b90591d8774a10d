"""A hub and the host of its files, as real servers on this machine, with the faults that networks have."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web
from yarl import URL

COMMIT = "c0ffee" + "0" * 34
REPO = "someone/some-model"


def gguf(n_bytes: int = 3_000_000, seed: int = 0) -> bytes:
    """A file that begins as a model does."""
    block = hashlib.sha256(str(seed).encode()).digest()
    return b"GGUF" + (block * (n_bytes // len(block) + 1))[: n_bytes - 4]


@dataclass
class Fault:
    """What befalls one request for a file."""

    cut_after: int | None = None
    """Bytes of the body."""
    stall_after: int | None = None
    """The same; nothing more comes then, and the connection stays."""
    skew: int = 0
    """Bytes by which it begins elsewhere than it was asked to."""
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)


class Files:
    """A host of files: ranges, conditions, ETags."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.contents: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}
        self.faults: list[Fault] = []
        """One for each request to come."""
        self.visits: list[web.Request] = []
        self.has_ranges = True

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            opened = cls(listener.getsockname()[1])
            async with serving(listener, opened.routes()):
                yield opened

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/{path:.+}", self.answer)]

    def url(self, path: str, host: str = "127.0.0.1") -> URL:
        return URL(f"http://{host}:{self.port}/{path}")

    @property
    def gets(self) -> list[web.Request]:
        return [visit for visit in self.visits if visit.method == "GET"]

    @property
    def ranges(self) -> list[str | None]:
        return [visit.headers.get("Range") for visit in self.gets]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.visits.append(request)
        fault = self.faults.pop(0) if self.faults else Fault()
        if fault.status is not None:
            return web.Response(status=fault.status, headers=fault.headers)
        path = request.match_info["path"]
        if path not in self.contents:
            return web.Response(status=404)
        content, etag = self.contents[path], self.etags.get(path, "")
        if etag and request.headers.get("If-None-Match") == etag:
            return web.Response(status=304)
        start = self._start(request, etag) + fault.skew
        headers = {"ETag": etag} if etag else {}
        if start >= len(content) > 0:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(content)}"})
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        response = web.StreamResponse(status=206 if start else 200, headers=headers)
        response.content_length = len(content) - start
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        with contextlib.suppress(ConnectionError):
            if fault.cut_after is not None:
                await response.write(content[start : start + fault.cut_after])
                assert request.transport is not None
                request.transport.close()
            elif fault.stall_after is not None:
                await response.write(content[start : start + fault.stall_after])
                await asyncio.Event().wait()
            else:
                await response.write(content[start:])
        return response

    def _start(self, request: web.Request, etag: str) -> int:
        found = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        if found is None or not self.has_ranges:
            return 0
        return 0 if request.headers.get("If-Range", etag) != etag else int(found[1])


class HubServer:
    """Speaks the paths of a model hub; large files lie with another host."""

    def __init__(self, port: int, files: Files) -> None:
        self.port, self.files = port, files
        self.paths: dict[str, bytes] = {}
        self.oids: dict[str, str] = {}
        """Instead of the true ones."""
        self.token = ""
        """Needed for everything, if set."""
        self.is_gated = False
        self.page = 1000
        self.next_page = ""
        """Instead of the true one."""
        self.faults: list[int] = []
        """Statuses of the requests to come."""
        self.visits: list[web.Request] = []

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        async with AsyncExitStack() as stack:
            files = await stack.enter_async_context(Files.open())
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            opened = cls(listener.getsockname()[1], files)
            routes = [
                web.get("/api/models/{user}/{model}/refs", opened.refs),
                web.get("/api/models/{user}/{model}/tree/{commit}", opened.tree),
                web.get("/{user}/{model}/resolve/{commit}/{path:.+}", opened.resolve),
            ]
            await stack.enter_async_context(serving(listener, routes))
            yield opened

    @property
    def endpoint(self) -> URL:
        return URL(f"http://127.0.0.1:{self.port}")

    def put(self, path: str, content: bytes) -> None:
        self.paths[path] = content
        self.files.contents[f"store/{self.oid(path)}"] = content

    def oid(self, path: str) -> str:
        return hashlib.sha256(self.paths[path]).hexdigest()

    async def refs(self, request: web.Request) -> web.Response:
        if refused := self._refusal(request):
            return refused
        refs = {"branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": COMMIT}], "tags": []}
        return web.json_response(refs)

    async def tree(self, request: web.Request) -> web.Response:
        if refused := self._refusal(request):
            return refused
        first = int(request.query.get("cursor", 0))
        paths = list(self.paths)[first : first + self.page]
        listing = [{"type": "directory", "oid": "d" * 40, "size": 0, "path": "folder"}] + [
            {
                "type": "file",
                "oid": "a" * 40,
                "size": len(self.paths[path]),
                "lfs": {"oid": self.oids.get(path, self.oid(path)), "size": len(self.paths[path]), "pointerSize": 134},
                "path": path,
            }
            for path in paths
        ]
        headers = {}
        if self.next_page or first + self.page < len(self.paths):
            following = self.next_page or request.url.update_query(cursor=first + self.page)
            headers["Link"] = f'<{following}>; rel="next"'
        return web.Response(text=json.dumps(listing), content_type="application/json", headers=headers)

    async def resolve(self, request: web.Request) -> web.Response:
        if refused := self._refusal(request):
            return refused
        path = request.match_info["path"]
        assert request.match_info["commit"] in (COMMIT, "main")
        headers = {"X-Linked-Etag": f'"{self.oid(path)}"', "X-Repo-Commit": COMMIT}
        # Another host by name, as a content network is.
        headers["Location"] = str(self.files.url(f"store/{self.oid(path)}", "localhost"))
        return web.Response(status=302, headers=headers)

    def _refusal(self, request: web.Request) -> web.Response | None:
        self.visits.append(request)
        if self.faults:
            return web.Response(status=self.faults.pop(0))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, headers={"X-Error-Code": "GatedRepo"} if self.is_gated else {})
        if f"{request.match_info['user']}/{request.match_info['model']}" != REPO:
            return web.Response(status=404)
        return None


@asynccontextmanager
async def serving(listener: socket.socket, routes: list[web.RouteDef]) -> AsyncIterator[None]:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    try:
        yield
    finally:
        await runner.cleanup()
