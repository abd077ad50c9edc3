"""Which containers' logs lie in which journal directory of a volume, written down beside them.

Another number of processes or of stores gives containers to other journals. A process that started then would find no
log of theirs where it looks, take the containers for unwritten ones or go back to what tier 2 has, and leave
acknowledged events behind. So a volume with logs is only taken by the settings that it was written with.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headrace.model.errors import CorruptError, IllegalStateError

LAYOUT_NAME: Final = "layout.json"
_LOCK_NAME: Final = ".layout.lock"
_VOLUME_NAME: Final = "volume-id"
_SERVED_NAME: Final = "served"
_SETTLED_PREFIX: Final = "settled-"
_LOG_PATTERNS: Final = ("journal/journal-*", "process-*/journal/journal-*")
_SINGLE_PROCESS: Final = "journal"

Layout = Mapping[str, Sequence[int]]
"""Containers by journal directory, relative to the volume's."""


def journal_directory(process: int, processes: int) -> str:
    """Where a process keeps its journal, relative to the volume's directory."""
    return _SINGLE_PROCESS if processes == 1 else f"process-{process}/journal"


def settle_layout(data_dir: Path, layout: Layout) -> None:
    """Write the layout of a volume down before there are logs on it, or find that they are laid out like that.

    Raises:
        IllegalStateError: there are logs, and they are laid out otherwise.
        CorruptError: what was written down cannot be read.
        OSError: the volume does not take it.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    wanted = {name: list(containers) for name, containers in layout.items()}
    lock = os.open(data_dir / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the processes of one store start at the same moment
        found = _read(data_dir / LAYOUT_NAME)
        if found == wanted:
            return
        logs = sorted({str(path.parent.relative_to(data_dir)) for path in _log_files(data_dir)})
        of_older_version = found is None and list(wanted) == logs == [_SINGLE_PROCESS]
        if logs and not of_older_version:
            raise IllegalStateError(
                f"{data_dir} has logs laid out as {found or 'nobody wrote down'}, but the settings ask for {wanted}: "
                "start with the old numbers of processes and stores (HEADRACE_PROCESSES, HEADRACE_STORE_COUNT, "
                "HEADRACE_STORE_INDEX, HEADRACE_CONTAINER_COUNT), or stop in good order with them and then move "
                f"{', '.join(logs)} away: a store with an empty volume starts from tier 2",
                details={"found": found, "wanted": wanted},
            )
        _write(data_dir, wanted)
    finally:
        os.close(lock)


def has_logs(data_dir: Path) -> bool:
    """Whether a process has ever begun a journal on this volume."""
    return any(_log_files(data_dir))


def mark_served(data_dir: Path) -> None:
    """Note that a process accepts connections: from now on the volume may have the only copy of an event.

    Raises:
        OSError: the volume does not take it.
    """
    (data_dir / _SERVED_NAME).touch()


def was_served(data_dir: Path) -> bool:
    """Whether a process has ever accepted connections on this volume."""
    return (data_dir / _SERVED_NAME).exists()


def mark_settled(data_dir: Path, process: int) -> None:
    """Note that this process of the store has served everything that was its own: the note outlives restarts.

    Raises:
        OSError: the volume does not take it.
    """
    (data_dir / f"{_SETTLED_PREFIX}{process}").touch()


def was_settled(data_dir: Path, process: int) -> bool:
    """Whether this process of the store has ever served everything that was its own on this volume."""
    return (data_dir / f"{_SETTLED_PREFIX}{process}").exists()


def volume_id(data_dir: Path, random_id: str) -> str:
    """What tells this volume from every other; `random_id` becomes it if it has none yet.

    Raises:
        OSError: the volume does not take it.
    """
    path = data_dir / _VOLUME_NAME
    unfinished = data_dir / f"{_VOLUME_NAME}.{random_id}"
    unfinished.write_text(random_id)
    with contextlib.suppress(FileExistsError):
        os.link(unfinished, path)  # of processes that start at the same moment one is the first
    unfinished.unlink()
    return path.read_text()


def _log_files(data_dir: Path) -> Iterator[Path]:
    return (path for pattern in _LOG_PATTERNS for path in data_dir.glob(pattern))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptError(f"{path} does not say which logs lie where: restore it or take the volume away") from error


def _write(data_dir: Path, layout: Mapping[str, list[int]]) -> None:
    """Durably, and as a whole or not at all."""
    unfinished = data_dir / f"{LAYOUT_NAME}.unfinished"
    with unfinished.open("w") as file:
        json.dump(layout, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(data_dir / LAYOUT_NAME)
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
