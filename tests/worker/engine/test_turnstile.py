"""One at a time, people first, and bulk after so many of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from worker.engine.vision.turnstile import MOST_BEFORE_BULK, Turnstile

N_PEOPLE, N_BULK = MOST_BEFORE_BULK + 9, 3


def test_people_go_first_in_order_and_bulk_after_so_many_of_them() -> None:
    turnstile = Turnstile()
    went: list[int] = []

    def go(number: int) -> None:
        with turnstile.turn(is_bulk=number < N_BULK):
            went.append(number)

    with ThreadPoolExecutor(N_PEOPLE + N_BULK) as threads, turnstile.turn(is_bulk=True):
        for number in range(N_PEOPLE + N_BULK):
            threads.submit(go, number)
            while len(turnstile._people) + len(turnstile._bulk) <= number:
                pass  # nobody is told when somebody begins to wait
    bulk, people = range(N_BULK), range(N_BULK, N_BULK + N_PEOPLE)
    assert went == [*people[:MOST_BEFORE_BULK], bulk[0], *people[MOST_BEFORE_BULK:], *bulk[1:]]


def test_only_one_is_in_it_and_it_is_free_again_when_that_one_fails() -> None:
    turnstile, inside = Turnstile(), threading.Semaphore(1)

    def go(at: int) -> None:
        with turnstile.turn(is_bulk=at % 3 == 0):
            assert inside.acquire(blocking=False), "somebody else is in it"
            inside.release()
            if at % 2:
                raise RuntimeError

    with ThreadPoolExecutor(8) as threads:
        errors = [threads.submit(go, at).exception(30) for at in range(100)]
    assert [type(error) for error in errors] == [type(None), RuntimeError] * 50
