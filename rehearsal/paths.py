"""Where a rehearsal keeps its files: below `build/rehearsal`, which the next one empties."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SCRATCH: Final = ROOT / "build" / "rehearsal"
EMULATOR_PYTHON: Final = ROOT / ".venv-rehearsal" / "bin" / "python"
CDK: Final = ROOT / "node_modules" / ".bin" / "cdk"
REPORT: Final = SCRATCH / "report.md"

LOGS: Final = SCRATCH / "logs"
ASSEMBLIES: Final = SCRATCH / "assemblies"
SETTLED: Final = SCRATCH / "settled"
"""A file for each service whose tasks run: its task definition."""
TASKS: Final = SCRATCH / "tasks"
"""The logs of tasks."""
VOLUMES: Final = SCRATCH / "volumes"
HOME: Final = SCRATCH / "home"
TEMPORARY: Final = SCRATCH / "tmp"
