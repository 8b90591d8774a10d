"""Our own time between two decodes with many slots, greedy and with the default samplers, beside llama.cpp's samplers.

A tiny random model with the demo model's vocabulary of 49,152 tokens generates in 64 slots; a gap is all that happens
between two decodes: tokens are chosen, sequences advance, the next batch is planned and filled. The yardstick is
llama.cpp's default chain over as many rows of the same model, one after the other as in llama-server, and nothing else.
All take turns in one process; the ratio is taken turn by turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence

from bench.table import Column, table
from worker.threads import NATIVE_ENVIRONMENT

GOALS_MS = {"greedy": 2.0, "default": 8.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slots",
        type=int,
        default=64,
        choices=range(1, 129),
        metavar="N",
        help="sequences at once, 1 to 128 (default: 64)",
    )
    parser.add_argument("--turns", type=int, default=7, metavar="N", help="turns of each (default: 7)")


def measure(given: argparse.Namespace) -> str:
    """In a process of its own: llama.cpp reads how to wait when it is loaded."""
    command = [sys.executable, "-m", "bench.turns", str(given.slots), str(given.turns)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**NATIVE_ENVIRONMENT, **os.environ}
    )
    return report(json.loads(done.stdout), given.slots)


def report(turns: dict[str, list[float]], n_slots: int) -> str:
    """`turns` are milliseconds by what was measured: `native` and each kind of sampling."""
    native = turns["native"]
    columns = [Column("ms, of 49,152 logits a row", is_text=True), Column("median"), Column("least and most")]
    rows = [[f"llama.cpp's default chain, {n_slots} rows", *_spread(native), "1.00", ""]]
    for kind, goal in GOALS_MS.items():
        ratio = statistics.median(gap / other for gap, other in zip(turns[kind], native, strict=True))
        rows.append(
            [f"between two decodes of {n_slots}, {kind}", *_spread(turns[kind]), f"{ratio:.2f}", f"<= {goal:.0f}"]
        )
    return table([*columns, Column("ratio"), Column("goal, ms")], rows)


def _spread(values: Sequence[float]) -> tuple[str, str]:
    return f"{statistics.median(values):.2f}", f"{min(values):.2f} to {max(values):.2f}"
