"""An image holds what its programs import: enough to run, and no more, so that it seldom changes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dockerfile_steps import stages

from infra.packaging.image_context import GRPC_BRIDGE, SEGMENT_STORE, Image, stage_image_context
from infra.packaging.import_closure import import_closure

ROOT = Path(__file__).resolve().parents[2]

IMPORT_ALL = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] in ("headrace", "segmentstore_fargate", "functions", "infra"):
        assert module.__file__.startswith(sys.argv[1]), module.__file__
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the project's packages that a test may change."""
    for name in ("headrace", "segmentstore_fargate", "functions"):
        shutil.copytree(ROOT / name, tmp_path / "sources" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "sources"


@pytest.fixture
def image_of(tmp_path: Path, sources: Path):
    """The hash of the context that the image is built from, as the sources are now."""

    def digest() -> str:
        target = tmp_path / "context"
        shutil.rmtree(target, ignore_errors=True)
        stage_image_context(target, sources)
        files = sorted(path for path in target.rglob("*") if path.is_file())
        return hashlib.sha256(
            b"".join(str(path.relative_to(target)).encode() + path.read_bytes() for path in files)
        ).hexdigest()

    return digest


ELSEWHERE = (
    "functions/controller/scopes.py",
    "headrace/controller/services/scope_service.py",
    "headrace/topology/functions.py",
    "headrace/topology/routes.py",
    "headrace/controller/operations/scale_stream.py",
    "headrace/client/writing/event_writer.py",
    "headrace/cli/stream.py",
    "headrace/spark/plans.py",
)
OF_A_STORE = (
    "segmentstore_fargate/probe.py",
    "segmentstore_fargate/supervised.py",
    "segmentstore_fargate/Dockerfile",
    "headrace/segmentstore/store.py",
    "headrace/adapters/s3/chunk_storage.py",
    "headrace/codec/data_frames.py",
    "headrace/__init__.py",
)


@pytest.mark.nightly
def test_only_a_change_of_a_store_makes_another_image(sources: Path, image_of):
    before = image_of()
    for changed in ELSEWHERE:
        _change(sources / changed)
    assert image_of() == before
    images = {"before": before}
    for changed in OF_A_STORE:
        _change(sources / changed)
        images[changed] = image_of()
    assert len(set(images.values())) == len(images), images


def _change(path: Path) -> None:
    with path.open("a") as file:
        file.write("\n# changed\n")


@pytest.mark.parametrize("image", [SEGMENT_STORE, GRPC_BRIDGE], ids=lambda image: image.dockerfile)
def test_programs_run_from_their_image_alone(tmp_path: Path, image: Image):
    """Each module is imported by a process that finds no other part of the project; a missing one ends it."""
    context = tmp_path / "context"
    stage_image_context(context, image=image)
    modules = [
        ".".join(path.relative_to(context).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(context.rglob("*.py"))
    ]
    command = [sys.executable, "-c", IMPORT_ALL, str(context), *modules]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_imports_are_followed_into_functions_and_packages(tmp_path: Path):
    package = tmp_path / "own"
    package.mkdir()
    (package / "__init__.py").write_text("from own import by_package")
    (package / "start.py").write_text(
        "from typing import TYPE_CHECKING\nimport json\n"
        "def late():\n    from own.late import name\n"
        "if TYPE_CHECKING:\n    import own.for_types\n"
    )
    for name in ("by_package", "late", "for_types", "unused"):
        (package / f"{name}.py").write_text("")
    names = [path.name for path in import_closure(tmp_path, ["own.start"])]
    assert names == ["__init__.py", "by_package.py", "late.py", "start.py"]
    with pytest.raises(ValueError, match=r"own\.missing"):
        import_closure(tmp_path, ["own.missing"])


def test_every_program_of_the_image_is_counted():
    """The Dockerfile and the health check name programs; a third would be missing from the image."""
    for image in (SEGMENT_STORE, GRPC_BRIDGE):
        started = image.programs[0].removesuffix(".__main__")
        assert f'"{started}"' in (ROOT / image.dockerfile).read_text()
        assert import_closure(ROOT, image.programs)


def test_the_images_have_the_same_base():
    bases = [stages((ROOT / image.dockerfile).read_text())[0].base for image in (SEGMENT_STORE, GRPC_BRIDGE)]
    assert bases[0] == bases[1]
    assert "@sha256:" in bases[0]
