"""The build context of the segment store's image: what its Dockerfile copies, and nothing else.

That is the modules that a store imports, and the store's part of requirements.lock. Everything else would give the
image a new name whenever it changes, and a new image replaces all stores. To build by hand:

    python -m infra.packaging.image_context build/image
    docker build --platform linux/arm64 --file build/image/segmentstore_fargate/Dockerfile build/image
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from infra.packaging.import_closure import import_closure
from infra.packaging.locked_requirements import closure, declared_requirements, read_lock, requirements_text
from infra.packaging.project import LOCK_FILE, PYPROJECT_FILE, ROOT

DOCKERFILE = "segmentstore_fargate/Dockerfile"
REQUIREMENTS = "requirements.txt"
PROGRAMS = ("segmentstore_fargate.supervised", "segmentstore_fargate.__main__", "segmentstore_fargate.probe")
"""What is run in a container of the image: the supervisor, the store that it starts, the health check."""
_EXTRA = "segment-store"


def stage_image_context(target: Path, root: Path = ROOT) -> None:
    """Fill the folder `target`, which may be new, from the sources below `root`."""
    target.mkdir(parents=True, exist_ok=True)
    roots = declared_requirements(PYPROJECT_FILE.read_text(), _EXTRA)
    (target / REQUIREMENTS).write_text(requirements_text(closure(read_lock(LOCK_FILE.read_text()), roots)))
    for file in (root / DOCKERFILE, *import_closure(root, PROGRAMS)):
        copy = target / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


if __name__ == "__main__":
    stage_image_context(Path(sys.argv[1]))
