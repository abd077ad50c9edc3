"""The data directory of the local stack, and the rule which of its data a new run continues.

Segment stores write their journals all the time, but the AWS emulator keeps its data in memory. Metadata and tier 2
reach the disk only when the stack shuts down gracefully. A journal is useless without the metadata that belongs to it,
and must not be used with other metadata. So the data are divided into worlds: a world is a directory with the data of
all parts. A world with a complete snapshot is continued. After a crash the stack starts a new world and keeps the old
directory, so that the user can examine it.

    DIR/lock                  locked by the stack that uses DIR
    DIR/world-0001/world.json the number of segment stores it was created with, and of containers with logs in S3
    DIR/world-0001/aws/       snapshot of the AWS emulator, exists only between two runs
    DIR/world-0001/store-0/   data of segment store 0
    DIR/world-0001/logs/      logs of all processes
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.local import resources
from headrace.local.failures import EXIT_USAGE, LocalStackError

_WORLD_PREFIX = "world-"
_SETTINGS = "world.json"


@dataclass(frozen=True, slots=True)
class World:
    """Data that belong together. `is_continued` means that its AWS snapshot must be loaded.

    `segment_stores` is the number of stores, and `s3_containers` that of containers whose logs are in S3. `note` is a
    message to the user about older data, or empty.
    """

    directory: Path
    is_continued: bool
    note: str = ""
    s3_containers: int = 0
    segment_stores: int = 1

    @property
    def snapshot_dir(self) -> Path:
        return self.directory / "aws"

    @property
    def logs_dir(self) -> Path:
        return self.directory / "logs"


class DataDirectory:
    """The directory with all worlds. If `path` is None it is temporary and removed when the stack stops."""

    def __init__(self, path: Path | None) -> None:
        self.is_temporary = path is None
        self.path = path or Path()
        self._lock: IO[str] | None = None

    def open(self, store_count: int | None = None, s3_containers: int | None = None) -> World:
        """Lock the directory and choose the world to run in.

        Without a number a world keeps that which it has. A new one has one store, and no container with a log in S3.

        Raises:
            LocalStackError: the directory cannot be written, another stack uses it, or its world was created with
                another number of segment stores, or has another number of containers with logs in S3.
        """
        if self.path.exists() and not self.path.is_dir():
            raise LocalStackError(f"data directory {self.path} is a file", exit_code=EXIT_USAGE)
        try:
            if self.is_temporary:
                self.path = Path(tempfile.mkdtemp(prefix="headrace-"))
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("w")
        except OSError as error:
            raise LocalStackError(f"cannot write to data directory {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LocalStackError(
                f"data directory {self.path} is in use by another local stack", exit_code=EXIT_USAGE
            ) from error
        return self._world(store_count, s3_containers)

    def close(self) -> None:
        """Unlock the directory, and remove it if it is temporary."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self.is_temporary and self.path != Path():
            shutil.rmtree(self.path, ignore_errors=True)

    def _world(self, store_count: int | None, s3_containers: int | None) -> World:
        numbers = sorted(
            int(world.name.removeprefix(_WORLD_PREFIX)) for world in self.path.glob(f"{_WORLD_PREFIX}[0-9]*")
        )
        last = self._directory(numbers[-1]) if numbers else None
        if last is not None and resources.is_complete_snapshot(last / "aws"):
            made_with, present = _settings(last)
            if store_count not in (None, made_with):
                raise LocalStackError(
                    f"the data in {last} belong to {made_with} segment stores: start with --segment-stores "
                    f"{made_with} or without it, or with another --data-dir",
                    exit_code=EXIT_USAGE,
                )
            if present and s3_containers not in (None, present):
                raise LocalStackError(
                    f"the data in {last} are spread over {present} containers with logs in S3, and this number never "
                    f"changes: start with --s3-containers {present} or without it, or with another --data-dir",
                    exit_code=EXIT_USAGE,
                )
            wanted = present if s3_containers is None else s3_containers
            _write_settings(last, made_with, wanted)
            return World(last, is_continued=True, s3_containers=wanted, segment_stores=made_with)
        directory = self._directory(numbers[-1] + 1 if numbers else 1)
        directory.mkdir()
        stores = store_count or 1
        _write_settings(directory, stores, s3_containers or 0)
        note = ""
        if last is not None:
            note = f"{last} was not shut down gracefully, so its metadata are lost: starting empty in {directory}"
        return World(directory, is_continued=False, note=note, s3_containers=s3_containers or 0, segment_stores=stores)

    def _directory(self, number: int) -> Path:
        return self.path / f"{_WORLD_PREFIX}{number:04d}"


def _settings(world: Path) -> tuple[int, int]:
    """The number of segment stores, and that of containers with logs in S3."""
    file = world / _SETTINGS
    try:
        settings = json.loads(file.read_text())
        return int(settings["segmentStores"]), int(settings["s3Containers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalStackError(
            f"{file} is damaged or of another release ({error!r}): start with another --data-dir, or remove {world}",
            exit_code=EXIT_USAGE,
        ) from error


def _write_settings(world: Path, store_count: int, s3_containers: int) -> None:
    """The file is replaced as a whole, so that a kill leaves the old one or the new one."""
    settings = {"segmentStores": store_count, "s3Containers": s3_containers}
    written = world / f"{_SETTINGS}.new"
    written.write_text(json.dumps(settings))
    os.replace(written, world / _SETTINGS)
