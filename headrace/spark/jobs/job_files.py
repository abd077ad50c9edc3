"""The files of a job next to its data: small texts that are written whole, and directories that are deleted.

`HadoopFiles` uses the file systems of the Spark session, so a path may be on S3 (`s3://`), HDFS or a local disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace.model.errors import ConflictError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JobFiles(Protocol):
    """Files by path."""

    def names(self, directory: str) -> Sequence[str]:
        """The names in a directory, sorted, without hidden ones; empty if there is no such directory."""
        ...

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> str: ...

    def create(self, path: str, text: str) -> None:
        """Write a new file. After a crash it has the whole text or does not exist.

        Raises:
            ConflictError: the file exists.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with everything in it; a path that does not exist is ignored."""
        ...

    def size_bytes(self, directory: str) -> int:
        """The size of all files in a directory and below."""
        ...


class HadoopFiles:
    """See `JobFiles`, through the JVM of the session's driver."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._hadoop = context._jvm.org.apache.hadoop.fs
        self._configuration = context._jsc.hadoopConfiguration()

    def names(self, directory: str) -> list[str]:
        path, system = self._resolved(directory)
        if not system.exists(path):
            return []
        found = (str(status.getPath().getName()) for status in system.listStatus(path))
        return sorted(name for name in found if not name.startswith((".", "_")))

    def exists(self, path: str) -> bool:
        file, system = self._resolved(path)
        return bool(system.exists(file))

    def read(self, path: str) -> str:
        file, system = self._resolved(path)
        length = system.getFileStatus(file).getLen()
        stream = system.open(file)
        try:
            return bytes(stream.readNBytes(length)).decode()
        finally:
            stream.close()

    def create(self, path: str, text: str) -> None:
        """The text goes to a hidden file first, because only a rename is atomic on every file system."""
        file, system = self._resolved(path)
        hidden = self._hadoop.Path(file.getParent(), f".{file.getName()}.new")
        stream = system.create(hidden, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        # A local disk's rename replaces the target without an error.
        if system.exists(file) or not system.rename(hidden, file):
            raise ConflictError(f"{path} exists: does another run of this job use the same directory?")

    def delete(self, path: str) -> None:
        file, system = self._resolved(path)
        system.delete(file, True)

    def size_bytes(self, directory: str) -> int:
        path, system = self._resolved(directory)
        return int(system.getContentSummary(path).getLength())

    def _resolved(self, path: str) -> tuple[Any, Any]:
        file = self._hadoop.Path(path)
        return file, file.getFileSystem(self._configuration)
