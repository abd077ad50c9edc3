"""Copies files of npm packages into the wheel, as a hook of hatch: a checkout has them in node_modules, not in git.

An editable installation needs none: the console finds the file of the checkout, if it is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = {"node_modules/htmx.org/dist/htmx.min.js": "headrace/console/static/htmx.min.js"}


class CopyNpmFiles(BuildHookInterface):
    """Adds the files to what is packed. A source archive has them where a checkout has them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        for source, target in FILES.items():
            path = Path(self.root) / source
            if not path.is_file():
                raise FileNotFoundError(f"{source} is missing: run `make node_modules/.installed` before the build")
            build_data["force_include"][str(path)] = target if self.target_name == "wheel" else source
