"""`python -m api` is `slotstream api`."""

import sys

from api.app import main

sys.exit(main())
