"""A table of Parquet directories that grows by micro-batches, each exactly once, and is compacted as it grows.

    <table>/_versions/0000000012.json   the state of the table: directories and batches (`table_versions.py`)
    <table>/rows/version=0000000012-…/  rows of one batch, or of a merge

Rows are written first, to a directory of their own. Creating the file of the next version then adds them to the table.
A batch that Spark repeats is in the table already, or its first attempt left a directory that no version names, which
is deleted later. A merge works in the same way. So a crash between any two steps neither loses nor repeats a row.

Of two processes that write a table, one is refused. The newest version is never deleted, so the largest number only
grows. A process whose version file has the largest number after it was created has therefore continued the version
before, and no other process has. One that paused may create a file again that was deleted as an old one; it sees the
larger number and fails, and its file means nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.adapters.system_clock import SystemClock
from headrace.model.errors import ConflictError, IllegalStateError
from headrace.ports.clock import Clock
from headrace.spark.jobs.job_files import HadoopFiles, JobFiles
from headrace.spark.jobs.json_fields import quoted_ddl
from headrace.spark.jobs.table_versions import (
    MERGED_AT_ONCE,
    StoredPart,
    TableVersion,
    directory_name,
    number_of_directory,
    parts_to_merge,
)
from headrace.spark.written_batches import is_repetition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


VERSIONS_KEPT = 3
"""A reader opens the newest version that it has listed: it has the time of two more."""

REMOVED_KEPT_MS = 24 * 3600 * 1000
"""A reader that has read a version may use its directories for this long."""


@dataclass(frozen=True, slots=True)
class BatchRows:
    """What was written of a batch: rows by kind, and columns and state of the table from now on (None: unchanged)."""

    rows: Mapping[str, int]
    columns: Mapping[str, str] | None = None
    state: Mapping[str, Any] | None = None


WriteBatch = Callable[[Callable[[str], str]], BatchRows]
"""Writes the rows of a batch; the argument gives the directory for a kind of rows. Must replace what is there."""

MergeParts = Callable[[Sequence[str], str], None]
"""Writes the rows of some directories into one."""


class BatchTable:
    """One table, for the one process that writes it. `run_id` differs between objects of this class."""

    def __init__(
        self, files: JobFiles, root: str, *, run_id: str, clock: Clock, removed_kept_ms: int = REMOVED_KEPT_MS
    ) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._run_id = run_id
        self._attempts = 0
        self._clock = clock
        self._removed_kept_ms = removed_kept_ms
        self.version = read_version(files, self._root)

    def add_batch(self, query_id: str, batch_id: int, write: WriteBatch) -> BatchRows | None:
        """Write a batch and add it to the table; None, and nothing is written, if it is in the table already.

        Raises:
            ConflictError: another process writes the table.
            IllegalStateError: code "later_batch_committed": the checkpoint of the query is an old one.
        """
        if is_repetition(batch_id, self.version.batches.get(query_id)):
            return None
        self._attempts += 1
        written = write(lambda kind: self._path(self._new_directory(kind)))
        added = {kind: self._part(self._new_directory(kind), rows) for kind, rows in written.rows.items() if rows}
        self._commit(self.version.with_batch(query_id, batch_id, added, written.columns, written.state))
        return written

    def record(self, state: Mapping[str, Any]) -> None:
        """Change what the job keeps with the rows. Raises ConflictError if another process writes the table."""
        self._commit(self.version.with_state(state))

    def merge(
        self, kind: str, merge: MergeParts, *, at_once: int = MERGED_AT_ONCE, bytes_max: int | None = None
    ) -> int:
        """Combine small parts of a kind (see `parts_to_merge`) until there are few; the number of merges."""
        merges = 0
        while chosen := parts_to_merge(self.version.of_kind(kind), at_once=at_once, bytes_max=bytes_max):
            self._attempts += 1
            directory = self._new_directory(kind)
            merge([self._path(part.directory) for part in chosen], self._path(directory))
            into = self._part(directory, sum(part.rows for part in chosen))
            self._commit(self.version.with_merge(kind, chosen, into, self._clock.now_ms()))
            merges += 1
        return merges

    def paths(self, kind: str) -> list[str]:
        """The directories with the rows of a kind, now."""
        return [self._path(part.directory) for part in self.version.of_kind(kind)]

    def clean(self, kinds: Collection[str]) -> None:
        """Delete directories of attempts that failed, of merged parts whose time is over, and old versions.

        What this version does not name, and has no larger number, belongs to no later version either.

        Raises:
            ConflictError: another process writes the table.
        """
        versions = self._check_newest(self.version.number)
        expired = self.version.expired(self._clock.now_ms(), self._removed_kept_ms)
        for directory in expired:
            self._files.delete(self._path(directory))
        self.version = self.version.without_removed(expired)
        known = self.version.known_directories()
        for kind in kinds:
            for name in self._files.names(self._path(kind)):
                number = number_of_directory(name)
                # A larger number is of an attempt that may still be running.
                if number is not None and number <= self.version.number and f"{kind}/{name}" not in known:
                    self._files.delete(self._path(f"{kind}/{name}"))
        for name in versions[:-VERSIONS_KEPT]:
            self._files.delete(f"{_versions(self._root)}/{name}")

    def _commit(self, version: TableVersion) -> None:
        self._check_newest(self.version.number)
        self._files.create(f"{_versions(self._root)}/{_version_name(version.number)}", version.to_json())
        self._check_newest(version.number)  # the file may have existed before, and have been deleted as an old one
        self.version = version

    def _check_newest(self, number: int) -> Sequence[str]:
        """The names of all versions. Raises ConflictError if the newest one has another number."""
        names = self._files.names(_versions(self._root))
        if (names[-1] if names else _version_name(0)) != _version_name(number):
            raise ConflictError(
                f"another run has changed the table {self._root}: one run at a time may write it. The next run"
                " continues with the newest version"
            )
        return names

    def _new_directory(self, kind: str) -> str:
        """Of this attempt: a former one with the same number may be in the table, although it reported an error."""
        return directory_name(kind, self.version.number + 1, f"{self._run_id}-{self._attempts}")

    def _part(self, directory: str, rows: int) -> StoredPart:
        return StoredPart(directory, rows, self._files.size_bytes(self._path(directory)))

    def _path(self, relative: str) -> str:
        return f"{self._root}/{relative}"


def read_version(files: JobFiles, root: str) -> TableVersion:
    """The current version of a table; version 0, without parts, if there is no table yet."""
    names = files.names(_versions(root))
    return TableVersion.from_json(files.read(f"{_versions(root)}/{names[-1]}")) if names else TableVersion()


def _versions(root: str) -> str:
    return f"{root}/_versions"


def _version_name(number: int) -> str:
    return f"{number:010}.json"


# Batch tables in a Spark session: open one for writing, read its rows, find the query that a batch belongs to.


def query_of(batch: DataFrame) -> str:
    """The id of the query that a batch of `foreachBatch` belongs to: that of its checkpoint, also after a restart."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not found:
        raise IllegalStateError("a batch has a query id only within foreachBatch")
    return str(found)


def open_table(spark: SparkSession, root: str) -> BatchTable:
    """A table for writing. Two that one application opens do not write into the same directories."""
    run_id = f"{spark.sparkContext.applicationId}-{secrets.token_hex(4)}"
    return BatchTable(HadoopFiles(spark), root, run_id=run_id, clock=SystemClock())


def read_rows(spark: SparkSession, paths: Sequence[str], columns: Mapping[str, str]) -> DataFrame:
    """The rows of some directories of a kind; columns that a file does not have are null."""
    ddl = quoted_ddl(columns)
    if not paths:
        return spark.createDataFrame([], ddl)
    kind = paths[0].rpartition("/")[0]  # so that Spark takes the directories below as values of partition columns
    rows = spark.read.schema(ddl).option("basePath", kind).parquet(*paths)
    return rows.select(*(rows[f"`{name.replace('`', '``')}`"] for name in columns))


def read_table(spark: SparkSession, root: str, kind: str, columns: Mapping[str, str] | None = None) -> DataFrame:
    """The rows of a kind in the current version of a table; `columns` None: those that the table records."""
    version = read_version(HadoopFiles(spark), root)
    paths = [f"{root.rstrip('/')}/{part.directory}" for part in version.of_kind(kind)]
    return read_rows(spark, paths, version.columns if columns is None else columns)
