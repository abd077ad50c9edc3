"""The streams of a reader group: those that it reads, and internal ones such as the stream of its state.

The retention of a stream waits for its subscribers. So a group subscribes before it is ACTIVE, and leaves before it is
deleted. A subscription has the generation in which positions may be published, so an update renews all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.controller.acceptance import Acceptance, CutRules
from headrace.controller.engine import Step, Tools, run_request
from headrace.metadata.history_records import create_epoch
from headrace.metadata.reader_group import ReaderGroupRecords, StoredGroup
from headrace.metadata.stream import current_key, first_segment_number
from headrace.metadata.stream_records import StoredStream, create_current, create_intent
from headrace.metadata.subscriber import Subscriptions
from headrace.model.errors import ConflictError, NotFoundError
from headrace.model.reader_groups import GroupStream, ReaderGroup, settled
from headrace.model.requests import RequestKind
from headrace.model.stream_configuration import StreamConfiguration
from headrace.model.streams import Stream, new_stream, start_deleting, started
from headrace.ports.metadata_store import Check, Key, Record


def stream_keys(streams: Sequence[GroupStream]) -> list[Key]:
    return [current_key(stream.scope, stream.stream) for stream in streams]


def check_streams(
    acceptance: Acceptance, streams: Sequence[GroupStream], records: Sequence[Record | None], rules: CutRules
) -> None:
    """Check that each stream exists, and that the group's cuts are cuts of it. `records` are those of `stream_keys`.

    With `rules.at_checkpoint` a starting cut may be a checkpoint of Pravega's readers: if the stream is sealed or the
    group has an ending cut, it may leave out parts of the key space, but not a part that is merged later with one that
    is still to be read.

    Raises:
        NotFoundError: code "stream_not_found".
        InvalidRequestError: code "invalid_stream_cut".
        UnavailableError: a cut names the end of a segment that is being sealed.
    """
    for wanted, record in zip(streams, records, strict=True):
        stored = acceptance.streams.stored(record)
        if stored is None:
            raise NotFoundError(
                f"there is no stream {wanted.scoped_name} for the reader group to read: create it first",
                details={"scope": wanted.scope, "stream": wanted.stream},
                code="stream_not_found",
            )
        stream, cuts = stored.stream, acceptance.cuts
        end = None if wanted.end is None else cuts.resolved(stream, wanted.end.offsets)
        if end is not None:
            cuts.check(stream, end)
        start = None
        if wanted.start is not None:
            start = cuts.resolved(stream, wanted.start.offsets)
            # Readers that finish a part of the key space leave it out of their checkpoints, and can continue from them.
            # Elsewhere they would wait forever for the part that is left out.
            finishes = end is not None or stream.state.is_sealed
            if rules.at_checkpoint and finishes:
                cuts.check_checkpoint(stream, start, end)
            else:
                cuts.check(stream, start)
        if start is not None:
            rules.check_place(stream, start)
        if end is not None and not rules.at_checkpoint:  # Pravega has such ends beyond the tail, too
            rules.check_place(stream, end)


def change_group(acceptance: Acceptance, stored: StoredGroup, after: ReaderGroup) -> ReaderGroup:
    """Write the group with its accepted request and the intent, and send the message.

    Raises:
        WriteConflictError: the group has changed since it was read.
    """
    intent = acceptance.intent(after.scope, after.name, after.pending)
    ReaderGroupRecords(acceptance.store).start(stored, after, intent)
    acceptance.send(intent)
    return after


def unsubscribe(tools: Tools, stored: StoredGroup, names: Iterable[str]) -> None:
    """Let the retention of these streams, by scoped name, no longer wait for the group."""
    subscriptions = Subscriptions(tools.store, tools.clock, tools.records)
    for name in sorted(names):
        scope, stream = name.split("/")
        subscriptions.unsubscribe(scope, stream, stored.group.scoped_name, stored.unchanged)


def _subscribe(tools: Tools, stored: StoredGroup) -> None:
    group = stored.group
    subscriptions = Subscriptions(tools.store, tools.clock, tools.records)
    for stream in group.configuration.streams:
        if stream.scoped_name in group.configuration.subscribed:
            subscriptions.subscribe(stream, group.scoped_name, group.generation, stored.unchanged)


def _open(tools: Tools, stored: StoredGroup) -> None:
    ReaderGroupRecords(tools.store).finish(stored, settled(stored.group))


SUBSCRIBE = Step("subscribe", _subscribe)
OPEN = Step("open", _open)
"""The last step of a creation and of an update."""


# Creates and deletes streams that another resource owns, such as the state of a reader group.
#
# They are streams like any other, with the same records and operations, but not in the list of their scope. Each change
# is accepted on a condition on the owner, in the same transaction. So a late process of a former incarnation of the
# owner cannot create its stream again. The stream's own operation then runs at once, and its intent survives a crash.

_ATTEMPTS_MAX = 12
"""Reads of a stream's record in one call: a deletion needs five if no other process works on the stream."""


def ensure_stream(tools: Tools, scope: str, name: str, configuration: StreamConfiguration, condition: Check) -> None:
    """Create the stream unless it exists. Returns when it accepts events, unless it was sealed.

    Raises:
        WriteConflictError: the condition does not hold.
        ConflictError: other processes work on the stream; repeat.
    """
    for _ in range(_ATTEMPTS_MAX):
        record = tools.store.get(current_key(scope, name))
        stored = tools.records.stored(record)
        if stored is None:
            _accept_creation(tools, scope, name, configuration, record, condition)
        elif not _finish_pending(tools, stored.stream):
            return
    raise _busy(scope, name)


def ensure_no_stream(tools: Tools, scope: str, name: str, condition: Check) -> None:
    """Seal and delete the stream with all its segments, if it exists. Raises as `ensure_stream` does."""
    for _ in range(_ATTEMPTS_MAX):
        stored = tools.records.find(scope, name)
        if stored is None:
            return
        if not _finish_pending(tools, stored.stream):
            _accept_removal(tools, stored, condition)
    raise _busy(scope, name)


def _finish_pending(tools: Tools, stream: Stream) -> bool:
    """Complete the operation that runs on the stream; whether there was one."""
    if stream.pending is None:
        return False
    run_request(tools, stream.scope, stream.name, stream.pending)
    return True


def _accept_creation(
    tools: Tools,
    scope: str,
    name: str,
    configuration: StreamConfiguration,
    tombstone: Record | None,
    condition: Check,
) -> None:
    first_number = first_segment_number(tombstone)
    now_ms = tools.clock.now_ms()
    stream = new_stream(scope, name, configuration, first_number, now_ms)
    write, _ = create_intent(stream, now_ms)
    tools.store.write(condition, *create_current(stream, tombstone), *create_epoch(stream, stream.epoch), write)


def _accept_removal(tools: Tools, stored: StoredStream, condition: Check) -> None:
    if stored.stream.state.is_sealed:
        after = start_deleting(stored.stream, stored.version)
    else:
        after = started(stored.stream, stored.version, RequestKind.SEAL_STREAM)
    write, _ = create_intent(after, tools.clock.now_ms())
    tools.records.replace(stored, after, write, condition)


def _busy(scope: str, name: str) -> ConflictError:
    return ConflictError(f"stream {scope}/{name} is busy: others are working on it", details={"stream": name})
