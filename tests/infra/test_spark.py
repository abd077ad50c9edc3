"""The Glue job runs the example on Glue 6.0 with the library, its pins and the API's address."""

from __future__ import annotations

import json
import zipfile

import pytest

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]


@pytest.fixture
def job(assembly):
    return assembly.only("AWS::Glue::Job").properties


def test_the_job_runs_on_glue_6(job):
    assert job["GlueVersion"] == "6.0"
    assert job["Command"]["Name"] == "glueetl"
    assert job["MaxRetries"] == 0
    assert job["ExecutionProperty"] == {"MaxConcurrentRuns": 1}


def test_the_job_knows_where_to_read_and_write(job, as_text):
    arguments = job["DefaultArguments"]
    assert "HeadraceControllerApi" in as_text(arguments["--controller"])
    assert arguments["--auth"] == "aws-iam"
    assert as_text(arguments["--checkpoint"]).endswith("/checkpoints/flight-delays")
    assert as_text(arguments["--output"]).endswith("/output/flight-delays")
    assert arguments["--job-bookmark-option"] == "job-bookmark-disable"


def test_the_dependencies_are_pinned(job):
    modules = job["DefaultArguments"]["--additional-python-modules"].split(",")
    assert all(module.count("==") == 1 for module in modules)
    names = {module.partition("==")[0] for module in modules}
    assert {"httpx", "mmh3"} <= names
    assert not names & {"pyspark", "pyarrow", "numpy", "boto3"}, "Glue brings its own"


def test_the_library_is_on_the_python_path(assembly, project, job, as_text):
    key = as_text(job["DefaultArguments"]["--extra-py-files"]).rpartition("/")[2]
    assets = json.loads((assembly.directory / "HeadraceSpark.assets.json").read_text())["files"]
    (source,) = {
        asset["source"]["path"]
        for asset in assets.values()
        for destination in asset["destinations"].values()
        if destination["objectKey"] == key
    }
    with zipfile.ZipFile(assembly.directory / source) as archive:
        files = (path for path in (project / "headrace").rglob("*") if path.is_file())
        assert sorted(archive.namelist()) == sorted(path.relative_to(project).as_posix() for path in files)
        assert archive.testzip() is None


def test_without_the_job_there_is_no_stack_for_it(smallest_assembly):
    assert "HeadraceSpark" not in smallest_assembly.templates
