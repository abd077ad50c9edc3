"""The files of a job: Hadoop's file systems and the double in memory keep the same contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from job_files_in_memory import FilesInMemory

from headrace.model.errors import ConflictError
from headrace.spark.jobs.job_files import HadoopFiles, JobFiles

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]


@pytest.fixture(params=["memory", "hadoop"])
def files(request: pytest.FixtureRequest) -> JobFiles:
    if request.param == "memory":
        return FilesInMemory()
    return HadoopFiles(request.getfixturevalue("spark"))


def test_a_text_is_read_as_it_was_created(files: JobFiles, tmp_path: Path):
    files.create(f"{tmp_path}/deep/one.json", "ä\n" * 5_000)
    assert files.read(f"{tmp_path}/deep/one.json") == "ä\n" * 5_000
    assert files.exists(f"{tmp_path}/deep/one.json")
    assert not files.exists(f"{tmp_path}/deep/two.json")


def test_a_file_is_created_once(files: JobFiles, tmp_path: Path):
    files.create(f"{tmp_path}/one.json", "first")
    with pytest.raises(ConflictError):
        files.create(f"{tmp_path}/one.json", "second")
    assert files.read(f"{tmp_path}/one.json") == "first"
    assert files.names(str(tmp_path)) == ["one.json"]


def test_names_are_sorted_and_may_be_none(files: JobFiles, tmp_path: Path):
    for name in ("b", "a", "c/deep"):
        files.create(f"{tmp_path}/{name}", "x")
    assert list(files.names(str(tmp_path))) == ["a", "b", "c"]
    assert list(files.names(f"{tmp_path}/absent")) == []


def test_a_directory_is_deleted_with_its_files(files: JobFiles, tmp_path: Path):
    files.create(f"{tmp_path}/kept/one", "xx")
    files.create(f"{tmp_path}/gone/deep/one", "x")
    assert files.size_bytes(f"{tmp_path}/kept") == 2
    files.delete(f"{tmp_path}/gone")
    files.delete(f"{tmp_path}/gone")
    assert list(files.names(str(tmp_path))) == ["kept"]
