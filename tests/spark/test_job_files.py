"""The files of a job: Hadoop's file systems and the double in memory keep the same contract."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from job_files_in_memory import FilesInMemory

from headrace.model.errors import ConflictError, InvalidRequestError
from headrace.spark import plan_files
from headrace.spark.jobs.job_files import HadoopFiles, JobFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

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


def test_a_file_is_replaced_but_never_a_directory(files: JobFiles, tmp_path: Path):
    files.replace(f"{tmp_path}/report.html", "first")
    files.replace(f"{tmp_path}/report.html", "second")
    assert files.read(f"{tmp_path}/report.html") == "second"
    files.create(f"{tmp_path}/lake/rows/one", "the only copy")
    assert files.is_directory(f"{tmp_path}/lake")
    assert not files.is_directory(f"{tmp_path}/report.html")
    assert not files.is_directory(f"{tmp_path}/absent")
    with pytest.raises(InvalidRequestError, match="lake is a directory"):
        files.replace(f"{tmp_path}/lake", "page")
    assert files.read(f"{tmp_path}/lake/rows/one") == "the only copy"


class Bucket:
    """Objects that are created with a condition."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put_object(self, *, Key: str, Body: bytes, IfNoneMatch: str, **_: Any) -> None:
        if Key in self.objects:
            response: Any = {"Error": {"Code": "412"}, "ResponseMetadata": {"HTTPStatusCode": 412}}
            raise ClientError(response, "PutObject")
        self.objects[Key] = Body

    def get_object(self, *, Key: str, **_: Any) -> Any:
        return {"Body": BytesIO(self.objects[Key])}


class PausedHadoopFiles(HadoopFiles):
    """Files whose creation waits before its last step until `meanwhile` has run."""

    def __init__(self, spark: SparkSession, meanwhile: Callable[[], object]) -> None:
        super().__init__(spark)
        self._meanwhile = meanwhile

    def _publish(self, *arguments: Any) -> bool:
        self._meanwhile()
        return super()._publish(*arguments)


def test_of_two_that_create_a_file_at_once_one_succeeds(spark: SparkSession, tmp_path: Path):
    path, created = f"{tmp_path}/_versions/0000000006.json", list[str]()

    def create(files: HadoopFiles, text: str) -> None:
        files.create(path, text)
        created.append(text)

    def other_run() -> None:
        with pytest.raises(ConflictError):
            create(PausedHadoopFiles(spark, third_run), "other")

    def third_run() -> None:
        create(HadoopFiles(spark), "third")

    with pytest.raises(ConflictError):
        create(PausedHadoopFiles(spark, other_run), "first")
    assert created == [HadoopFiles(spark).read(path)] == ["third"]
    assert [path.name for path in (tmp_path / "_versions").iterdir()] == ["0000000006.json"], "nothing hidden is left"


class RenamedFiles(HadoopFiles):
    """Files that are named as on a file system that is neither local nor S3."""

    def _create_hidden_first(self, file: Any, text: str, *, is_local: bool) -> bool:
        return super()._create_hidden_first(file, text, is_local=False)


def test_other_file_systems_name_a_file_by_a_rename(spark: SparkSession, tmp_path: Path):
    files = RenamedFiles(spark)
    files.create(f"{tmp_path}/one.json", "first")
    with pytest.raises(ConflictError):
        files.create(f"{tmp_path}/one.json", "second")
    assert files.read(f"{tmp_path}/one.json") == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".one.json.crc", "one.json"]


def test_a_deleted_file_can_be_created_again(spark: SparkSession, tmp_path: Path):
    """Hadoop writes a checksum next to a file, which stays when only the file is deleted."""
    files = HadoopFiles(spark)
    files.replace(f"{tmp_path}/one.json", "first")
    assert (tmp_path / ".one.json.crc").exists()
    (tmp_path / "one.json").unlink()
    files.create(f"{tmp_path}/one.json", "second")
    assert files.read(f"{tmp_path}/one.json") == "second"


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_s3_creates_a_file_with_a_condition(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, scheme: str):
    """A rename there is a copy and a deletion, of which the last one wins."""
    bucket = Bucket()
    monkeypatch.setattr(plan_files, "_s3_client", lambda: bucket)
    files = HadoopFiles(spark)
    files.create(f"{scheme}://bucket/a b/_versions/1.json", "first")
    with pytest.raises(ConflictError):
        files.create(f"{scheme}://bucket/a b/_versions/1.json", "second")
    assert bucket.objects == {"a b/_versions/1.json": b"first"}
