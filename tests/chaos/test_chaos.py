"""A short run on each server, and the same without the fence, which must go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.__main__ import report
from tests.chaos.run import Outcome, Plan, play
from tests.chaos.server import binary_of


async def played(plan: Plan, folder: Path) -> Outcome:
    try:
        binary_of(plan.server)
    except LookupError as error:
        pytest.skip(str(error))
    outcome = await play(plan, folder)
    print(report(outcome))
    return outcome


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("server", "seed"), [("valkey", 1), pytest.param("redis7", 2, marks=pytest.mark.slow)])
async def test_every_job_ends_once_with_every_token_once_whatever_dies(tmp_path: Path, server: str, seed: int) -> None:
    plan = Plan(seed, server, n_jobs=80, duration_s=3.0, gap_s=0.2, lease_s=0.5, patience_s=30.0)
    outcome = await played(plan, tmp_path)
    assert outcome.violations == []
    assert len(outcome.faults) == 16
    assert any(job.count("epoch") > 1 for job in outcome.aftermath.jobs.values())


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("server", ["valkey", "redis7"])
async def test_without_the_fence_workers_that_were_away_do_harm(tmp_path: Path, server: str) -> None:
    """Whether a late word meets a job that still speaks is a matter of luck: three times without it would be odd."""
    for seed in (3, 4, 5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        plan = Plan(
            seed,
            server,
            n_jobs=14,
            duration_s=2.0,
            gap_s=0.45,
            lease_s=0.4,
            n_workers=4,
            least_tokens=200,
            kinds=("freeze a worker past its lease", "words of a worker come late"),
            patience_s=15.0,
            is_fenced=False,
        )
        outcome = await played(plan, folder)
        if {"logs_are_exact", "results_are_what_was_said"} & {violation.check for violation in outcome.violations}:
            return
    pytest.fail("nothing was found")
