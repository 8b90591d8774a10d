"""One at a time, people first, and bulk after so many of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from worker.engine.turnstile import MOST_BEFORE_BULK, Turnstile

N_PEOPLE, N_BULK = MOST_BEFORE_BULK + 9, 3


def test_people_go_first_and_bulk_after_so_many_of_them() -> None:
    turnstile, went = Turnstile(), []

    def go(is_bulk: bool) -> None:
        with turnstile.turn(is_bulk=is_bulk):
            went.append("bulk" if is_bulk else "person")

    with ThreadPoolExecutor(N_PEOPLE + N_BULK) as threads, turnstile.turn(is_bulk=True):
        for at in range(N_PEOPLE + N_BULK):
            threads.submit(go, at < N_BULK)
        while turnstile._n_waiting != {False: N_PEOPLE, True: N_BULK}:
            pass  # nobody is told when somebody begins to wait
    assert went == ["person"] * MOST_BEFORE_BULK + ["bulk"] + ["person"] * 9 + ["bulk"] * 2


def test_only_one_is_in_it_and_it_is_free_again_when_that_one_fails() -> None:
    turnstile = Turnstile()
    inside, most = 0, 0
    lock = threading.Lock()

    def go(at: int) -> None:
        nonlocal inside, most
        with turnstile.turn(is_bulk=at % 3 == 0):
            with lock:
                inside += 1
                most = max(most, inside)
            with lock:
                inside -= 1
            if at % 2:
                raise RuntimeError

    with ThreadPoolExecutor(8) as threads:
        outcomes = [threads.submit(go, at) for at in range(100)]
        assert sum(outcome.exception(30) is not None for outcome in outcomes) == 50
    assert most == 1
