"""Finds the Lambda handlers and the store process in an installation without the repository.

They belong to the deployment and are not part of the library. The wheel carries them as data next to this module, so
that no package with a name as general as `functions` is installed into a user's environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

CARRIED = Path(__file__).parent / "deployment"
"""Where pyproject.toml puts them. The directory does not exist in a checkout, where they are importable anyway."""


def make_importable(directory: Path = CARRIED) -> None:
    """Let this process and the ones that it starts import the handlers and the store process."""
    if not directory.is_dir():
        return
    sys.path.insert(0, str(directory))
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{directory}{os.pathsep}{inherited}" if inherited else str(directory)
    # Without this `python -m` searches the user's working directory first, which may have its own `functions`.
    os.environ["PYTHONSAFEPATH"] = "1"
