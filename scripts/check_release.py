#!/usr/bin/env python3
"""Checks that wheels may be published as a version: the numbers agree, the changelog has them, and nothing is missing.

`scripts/check_release.py v0.3.0 dist/*.whl` prints what is wrong, one line each, and exits with 1 then. The release
workflow calls it before it publishes. A release has a pure wheel, and a compiled one for each Python and kind of
processor; with `--pure` only the pure wheel is expected, as `make dist` builds it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

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
PROCESSORS: Final = ("aarch64", "x86_64")
PURE: Final = "pure"
_MANYLINUX: Final = re.compile(rf"manylinux.*_({'|'.join(PROCESSORS)})")
SECTION: Final = r"^## \[{version}\] - \d{{4}}-\d{{2}}-\d{{2}}$"


def problems(tag: str, wheels: Sequence[Path], project: str, changelog: str, *, pure_only: bool = False) -> list[str]:
    """What is wrong; `project` and `changelog` are the texts of pyproject.toml and CHANGELOG.md."""
    settings = tomllib.loads(project)
    version = settings["project"]["version"]
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and pyproject.toml has the version {version}")
    if not re.search(SECTION.format(version=re.escape(version)), changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section `## [{version}] - DATE`")
    wanted = {PURE} if pure_only else {PURE, *compiled_kinds(settings)}
    kinds = [wheel_kind(wheel.name) for wheel in wheels]
    found += [f"there is no {kind} wheel" for kind in sorted(wanted - set(kinds))]
    found += [f"{wheel.name} is not expected" for wheel, kind in zip(wheels, kinds, strict=True) if kind not in wanted]
    found += [f"there are {kinds.count(kind)} {kind} wheels" for kind in sorted(set(kinds)) if kinds.count(kind) > 1]
    groups = settings["tool"]["headrace"]["compiled"]
    for wheel, kind in zip(wheels, kinds, strict=True):
        found += _problems_of_wheel(wheel, version, {} if kind == PURE else groups)
    return found


def compiled_kinds(settings: dict[str, Any]) -> set[str]:
    """The compiled wheels of a release, as `wheel_kind` names them: those that [tool.cibuildwheel] builds."""
    pythons = [selector.partition("-")[0] for selector in settings["tool"]["cibuildwheel"]["build"]]
    return {f"{python} {processor}" for python in pythons for processor in PROCESSORS}


def wheel_kind(name: str) -> str:
    """`pure`, or the Python and the processor of a wheel, such as `cp313 x86_64`, by its name.

    A wheel for the system that built it, which PyPI refuses, is named by the whole platform.
    """
    python, _abi, platform = name.removesuffix(".whl").split("-")[-3:]
    if platform == "any":
        return PURE
    match = _MANYLINUX.fullmatch(platform)
    return f"{python} {match[1] if match else platform}"


def _problems_of_wheel(wheel: Path, version: str, groups: dict[str, list[str]]) -> list[str]:
    """`groups` are the compiled modules that it must have; empty for a pure wheel."""
    found = []
    if not wheel.name.startswith(f"headrace-{version}-"):
        found.append(f"{wheel.name} is not a wheel of {version}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    libraries = {name.partition(".")[0] for name in names if name.endswith(".so")}
    modules = {path.removesuffix(".py") for paths in groups.values() for path in paths}
    shared = {f"headrace_{group}__mypyc" for group in groups}
    found += [
        f"{wheel.name} lacks the machine code of {name}" for name in sorted(modules | shared) if name not in libraries
    ]
    found += [f"{wheel.name} has unexpected machine code, {name}" for name in sorted(libraries - modules - shared)]
    found += [f"the wheel lacks {need}" for need in NEEDED if not any(_is(name, need) for name in names)]
    own = {"headrace", f"headrace-{version}.dist-info"}
    strange = {name.split("/")[0] for name in names if not _is_shared(name, shared)} - own
    return found + [f"the wheel would install {name} next to headrace" for name in sorted(strange)]


def _is_shared(name: str, shared: Collection[str]) -> bool:
    return name.endswith(".so") and name.partition(".")[0] in shared


def _is(name: str, need: str) -> bool:
    return name.startswith(need) and name != need if need.endswith("/") else name == need


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pure", action="store_true", help="expect the pure wheel only")
    parser.add_argument("tag")
    parser.add_argument("wheels", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    changelog, project = ((ROOT / name).read_text() for name in ("CHANGELOG.md", "pyproject.toml"))
    found = problems(options.tag, options.wheels, project, changelog, pure_only=options.pure)
    for line in found:
        print(f"release: {line}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
