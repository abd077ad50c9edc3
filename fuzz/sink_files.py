"""What the processes of a search tell one another: by the command line, by names of files, or in files.

It imports nothing heavy.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

COMMIT_POINTS: Final = ("before-begin", "after-begin", "before-decision", "after-decision")
"""Of a commit set: before and after the write that notes it, then before and after the one that decides it. Its
transactions are prepared between the second and the third."""

BEGAN: Final = "began"
"""An attempt has begun to write. The process that sees its request to the controller tells this."""
FAILED: Final = "failed"
"""An attempt has failed after it had begun to write."""
SPECULATIVE: Final = "speculative"
OVERLAPPED: Final = "overlapped"
"""Two attempts at one partition ran at the same time, and then wrote."""

BATCH_BYTES: Final = 1_200


def query_arguments(master: str = "") -> Namespace:
    """The command line. `master` is the default of that option."""
    parser = ArgumentParser()
    parser.add_argument("--controller", required=True)
    parser.add_argument("--scope", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--form", choices=("sink", "foreach-batch"), default="sink")
    parser.add_argument("--master", default=master)
    for flag in ("ordered", "fail-first-attempts", "speculation"):
        parser.add_argument(f"--{flag}", action="store_true")
    return parser.parse_args()
