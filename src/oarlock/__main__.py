"""`python -m oarlock`."""

import sys

from oarlock.cli import main

sys.exit(main())
