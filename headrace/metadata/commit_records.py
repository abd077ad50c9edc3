"""The records of commits: the running commit of a stream, and the writer of commit sets at its home stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.metadata.record_layout import decoded, transactions_partition, versioned
from headrace.model.commit_sets import (
    CommitPart,
    CommitRun,
    CommitWriter,
    PendingSet,
    RunSet,
    WaitingMark,
    check_set_writer,
)
from headrace.model.errors import ConflictError
from headrace.model.requests import RequestKind
from headrace.model.streams import Stream
from headrace.model.transactions import CommitOrder, transaction_text
from headrace.ports.metadata_store import (
    Body,
    Create,
    Delete,
    Key,
    MetadataStore,
    Record,
    Replace,
    Write,
    WriteConflictError,
)

# The running commit of a stream's transactions: an interrupted commit continues from this record.

# The part of a commit set in one stream: the members, and from the decision on their place in the commit order.
#
# The ids are one text of 32 hex digits each, so that 2,500 of them are 80 KB.

_PREFIX = "commit-part/"
_ID_DIGITS = 32


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part as it was read, and the version of its record."""

    part: CommitPart
    version: int


def commit_part_key(scope: str, stream: str, set_id: str) -> Key:
    return Key(transactions_partition(scope, stream), f"{_PREFIX}{set_id}")


def commit_part_body(part: CommitPart) -> dict[str, Any]:
    return versioned(
        set=part.set_id,
        home=part.home,
        writer=part.writer,
        members="".join(map(transaction_text, part.members)),
        order=None if part.order is None else part.order.number,
        lost=part.lost,
    )


def decode_commit_part(body: Body) -> CommitPart:
    return decoded("commit part", body, _commit_part)


def stored_part(record: Record | None) -> StoredPart | None:
    return None if record is None else StoredPart(decode_commit_part(record.body), record.version)


def find_commit_part(store: MetadataStore, scope: str, stream: str, set_id: str) -> StoredPart | None:
    """One read."""
    return stored_part(store.get(commit_part_key(scope, stream, set_id)))


def find_commit_parts(
    store: MetadataStore, scope: str, streams: Iterable[str], set_id: str
) -> dict[str, StoredPart | None]:
    """The parts of a set by stream; one batch read."""
    names = list(streams)
    records = store.get_many([commit_part_key(scope, name, set_id) for name in names])
    return dict(zip(names, map(stored_part, records), strict=True))


def create_commit_part(scope: str, stream: str, part: CommitPart) -> Create:
    return Create(commit_part_key(scope, stream, part.set_id), commit_part_body(part))


def replace_commit_part(scope: str, stream: str, stored: StoredPart, after: CommitPart) -> Replace:
    return Replace(commit_part_key(scope, stream, after.set_id), commit_part_body(after), stored.version)


def delete_commit_part(scope: str, stream: str, set_id: str, version: int | None) -> Delete:
    return Delete(commit_part_key(scope, stream, set_id), version)


def _commit_part(body: Body) -> CommitPart:
    text, number = str(body["members"]), body["order"]
    members = tuple(int(text[start : start + _ID_DIGITS], 16) for start in range(0, len(text), _ID_DIGITS))
    return CommitPart(
        set_id=str(body["set"]),
        home=str(body["home"]),
        writer=str(body["writer"]),
        members=members,
        order=None if number is None else CommitOrder(int(number), group=members[0]),
        lost=bool(body["lost"]),
    )


# The order in which a stream's transactions were marked for commit: an entry for each mark that waits.
#
# There is no counter: a new entry gets a number above those of the present entries. A commit set has one entry. It
# stays at its key when a run has committed a part of its members, because a query is not a snapshot: it could miss an
# entry that moves.

ORDER_FIRST = "order/"
ORDER_LAST = "order0"
_ORDER_DIGITS = 20
_INDEX_DIGITS = 3


def order_sort(order: CommitOrder) -> str:
    number = f"{order.number:0{_ORDER_DIGITS}d}"
    return f"{ORDER_FIRST}{number}/{transaction_text(order.group)}/{order.index:0{_INDEX_DIGITS}d}"


def order_number(sort: str) -> int:
    """Raises CorruptError unless this is the sort key of an entry."""
    return decoded("commit order", versioned(sort=sort), lambda fields: int(str(fields["sort"]).split("/")[1]))


def order_key(scope: str, stream: str, order: CommitOrder) -> Key:
    return Key(transactions_partition(scope, stream), order_sort(order))


def order_body(mark: WaitingMark) -> dict[str, Any]:
    optional: dict[str, Any] = {} if mark.commit_set is None else {"set": mark.commit_set}
    if mark.passed:
        optional["passed"] = mark.passed
    return versioned(id=transaction_text(mark.transaction_id), marked=mark.marked_ms, **optional)


def create_order(scope: str, stream: str, mark: WaitingMark) -> Create:
    return Create(order_key(scope, stream, mark.order), order_body(mark))


def replace_order(scope: str, stream: str, former: WaitingMark, after: WaitingMark) -> Replace:
    """The write when a part of a commit set is committed. It fails unless the entry is as it was read."""
    return Replace(order_key(scope, stream, former.order), order_body(after), former.version)


def decode_order(record: Record) -> WaitingMark:
    return decoded("commit order", record.body, lambda body: _waiting_mark(body, record.key.sort, record.version))


def _waiting_mark(body: Body, sort: str, version: int) -> WaitingMark:
    commit_set = body.get("set")
    return WaitingMark(
        int(body["id"], 16),
        int(body["marked"]),
        _order_of(sort),
        None if commit_set is None else str(commit_set),
        int(body.get("passed", 0)),
        version,
    )


def _order_of(sort: str) -> CommitOrder:
    _, number, group, index = sort.split("/")
    return CommitOrder(int(number), int(group, 16), int(index))


RUN_SORT = "run"


def commit_run_key(scope: str, stream: str) -> Key:
    return Key(transactions_partition(scope, stream), RUN_SORT)


def commit_run_body(run: CommitRun) -> dict[str, Any]:
    optional: dict[str, Any] = {}
    if run.incomplete:
        optional["incomplete"] = [transaction_text(each) for each in run.incomplete]
    if run.sets:
        optional["sets"] = [_set_fields(each) for each in run.sets]
    return versioned(
        transactions=[transaction_text(transaction) for transaction in run.transactions],
        reference_epoch=run.reference_epoch,
        active_epoch=run.active_epoch,
        rolls=run.rolls,
        started=run.started_ms,
        **optional,
    )


def decode_commit_run(body: Body) -> CommitRun:
    return decoded("commit run", body, _commit_run)


def create_run(scope: str, stream: str, run: CommitRun) -> Create:
    return Create(commit_run_key(scope, stream), commit_run_body(run))


def replace_run(scope: str, stream: str, run: CommitRun) -> Replace:
    """The first change of a run; its transaction also writes the current record, whose version is checked."""
    return Replace(commit_run_key(scope, stream), commit_run_body(run), 0)


def delete_run(scope: str, stream: str) -> Delete:
    """Unconditional: its transaction also writes the current record, whose version is checked."""
    return Delete(commit_run_key(scope, stream), None)


def set_ends(stream: Stream, run_set: RunSet) -> list[Write]:
    """The writes after which a set's entry in the order means what is left, or the set is gone.

    The transaction of these writes also writes the current record, whose version is checked.
    """
    if run_set.rest is not None:
        return [replace_order(stream.scope, stream.name, run_set.mark, run_set.rest)]
    former = Delete(order_key(stream.scope, stream.name, run_set.mark.order), None)
    return [former, delete_commit_part(stream.scope, stream.name, run_set.set_id, None)]


def find_commit_run(store: MetadataStore, scope: str, stream: str) -> CommitRun | None:
    """One read."""
    record = store.get(commit_run_key(scope, stream))
    return decode_commit_run(record.body) if record else None


def _commit_run(body: Body) -> CommitRun:
    return CommitRun(
        transactions=tuple(int(each, 16) for each in body["transactions"]),
        reference_epoch=int(body["reference_epoch"]),
        active_epoch=int(body["active_epoch"]),
        rolls=bool(body["rolls"]),
        started_ms=int(body["started"]),
        incomplete=tuple(int(each, 16) for each in body.get("incomplete", [])),
        sets=tuple(map(_run_set, body.get("sets", []))),
    )


def _set_fields(run_set: RunSet) -> dict[str, Any]:
    """The entry of a set as the run found it, and the position and the id of the member that is next after the run."""
    mark, order = run_set.mark, run_set.mark.order
    optional = {name: value for name, value in (("passed", mark.passed), ("version", mark.version)) if value}
    return {
        "set": run_set.set_id,
        "first": transaction_text(mark.transaction_id),
        "marked": mark.marked_ms,
        "order": [order.number, transaction_text(order.group), order.index],
        "rest": None
        if run_set.rest is None
        else [run_set.rest.position, transaction_text(run_set.rest.transaction_id)],
        **optional,
    }


def _run_set(fields: Body) -> RunSet:
    number, group, index = fields["order"]
    mark = WaitingMark(
        int(fields["first"], 16),
        int(fields["marked"]),
        CommitOrder(int(number), int(group, 16), int(index)),
        str(fields["set"]),
        int(fields.get("passed", 0)),
        int(fields.get("version", 0)),
    )
    if fields["rest"] is None:
        return RunSet(mark, None)
    position, following = fields["rest"]
    return RunSet(mark, mark.after(int(position), int(following, 16)))


def check_commit_does_not_roll(store: MetadataStore, stream: Stream) -> None:
    """Check that an operation on active segments may wait for the batch of commits that runs, if one runs.

    Raises:
        ConflictError: the batch replaces the segments; repeat when it is complete.
        WriteConflictError: the batch has just ended; read the stream again.
    """
    if not stream.state.runs(RequestKind.COMMIT_TRANSACTIONS):
        return
    run = find_commit_run(store, stream.scope, stream.name)
    if run is None:
        raise WriteConflictError(f"a commit of {stream.scoped_name} has just ended", {})
    if run.rolls:
        raise ConflictError(f"the segments of {stream.scoped_name} are just being replaced: repeat soon")


# The writer of commit sets, at its home stream: the last epoch that was committed, and the set that is not decided.

_COMMIT_WRITER_PREFIX = "commit-writer/"
_LAST = "commit-writer0"
"""The character after '/' is '0': what begins with the prefix sorts before this."""


@dataclass(frozen=True, slots=True)
class StoredWriter:
    """A writer as it was read, and the version of its record."""

    writer: CommitWriter
    version: int


def commit_writer_key(scope: str, home: str, writer: str) -> Key:
    return Key(transactions_partition(scope, home), f"{_COMMIT_WRITER_PREFIX}{check_set_writer(writer)}")


def commit_writer_body(writer: CommitWriter) -> dict[str, Any]:
    pending = writer.pending
    return versioned(
        writer=writer.name,
        epoch=writer.epoch,
        set=writer.set_id,
        time=writer.time_ms,
        **({} if writer.note is None else {"note": writer.note}),
        pending=None
        if pending is None
        else {
            "set": pending.set_id,
            "epoch": pending.epoch,
            "streams": list(pending.streams),
            "refused": pending.refused,
            **({} if pending.note is None else {"note": pending.note}),
        },
    )


def decode_commit_writer(body: Body) -> CommitWriter:
    return decoded("commit writer", body, _commit_writer)


def stored_writer(record: Record | None) -> StoredWriter | None:
    return None if record is None else StoredWriter(decode_commit_writer(record.body), record.version)


def find_commit_writer(store: MetadataStore, scope: str, home: str, writer: str) -> StoredWriter | None:
    """One read."""
    return stored_writer(store.get(commit_writer_key(scope, home, writer)))


def read_commit_writers(
    store: MetadataStore, scope: str, home: str, after: str | None, limit: int
) -> tuple[list[CommitWriter], str | None]:
    """The writers whose home is this stream, after a sort key; and the next such key. One query."""
    first = _COMMIT_WRITER_PREFIX if after is None else f"{after}\0"
    page = store.query(transactions_partition(scope, home), first=first, last=_LAST, limit=limit)
    return [decode_commit_writer(record.body) for record in page.records], page.next_after


def create_commit_writer(scope: str, home: str, writer: CommitWriter, version: int) -> Create:
    return Create(commit_writer_key(scope, home, writer.name), commit_writer_body(writer), version)


def replace_commit_writer(scope: str, home: str, stored: StoredWriter, after: CommitWriter) -> Replace:
    return Replace(commit_writer_key(scope, home, after.name), commit_writer_body(after), stored.version)


def _commit_writer(body: Body) -> CommitWriter:
    epoch, set_id, time_ms, pending = body["epoch"], body["set"], body["time"], body["pending"]
    return CommitWriter(
        name=str(body["writer"]),
        epoch=None if epoch is None else int(epoch),
        set_id=None if set_id is None else str(set_id),
        time_ms=None if time_ms is None else int(time_ms),
        note=_note(body),
        pending=None if pending is None else _pending(pending),
    )


def _pending(fields: Body) -> PendingSet:
    streams = tuple(map(str, fields["streams"]))
    return PendingSet(str(fields["set"]), int(fields["epoch"]), streams, bool(fields["refused"]), _note(fields))


def _note(fields: Body) -> str | None:
    """Left out unless the caller gave one, so that records without it stay as those of older releases."""
    note = fields.get("note")
    if not isinstance(note, str | None):
        raise TypeError(f"a note is {type(note).__name__}")
    return note
