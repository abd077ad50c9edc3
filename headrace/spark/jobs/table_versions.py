"""The versions of a batch table: which directories belong to it, and which micro-batches they contain. Pure.

A version lists everything, so that one small file replaces the state of the table as a whole. A micro-batch is in the
table when a version names it. Parts that a merge replaced stay in `removed` for a while, for readers of older versions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.model.errors import CorruptError

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
                    kind: tuple(StoredPart(one["directory"], one["rows"], one["bytes"]) for one in parts)
                    for kind, parts in body["parts"].items()
                },
                batches=body["batches"],
                columns=body["columns"],
                removed=tuple(RemovedPart(one["directory"], one["removedMs"]) for one in body["removed"]),
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
