"""The build context of the segment store's image: what its Dockerfile copies, and nothing else.

The project root would do for the sources, but its environments, caches and tests are big and would give the image a new
name whenever one of them changes; and the image wants the store's part of requirements.lock only. To build by hand:

    python -m infra.packaging.image_context build/image
    docker build --platform linux/arm64 --file build/image/segmentstore_fargate/Dockerfile build/image
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from infra.packaging.locked_requirements import closure, declared_requirements, read_lock, requirements_text
from infra.packaging.project import LOCK_FILE, PYPROJECT_FILE, ROOT, source_files

DOCKERFILE = "segmentstore_fargate/Dockerfile"
REQUIREMENTS = "requirements.txt"
_PACKAGES = ("headrace", "segmentstore_fargate")
_EXTRA = "segment-store"


def stage_image_context(target: Path) -> None:
    """Fill the folder `target`, which may be new."""
    target.mkdir(parents=True, exist_ok=True)
    roots = declared_requirements(PYPROJECT_FILE.read_text(), _EXTRA)
    (target / REQUIREMENTS).write_text(requirements_text(closure(read_lock(LOCK_FILE.read_text()), roots)))
    for relative, file in [(DOCKERFILE, ROOT / DOCKERFILE), *source_files(*_PACKAGES)]:
        copy = target / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


if __name__ == "__main__":
    stage_image_context(Path(sys.argv[1]))
