"""A job runs from exactly the archives that Glue and EMR Serverless get: nothing of the repository is on the path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble

from headrace.spark.engines.local_session import local_environment, submit_arguments
from infra.packaging.spark_archive import write_emr_archive, write_spark_archive

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.xdist_group("spark")]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TIMEOUT_S = 560
RUN_AND_TELL = """
import json, runpy, sys
script, modules = sys.argv[1], sys.argv[2]
sys.argv = sys.argv[1:2] + sys.argv[3:]
runpy.run_path(script, run_name="__main__")
found = {name: sys.modules[name].__file__ for name in ("headrace", "httpx", "mmh3", "pyarrow") if name in sys.modules}
open(modules, "w").write(json.dumps(found))
"""


def glue_path(directory: Path) -> Path:
    """Glue 5.1 and 6.0: the zip; the locked dependencies are installed."""
    write_spark_archive(directory / "headrace.zip")
    return directory / "headrace.zip"


def emr_path(directory: Path) -> Path:
    """EMR Serverless: the archive unpacked, as `spark.archives` does it."""
    write_emr_archive(directory / "environment.tar.gz", python_version=PYTHON)
    with tarfile.open(directory / "environment.tar.gz") as archive:
        archive.extractall(directory / "environment", filter="data")
    assert (directory / "environment" / "botocore").is_dir(), "auth=aws-iam and plans in S3 need it"
    return directory / "environment"


@pytest.mark.parametrize(
    ("library", "from_archive"),
    [(glue_path, {"headrace"}), (emr_path, {"headrace", "httpx", "mmh3", "pyarrow"})],
    ids=["glue", "emr-serverless"],
)
def test_a_job_runs_from_its_archive(
    store: StoreDouble, tmp_path: Path, library: Callable[[Path], Path], from_archive: set[str]
):
    path = library(tmp_path)
    script = Path(shutil.copy(ROOT / "glue_jobs" / "stream_to_lake.py", tmp_path))
    for number in range(50):
        store.stream.append(number / 50, json.dumps({"n": number}).encode())
    options = {"controller": store.url, "scope": SCOPE, "stream": STREAM, "metrics": str(tmp_path / "metrics.json")}
    options |= {"output": str(tmp_path / "lake"), "checkpoint": str(tmp_path / "checkpoint")}
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))}
    environment |= {"PYTHONPATH": str(path), "PYSPARK_SUBMIT_ARGS": submit_arguments(tmp_path)}
    environment |= local_environment()
    done = subprocess.run(
        [sys.executable, "-c", RUN_AND_TELL, str(script), str(tmp_path / "modules.json"), *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"rows": 50, "quarantined": 0}
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert {name for name, file in modules.items() if file.startswith(str(path))} == from_archive
    assert not [file for file in modules.values() if file.startswith(f"{ROOT}/headrace")]
