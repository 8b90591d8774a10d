"""`python -m tests.soak`: mixed work for an hour, or as long as one likes, and what became of it.

It ends with 1 if anything was wrong, and with 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import httpx

from shared.bus import EmbeddedServer
from tests.models import tiny_model, write_adapter
from tests.soak.clients import Crowd
from tests.soak.errands import N_ADAPTERS, N_CTX_SLOT
from tests.soak.gauges import Growth, growth_of, resident_mb
from tests.stack import Role, Stack

N_SLOTS = 8
N_SAMPLES = 400
"""Of each process's memory, spread over the run."""
KEPT_S = 20.0
"""How long records and logs of ended jobs stay: short, so that the server's memory settles soon."""
SLOWER = 3.0
"""Times the answers of the last third may take what those of the first took; this machine has other work too."""
SLOWEST_S = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    seconds: float
    crowd: Crowd
    growths: tuple[Growth, ...]
    complaints: tuple[str, ...]
    """About the stack as a whole."""

    @property
    def is_right(self) -> bool:
        return not self.complaints and not self.crowd.n_faults and all(growth.is_flat for growth in self.growths)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10_000), help="default: another each time")
    parser.add_argument("--clients", type=int, default=24, help="default: %(default)s")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"seed {given.seed}, {given.minutes:g} min", flush=True)
    try:
        outcome = asyncio.run(soak(given.minutes * 60, given.seed, given.clients, folder))
    except KeyboardInterrupt:
        print(f"stopped; seed {given.seed}; logs in {folder}", file=sys.stderr)
        return 130
    print(report(outcome))
    if outcome.is_right:
        shutil.rmtree(folder)
        return 0
    print(f"again: python -m tests.soak --seed {given.seed} --minutes {given.minutes:g}; logs in {folder}")
    return 1


async def soak(seconds: float, seed: int, n_clients: int, folder: Path) -> Outcome:
    (folder / "valkey").mkdir()
    with EmbeddedServer() as server:
        stack = Stack(server.start(folder / "valkey"), folder)
        stack.environment |= {
            "SLOTSTREAM_LOG_LEVEL": "warning",
            "SLOTSTREAM_LOG_RETENTION_S": str(KEPT_S),
            "SLOTSTREAM_RETENTION_S": str(KEPT_S),
        }
        stack.http = httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None))
        try:
            api = await stack.start_api()
            worker = await stack.start_worker(
                tiny_model(),
                parallel=N_SLOTS,
                ctx_size=N_SLOTS * N_CTX_SLOT,
                lora=",".join(str(write_adapter(folder / f"{n}.gguf", n_layers=1, seed=n)) for n in range(N_ADAPTERS)),
                lora_init_without_apply=True,
            )
            tasks = stack.start("api.tasks")
            assert server.pid is not None
            pids = {"worker": worker.process.pid, "api": api.process.pid, "server": server.pid}
            return await _soak(stack, [api, worker, tasks], pids, Crowd(stack, seed, n_clients), seconds)
        finally:
            await stack.http.aclose()
            for role in stack.roles:
                role.process.kill()
                role.process.wait()


async def _soak(stack: Stack, roles: Sequence[Role], pids: dict[str, int], crowd: Crowd, seconds: float) -> Outcome:
    began = time.monotonic()
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in pids}

    async def sample() -> None:
        while True:
            for name, pid in pids.items():
                samples[name].append((time.monotonic() - began, resident_mb(pid)))
            await asyncio.sleep(seconds / N_SAMPLES)

    sampling = asyncio.create_task(sample())
    workers = await stack.workers()
    await crowd.run(seconds)
    took_s = time.monotonic() - began
    sampling.cancel()
    complaints = [f"{role.process.args} ended" for role in roles if role.process.poll() is not None]
    if await stack.workers() != workers:
        complaints.append("the worker is another one")
    try:
        await stack.until(stack.is_idle)
    except TimeoutError:
        complaints.append(f"{await stack.busy_slots()} slots are lost")
    growths = tuple(growth_of(name, kept) for name, kept in samples.items())
    return Outcome(took_s, crowd, growths, (*complaints, *_lateness(crowd.probes)))


def _lateness(probes: Sequence[tuple[float, float]]) -> list[str]:
    """Of the known question: whether it was answered ever later."""
    took = [seconds for _, seconds in probes]
    third = len(took) // 3
    found = [f"a short question took {max(took):.1f} s"] if max(took) > SLOWEST_S else []
    if third > 5 and median(took[-third:]) > SLOWER * median(took[:third]):
        found.append(
            f"short questions took {median(took[:third]):.2f} s at first, {median(took[-third:]):.2f} s at last"
        )
    return found


def report(outcome: Outcome) -> str:
    """What was done, how quickly, how memory went, and what was wrong; for people."""
    crowd = outcome.crowd
    took = [seconds for _, seconds in crowd.probes]
    cuts = quantiles(took, n=100, method="inclusive") if len(took) > 1 else took * 99
    lines = [
        f"{sum(crowd.done.values())} errands in {outcome.seconds / 60:.1f} min, "
        + ", ".join(f"{count} {kind}" for kind, count in sorted(crowd.done.items(), key=lambda item: -item[1])),
        f"a short question, {len(took)} times: median {median(took):.2f} s, 99 of 100 within {cuts[98]:.2f} s,"
        f" at most {max(took):.2f} s",
    ]
    lines += [
        f"memory of the {growth.name}: {growth.mean_mb:.0f} MB, {growth.gained_mb:+.1f} MB in the last"
        f" {growth.minutes:.1f} min, of {growth.allowed_mb:.1f} allowed{'' if growth.is_flat else ': IT GROWS'}"
        for growth in outcome.growths
    ]
    lines += [f"WRONG: {what}" for what in outcome.complaints]
    lines += [f"WRONG: {fault.kind}: {fault.what}" for fault in crowd.faults]
    lines.append(f"{crowd.n_faults + len(outcome.complaints)} things were wrong")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
