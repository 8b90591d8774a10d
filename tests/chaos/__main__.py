"""`python -m tests.chaos`: a long run on each server, with a table of what was done and found.

It ends with 1 if there is a violation, and with 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import signal
import sys
import tempfile
from collections import Counter
from multiprocessing import forkserver
from pathlib import Path

import uvloop

from shared import telemetry
from tests.chaos.checker import Violation
from tests.chaos.run import Outcome, Plan, play
from tests.chaos.server import binary_of

JOBS_PER_S = 25
GAP_S = 0.6
SECONDS_PER_PLANNED = 1.5
"""Of a whole run: there is a start, and after the last fault everybody gets what they wanted."""
SERVERS = ("valkey", "redis7")
MOST_SHOWN = 10
"""Of one check."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10_000), help="default: another each time")
    parser.add_argument(
        "--jobs", type=int, default=2200, help="orders on each server; repeated ones make no job (default: %(default)s)"
    )
    parser.add_argument("--server", choices=SERVERS, action="append", help="default: both")
    parser.add_argument("--no-fence", action="store_true", help="without the comparison of leases: must go wrong")
    given = parser.parse_args()
    _start_nursery()
    results = [_is_right(_plan(given, server)) for server in given.server or SERVERS]
    return int(not all(results))


def _start_nursery() -> None:
    """Deaf to Ctrl-C, which the terminal sends to everybody: a worker that is just being born would print a traceback.
    Those that live are ended by us."""
    hearing = signal.signal(signal.SIGINT, signal.SIG_IGN)
    forkserver.ensure_running()
    signal.signal(signal.SIGINT, hearing)


def _is_right(plan: Plan) -> bool:
    """Whether it was played, or could not be, and nothing was found."""
    try:
        binary_of(plan.server)
    except LookupError as error:
        print(f"{plan.server}: skipped, {error}")
        return True
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{plan.server}-"))
    minutes = max(1, round(plan.duration_s * SECONDS_PER_PLANNED / 60))
    print(f"{plan.server}: seed {plan.seed}, {plan.n_jobs} orders, about {minutes} min", flush=True)
    try:
        outcome = _played(plan, folder)
    except KeyboardInterrupt:
        print(f"stopped; seed {plan.seed}; logs in {folder}", file=sys.stderr)
        sys.exit(130)
    print(report(outcome), flush=True)
    if outcome.violations:
        print(f"the logs of all processes are in {folder}")
    else:
        shutil.rmtree(folder)
    return not outcome.violations


def _played(plan: Plan, folder: Path) -> Outcome:
    """What our own clients log goes into the folder, as that of the workers does."""
    with (folder / "clients.log").open("w") as log, contextlib.redirect_stderr(log):
        telemetry.configure("debug", "json", "clients")
        return uvloop.run(play(plan, folder))


def _plan(given: argparse.Namespace, server: str) -> Plan:
    return Plan(
        seed=given.seed,
        server=server,
        n_jobs=given.jobs,
        duration_s=given.jobs / JOBS_PER_S,
        gap_s=GAP_S,
        is_fenced=not given.no_fence,
    )


def report(outcome: Outcome) -> str:
    """What was done and what was found, for people."""
    plan, jobs = outcome.plan, outcome.aftermath.jobs.values()
    rows = {
        "jobs": len(jobs),
        **{f"  {status}": n for status, n in sorted(Counter(job.status for job in jobs).items())},
        "events": sum(len(job.said) for job in jobs),
        "readers": len(outcome.history.sessions),
        "hand-outs beyond the first": sum(max(0, job.count("epoch") - 1) for job in jobs),
        "deaths": sum(job.count("deaths") for job in jobs),
        "leases lost": outcome.n_leases_lost,
        "replies cut": outcome.n_cut,
        "workers killed": sum(code < 0 for _, code, _ in outcome.history.exits),
        "faults": sum(outcome.faults.values()),
        **{f"  {name}": n for name, n in sorted(outcome.faults.items())},
        "seconds": round(outcome.seconds),
        "violations": len(outcome.violations),
        **{f"  {name}": len(found) for name, found in found_by_check(outcome).items()},
    }
    head = f"{plan.server}, seed {plan.seed}, {plan.partitions} partition(s){'' if plan.is_fenced else ', no fence'}"
    lines = [head, *(f"  {name:34}{n:>8}" for name, n in rows.items())]
    for name, found in found_by_check(outcome).items():
        lines += [f"{name}: {each.job_id} {each.what}" for each in found[:MOST_SHOWN]]
    if outcome.violations:
        lines.append(f"again: python -m tests.chaos --seed {plan.seed} --jobs {plan.n_jobs} --server {plan.server}")
    return "\n".join(lines)


def found_by_check(outcome: Outcome) -> dict[str, list[Violation]]:
    found: dict[str, list[Violation]] = {}
    for each in outcome.violations:
        found.setdefault(each.check, []).append(each)
    return found


if __name__ == "__main__":
    sys.exit(main())
