#!/usr/bin/env python3
"""Checks that a wheel may be published as a version: the numbers agree, the changelog has them, and nothing is missing.

`scripts/check_release.py v0.3.0 dist/headrace-0.3.0-py3-none-any.whl` prints what is wrong, one line each, and exits
with 1 then. The release workflow calls it before it publishes.
"""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CARRIED: Final = "headrace/local/deployment"
"""Where a wheel has the handlers and the store process."""
NEEDED: Final = (
    "headrace/py.typed",
    f"{CARRIED}/functions/wiring.py",
    f"{CARRIED}/segmentstore_fargate/__main__.py",
    "headrace/console/templates/",
    "headrace/console/static/htmx.min.js",
)
"""Files, or folders that are not empty."""
SECTION: Final = r"^## \[{version}\] - \d{{4}}-\d{{2}}-\d{{2}}$"


def problems(tag: str, wheel: Path, project: str, changelog: str) -> list[str]:
    """What is wrong; `project` and `changelog` are the texts of pyproject.toml and CHANGELOG.md."""
    version = tomllib.loads(project)["project"]["version"]
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and pyproject.toml has the version {version}")
    if not re.search(SECTION.format(version=re.escape(version)), changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section `## [{version}] - DATE`")
    if not wheel.name.startswith(f"headrace-{version}-"):
        found.append(f"{wheel.name} is not a wheel of {version}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    found += [f"the wheel lacks {need}" for need in NEEDED if not any(_is(name, need) for name in names)]
    strange = sorted({name.split("/")[0] for name in names} - {"headrace", f"headrace-{version}.dist-info"})
    found += [f"the wheel would install {name} next to headrace" for name in strange]
    return found


def _is(name: str, need: str) -> bool:
    return name.startswith(need) and name != need if need.endswith("/") else name == need


def main(arguments: Sequence[str] | None = None) -> int:
    tag, wheel = sys.argv[1:] if arguments is None else arguments
    changelog, project = ((ROOT / name).read_text() for name in ("CHANGELOG.md", "pyproject.toml"))
    found = problems(tag, Path(wheel), project, changelog)
    for line in found:
        print(f"release: {line}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
