"""What a wheel must be to be published, and what `headrace[local]` brings with it."""

from __future__ import annotations

import importlib.metadata
import re
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from scripts_under_test import loaded_script

TAG, NAME = "v0.3.0", "headrace-0.3.0-py3-none-any.whl"
PROJECT = '[project]\nversion = "0.3.0"\n'
CHANGELOG = "## [Unreleased]\n\n## [0.3.0] - 2026-12-01\n"
HEAVY = {"sympy", "cfn-lint", "networkx", "aws-sam-translator", "pyarrow", "numpy"}
"""Packages that take tens of megabytes and that no part of the local stack imports."""
PACKAGES_MAX = 60


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded_script("check_release", monkeypatch)


def _wheel(
    release: ModuleType, folder: Path, *, name: str = NAME, without: str = "", more: tuple[str, ...] = ()
) -> Path:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for need in (*release.NEEDED, "headrace-0.3.0.dist-info/METADATA", more):
            if need and need != without:
                archive.writestr(f"{need}base.html" if need.endswith("/") else need, "")
    return folder / name


def test_a_complete_wheel_of_the_tagged_version_passes(release: ModuleType, tmp_path: Path) -> None:
    assert release.problems(TAG, _wheel(release, tmp_path), PROJECT, CHANGELOG) == []


@pytest.mark.parametrize("need", range(5))
def test_a_wheel_without_a_part_is_refused(release: ModuleType, tmp_path: Path, need: int) -> None:
    missing = release.NEEDED[need]
    found = release.problems(TAG, _wheel(release, tmp_path, without=missing), PROJECT, CHANGELOG)
    assert found == [f"the wheel lacks {missing}"]


def test_versions_that_differ_are_refused(release: ModuleType, tmp_path: Path) -> None:
    wheel = _wheel(release, tmp_path)
    assert "the tag is v0.2.9" in release.problems("v0.2.9", wheel, PROJECT, CHANGELOG)[0]
    assert "CHANGELOG.md has no section" in release.problems(TAG, wheel, PROJECT, "## [Unreleased]\n")[0]
    other = _wheel(release, tmp_path, name="headrace-0.2.0-py3-none-any.whl")
    assert release.problems(TAG, other, PROJECT, CHANGELOG) == [f"{other.name} is not a wheel of 0.3.0"]


def test_a_wheel_with_another_package_is_refused(release: ModuleType, tmp_path: Path) -> None:
    wheel = _wheel(release, tmp_path, more="tests/__init__.py")
    assert release.problems(TAG, wheel, PROJECT, CHANGELOG) == ["the wheel would install tests next to headrace"]


def _packages_of(requirement: str, seen: set[tuple[str, str]]) -> set[str]:
    """The installed packages that a requirement brings, with those that they require."""
    match = re.match(r"([\w.-]+)\s*(?:\[([\w\s,-]+)\])?", requirement)
    assert match is not None
    name = re.sub(r"[-_.]+", "-", match[1]).lower()
    found = {name}
    for extra in ("", *(each.strip() for each in (match[2] or "").split(",") if each)):
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # for another system or another Python
            continue
        for each in required:
            wanted = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", each)
            if (wanted[1] if wanted else "") == extra:
                found |= _packages_of(each, seen)
    return found


def test_the_local_stack_brings_no_heavy_package() -> None:
    found = _packages_of("headrace[local]", set())
    assert {"moto", "flask", "typer", "grpcio", "cryptography"} <= found
    assert found & HEAVY == set()
    assert len(found) <= PACKAGES_MAX
