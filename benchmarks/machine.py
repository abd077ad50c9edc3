"""Where and with what the figures were made. No paths, no host names: results may be published."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("headrace", "uvloop", "crc32c", "mmh3", "httpx", "boto3", "moto")
_MEMORY_FACTS = Path("/proc/meminfo")
_CPU_FACTS = Path("/proc/cpuinfo")


def machine_facts() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "cpu": _fact(_CPU_FACTS, "model name"),
        "memory": _fact(_MEMORY_FACTS, "MemTotal"),
        "kernel": platform.release(),
        "system": platform.system(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Versions of what takes part; what is not installed is left out."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _fact(file: Path, name: str) -> str | None:
    """The value of the first line `name : value`; None where the system has no such file."""
    if not file.exists():
        return None
    for line in file.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
