"""The files that pages load: their folder, their names, and the script that comes from npm."""

from __future__ import annotations

from pathlib import Path

STATIC_FOLDER = Path(__file__).parent / "static"
STATIC_FILES = ("console.css", "key-space.css", "console.js", "icon.svg", "htmx.min.js")
HTMX_IN_A_CHECKOUT = Path(__file__).parents[2] / "node_modules" / "htmx.org" / "dist" / "htmx.min.js"
"""The wheel has the file among the static ones; see scripts/build_hook.py."""


def static_file(name: str) -> Path | None:
    """The path of a file; None if no page loads it, or if a checkout lacks the npm packages."""
    if name not in STATIC_FILES:
        return None
    candidates = [STATIC_FOLDER / name, *([HTMX_IN_A_CHECKOUT] if name == HTMX_IN_A_CHECKOUT.name else [])]
    return next((path for path in candidates if path.is_file()), None)
