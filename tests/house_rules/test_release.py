"""What a wheel must be to be published, and what `headrace[local]` brings with it."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from scripts_under_test import loaded_script

ROOT = Path(__file__).resolve().parents[2]
TAG, NAME = "v0.3.0", "headrace-0.3.0-py3-none-any.whl"
PROJECT = """
[project]
version = "0.3.0"
[tool.cibuildwheel]
build = ["cp313-manylinux_*"]
[tool.headrace.compiled]
log = ["headrace/codec/events.py"]
"""
LIBRARIES = ("headrace/codec/events.cpython-313-x86_64-linux-gnu.so", "headrace_log__mypyc.cpython-313.so")
CHANGELOG = "## [Unreleased]\n\n## [0.3.0] - 2026-12-01\n"
HEAVY = {"sympy", "cfn-lint", "networkx", "aws-sam-translator", "pyarrow", "numpy"}
"""Packages that take tens of megabytes and that no part of the local stack imports."""
PACKAGES_MAX = 60


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded_script("check_release", monkeypatch)


def _problems(release: ModuleType, wheel: Path, *, tag: str = TAG, changelog: str = CHANGELOG) -> list[str]:
    found: list[str] = release.problems(tag, [wheel], PROJECT, changelog, pure_only=True)
    return found


def _wheel(
    release: ModuleType, folder: Path, *, name: str = NAME, without: str = "", more: tuple[str, ...] = ()
) -> Path:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for need in (*release.NEEDED, "headrace-0.3.0.dist-info/METADATA", *more):
            if need and need != without:
                archive.writestr(f"{need}base.html" if need.endswith("/") else need, "")
    return folder / name


def test_a_complete_wheel_of_the_tagged_version_passes(release: ModuleType, tmp_path: Path) -> None:
    assert _problems(release, _wheel(release, tmp_path)) == []


@pytest.mark.parametrize("need", range(5))
def test_a_wheel_without_a_part_is_refused(release: ModuleType, tmp_path: Path, need: int) -> None:
    missing = release.NEEDED[need]
    found = _problems(release, _wheel(release, tmp_path, without=missing))
    assert found == [f"the wheel lacks {missing}"]


def test_versions_that_differ_are_refused(release: ModuleType, tmp_path: Path) -> None:
    wheel = _wheel(release, tmp_path)
    assert "the tag is v0.2.9" in _problems(release, wheel, tag="v0.2.9")[0]
    assert "CHANGELOG.md has no section" in _problems(release, wheel, changelog="## [Unreleased]\n")[0]
    other = _wheel(release, tmp_path, name="headrace-0.2.0-py3-none-any.whl")
    assert _problems(release, other) == [f"{other.name} is not a wheel of 0.3.0"]


def test_a_wheel_with_another_package_is_refused(release: ModuleType, tmp_path: Path) -> None:
    wheel = _wheel(release, tmp_path, more=("tests/__init__.py",))
    assert _problems(release, wheel) == ["the wheel would install tests next to headrace"]


def _compiled(release: ModuleType, folder: Path, processor: str, libraries: tuple[str, ...] = LIBRARIES) -> Path:
    return _wheel(release, folder, name=f"headrace-0.3.0-cp313-cp313-manylinux_2_28_{processor}.whl", more=libraries)


def test_a_release_has_compiled_wheels(release: ModuleType, tmp_path: Path) -> None:
    wheels = [_wheel(release, tmp_path), *(_compiled(release, tmp_path, each) for each in ("aarch64", "x86_64"))]
    assert release.problems(TAG, wheels, PROJECT, CHANGELOG) == []
    assert release.problems(TAG, wheels[:2], PROJECT, CHANGELOG) == ["there is no cp313 x86_64 wheel"]
    assert release.problems(TAG, wheels[1:], PROJECT, CHANGELOG) == ["there is no pure wheel"]


@pytest.mark.parametrize("missing", LIBRARIES)
def test_a_compiled_wheel_without_a_module_is_refused(release: ModuleType, tmp_path: Path, missing: str) -> None:
    kept = tuple(library for library in LIBRARIES if library != missing)
    wheels = [_wheel(release, tmp_path), _compiled(release, tmp_path, "aarch64")]
    wheels.append(_compiled(release, tmp_path, "x86_64", kept))
    (problem,) = release.problems(TAG, wheels, PROJECT, CHANGELOG)
    assert problem == f"{wheels[-1].name} lacks the machine code of {missing.partition('.')[0]}"


def test_a_pure_wheel_has_no_machine_code(release: ModuleType, tmp_path: Path) -> None:
    found = _problems(release, _wheel(release, tmp_path, more=LIBRARIES[:1]))
    assert found == [f"{NAME} has unexpected machine code, headrace/codec/events"]


@pytest.mark.parametrize(
    ("platform", "kind"),
    [
        ("manylinux_2_17_x86_64.manylinux2014_x86_64", "cp313 x86_64"),
        ("manylinux2014_aarch64.manylinux_2_17_aarch64", "cp313 aarch64"),
        ("linux_x86_64", "cp313 linux_x86_64"),
        ("any", "pure"),
    ],
)
def test_kinds_of_wheels_are_read_from_names(release: ModuleType, platform: str, kind: str) -> None:
    assert release.wheel_kind(f"headrace-0.3.0-cp313-cp313-{platform}.whl") == kind


def test_the_workflow_builds_what_is_checked(release: ModuleType) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pythons = {f"cp3{minor}" for minor in (11, 12, 13)}
    assert release.compiled_kinds(settings) == {f"{python} {each}" for python in pythons for each in release.PROCESSORS}
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "machine: [ubuntu-latest, ubuntu-24.04-arm]" in workflow
    assert "needs: [build, compiled]" in workflow


def test_a_compiled_build_installs_the_locked_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook runs in the environment of the build; that of the tests has no hatchling."""
    for name in ("", ".builders", ".builders.hooks", ".builders.hooks.plugin", ".builders.hooks.plugin.interface"):
        monkeypatch.setitem(sys.modules, f"hatchling{name}", SimpleNamespace(BuildHookInterface=object))
    hook = loaded_script("build_hook", monkeypatch)
    pins = dict(pin.split("==") for pin in hook.locked(ROOT))
    assert {"mypy", "setuptools", "backports-zstd", "msgspec"} <= set(pins)
    lock = (ROOT / "requirements.lock").read_text()
    assert [name for name, version in pins.items() if f"\n{name}=={version}" not in lock] == []


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
