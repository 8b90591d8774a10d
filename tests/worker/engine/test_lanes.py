import math

import pytest

from shared.jobs import Lane
from worker.engine import EmbedTask, SequenceKey
from worker.engine.lanes import Ageing, Lanes


def embed(name: str, lane: Lane) -> EmbedTask:
    return EmbedTask(SequenceKey(name, 0), (1,), lane=lane)


def test_each_lane_keeps_the_order_of_arrival_and_says_since_when_its_next_waits() -> None:
    lanes: Lanes[EmbedTask] = Lanes()
    for at, (name, lane) in enumerate([("b0", Lane.BULK), ("i0", Lane.INTERACTIVE), ("b1", Lane.BULK)]):
        lanes.add(embed(name, lane), float(at))
    assert (lanes.since(Lane.BULK), lanes.count(Lane.BULK), len(lanes)) == (0.0, 2, 3)
    assert [lanes.pop(Lane.BULK).task.key.job_id for _ in range(2)] == ["b0", "b1"]
    assert lanes.since(Lane.BULK) == math.inf
    assert lanes.pop(Lane.INTERACTIVE).since == 1.0


@pytest.mark.parametrize(("waited_s", "is_due"), [(0.0, False), (29.9, False), (30.0, True), (-math.inf, False)])
def test_bulk_is_due_once_it_has_waited_its_time(waited_s: float, is_due: bool) -> None:
    assert Ageing(30.0, 5.0).is_due(100.0 - waited_s, 100.0) is is_due


def test_only_one_at_a_time_goes_before_people() -> None:
    ageing = Ageing(30.0, 5.0)
    assert ageing.begin(100.0) == 105.0
    assert not ageing.is_due(0.0, 104.9)
    assert ageing.is_due(0.0, 105.0)
