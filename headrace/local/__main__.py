"""`python -m headrace.local` is `headrace up`."""

from __future__ import annotations

import sys

from headrace.local.command import main

sys.exit(main(program="python -m headrace.local"))
