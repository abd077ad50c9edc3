"""Where and with what the figures were made. No paths, no host names: results may be published."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

_PACKAGES = ("headrace", "uvloop", "crc32c", "mmh3", "httpx", "boto3", "botocore", "pynamodb", "moto")
_MEMORY_FACTS = Path("/proc/meminfo")
_CPU_FACTS = Path("/proc/cpuinfo")
_CPU_TIMES = Path("/proc/stat")


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


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Ticks of all cores since the start of the system: those in which something ran, and those in which it would have
    run if the host of this virtual machine had not given the core to somebody else (proc(5), "steal")."""

    used: int
    stolen: int

    @classmethod
    def now(cls) -> Self | None:
        """None where the system does not say."""
        if not _CPU_TIMES.exists():
            return None
        return cls.of_line(_CPU_TIMES.read_text().partition("\n")[0])

    @classmethod
    def of_line(cls, line: str) -> Self:
        """Reads the line `cpu user nice system idle iowait irq softirq steal ...`."""
        user, nice, system, _idle, _waiting, irq, softirq, stolen = map(int, line.split()[1:9])
        return cls(user + nice + system + irq + softirq, stolen)

    def stolen_percent_since(self, before: ProcessorTime) -> float:
        """Of what was wanted, the share that was not given."""
        stolen = self.stolen - before.stolen
        wanted = self.used - before.used + stolen
        return 100 * stolen / wanted if wanted else 0.0


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
