"""Clients that run errands one after the other, and one that asks for the same known text again and again."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from typing import Any, NamedTuple

import httpx

from tests.soak.answers import faults_of, faults_of_job, faults_of_stream
from tests.soak.errands import Errand, Way, draw
from tests.stack import Stack, follow

PATIENCE_S = 120.0
"""After so long an errand counts as lost."""
PROBE_EVERY_S = 0.5
MOST_KEPT = 20

PROBE = {"prompt": list(range(1000, 1100)), "n_predict": 8, "temperature": 0, "ignore_eos": True}


class Fault(NamedTuple):
    kind: str
    what: str


class Crowd:
    """`seed` decides what each client asks for, one after the other."""

    def __init__(self, stack: Stack, seed: int, n_clients: int) -> None:
        self._stack = stack
        self._dice = [random.Random(f"{seed} {number}") for number in range(n_clients)]
        self._is_over = asyncio.Event()
        self.done: Counter[str] = Counter()
        self.n_faults = 0
        self.faults: list[Fault] = []
        """The first ones."""
        self.probes: list[tuple[float, float]] = []
        """(when it was asked, until it was answered), in seconds."""

    async def run(self, seconds: float) -> None:
        """Nobody begins anything after that; it ends when everybody has what they wanted."""
        known = await self._known_text()
        async with asyncio.TaskGroup() as clients:
            clients.create_task(self._probe(known))
            for dice in self._dice:
                clients.create_task(self._live(dice))
            await asyncio.sleep(seconds)
            self._is_over.set()

    async def _live(self, dice: random.Random) -> None:
        while not self._is_over.is_set():
            errand = draw(dice)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    faults = await self._run(errand)
            except TimeoutError:
                faults = [f"no end after {PATIENCE_S:.0f} s"]
            except (httpx.HTTPError, KeyError, ValueError, AssertionError) as error:
                faults = [f"{type(error).__name__}: {error}"]
            self.done[errand.kind] += 1
            for fault in faults:
                self._tell(errand.kind, f"{fault[:600]}; asked: {_shown(errand)}")

    def _tell(self, kind: str, what: str) -> None:
        self.n_faults += 1
        if len(self.faults) < MOST_KEPT:
            self.faults.append(Fault(kind, what))

    async def _run(self, errand: Errand) -> list[str]:
        if errand.leaves_after_s is not None:
            return await self._leave(errand, errand.leaves_after_s)
        match errand.way:
            case Way.PLAIN:
                return await self._ask(errand)
            case Way.STREAM:
                return await self._listen(errand)
            case Way.JOB:
                return await self._have_done(errand)

    async def _ask(self, errand: Errand) -> list[str]:
        response = await self._stack.http.post(errand.path, **_sent(errand), timeout=PATIENCE_S)
        if response.status_code not in errand.statuses:
            return [f"status {response.status_code}: {response.text}"]
        return faults_of(errand, response.json()) if response.status_code == 200 else []

    async def _listen(self, errand: Errand) -> list[str]:
        request = _sent(errand, stream=True)
        async with self._stack.http.stream("POST", errand.path, **request, timeout=PATIENCE_S) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode()
                return [] if response.status_code in errand.statuses else [f"status {response.status_code}: {text}"]
            lines = [line[6:] async for line in response.aiter_lines() if line.startswith("data: ")]
        is_done = lines[-1:] == ["[DONE]"]
        events = [json.loads(line) for line in lines[: -1 if is_done else None]]
        if 200 not in errand.statuses:  # headers do not wait for ever for a worker's yes or no
            code = events[-1].get("error", {}).get("code")
            return [] if code in errand.statuses else [f"the stream ended with {events[-1]}"]
        return faults_of_stream(errand, events, is_done)

    async def _have_done(self, errand: Errand) -> list[str]:
        order = {"endpoint": errand.path, "body": errand.body}
        if errand.deadline_s is not None:
            order["deadline_s"] = errand.deadline_s
        made = await self._stack.http.post("/v1/jobs", json=order)
        if made.status_code != 202:
            return [f"status {made.status_code}: {made.text}"]
        job_id = made.json()["id"]
        following = asyncio.ensure_future(follow(self._stack, job_id))
        if errand.cancels_after_s is not None:
            await asyncio.sleep(errand.cancels_after_s)
            await self._stack.http.post(f"/v1/jobs/{job_id}/cancel")
        tokens, job = await following
        return faults_of_job(errand, tokens, job)

    async def _leave(self, errand: Errand, after_s: float) -> list[str]:
        try:
            async with asyncio.timeout(after_s):
                await (self._listen if errand.way is Way.STREAM else self._ask)(errand)
        except TimeoutError:
            pass  # the client is gone, and knows nothing of an answer
        return []

    async def _known_text(self) -> str:
        text: str = (await self._stack.http.post("/completion", json=PROBE)).json()["content"]
        return text

    async def _probe(self, known: str) -> None:
        """A person with a short question, and an eye on the cache."""
        while not self._is_over.is_set():
            asked = time.monotonic()
            try:
                response = await self._stack.http.post("/completion", json=PROBE, timeout=PATIENCE_S)
                if response.json().get("content") != known:
                    self._tell("probe", f"{response.text[:300]} instead of {known!r}")
            except httpx.HTTPError as error:
                self._tell("probe", f"{type(error).__name__}: {error}")
            self.probes.append((asked, time.monotonic() - asked))
            await asyncio.sleep(PROBE_EVERY_S)


def _shown(errand: Errand) -> str:
    """What was asked and how, with the length of a long prompt for itself."""
    if isinstance(errand.body, bytes):
        return repr(errand.body[:200])
    fields = {name: f"{len(value)} ids" if name == "prompt" else value for name, value in errand.body.items()}
    return f"{errand.way.value} {fields}"[:600]


def _sent(errand: Errand, **more: Any) -> dict[str, Any]:
    if isinstance(errand.body, bytes):
        return {"content": errand.body, "headers": {"Content-Type": "application/json"}}
    return {"json": errand.body | more}
