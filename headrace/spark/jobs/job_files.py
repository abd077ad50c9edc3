"""The files of a job next to its data: small texts that are written whole, and directories that are deleted.

`HadoopFiles` uses the file systems of the Spark session, so a path may be on S3 (`s3://`), HDFS or a local disk.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace.model.errors import ConflictError, InvalidRequestError
from headrace.spark.plan_files import S3Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JobFiles(Protocol):
    """Files by path."""

    def names(self, directory: str) -> Sequence[str]:
        """The names in a directory, sorted, without hidden ones; empty if there is no such directory."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory at a path: on S3, objects below it."""
        ...

    def read(self, path: str) -> str: ...

    def create(self, path: str, text: str) -> None:
        """Write a new file. After a crash it has the whole text or does not exist.

        Raises:
            ConflictError: the file exists.
        """
        ...

    def replace(self, path: str, text: str) -> None:
        """Write a file, in place of the one that is there.

        Raises:
            InvalidRequestError: code "is_a_directory": there is a directory.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with everything in it; a path that does not exist is ignored."""
        ...

    def size_bytes(self, directory: str) -> int:
        """The size of all files in a directory and below."""
        ...


class HadoopFiles:
    """Files that Hadoop reads and writes, through the JVM of the session's driver."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._hadoop = context._jvm.org.apache.hadoop.fs
        self._configuration = context._jsc.hadoopConfiguration()
        self._s3: dict[str, S3Files] = {}

    def names(self, directory: str) -> list[str]:
        path, system = self._resolved(directory)
        if not system.exists(path):
            return []
        names = (str(status.getPath().getName()) for status in system.listStatus(path))
        return sorted(name for name in names if not name.startswith((".", "_")))

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

    def is_directory(self, path: str) -> bool:
        file, system = self._resolved(path)
        return bool(system.exists(file)) and bool(system.getFileStatus(file).isDirectory())

    def create(self, path: str, text: str) -> None:
        """On S3 with a conditional request. Elsewhere the text goes to a hidden file of its own, which is then named.

        Raises:
            ConflictError: the file exists.
            UnavailableError: S3 failed.
        """
        file = self._hadoop.Path(path)
        uri = file.toUri()
        if uri.getScheme() is None:
            uri = file.getFileSystem(self._configuration).makeQualified(file).toUri()
        scheme, place = str(uri.getScheme()), str(uri.getPath())
        if scheme.startswith("s3"):
            directory, _, name = place.strip("/").rpartition("/")
            created = self._s3_files(scheme, str(uri.getAuthority()), directory).create(name, text.encode())
        else:
            created = self._create_hidden_first(file, text, is_local=scheme == "file")
        if not created:
            raise ConflictError(f"{path} exists: does another run of this job use the same directory?")

    def replace(self, path: str, text: str) -> None:
        if self.is_directory(path):
            raise InvalidRequestError(f"{path} is a directory: give the path of a file", code="is_a_directory")
        file, system = self._resolved(path)
        self._write(system, file, text)

    def delete(self, path: str) -> None:
        file, system = self._resolved(path)
        system.delete(file, True)

    def size_bytes(self, directory: str) -> int:
        path, system = self._resolved(directory)
        return int(system.getContentSummary(path).getLength())

    def _s3_files(self, scheme: str, bucket: str, directory: str) -> S3Files:
        place = f"{bucket}/{directory}"
        if place not in self._s3:
            self._s3[place] = S3Files(scheme, bucket, directory)
        return self._s3[place]

    def _create_hidden_first(self, file: Any, text: str, *, is_local: bool) -> bool:
        system = file.getFileSystem(self._configuration)
        hidden = self._hadoop.Path(file.getParent(), f".{file.getName()}.{secrets.token_hex(8)}.new")
        try:
            self._write(system, hidden, text)
            # Not every file system's rename refuses to replace a file.
            return self._publish(system, hidden, file, is_local) and (is_local or self.read(str(file)) == text)
        finally:
            system.delete(hidden, False)  # does nothing after a rename

    def _publish(self, system: Any, hidden: Any, file: Any, is_local: bool) -> bool:
        """Give a hidden file its name; false: there is a file. A rename on a local disk would replace that."""
        if not is_local:
            return not system.exists(file) and bool(system.rename(hidden, file))
        path = Path(str(file.toUri().getPath()))
        try:
            os.link(str(hidden.toUri().getPath()), path)
        except FileExistsError:
            return False
        # Hadoop's checksum of a former file with this name, of which only the file was deleted.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        return True

    def _write(self, system: Any, file: Any, text: str) -> None:
        stream = system.create(file, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def _resolved(self, path: str) -> tuple[Any, Any]:
        file = self._hadoop.Path(path)
        return file, file.getFileSystem(self._configuration)
