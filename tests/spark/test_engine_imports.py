"""Only the modules in `headrace/spark/engines/` and `jobs/` need pyspark; all others import without it."""

from __future__ import annotations

import subprocess
import sys

_IMPORT_ALL = """
import importlib, pkgutil, sys
sys.modules["pyspark"] = None
import headrace.spark
names = [module.name for module in pkgutil.walk_packages(headrace.spark.__path__, "headrace.spark.")]
for name in names:
    if not name.startswith(("headrace.spark.engines.", "headrace.spark.jobs.")):
        importlib.import_module(name)
assert len(names) > 10, names
"""


def test_the_connector_imports_without_pyspark() -> None:
    subprocess.run([sys.executable, "-c", _IMPORT_ALL], check=True)
