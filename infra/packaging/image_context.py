"""The build contexts of images: what their Dockerfiles copy, and nothing else.

That is the modules that the programs of the image import, and their part of requirements.lock. Everything else would
give the image a new name whenever it changes, and a new image replaces all tasks. So the bridge has an image of its
own: in that of the stores, each change of the bridge would replace the stores. The context of the stores also has what
compiles their hot path: the script, the list of modules, and the compiler's part of requirements.lock.

To build by hand:

    python -m infra.packaging.image_context build/image
    docker build --platform linux/arm64 --file build/image/segmentstore_fargate/Dockerfile build/image
"""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from infra.packaging.import_closure import import_closure, imported_from_outside
from infra.packaging.locked_requirements import (
    closure,
    declared_group,
    declared_requirements,
    read_lock,
    requirements_text,
)
from infra.packaging.project import LOCK_FILE, PYPROJECT_FILE, ROOT

REQUIREMENTS = "requirements.txt"
COMPILER_REQUIREMENTS = "compiler-requirements.txt"
COMPILER_GROUP = "compiler"
COMPILER = Path("scripts/compile_modules.py")
PACKAGES = {"backports": "backports-zstd", "google": "protobuf", "grpc": "grpcio"}
"""The packages of modules whose names differ."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its Dockerfile, the programs that run in a container of it, and the extras of pyproject.toml for them.

    `is_whole` installs all of these extras, also what no program imports by itself. `is_compiled`: a stage of the
    Dockerfile compiles the modules of `[tool.headrace.compiled]`.
    """

    dockerfile: str
    programs: tuple[str, ...]
    extras: tuple[str, ...]
    is_whole: bool = False
    is_compiled: bool = False


SEGMENT_STORE = Image(
    "segmentstore_fargate/Dockerfile",
    # The supervisor, the store that it starts, the health check.
    ("segmentstore_fargate.supervised", "segmentstore_fargate.__main__", "segmentstore_fargate.probe"),
    ("segment-store",),
    is_whole=True,
    is_compiled=True,
)
GRPC_BRIDGE = Image(
    "infra/packaging/bridge.Dockerfile",
    ("headrace.bridge.__main__", "headrace.bridge.health"),
    ("grpc-bridge", "segment-store"),
)


def stage_image_context(target: Path, root: Path = ROOT, image: Image = SEGMENT_STORE) -> None:
    """Fill the folder `target`, which may be new, from the sources below `root`."""
    target.mkdir(parents=True, exist_ok=True)
    sources = import_closure(root, image.programs)
    needed = image_requirements(root, sources, image)
    lock = read_lock(LOCK_FILE.read_text())
    (target / REQUIREMENTS).write_text(requirements_text(closure(lock, needed)))
    if image.is_compiled:
        pyproject = PYPROJECT_FILE.read_text()
        compiler = closure(lock, declared_group(pyproject, COMPILER_GROUP))
        (target / COMPILER_REQUIREMENTS).write_text(requirements_text(compiler))
        (target / PYPROJECT_FILE.name).write_text(compiled_modules(pyproject))
        (target / COMPILER).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / COMPILER, target / COMPILER)
    for file in (root / image.dockerfile, *sources):
        copy = target / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def image_requirements(root: Path, sources: list[Path], image: Image) -> frozenset[str]:
    """The direct requirements of an image. Raises RuntimeError: a program needs a package that is not declared."""
    declared = declared_requirements(PYPROJECT_FILE.read_text(), *image.extras)
    if image.is_whole:
        return declared
    modules = imported_from_outside(root, sources)
    imported = frozenset(PACKAGES.get(name, name.replace("_", "-")) for name in modules)
    if undeclared := imported - declared:
        raise RuntimeError(f"the image needs what pyproject.toml does not declare: {', '.join(sorted(undeclared))}")
    return imported


def compiled_modules(pyproject: str) -> str:
    """The list of compiled modules alone: another change of pyproject.toml must not make another image."""
    groups = tomllib.loads(pyproject)["tool"]["headrace"]["compiled"]
    lines = [f"{name} = {json.dumps(paths)}" for name, paths in groups.items()]
    return "\n".join(["[tool.headrace.compiled]", *lines, ""])


if __name__ == "__main__":
    stage_image_context(Path(sys.argv[1]))
