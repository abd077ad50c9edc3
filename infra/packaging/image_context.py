"""The build context of the segment store's image: the files that its Dockerfile copies, and nothing else.

The project root would do, but for its environments, caches and tests, which are big and would give the image a new
name whenever one of them changes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from infra.packaging.project import PYPROJECT_FILE, ROOT, source_files

DOCKERFILE = "segmentstore_fargate/Dockerfile"
_FILES = (DOCKERFILE, "requirements.lock", "README.md", PYPROJECT_FILE.name)
_PACKAGES = ("headrace", "segmentstore_fargate")


def stage_image_context(target: Path) -> None:
    """Copy the context into `target`, laid out as in the project, so that `docker build -f ... .` works there too."""
    copies = [(relative, ROOT / relative) for relative in _FILES]
    for relative, file in [*copies, *source_files(*_PACKAGES)]:
        copy = target / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
