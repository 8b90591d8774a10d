import ctypes
import threading

import pytest

from shared.jobs import Lane
from tests.worker.engine.harness import task
from worker.engine import EmbedTask, SequenceKey, Task
from worker.engine.inbox import Cancel, Discard, Inbox, Submit
from worker.engine.llama import Interrupt


def submit(lane: Lane) -> Submit:
    return Submit(EmbedTask(SequenceKey("a", 0), (1,), lane=lane), 0.0)


def is_set(interrupt: Interrupt) -> bool:
    return ctypes.string_at(interrupt.address) == b"1"


def test_messages_come_in_order_with_those_that_are_sent_meanwhile() -> None:
    inbox = Inbox()
    inbox.send(Cancel("a"))
    inbox.send(Discard("b", 1))
    taken = []
    for message in inbox.take():
        if not taken:
            inbox.send(Cancel("c"))
        taken.append(message)
    assert taken == [Cancel("a"), Discard("b", 1), Cancel("c")]
    assert len(inbox) == 0


def test_who_waits_is_woken_by_a_message_and_by_one_sent_before() -> None:
    inbox = Inbox()
    waiter = threading.Thread(target=inbox.wait, daemon=True)
    waiter.start()
    inbox.send(Cancel("a"))
    waiter.join(30.0)
    assert not waiter.is_alive()
    list(inbox.take())
    late = threading.Thread(target=inbox.wait, daemon=True)
    late.start()
    late.join(0.05)
    assert late.is_alive()
    inbox.wake()
    late.join(30.0)
    assert not late.is_alive()


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("lane", list(Lane))
def test_a_persons_task_interrupts_whether_it_comes_before_or_in_the_decode(lane: Lane, is_early: bool) -> None:
    inbox = Inbox()
    if is_early:
        inbox.send(submit(lane))
    interrupt = inbox.interrupt_for_people()
    if not is_early:
        inbox.send(Cancel("a"))
        assert not is_set(interrupt)
        inbox.send(submit(lane))
    assert is_set(interrupt) is (lane is Lane.INTERACTIVE)


def test_a_task_that_was_taken_interrupts_nothing_more() -> None:
    inbox = Inbox()
    inbox.send(submit(Lane.INTERACTIVE))
    list(inbox.take())
    assert not is_set(inbox.interrupt_for_people())


@pytest.mark.parametrize(
    ("job_id", "attempt", "meant"), [("a", 1, (True, True)), ("a", 2, (True, False)), ("b", 1, (False, False))]
)
def test_a_cancel_is_meant_for_any_attempt_and_a_discard_for_one(
    job_id: str, attempt: int, meant: tuple[bool, bool]
) -> None:
    each: Task = EmbedTask(SequenceKey(job_id, 3, attempt), (1,))
    assert (Cancel("a").is_meant(each), Discard("a", 1).is_meant(each)) == meant
    assert task("a", [1]).key.attempt == 0
