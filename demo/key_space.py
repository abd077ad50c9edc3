"""The picture of the demo's stream: the console's map of the key space over time, and as PNG where Chromium is."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from headrace.cli.parameters import ScopedName
from headrace.client import Headrace
from headrace.console.key_space_document import key_space_document
from headrace.console.key_space_svg import HEIGHT, WIDTH

CHROMIUM_TIMEOUT_S = 60


def draw_key_space(headrace: Headrace, stream: ScopedName, file: Path) -> None:
    """Writes the SVG file, and a PNG next to it if Chromium is installed."""
    file.write_text(key_space_document(headrace.admin, stream, time.time_ns() // 1_000_000))
    chromium = shutil.which("chromium")
    if chromium is None:
        return
    command = [chromium, "--headless", "--disable-gpu", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses its sandbox to root
    command += [f"--screenshot={file.with_suffix('.png').resolve()}", file.resolve().as_uri()]
    try:
        subprocess.run(command, capture_output=True, timeout=CHROMIUM_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"  no picture as PNG: {error}")
