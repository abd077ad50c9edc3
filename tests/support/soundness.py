"""What must hold of a stream when nothing runs on it any more, whoever raced whom before: one check for many tests."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from stream_world import StreamWorld

from headrace import topology
from headrace.metadata.history_records import HistoryRecords
from headrace.metadata.intent import intents_partition
from headrace.metadata.record_layout import stream_partition
from headrace.metadata.scope import listing_key
from headrace.metadata.stream import configuration_update_key, epoch_sort, transition_key
from headrace.metadata.truncation import running_truncation_key
from headrace.model.errors import NotFoundError, TruncatedError
from headrace.model.names import segment_name
from headrace.model.segments import covers_key_space_once
from headrace.model.stream_state import StreamState
from headrace.model.streams import follows
from headrace.model.transactions import TransactionState, transaction_text

_TRANSACTION = "#transaction."


def assert_sound(world: StreamWorld, stream: str = "t", scope: str = "s", *, may_leave_empty: bool = False) -> None:
    """The stream is at rest, its epochs follow each other, its segments are as its records say; or it is gone whole.

    With `may_leave_empty` segments may be left that no epoch knows, if nobody has written to them: a processor that
    slept while another finished its request, and the stream with it, creates what nobody wants any more.
    """
    _assert_nothing_waits(world)
    stored = world.records.find(scope, stream)
    unwanted = _empty_segments(world) if may_leave_empty else set()
    if stored is None:
        _assert_gone(world, scope, stream, unwanted)
        return
    found = stored.stream
    assert found.pending is None
    assert found.state in (StreamState.ACTIVE, StreamState.SEALED, StreamState.FROZEN)
    assert found.recorded_epoch == found.epoch.number
    epochs = list(HistoryRecords(world.bare_store).epochs(found, range(found.epoch.number + 1)))
    assert epochs[-1] == found.epoch
    for epoch in epochs:
        assert covers_key_space_once([segment.key_range for segment in epoch.segments])
    for before, after in pairwise(epochs):
        assert follows(before, after), (before, after)
    _assert_neighbours_agree(world, found, epochs)
    _assert_segments(world, found, epochs)
    _assert_no_orphans(world, found, epochs, unwanted)


def _empty_segments(world: StreamWorld) -> set[str]:
    stores = world.bare_segment_stores
    return {name for name in stores.names() if stores.segment_info(name).length == 0}


def _assert_nothing_waits(world: StreamWorld) -> None:
    for bucket in range(topology.BUCKET_COUNT):
        assert world.bare_store.query(intents_partition(bucket), limit=10).records == []
    assert len(world.bare_queue) == 0
    assert len(world.bare_commits) == len(world.bare_aborts) == 0


def _assert_gone(world: StreamWorld, scope: str, stream: str, unwanted: set[str]) -> None:
    """Nothing but the tombstone is left of a stream that was deleted."""
    prefix = f"{scope}/{stream}/"
    left = {name for name in world.bare_segment_stores.names() if name.startswith(prefix)} - unwanted
    assert left == set(), f"segments that are left: {left}"
    records = world.bare_store.query(stream_partition(scope, stream), limit=10).records
    assert {record.key.sort for record in records} <= {"current"}
    assert world.bare_store.get(listing_key(scope, stream)) is None


def _head(world: StreamWorld, found: Any) -> dict[int, int]:
    """First offset by segment id at the head; empty for a stream that was never truncated."""
    _, truncation = world.records.get_with_truncation(found.scope, found.name)
    return truncation.cut.offsets if truncation else {}


def _assert_neighbours_agree(world: StreamWorld, found: Any, epochs: list[Any]) -> None:
    head = _head(world, found)
    first_epoch = min((identifier >> 32 for identifier in head), default=0)
    for before, after in pairwise(epochs):
        for replaced in after.replaced:
            if replaced.segment_id not in head and before.number < first_epoch:
                continue
            try:
                following = world.segments.successors(found.scope, found.name, replaced.segment_id).segments
            except (NotFoundError, TruncatedError):
                assert head, "only what lies before the head may be unknown"
                continue
            for successor in following:
                assert replaced.segment_id in successor.predecessors
                earlier = world.segments.predecessors(found.scope, found.name, successor.segment_id)
                assert replaced.segment_id in [before.segment_id for before in earlier]


def _assert_segments(world: StreamWorld, found: Any, epochs: list[Any]) -> None:
    """Active segments take events if the stream is ACTIVE; replaced ones are sealed, or gone behind the head."""
    stores, sealed = world.bare_segment_stores, not found.state.takes_events
    present = set(stores.names())
    for segment in found.epoch.segments:
        name = segment_name(found.scope, found.name, segment.segment_id)
        assert stores.segment_info(name).is_sealed is sealed, name
    for epoch in epochs:
        for segment in epoch.replaced:
            name = segment_name(found.scope, found.name, segment.segment_id)
            if name in present:
                assert stores.segment_info(name).is_sealed, name
            else:
                assert _head(world, found), f"{name} is gone, and nothing was truncated"


def _assert_no_orphans(world: StreamWorld, found: Any, epochs: list[Any], unwanted: set[str]) -> None:
    """Every record of a request is gone with it, and no segment exists that no epoch knows."""
    transient = [
        transition_key(found.scope, found.name),
        configuration_update_key(found.scope, found.name),
        running_truncation_key(found.scope, found.name),
    ]
    assert [record for record in world.bare_store.get_many(transient) if record is not None] == []
    known = {
        segment_name(found.scope, found.name, segment.segment_id) for epoch in epochs for segment in epoch.segments
    }
    prefix = f"{found.scope}/{found.name}/"
    present = {name for name in world.bare_segment_stores.names() if name.startswith(prefix)}
    assert {name for name in present if _TRANSACTION not in name} <= known | unwanted
    opened = world.transactions.list_open(found.scope, found.name, 1_000).items
    assert {stored.state for stored in opened} <= {TransactionState.OPEN}
    expected = {transaction_text(stored.transaction_id) for stored in opened}
    assert {name.partition(_TRANSACTION)[2] for name in present - unwanted if _TRANSACTION in name} <= expected
    partition = stream_partition(found.scope, found.name)
    last = epoch_sort(found.epoch.number + 100)
    page = world.bare_store.query(partition, first=epoch_sort(0), last=last, limit=1_000)
    assert len(page.records) == len(epochs)
