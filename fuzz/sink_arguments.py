"""The arguments of a query that copies a stream, with Spark or without."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

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
