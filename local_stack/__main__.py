"""`python -m local_stack` is `headrace up`."""

from __future__ import annotations

import sys

from local_stack.command import main

sys.exit(main(program="python -m local_stack"))
