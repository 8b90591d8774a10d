"""`python -m api.cli` is the command `slotstream`."""

from __future__ import annotations

import sys

from api.cli import main

if __name__ == "__main__":
    sys.exit(main())
