"""The bundle holds what the handlers import, for the machine that Lambda runs them on, as locked."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from headrace import topology
from infra.packaging.locked_requirements import closure, declared_requirements, read_lock
from infra.packaging.project import LOCK_FILE, PYPROJECT_FILE

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]


@pytest.fixture
def bundle(assembly) -> Path:
    (handler_package,) = assembly.directory.glob("asset.*/functions/__init__.py")
    return handler_package.parents[1]


def test_the_bundle_holds_the_sources(bundle, project):
    for package in ("headrace", "functions"):
        for file in (project / package).rglob("*.py"):
            assert (bundle / file.relative_to(project)).read_bytes() == file.read_bytes()
    assert not list(bundle.rglob("__pycache__"))
    assert not (bundle / "infra").exists()


def test_the_bundle_holds_the_locked_versions_and_no_others(bundle):
    roots = declared_requirements(PYPROJECT_FILE.read_text(), "controller")
    locked = {(package.name, package.version) for package in closure(read_lock(LOCK_FILE.read_text()), roots)}
    installed = set()
    for info in bundle.glob("*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        installed.add((name.replace("_", "-").lower(), version))
    assert installed == locked


def test_native_modules_are_for_python_3_13_on_arm(bundle):
    native = [path.name for path in bundle.rglob("*.so")]
    assert any(name.startswith("_pydantic_core") for name in native)
    assert all("cpython-313-aarch64-linux-gnu" in name for name in native), native


@pytest.mark.parametrize("declared", topology.FUNCTIONS, ids=lambda declared: declared.name)
def test_the_handler_is_there_and_so_is_everything_it_imports(bundle, declared, imported_from_outside):
    module, _, name = declared.handler.rpartition(".")
    source = bundle / f"{module.replace('.', '/')}.py"
    assert name in _names_defined(source)
    missing = {
        imported
        for imported in imported_from_outside(bundle, module)
        if not (bundle / imported).is_dir() and not (bundle / f"{imported}.py").is_file()
    }
    # Native single-file modules and what only a type checker imports are looked at by name.
    missing = {imported for imported in missing if not list(bundle.glob(f"{imported}.*.so"))}
    assert missing == set()


def _names_defined(source: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names
