"""Whether the modules of `[tool.headrace.compiled]` in pyproject.toml run as machine code."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

_LISTED: Final = "headrace.codec.data_frames"


def is_compiled() -> bool:
    """True in the store's image and in wheels, False in a checkout. All listed modules are compiled, or none."""
    found = find_spec(_LISTED)
    return found is not None and not (found.origin or "").endswith(".py")
