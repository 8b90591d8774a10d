"""Scripted files and batches as a process: lines are answered as their bodies tell. Prints its port, then serves.

body: {"say": text, "tokens": n, "turn": k, "fail": {...}, "status": s, "reject": n}
  turn    the line ends when k lines of its batch ended before it (default: at once)
  fail    it fails with this error object
  status  it ends as this: cancelled, expired
  reject  it is answered with this HTTP status

There is one for each test, at /NAME: under /NAME/v1 it is a slotstream, under /NAME/openai/v1 it has OpenAI's rules and
no events. Under /NAME/locked every key is refused; other paths are answered as a slotstream answers those that it does
not have. What follows is below /NAME, too.

POST /script {"on": step, "refuse": n, "with": status}: n refusals at a step: check, upload, create, look, events or
content. With 0 it is done, and the connection cut without a word.
POST /script {"on": step, "hold": true}: the step is done, and never answered; `reading` and `asked` come before the
steps upload and create. {"on": step, "drop": true} lets go what is held there, undone.
{"forget": true}: no file and no batch is known any more. {"stutter": true}: events come twice, and are broken off.
{"cancel": true}: all batches are cancelled by somebody. {"silent": true}: there are no events, as in another version.
GET /when?made=n&ended=n&uploads=n&held=n answers as soon as there were so many; GET /stats tells.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from api.lines.reading import BadLine, Line, LineChecker, read_lines

NO_BATCH = "batch_0_000000000000000000000000"
ENDED = ("completed", "failed", "expired", "cancelled")


@dataclass(eq=False)
class Batch:
    id: str
    fields: dict[str, Any]
    lines: list[Line | BadLine]
    is_open_ai: bool
    status: str = "validating"
    fault: dict[str, Any] | None = None
    records: list[dict[str, Any]] = field(default_factory=list)

    def view(self) -> dict[str, Any]:
        failed = sum(is_failed(record) for record in self.records)
        is_over = self.status in ENDED
        return {
            "id": self.id,
            "object": "batch",
            "status": self.status,
            "input_file_id": self.fields["input_file_id"],
            "errors": {"object": "list", "data": [self.fault]} if self.fault else None,
            "request_counts": {
                "total": len(self.lines),
                "completed": len(self.records) - failed,
                "failed": failed,
            },
            "output_file_id": f"file-{self.id}-output" if is_over and failed < len(self.records) else None,
            "error_file_id": f"file-{self.id}-error" if is_over and failed else None,
        }

    def content(self, kind: str) -> bytes:
        records = [record for record in self.records if is_failed(record) == (kind == "error")]
        return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def is_failed(record: dict[str, Any]) -> bool:
    return not record["response"] or record["response"]["status_code"] != 200


def record_of(line: Line | BadLine, *, is_open_ai: bool) -> dict[str, Any]:
    response, error = None, None
    if isinstance(line, BadLine):
        error = {"code": line.code, "message": line.message}
    elif status := line.body.get("status"):
        error = {"code": f"batch_{status}", "message": f"the job {status}"}
    elif status := line.body.get("reject"):
        fault = {"code": status, "message": "no such thing", "type": "invalid_request_error"}
        response = {"status_code": status, "request_id": "req_1", "body": {"error": fault}}
    elif fault := line.body.get("fail"):
        code = fault.get("code")
        status = code if isinstance(code, int) else 500
        response = {"status_code": status, "request_id": "req_1", "body": {"error": fault}}
    else:
        usage = {"prompt_tokens": 3, "completion_tokens": line.body.get("tokens", 1)}
        body = {"choices": [{"message": {"content": line.body.get("say", "")}}], "usage": usage}
        response = {"status_code": 200, "request_id": "req_1", "body": body}
    # Some services name records as they like.
    identity = f"row-{line.number}" if is_open_ai and line.number % 2 else f"batch_req_{line.number}"
    record = {"id": identity, "custom_id": line.custom_id, "response": response, "error": error}
    if not is_open_ai and is_failed(record):
        record["line"] = line.number
        if error:
            error["line"] = line.number
    return record


class Server:
    def __init__(self) -> None:
        self.files: dict[str, tuple[str, bytes]] = {}
        self.batches: dict[str, Batch] = {}
        self.by_key: dict[str, Batch] = {}
        self.asked: list[str] = []
        """What lines said that batches were made of, one behind the other."""
        self.counts: Counter[str] = Counter()
        self.windows: list[str] = []
        self.inputs: list[str] = []
        self.refuse: Counter[str] = Counter()
        self.refuse_with: dict[str, int] = {}
        self.hold: set[str] = set()
        self.dropped: set[str] = set()
        self.stutters = self.is_silent = False
        self.changed = asyncio.Condition()
        self.tasks: set[asyncio.Task[None]] = set()

    async def note(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    @property
    def n_ended(self) -> int:
        return sum(len(batch.records) for batch in self.batches.values())

    async def when(self, request: web.Request) -> web.Response:
        wanted = {name: int(number) for name, number in request.query.items()}

        def is_there() -> bool:
            found = self.counts | Counter({"made": len(self.batches), "ended": self.n_ended})
            return all(found[name] >= number for name, number in wanted.items())

        async with self.changed:
            await self.changed.wait_for(is_there)
        return await self.stats(request)

    async def stats(self, request: web.Request) -> web.Response:
        told = {
            "says": sorted(self.asked),
            "made": len(self.batches),
            "files": len(self.files),
            "statuses": [batch.status for batch in self.batches.values()],
            "windows": self.windows,
            "inputs": self.inputs,
        }
        return web.json_response(dict.fromkeys(("uploads", "cancels", "deletes"), 0) | dict(self.counts) | told)

    async def script(self, request: web.Request) -> web.Response:
        match await request.json():
            case {"forget": True}:
                for one in (self.files, self.batches, self.by_key):
                    one.clear()
            case {"cancel": True}:
                for batch in self.batches.values():
                    batch.status = "cancelled"
            case {"stutter": True}:
                self.stutters = True
            case {"silent": True}:
                self.is_silent = True
            case {"on": step, "drop": True}:
                self.dropped.add(step)
                self.hold.discard(step)
            case {"on": step, "hold": bool(is_held)}:
                (self.hold.add if is_held else self.hold.discard)(step)
            case {"on": step, "refuse": n, "with": status}:
                self.refuse[step], self.refuse_with[step] = n, status
        await self.note()
        return web.json_response({})

    @asynccontextmanager
    async def step(self, name: str, request: web.Request) -> AsyncIterator[None]:
        """What is asked for in the script happens around a step."""
        status = self.refuse_with.get(name, 0)
        is_refused = self.refuse[name] > 0
        self.refuse[name] -= is_refused
        if is_refused and status:
            error = {"code": status, "message": "come back", "type": "unavailable_error"}
            raise refusal(status, error, headers={"Retry-After": "0.05"})
        yield
        if is_refused:
            assert request.transport is not None
            request.transport.abort()
        await self.held(name)

    async def held(self, name: str) -> None:
        if name in self.hold:
            self.counts["held"] += 1
            await self.note()
            async with self.changed:
                await self.changed.wait_for(lambda: name not in self.hold)
            if name in self.dropped:
                self.dropped.discard(name)
                raise refusal(503, {"code": 503, "message": "dropped", "type": "unavailable_error"})

    async def upload(self, request: web.Request) -> web.Response:
        await self.held("reading")
        async with self.step("upload", request):
            name, content, purpose = "", b"", ""
            async for part in await request.multipart():
                if part.name == "purpose":
                    purpose = await part.text()
                elif part.name == "file":
                    name, content = part.filename, bytes(await part.read())
            assert purpose == "batch"
            file_id = f"file-{self.counts['uploads']:04x}"
            self.files[file_id] = (name, content)
            self.inputs.append(content.decode())
            self.counts["uploads"] += 1
            await self.note()
        return web.json_response(self.file_view(file_id))

    def file_view(self, file_id: str) -> dict[str, Any]:
        name, content = self.files[file_id]
        return {"id": file_id, "object": "file", "filename": name, "bytes": len(content), "purpose": "batch"}

    async def list_files(self, request: web.Request) -> web.Response:
        data = [self.file_view(file_id) for file_id in reversed(self.files)]
        return web.json_response({"object": "list", "data": data, "has_more": False})

    async def show_file(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self.files:
            raise missing()
        return web.json_response(self.file_view(request.match_info["id"]))

    async def content(self, request: web.Request) -> web.Response:
        _, batch_id, kind = request.match_info["id"].split("-")
        async with self.step("content", request):
            return web.Response(body=self.batches[batch_id].content(kind))
        raise AssertionError

    async def delete(self, request: web.Request) -> web.Response:
        self.counts["deletes"] += 1
        self.files.pop(request.match_info["id"], None)
        await self.note()
        return web.json_response({"deleted": True})

    async def create(self, request: web.Request) -> web.Response:
        is_open_ai = "/openai/" in request.path
        await self.held("asked")
        fields = await request.json()
        key = request.headers["Idempotency-Key"]
        async with self.step("create", request):
            batch = None if is_open_ai else self.by_key.get(key)
            if batch is None:
                batch = self.by_key[key] = self.make(fields, is_open_ai)
                await self.note()
            else:
                assert batch.fields == fields, "another body under the same key"
        return web.json_response(batch.view())

    def make(self, fields: dict[str, Any], is_open_ai: bool) -> Batch:
        if fields["input_file_id"] not in self.files:
            raise refusal(400, {"code": 400, "message": "no such file", "type": "invalid_request_error"})
        _, content = self.files[fields["input_file_id"]]
        with tempfile.NamedTemporaryFile() as copy:
            Path(copy.name).write_bytes(content)
            check = LineChecker()
            lines = [check(line) for line in read_lines(Path(copy.name))]
        self.counts["numbers"] += 1
        number = self.counts["numbers"]
        identity = f"batch{number}" if is_open_ai else f"batch_0_{number:024x}"
        batch = self.batches[identity] = Batch(identity, fields, lines, is_open_ai)
        self.windows.append(fields["completion_window"])
        if fault := self.fault_of(batch, content):
            batch.status, batch.fault = "failed", fault
            return batch
        self.asked += [str(line.body.get("say")) for line in lines if isinstance(line, Line)]
        task = asyncio.create_task(self.work(batch))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return batch

    def fault_of(self, batch: Batch, content: bytes) -> dict[str, Any] | None:
        if b"too much" in content:
            return {"code": "too_large", "message": "it is too much", "line": None}
        if not batch.is_open_ai:
            assert batch.fields["endpoint"] == "*"
            return None
        assert batch.fields.keys() == {"input_file_id", "endpoint", "completion_window"}
        texts = content.decode().removesuffix("\n").split("\n")
        for number, (text, line) in enumerate(zip(texts, batch.lines, strict=False), start=1):
            if not text or isinstance(line, BadLine) or line.url != batch.fields["endpoint"]:
                return {"code": "invalid", "message": "no good", "line": number}
        return None

    async def work(self, batch: Batch) -> None:
        batch.status = "in_progress"
        waiting = list(batch.lines)
        while waiting and batch.status == "in_progress":
            for line in waiting:
                turn = line.body.get("turn", 0) if isinstance(line, Line) else 0
                if len(batch.records) >= turn:
                    batch.records.append(record_of(line, is_open_ai=batch.is_open_ai))
                    waiting.remove(line)
                    break
            else:
                async with self.changed:
                    await self.changed.wait_for(lambda: batch.status != "in_progress")
            await self.note()
        if batch.status == "in_progress":
            batch.status = "completed"
        await self.note()

    def find(self, request: web.Request) -> Batch:
        batch = self.batches.get(request.match_info["id"])
        if batch is None:
            raise missing()
        return batch

    async def show(self, request: web.Request) -> web.Response:
        self.counts["looks"] += 1
        await self.note()
        async with self.step("look", request):
            return web.json_response(self.find(request).view())
        raise AssertionError

    async def list_batches(self, request: web.Request) -> web.Response:
        data = [batch.view() for batch in reversed(self.batches.values())]
        return web.json_response({"object": "list", "data": data, "has_more": False})

    async def cancel(self, request: web.Request) -> web.Response:
        batch = self.find(request)
        self.counts["cancels"] += 1
        batch.status = batch.status if batch.status in ENDED else "cancelled"
        await self.note()
        return web.json_response(batch.view())

    async def more_than(self, batch: Batch, number: int) -> None:
        """Records, or an end."""
        async with self.changed:
            await self.changed.wait_for(
                lambda: len(batch.records) > number or batch.status in ENDED or batch.id not in self.batches
            )

    async def events(self, request: web.Request) -> web.StreamResponse:
        if self.is_silent and request.match_info["id"] in self.batches:
            raise unknown_path()
        if request.match_info["id"] == NO_BATCH:
            async with self.step("check", request):
                raise missing()
        batch = self.find(request)
        self.counts["follows"] += 1
        await self.note()
        async with self.step("events", request):
            pass
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": keep-alive\n\n")
        after = int(request.headers.get("Last-Event-ID", 0))
        number = max(0, after - 3) if self.stutters else after
        while True:
            await self.more_than(batch, number)
            if batch.id not in self.batches:
                fault = {"error": {"code": 404, "message": "There is no such batch", "type": "not_found_error"}}
                await response.write(b"event: error\ndata: " + json.dumps(fault).encode() + b"\n\n")
                return response
            while number < len(batch.records):
                event = b"event: line\ndata: %s\nid: %d\n\n"
                number += 1
                self.counts["sent"] += 1
                text = event % (json.dumps(batch.records[number - 1]).encode(), number)
                await response.write(text[:9])
                await response.write(text[9:] * (2 if self.stutters else 1))
                if self.stutters and number > after and number % 7 == 0:
                    return response  # closed in the middle
            standing = json.dumps(batch.view() | {"tokens_per_s": 2.0, "eta_s": 1.0}).encode()
            await response.write(b"event: progress\ndata: " + standing + b"\n\n")
            if batch.status in ENDED:
                break
        await response.write(b"id: %d\nevent: done\ndata: %s\n\n" % (number + 1, json.dumps(batch.view()).encode()))
        return response


def refusal(status: int, error: dict[str, Any], headers: dict[str, str] | None = None) -> web.HTTPException:
    kind = type(f"HTTP{status}", (web.HTTPException,), {"status_code": status})
    answer: web.HTTPException = kind(
        text=json.dumps({"error": error}), content_type="application/json", headers=headers
    )
    return answer


def missing() -> web.HTTPException:
    return refusal(404, {"code": 404, "message": "There is no such thing", "type": "not_found_error"})


def unknown_path() -> web.HTTPException:
    return refusal(404, {"code": 404, "message": "File Not Found", "type": "not_found_error", "param": None})


async def refuse_path(request: web.Request) -> web.Response:
    raise unknown_path()


async def refuse_key(request: web.Request) -> web.Response:
    raise refusal(401, {"code": 401, "message": "no", "type": "authentication_error"})


Handler = Callable[[Server, web.Request], Awaitable[web.StreamResponse]]


class Rooms:
    """A server for each name."""

    def __init__(self) -> None:
        self._servers: dict[str, Server] = {}

    def handler(self, method: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            server = self._servers.setdefault(request.match_info["name"], Server())
            return await method(server, request)

        return handle

    def routes(self) -> list[web.RouteDef]:
        def route(verb: str, path: str, method: Handler) -> web.RouteDef:
            return web.route(verb, f"/{{name}}{path}", self.handler(method))

        both = [
            ("POST", "/files", Server.upload),
            ("GET", "/files", Server.list_files),
            ("GET", "/files/{id}", Server.show_file),
            ("GET", "/files/{id}/content", Server.content),
            ("DELETE", "/files/{id}", Server.delete),
            ("POST", "/batches", Server.create),
            ("GET", "/batches", Server.list_batches),
            ("GET", "/batches/{id}", Server.show),
            ("POST", "/batches/{id}/cancel", Server.cancel),
        ]
        return [
            route("GET", "/when", Server.when),
            route("GET", "/stats", Server.stats),
            route("POST", "/script", Server.script),
            *(route(verb, prefix + path, method) for prefix in ("/v1", "/openai/v1") for verb, path, method in both),
            route("GET", "/v1/batches/{id}/events", Server.events),
            web.route("*", "/{name}/locked/{rest:.*}", refuse_key),
            web.route("*", "/{rest:.*}", refuse_path),
        ]


async def main() -> None:
    app = web.Application(client_max_size=1 << 30)
    app.add_routes(Rooms().routes())
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
