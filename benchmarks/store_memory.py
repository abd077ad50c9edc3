"""The resident memory of segment store processes, as Linux tells it."""

from __future__ import annotations

from pathlib import Path

_KIB = 1024


def resident_bytes(data_directory: Path) -> int:
    """Of the largest segment store process whose data lies below `data_directory`; 0 where /proc does not tell."""
    needle = f"HEADRACE_DATA_DIR={data_directory}".encode()
    found = [0]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                needle in (process / "environ").read_bytes()
                and b"segmentstore_fargate" in (process / "cmdline").read_bytes()
            ):
                found.append(resident_bytes_of(int(process.name)))
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    return max(found)


def resident_bytes_of(pid: int) -> int:
    """Of one process.

    Raises:
        OSError: it has ended.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * _KIB
    return 0
