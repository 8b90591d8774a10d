"""`python -m bench [WHAT]`: the figures that this project is built for, each beside its yardstick.

Without WHAT all are measured, one after the other, as they are by default. Ctrl-C ends it with 130.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from types import ModuleType

from bench import append, batch, embeddings, gap, prefix, queue, takeover, throughput, webhooks
from bench.machine import usage

MEASUREMENTS: dict[str, ModuleType] = {
    "decode": throughput,
    "gap": gap,
    "prefix": prefix,
    "queue": queue,
    "append": append,
    "takeover": takeover,
    "embeddings": embeddings,
    "batch": batch,
    "webhooks": webhooks,
}
"""Modules with `add_arguments(parser)` and `measure(given)`, which returns what there is to print."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices = parser.add_subparsers(dest="what", metavar="WHAT")
    for name, module in MEASUREMENTS.items():
        about = (module.__doc__ or "").strip()
        module.add_arguments(
            choices.add_parser(
                name, help=about.split("\n")[0], description=about, formatter_class=argparse.RawDescriptionHelpFormatter
            )
        )
    given = parser.parse_args()
    try:
        for name in [given.what] if given.what else MEASUREMENTS:
            _measure(MEASUREMENTS[name], given if given.what else parser.parse_args([name]))
    except KeyboardInterrupt:
        print("stopped; what was measured to its end stands above", file=sys.stderr)
        sys.exit(130)


def _measure(module: ModuleType, given: argparse.Namespace) -> None:
    """Prints the figures, and who else used the machine meanwhile."""
    before, load, started = usage(), os.getloadavg()[0], time.perf_counter()
    print(f"\n{module.measure(given)}")
    seconds = time.perf_counter() - started
    busy = usage().since(before).busy_s / (seconds * (os.cpu_count() or 1))
    print(
        f"  {seconds:.0f} s; the machine's load before {load:.1f}, after {os.getloadavg()[0]:.1f}; CPUs busy {busy:.0%}"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
