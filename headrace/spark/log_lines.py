"""Makes the connector's log lines visible in processes that Spark starts, where no program configures logging."""

from __future__ import annotations

import logging
import sys


def show_log_lines() -> None:
    """Sends them to standard error, unless the program has configured logging."""
    logger = logging.getLogger("headrace.spark")
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
