"""Whether the modules of `[tool.headrace.compiled]` in pyproject.toml run as machine code.

`python -m headrace.compiled` prints it, and exits with 1 if they are interpreted: the build of the store's image ends
then.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final, Literal

_LISTED: Final = "headrace.codec.data_frames"


def is_compiled() -> bool:
    """True in the store's image and in wheels for Linux, False in a checkout. All modules are compiled, or none."""
    spec = find_spec(_LISTED)
    return spec is not None and not (spec.origin or "").endswith(".py")


def code_kind() -> Literal["compiled", "interpreted"]:
    """The word for it in `headrace --version` and in the store's log."""
    return "compiled" if is_compiled() else "interpreted"


def main() -> int:
    print(code_kind())
    return 0 if is_compiled() else 1


if __name__ == "__main__":
    sys.exit(main())
