"""Makes `spark_stream_double` importable: tests have no packages, and each process of a Spark test needs the module."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
