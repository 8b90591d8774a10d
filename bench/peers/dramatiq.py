"""dramatiq: threads, without middleware, which a no-op does not need."""

from __future__ import annotations

import itertools
import sys
import threading
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers import tell


def run(url: str, n_jobs: int) -> None:
    is_over = threading.Event()
    numbers = itertools.count(1)
    broker = RedisBroker(url=url, middleware=[])
    dramatiq.set_broker(broker)

    @dramatiq.actor
    def no_op() -> None:
        if next(numbers) == n_jobs:
            is_over.set()

    dramatiq.Worker(broker, worker_threads=8, worker_timeout=100).start()
    began = time.perf_counter(), time.process_time()
    for _ in range(n_jobs):
        no_op.send()
    is_over.wait()
    tell(began)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
