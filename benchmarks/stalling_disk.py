"""A disk of one segment store process that stalls at regular times, for `benchmarks.stalled_disk`.

The directory of `sitecustomize` comes first on the path of all processes of a local stack, so that Python calls
`install` when they start. A stall lasts until its end is due: a sync that comes in the middle waits for the rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer

FILE_VARIABLE: Final = "HEADRACE_BENCHMARK_STALLS"
"""A file with the id of a store and the seconds between stalls and of each. Without the file nothing stalls."""

STORE_VARIABLE: Final = "HEADRACE_STORE_ID"
SITE: Final = "from benchmarks import stalling_disk\nstalling_disk.install()\n"


def environment(directory: Path, file: Path) -> dict[str, str]:
    """What processes need in their environment; writes into the empty `directory`."""
    (directory / "sitecustomize.py").write_text(SITE)
    root = Path(__file__).resolve().parents[1]
    path = [str(directory), str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {FILE_VARIABLE: str(file), "PYTHONPATH": os.pathsep.join(path)}


def stall(file: Path, store_id: str, every_s: float, for_s: float) -> None:
    """Begin to stall the disk of a store. `file.unlink()` ends it."""
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(f"{store_id} {every_s} {for_s}")
    unfinished.rename(file)


def install() -> None:
    """Let the syncs of this process stall, if it is a segment store."""
    store_id, file = os.environ.get(STORE_VARIABLE), Path(os.environ.get(FILE_VARIABLE, ""))
    if not store_id or not file.name:
        return
    sync, write = os.fdatasync, os.pwritev

    def fdatasync(descriptor: int) -> None:
        time.sleep(_rest_of_stall_s(file, store_id))
        sync(descriptor)

    def pwritev(descriptor: int, buffers: Sequence[Buffer], position: int, flags: int = 0) -> int:
        if flags & os.RWF_DSYNC:
            time.sleep(_rest_of_stall_s(file, store_id))
        return write(descriptor, buffers, position, flags)

    os.fdatasync = fdatasync  # type: ignore[assignment]
    os.pwritev = pwritev  # type: ignore[assignment]


def _rest_of_stall_s(file: Path, store_id: str) -> float:
    try:
        stalled, every_s, for_s = file.read_text().split()
    except FileNotFoundError:
        return 0.0
    if stalled != store_id:
        return 0.0
    # Stalls are at the end of each period, so that none begins with the measurement of an idle disk.
    position_s = (time.time() - file.stat().st_mtime) % float(every_s)
    return float(every_s) - position_s if position_s >= float(every_s) - float(for_s) else 0.0
