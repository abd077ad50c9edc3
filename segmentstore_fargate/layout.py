"""The layout of a volume: a file next to the journals that records which journal directory has which containers' logs.

Another number of processes or stores assigns containers to other journals. A process with such settings would not find
the logs of its containers, would open them empty or from tier 2, and would lose acknowledged events. Therefore a store
uses a volume with logs only with the settings under which they were written. If logs have three copies, journals are
replicas, which say themselves what they hold, and any settings do.
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


def settle_layout(data_dir: Path, layout: Layout, copies: int = 1) -> None:
    """Record the layout of a volume without logs, or check that the volume has this layout.

    With more `copies` than one the layout of a volume with logs may change.

    Raises:
        IllegalStateError: there are logs in another layout.
        CorruptError: the recorded layout cannot be read.
        OSError: the volume cannot be written.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    wanted = {name: list(containers) for name, containers in layout.items()}
    lock = os.open(data_dir / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the processes of one store start at the same moment
        present = _read(data_dir / LAYOUT_NAME)
        if present == wanted:
            return
        logs = sorted({str(path.parent.relative_to(data_dir)) for path in _log_files(data_dir)})
        if logs and copies == 1:
            raise IllegalStateError(
                f"{data_dir} has logs laid out as {present or 'in an unknown way'}, but the settings ask for {wanted}: "
                "start with the old numbers of processes and stores (HEADRACE_PROCESSES, HEADRACE_STORE_COUNT, "
                "HEADRACE_STORE_INDEX, HEADRACE_CONTAINER_COUNT), or shut the store down gracefully with "
                f"them and then move {', '.join(logs)} away: a store with an empty volume starts from tier 2",
                details={"found": present, "wanted": wanted},
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
    lock = os.open(data_dir / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the processes of one store start at the same moment
        with contextlib.suppress(FileNotFoundError):
            if stored_id := path.read_text():  # empty: a release that did not sync it has lost it in a power failure
                return stored_id
        unfinished = data_dir / f"{_VOLUME_NAME}.{random_id}"
        _write_synced(unfinished, random_id)
        unfinished.rename(path)
        _sync_directory(data_dir)
        return random_id
    finally:
        os.close(lock)


def _log_files(data_dir: Path) -> Iterator[Path]:
    return (path for pattern in _LOG_PATTERNS for path in data_dir.glob(pattern))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptError(f"{path} does not tell the layout of the logs: restore it or replace the volume") from error


def _write(data_dir: Path, layout: Mapping[str, list[int]]) -> None:
    """Durably, and as a whole or not at all."""
    unfinished = data_dir / f"{LAYOUT_NAME}.unfinished"
    _write_synced(unfinished, json.dumps(layout))
    unfinished.rename(data_dir / LAYOUT_NAME)
    _sync_directory(data_dir)


def _write_synced(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
