"""`python -m api` is `slotstream api`."""

import sys

from shared.permanent import permanent

with permanent():
    from api.app import main

if __name__ == "__main__":
    sys.exit(main())
