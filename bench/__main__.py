"""`python -m bench`: the figures that this project is built for, one line each."""

from __future__ import annotations

import argparse
import os

from bench import throughput


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--jobs", type=int, default=64, metavar="N", help="jobs per run (default: 64)")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="runs of each side (default: 5)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads of a decode; 0 chooses")
    given = parser.parse_args()
    before, wall = os.times(), os.getloadavg()
    pairs = throughput.measure(given.jobs, given.pairs, given.threads)
    print(throughput.report(pairs, given.jobs))
    after = os.times()
    print(
        f"load of the machine before: {wall[0]:.1f}; after: {os.getloadavg()[0]:.1f}; wall {after[4] - before[4]:.0f} s"
    )


if __name__ == "__main__":
    main()
