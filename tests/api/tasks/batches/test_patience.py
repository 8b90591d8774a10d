from __future__ import annotations

from api.tasks.batches.patience import N_BATCHES, PATIENCE_S, Patience
from shared.batches import BatchStatus
from tests.api.tasks.batches.test_pace import batch

WINDOW = {"expires_at": 5000.0}
LATE = 5000.0 + 10 * PATIENCE_S


class Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def test_what_a_process_has_only_just_missed_is_waited_for_however_late_it_is() -> None:
    """Its folder may not be mounted yet, and nobody may have worked on the batch for a night."""
    patience = Patience(clock := Clock())
    assert not patience.is_over(batch(**WINDOW), LATE)
    clock.at += PATIENCE_S - 1
    assert not patience.is_over(batch(**WINDOW), LATE + PATIENCE_S - 1)
    clock.at += 1
    assert patience.is_over(batch(**WINDOW), LATE + PATIENCE_S)


def test_a_batch_that_need_not_stop_is_waited_for_however_long_it_misses_something() -> None:
    patience = Patience(clock := Clock())
    patience.is_over(batch(**WINDOW), 1000.0)
    clock.at += 10 * PATIENCE_S
    assert not patience.is_over(batch(**WINDOW), 5000.0 + PATIENCE_S - 1)
    assert patience.is_over(batch(**WINDOW), 5000.0 + PATIENCE_S)
    assert patience.is_over(batch(status=BatchStatus.CANCELLING, cancelling_at=1000.0), 1000.0 + PATIENCE_S)
    assert patience.is_over(batch(status=BatchStatus.FINALIZING, finalizing_at=1000.0), 1000.0 + PATIENCE_S)


def test_what_was_found_again_is_missed_anew() -> None:
    patience = Patience(clock := Clock())
    missed = batch(**WINDOW)
    patience.is_over(missed, LATE)
    patience.forget(missed.id)
    clock.at += PATIENCE_S
    assert not patience.is_over(missed, LATE)


def test_those_that_others_ended_are_not_remembered_for_ever() -> None:
    patience = Patience(Clock())
    for n in range(2 * N_BATCHES):
        patience.is_over(batch(id=f"batch_0_{n:024x}"), 1000.0)
    assert len(patience._missed_at) == N_BATCHES
