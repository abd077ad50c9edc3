"""The bundle holds what the handlers import, for the machine that Lambda runs them on, as locked."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import botocore.loaders
import botocore.session
import pytest
from cdk_assembly import Assembly
from syntax_trees import syntax_tree

from infra.packaging.botocore_data import SERVICES, reduce_botocore_data
from infra.packaging.byte_code import find_interpreter
from infra.packaging.lambda_bundle import PYTHON_VERSION, SHARED, UNUSED, _fingerprint, bundle_sources
from infra.packaging.lazy_packages import PACKAGES
from infra.packaging.locked_requirements import closure, declared_requirements, read_lock
from infra.packaging.project import LOCK_FILE, PYPROJECT_FILE, ROOT

ZIPPED_BYTES_MAX = 6_000_000
PYTHON_3_13_MAGIC = (3571).to_bytes(2, "little") + b"\r\n"

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]


@pytest.fixture
def bundle(assembly: Assembly) -> Path:
    """That of most functions. That for the network has the model of EC2, and that of the canary a client."""
    bundles = [each.parents[1] for each in assembly.directory.glob("asset.*/functions/__init__.py")]
    others = ("botocore/data/ec2", "headrace/client")
    (shared,) = [each for each in bundles if not any((each / other).exists() for other in others)]
    return shared


def test_the_bundle_holds_the_sources_that_handlers_import(bundle: Path, project: Path):
    sources = [file.relative_to(ROOT) for file in bundle_sources()]
    assert {
        path.relative_to(bundle) for name in ("headrace", "functions") for path in (bundle / name).rglob("*.py")
    } == {*sources}
    for source in sources:
        assert (bundle / source).read_bytes() == (project / source).read_bytes()
    assert not (bundle / "infra").exists()
    assert not (bundle / "headrace" / "client").exists(), "a change there would replace all functions"


def test_the_bundle_holds_the_locked_versions_and_no_others(bundle: Path):
    roots = {"aws-lambda-powertools", "botocore", "mmh3", "msgspec", "pynamodb"}
    assert roots <= declared_requirements(PYPROJECT_FILE.read_text(), "controller")
    locked = {(package.name, package.version) for package in closure(read_lock(LOCK_FILE.read_text()), roots)}
    installed = set()
    for info in bundle.glob("*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        installed.add((name.replace("_", "-").lower(), version))
    assert installed == locked


def test_every_source_has_byte_code_that_lambda_takes_unchecked(bundle: Path):
    """Or none has any, where no interpreter of Lambda's version can compile: that bundle starts more slowly."""
    sources = list(bundle.rglob("*.py"))
    assert len(sources) > 500
    if find_interpreter(PYTHON_VERSION) is None:
        assert not list(bundle.rglob("*.pyc"))
        return
    for source in sources:
        compiled_file = source.parent / "__pycache__" / f"{source.stem}.cpython-313.pyc"
        header = compiled_file.read_bytes()[:8]
        assert header == PYTHON_3_13_MAGIC + (1).to_bytes(4, "little"), source


@pytest.mark.parametrize("package", PACKAGES)
def test_roots_import_their_parts_when_they_are_used(bundle: Path, package):
    tree = syntax_tree((bundle / package / "__init__.py").read_text())
    assert "__getattr__" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert len([node for node in tree.body if isinstance(node, ast.ImportFrom)]) <= 1


def test_the_zip_is_small(bundle: Path, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "bundle.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(path for path in bundle.rglob("*") if path.is_file()):
            archive.write(file, file.relative_to(bundle))
    assert (tmp_path / "bundle.zip").stat().st_size <= ZIPPED_BYTES_MAX


REFUSE_UNUSED = """
import importlib, sys
unused = sys.argv[1].split(",")
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in unused):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
for handler in sys.argv[2:]:
    importlib.import_module(handler)
from functions import wiring
wiring.history_service(), wiring.sqs_client()
"""


def test_what_is_left_out_is_not_imported(bundle: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]):
    """The same versions are imported on this machine, where the left-out parts are refused."""
    assert not [part for part in UNUSED if (bundle / part).exists()]
    modules = [part.removesuffix(".py").replace("/", ".") for part in UNUSED if not part.endswith(".js")]
    handlers = [each.handler.rpartition(".")[0] for each in SHARED.functions]
    variables = {"HEADRACE_METADATA_TABLE": "t", "HEADRACE_CHUNK_BUCKET": "b"}
    arguments = f"import sys; sys.argv[1:] = {[','.join(modules), *handlers]!r}\n"
    finished = run_python(arguments + REFUSE_UNUSED, **variables)
    assert finished.returncode == 0, finished.stderr


def test_only_models_of_services_in_use_are_there(bundle: Path):
    data = bundle / "botocore" / "data"
    assert {path.name for path in data.iterdir() if path.is_dir()} == SERVICES == _services_of_adapters(bundle)
    endpoints = json.loads((data / "endpoints.json").read_text())
    for partition in endpoints["partitions"]:
        assert set(partition["services"]) <= SERVICES


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_a_reduced_model_says_what_the_whole_one_does(bundle: Path, service):
    """Every operation with every member of its input and output, and every endpoint."""
    whole = botocore.loaders.Loader(include_default_search_paths=True)
    reduced = botocore.loaders.Loader([str(bundle / "botocore" / "data")], include_default_search_paths=False)
    for kind in ("service-2", "endpoint-rule-set-1", "paginators-1"):
        expected, found = (each.load_service_model(service, kind) for each in (whole, reduced))
        assert _without_documentation(expected) == _without_documentation(found)
    assert set(_documentation(reduced.load_service_model(service, "service-2"))) == {""}
    session = botocore.session.Session()
    session.register_component("data_loader", reduced)
    client = session.create_client(service, region_name="us-east-1")
    assert client.meta.endpoint_url.startswith("https://")


def _documentation(node):
    """The prose in a model; a member of that name is none."""
    for name, value in node.items() if isinstance(node, dict) else enumerate(node if isinstance(node, list) else ()):
        if name == "documentation" and isinstance(value, str):
            yield value
        yield from _documentation(value)


def test_what_is_reduced_stays_whole_where_it_is_installed(tmp_path: Path):
    """An installer may link files: writing into one would change it in every environment of the machine."""
    installed = Path(botocore.__file__).parent / "data"
    data, linked = tmp_path / "data", tmp_path / "linked"
    for name in SERVICES:
        shutil.copytree(installed / name, linked / name)
    shutil.copyfile(installed / "endpoints.json", linked / "endpoints.json")
    shutil.copytree(linked, data, copy_function=os.link)
    reduce_botocore_data(data)
    for file in (path for path in linked.rglob("*") if path.is_file()):
        assert file.read_bytes() == (installed / file.relative_to(linked)).read_bytes()
    sizes = [(path / "endpoints.json").stat().st_size for path in (data, linked)]
    assert sizes[0] < sizes[1]


def test_a_botocore_without_a_service_is_refused(tmp_path: Path):
    (tmp_path / "sqs").mkdir()
    with pytest.raises(FileNotFoundError):
        reduce_botocore_data(tmp_path)


def _without_documentation(node):
    if isinstance(node, dict):
        return {k: _without_documentation(v) for k, v in node.items() if k != "documentation" or isinstance(v, dict)}
    return [_without_documentation(each) for each in node] if isinstance(node, list) else node


def _services_of_adapters(bundle) -> set[str]:
    """The services that clients are made of, read from the sources."""
    return {
        ast.literal_eval(call.args[0])
        for source in (bundle / "headrace" / "adapters").rglob("*.py")
        for call in ast.walk(syntax_tree(source.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "create_client"
    }


def test_a_bundle_without_byte_code_has_another_name():
    assert _fingerprint("r", has_byte_code=True) != _fingerprint("r", has_byte_code=False)


def test_no_interpreter_is_found_for_a_version_that_is_not_there():
    assert find_interpreter("3.1") is None


def test_native_modules_are_for_python_3_13_on_arm(bundle: Path):
    native = [path.name for path in bundle.rglob("*.so")]
    assert any(name.startswith("_core") for name in native)
    assert all("cpython-313-aarch64-linux-gnu" in name for name in native), native


@pytest.mark.parametrize("declared", SHARED.functions, ids=lambda declared: declared.name)
def test_the_handler_is_there_and_so_is_everything_it_imports(
    bundle: Path, declared, imported_from_outside: Callable[[Path, str], set[str]]
):
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
    for node in syntax_tree(source.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names
