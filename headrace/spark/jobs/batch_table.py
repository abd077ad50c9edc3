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

import json
import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.adapters.system_clock import SystemClock
from headrace.model.errors import ConflictError, CorruptError, IllegalStateError
from headrace.ports.clock import Clock
from headrace.spark.jobs.job_files import HadoopFiles, JobFiles
from headrace.spark.jobs.json_records import quoted_ddl
from headrace.spark.written_batches import is_repetition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# The versions of a batch table: which directories belong to it, and which micro-batches they contain. Pure.
#
# A version lists everything, so that one small file replaces the state of the table as a whole. A micro-batch is in the
# table when a version names it. Parts that a merge replaced stay in `removed` for a while, for readers of older
# versions.

_FORMAT = 1
MERGED_AT_ONCE = 16
"""Parts of one size class that a merge combines. More parts make reading slower, fewer make merges frequent."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A directory of rows, relative to the table; it never changes."""

    directory: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RemovedPart:
    """A directory that no longer belongs to the table, and since when."""

    directory: str
    removed_ms: int


@dataclass(frozen=True, slots=True)
class TableVersion:
    """Parts by kind of rows, the last batch of each query, and the names and types of the columns of the rows.

    `state` is what a job keeps with the rows, as JSON. It changes in the same step as they do.
    """

    number: int = 0
    parts: Mapping[str, tuple[StoredPart, ...]] = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[RemovedPart, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)

    def has_batch(self, query_id: str, batch_id: int) -> bool:
        """Whether a batch is in the table. Spark runs the batches of a query in the order of their numbers."""
        return batch_id <= self.batches.get(query_id, -1)

    def of_kind(self, kind: str) -> tuple[StoredPart, ...]:
        return self.parts.get(kind, ())

    def with_batch(
        self,
        query_id: str,
        batch_id: int,
        added: Mapping[str, StoredPart],
        columns: Mapping[str, str] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> TableVersion:
        """The next version, with the parts of a batch; `columns` or `state` None: unchanged."""
        assert not self.has_batch(query_id, batch_id)
        parts = {kind: self.of_kind(kind) for kind in self.parts.keys() | added.keys()}
        return replace(
            self,
            number=self.number + 1,
            parts={kind: held + ((added[kind],) if kind in added else ()) for kind, held in parts.items()},
            batches={**self.batches, query_id: batch_id},
            columns=self.columns if columns is None else columns,
            state=self.state if state is None else state,
        )

    def with_state(self, state: Mapping[str, Any]) -> TableVersion:
        """The next version, with the same rows."""
        return replace(self, number=self.number + 1, state=state)

    def with_merge(self, kind: str, merged: Collection[StoredPart], into: StoredPart, now_ms: int) -> TableVersion:
        """The next version, in which `into` replaces the parts `merged`."""
        kept = tuple(part for part in self.of_kind(kind) if part not in merged)
        assert len(kept) + len(merged) == len(self.of_kind(kind))
        return replace(
            self,
            number=self.number + 1,
            parts={**self.parts, kind: (*kept, into)},
            removed=self.removed + tuple(RemovedPart(part.directory, now_ms) for part in merged),
        )

    def without_removed(self, directories: Collection[str]) -> TableVersion:
        """This version, but the given removed parts are forgotten, because their directories are deleted."""
        return replace(self, removed=tuple(part for part in self.removed if part.directory not in directories))

    def expired(self, now_ms: int, kept_ms: int) -> tuple[str, ...]:
        """The removed directories that no reader uses any more."""
        return tuple(part.directory for part in self.removed if part.removed_ms + kept_ms <= now_ms)

    def known_directories(self) -> set[str]:
        """All directories that readers may use."""
        stored = {part.directory for parts in self.parts.values() for part in parts}
        return stored | {part.directory for part in self.removed}

    def to_json(self) -> str:
        body: dict[str, Any] = {
            "format": _FORMAT,
            "number": self.number,
            "parts": {
                kind: [{"directory": part.directory, "rows": part.rows, "bytes": part.size_bytes} for part in parts]
                for kind, parts in sorted(self.parts.items())
            },
            "batches": dict(sorted(self.batches.items())),
            "columns": dict(self.columns),
            "removed": [{"directory": part.directory, "removedMs": part.removed_ms} for part in self.removed],
        }
        if self.state:
            body["state"] = dict(self.state)
        return json.dumps(body, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TableVersion:
        """The version that `to_json` wrote.

        Raises:
            CorruptError: the text is not a version, or a later release wrote it.
        """
        try:
            body: dict[str, Any] = json.loads(text)
            if body["format"] != _FORMAT:
                raise CorruptError(f"a version of the table has the format {body['format']}, expected {_FORMAT}")
            return cls(
                number=int(body["number"]),
                parts={
                    kind: tuple(StoredPart(part["directory"], part["rows"], part["bytes"]) for part in parts)
                    for kind, parts in body["parts"].items()
                },
                batches=body["batches"],
                columns=body["columns"],
                removed=tuple(RemovedPart(each["directory"], each["removedMs"]) for each in body["removed"]),
                state=body.get("state", {}),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"a version of the table cannot be read: {error!r}") from error


def parts_to_merge(
    parts: Collection[StoredPart], *, at_once: int = MERGED_AT_ONCE, bytes_max: int | None = None
) -> tuple[StoredPart, ...]:
    """Small parts to combine now: `at_once` of one size class, or none. Parts of `bytes_max` and more stay as they are.

    A class holds sizes within a factor of `at_once`, so each byte is rewritten once per class, however small the
    batches are, and there are at most `at_once` - 1 parts per class.
    """
    classes: dict[int, list[StoredPart]] = {}
    for part in parts:
        if bytes_max is None or part.size_bytes < bytes_max:
            classes.setdefault(int(math.log(max(part.size_bytes, 1), at_once)), []).append(part)
    full = [size_class for size_class, members in sorted(classes.items()) if len(members) >= at_once]
    return tuple(classes[full[0]][:at_once]) if full else ()


def directory_name(kind: str, number: int, attempt: str) -> str:
    """Where the rows of version `number` go. Each attempt has its own, so that no two write into one directory."""
    return f"{kind}/version={number:010}-{attempt}"


def number_of_directory(name: str) -> int | None:
    """The number of the version for which the directory was written; None: the name is not one of `directory_name`."""
    digits = name.removeprefix("version=").partition("-")[0]
    return int(digits) if name.startswith("version=") and digits.isdecimal() else None


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
    query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        raise IllegalStateError("a batch has a query id only within foreachBatch")
    return str(query_id)


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
