"""`python -m api.tasks` is `slotstream tasks`."""

from __future__ import annotations

import sys

from shared.permanent import permanent

with permanent():
    from api.tasks.app import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
