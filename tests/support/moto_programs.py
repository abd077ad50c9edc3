"""Programs that patch moto in a process of their own, so that its patches do not stay in the process of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def printed_lines(program: str) -> list[str]:
    """What the program prints. A local stack of this process sets `AWS_ENDPOINT_URL`: moto would not be asked then."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_ENDPOINT_URL")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
