"""`python -m worker`: the process entry. Sets how native threads wait, before llama.cpp is loaded."""

from __future__ import annotations

import os
import sys

from shared.permanent import permanent

with permanent():
    from shared import telemetry
    from shared.settings import ConfigError, WorkerSettings
    from worker.threads import NATIVE_ENVIRONMENT

EXIT_CONFIG, EXIT_LOAD = 2, 3
"""Of a worker that cannot start: nothing is gained by another try before somebody mends it."""


def main() -> int:
    settings = WorkerSettings.from_command_line(
        sys.argv[1:],
        prog="slotstream worker",
        description="Pull jobs of one model from the queue and run them with llama.cpp.",
    )
    for name, value in NATIVE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    telemetry.configure(settings.log_level, settings.log_format, "worker")
    # Only now: these import llama.cpp, whose threads read the variables above once.
    sys.setswitchinterval(0.0005)
    with permanent():
        import uvloop  # noqa: PLC0415

        from worker.app import run  # noqa: PLC0415
        from worker.engine import LoadFailed  # noqa: PLC0415

    try:
        uvloop.run(run(settings))
    except (ConfigError, LoadFailed) as error:
        print(f"slotstream worker: {settings.blame(str(error))}", file=sys.stderr, flush=True)
        if isinstance(error, ConfigError):
            return EXIT_CONFIG
        sys.stdout.flush()
        os._exit(EXIT_LOAD)  # a load that was given up may never end, nor let the process
    return 0


if __name__ == "__main__":
    sys.exit(main())
