"""No name from outside can break a key."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from shared.bus.keys import Keys, part, partition_for


@pytest.mark.parametrize("name", ["a:b", "{p1}", "*", "a b", "é😀", "", "@worker", "a/b%3A"])
def test_a_part_has_no_letter_with_a_meaning(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.~%-]*", part(name))


def test_different_names_are_different_parts() -> None:
    names = ["a:b", "a%3Ab", "a", "A", "é", "e"]
    assert len({part(name) for name in names}) == len(names)


def test_everything_of_a_job_is_in_its_partition() -> None:
    keys = Keys("ss", 4)
    names = [keys.job("job_3_ab"), keys.log("job_3_ab"), keys.live("job_3_ab"), keys.lane(3, "{p0}", "bulk", "{p1}")]
    assert {re.search(r"\{(.*?)\}", name)[1] for name in names} == {"p3"}  # type: ignore[index]


@pytest.mark.parametrize("job_id", ["job_4_ab", "job_-1_ab", "job__ab", "job_0_", "x", "job_0_a:b", "job_0_é"])
def test_an_id_that_we_never_made_is_refused(job_id: str) -> None:
    with pytest.raises(ValueError):
        Keys("ss", 4).job(job_id)


def test_idempotency_keys_spread_over_partitions_and_stay_there() -> None:
    counts = Counter(partition_for(f"key {i}", 4) for i in range(400))
    assert set(counts) == {0, 1, 2, 3}
    assert min(counts.values()) > 60
    assert partition_for("key", 4) == partition_for("key", 4)
