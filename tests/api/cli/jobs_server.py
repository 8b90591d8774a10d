"""A scripted jobs API as a process: answers what a request's body tells it to. Prints its port, then serves.

body: {"say": text, "tokens": n, "turn": k, "fail": {...}, "status": s}
  turn    the job ends when k jobs ended before it (default: at once)
  fail    the job fails with this error object
  status  the job ends as this
  reject  POST answers this HTTP status with an error body
  lose    the job is forgotten so many times before it ends
Faults of the whole server are asked for with POST /script {"refuse": n, "with": 503} and counted down.
Under /locked every key is refused; other paths are answered as the API answers those it does not have.
GET /when?made=n&ended=n&posts=n answers as soon as there were so many; GET /stats tells.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(eq=False)
class Job:
    id: str
    body: dict[str, Any]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    lost: int = 0

    def view(self) -> dict[str, Any]:
        status = self.body.get("status", "failed" if "fail" in self.body else "succeeded")
        if not self.ended.is_set():
            return {"id": self.id, "object": "job", "status": "running", "result": None, "error": None}
        result = {
            "choices": [{"message": {"content": self.body.get("say", "")}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": self.body.get("tokens", 1)},
        }
        return {
            "id": self.id,
            "object": "job",
            "status": status,
            "result": result if status == "succeeded" else None,
            "error": self.body.get("fail"),
        }


class Server:
    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.by_key: dict[str, Job] = {}
        self.posts = 0
        self.max_open = 0
        self.refuse, self.refuse_with = 0, 503
        self.changed = asyncio.Condition()
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def n_ended(self) -> int:
        return sum(job.ended.is_set() for job in self.jobs.values())

    async def note(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def when(self, request: web.Request) -> web.Response:
        made, ended, posts = (int(request.query.get(name, 0)) for name in ("made", "ended", "posts"))
        async with self.changed:
            await self.changed.wait_for(
                lambda: len(self.jobs) >= made and self.n_ended >= ended and self.posts >= posts
            )
        return await self.stats(request)

    async def stats(self, request: web.Request) -> web.Response:
        says = sorted(str(job.body.get("say")) for job in self.jobs.values())
        return web.json_response({"posts": self.posts, "says": says, "max_open": self.max_open})

    async def script(self, request: web.Request) -> web.Response:
        order = await request.json()
        self.refuse, self.refuse_with = order["refuse"], order["with"]
        return web.json_response({})

    async def create(self, request: web.Request) -> web.Response:
        self.posts += 1
        if self.refuse_with == 404 and self.refuse:
            raise unknown_path()
        if self.refuse:
            self.refuse -= 1
            if self.refuse_with == 0:  # cut off without a word, after the job was made
                await self.make(request)
                assert request.transport is not None
                request.transport.abort()
            return web.json_response(
                {"error": {"code": self.refuse_with, "message": "come back", "type": "unavailable_error"}},
                status=self.refuse_with,
                headers={"Retry-After": "0.05"},
            )
        job = await self.make(request)
        if status := job.body.get("reject"):
            error = {"code": status, "message": "no such thing", "type": "invalid_request_error"}
            return web.json_response({"error": error}, status=status, headers={"X-Request-Id": "req_1"})
        return web.json_response(job.view(), status=202)

    async def make(self, request: web.Request) -> Job:
        order = await request.json()
        assert set(order) == {"endpoint", "body", "priority"} and order["priority"] == "bulk"
        key = request.headers["Idempotency-Key"]
        job = self.by_key.get(key)
        if job is None:
            job = self.by_key[key] = Job(f"job_0_{len(self.jobs) + 1:024x}", order["body"])
            if "reject" not in job.body:
                self.jobs[job.id] = job
                task = asyncio.create_task(self.work(job))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        self.max_open = max(self.max_open, len(self.jobs) - self.n_ended)
        await self.note()
        return job

    async def work(self, job: Job) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.n_ended >= job.body.get("turn", 0))
        job.ended.set()
        await self.note()

    def find(self, request: web.Request) -> Job:
        job = self.jobs.get(request.match_info["id"])
        if job is None or job.lost < job.body.get("lose", 0):
            if job is not None:
                job.lost += 1
            error = {"code": 404, "message": "There is no such job", "type": "not_found_error"}
            raise web.HTTPNotFound(text=json.dumps({"error": error}), content_type="application/json")
        return job

    async def show(self, request: web.Request) -> web.Response:
        return web.json_response(self.find(request).view())

    async def events(self, request: web.Request) -> web.StreamResponse:
        job = self.find(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": keep-alive\n\n")
        after = int(request.headers.get("Last-Event-ID", 0))
        for number in range(after + 1, job.body.get("tokens", 1) + 1):
            await response.write(b'id: %d\nevent: token\ndata: {"text": "x"}\n\n' % number)
            if number < job.body.get("cut", 0):
                return response  # closed in the middle
        await job.ended.wait()
        name = b"done" if job.view()["status"] == "succeeded" else b"error"
        content = json.dumps(job.view()).encode()
        await response.write(b"event: " + name + b"\ndata: " + content[:9])
        await response.write(content[9:] + b"\n\n")
        return response


def unknown_path() -> web.HTTPNotFound:
    error = {"code": 404, "message": "File Not Found", "type": "not_found_error", "param": None}
    return web.HTTPNotFound(text=json.dumps({"error": error}), content_type="application/json")


async def refuse_path(request: web.Request) -> web.Response:
    raise unknown_path()


async def refuse_key(request: web.Request) -> web.Response:
    return web.json_response({"error": {"code": 401, "message": "no", "type": "authentication_error"}}, status=401)


async def main() -> None:
    server = Server()
    app = web.Application()
    app.add_routes([
        web.get("/health", lambda _: _health()),
        web.get("/when", server.when),
        web.get("/stats", server.stats),
        web.post("/script", server.script),
        web.post("/v1/jobs", server.create),
        web.get("/v1/jobs/{id}", server.show),
        web.get("/v1/jobs/{id}/events", server.events),
        web.route("*", "/locked/{rest:.*}", refuse_key),
        web.route("*", "/{rest:.*}", refuse_path),
    ])  # fmt: skip
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


async def _health() -> web.Response:
    return web.json_response({"status": "ok"})


if __name__ == "__main__":
    asyncio.run(main())
