"""A stream from its creation to its deletion, and the invariants that are checked at every write of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_histories import Histories

from headrace.model import streams
from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.errors import ConflictError, CorruptError, IllegalStateError, SealedError
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.segments import KeyRange, StreamSegment, segment_id
from headrace.model.stream_configuration import ConfigurationUpdate, ScalingPolicy, StreamConfiguration
from headrace.model.stream_cuts import PlacedCut, StreamCut
from headrace.model.stream_state import STREAM_OPERATIONS, StreamState
from headrace.model.streams import INVARIANTS, Stream, check_write
from headrace.model.transactions import roll_of
from headrace.model.truncation import running_truncation

T = TypeVar("T")

NEW = streams.new_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2)), 4, 1_000)
ACTIVE = streams.completed(NEW)
NEXT = scaled_epoch(ACTIVE.epoch, [4], [KeyRange(0.0, 0.25), KeyRange(0.25, 0.5)], 2_000)
SCALING = streams.started(ACTIVE, 1, RequestKind.SCALE_STREAM)
RECORDED = streams.epoch_recorded(SCALING, NEXT)
SCALED = streams.scaled(RECORDED, NEXT)
UPDATE = ConfigurationUpdate(SCALED.configuration, StreamConfiguration(ScalingPolicy.fixed(3), tags=("a",)), 1)
UPDATING = streams.started(SCALED, 4, RequestKind.UPDATE_STREAM)
CONFIGURED = streams.configured(UPDATING, UPDATE)
UPDATED = streams.completed(CONFIGURED)
TRUNCATING = streams.started(UPDATED, 7, RequestKind.TRUNCATE_STREAM)
TRUNCATED = streams.completed(TRUNCATING)
SEALING = streams.started(TRUNCATED, 9, RequestKind.SEAL_STREAM)
SEALED = streams.completed(SEALING)
COMMITTING = streams.started(SCALED, 4, RequestKind.COMMIT_TRANSACTIONS)
ROLL = roll_of(NEXT, ACTIVE.epoch, 3_000)
WAITING = streams.started(COMMITTING, 5, RequestKind.SCALE_STREAM)
ROLLING = streams.epoch_recorded(COMMITTING, ROLL.following)
ROLLED = streams.rolled(ROLLING, ROLL.following)
COMMITTED = streams.commit_ended(ROLLED)
DELETING = streams.start_deleting(SEALED, 11)
HISTORY: list[Stream | None] = [
    None,
    *(NEW, ACTIVE, SCALING, RECORDED, SCALED, UPDATING, CONFIGURED, UPDATED, TRUNCATING, TRUNCATED),
    *(SEALING, SEALED, DELETING),
]


def test_a_lifetime_keeps_every_invariant():
    for before, after in itertools.pairwise(HISTORY):
        assert after is not None
        check_write(before, after)
    assert [stream.state for stream in HISTORY if stream] == [
        "CREATING",
        "ACTIVE",
        "SCALING",
        "SCALING",
        "ACTIVE",
        "UPDATING",
        "UPDATING",
        "ACTIVE",
        "TRUNCATING",
        "ACTIVE",
        "SEALING",
        "SEALED",
        "SEALED",
    ]


def test_a_rolling_commit_keeps_every_invariant():
    for before, after in itertools.pairwise([SCALED, COMMITTING, ROLLING, ROLLED, COMMITTED]):
        check_write(before, after)
    assert (COMMITTED.state, COMMITTED.epoch.number, COMMITTED.pending) == (StreamState.ACTIVE, 3, None)
    assert COMMITTING.pending == PendingRequest(RequestKind.COMMIT_TRANSACTIONS, "commit_transactions-4-5")


def test_a_commit_during_a_seal_leaves_the_stream_sealing():
    rolling = streams.epoch_recorded(SEALING, ROLL.following)
    check_write(SEALING, rolling)
    check_write(rolling, streams.rolled(rolling, ROLL.following))
    assert streams.commit_ended(rolling) is rolling


def test_request_ids_follow_incarnation_and_version():
    assert NEW.pending == PendingRequest(RequestKind.CREATE_STREAM, "create-4-1000")
    assert SCALING.pending == PendingRequest(RequestKind.SCALE_STREAM, "scale_stream-4-2")
    assert DELETING.is_deleting
    assert not SEALED.is_deleting
    assert SCALING.is_pending(PendingRequest(RequestKind.SCALE_STREAM, "scale_stream-4-2"))
    assert not ACTIVE.is_pending(PendingRequest(RequestKind.SCALE_STREAM, "scale_stream-4-2"))


def test_a_scale_that_is_rolled_back_leaves_the_old_segments():
    planned = scaled_epoch(SCALING.epoch, SCALING.epoch.by_id, [KeyRange(0.0, 1.0)], 5_000)
    back = streams.scale_rolled_back(SCALING, planned)
    assert (back.state, back.pending, back.recorded_epoch) == (StreamState.ACTIVE, None, planned.number)
    assert (back.epoch.number, back.epoch.segments) == (planned.number, ACTIVE.epoch.segments)
    assert (back.epoch.changes_nothing, ACTIVE.epoch.changes_nothing) == (True, False)
    assert back.epoch.reference_epoch == ACTIVE.epoch.reference_epoch
    check_write(SCALING, back)
    for wrong in ({"segments": planned.segments}, {"duplicate_of": None}, {"number": planned.number + 1}):
        with pytest.raises(CorruptError):
            check_write(SCALING, replace(back, epoch=replace(back.epoch, **wrong)))
    for other in (ACTIVE, RECORDED, SEALED):
        with pytest.raises(IllegalStateError):
            streams.scale_rolled_back(other, planned)


def test_an_update_can_be_rolled_back_until_it_is_in_force():
    assert not streams.is_in_force(UPDATING, UPDATE)
    assert streams.update_rolled_back(UPDATING, UPDATE) == SCALED
    check_write(UPDATING, SCALED)
    for other in (SCALED, CONFIGURED, TRUNCATING):
        with pytest.raises(IllegalStateError):
            streams.update_rolled_back(other, UPDATE)


def test_a_truncation_can_be_rolled_back_until_it_is_recorded():
    beginning = PlacedCut(StreamCut.of("s", "t", {4: 1, 5: 0}), NEW.epoch.segments)
    running = running_truncation(beginning, 0, None)
    assert streams.truncation_rolled_back(TRUNCATING, running) == UPDATED
    check_write(TRUNCATING, UPDATED)
    for other, found in ((UPDATED, running), (TRUNCATING, replace(running, is_recorded=True)), (UPDATING, running)):
        with pytest.raises(IllegalStateError):
            streams.truncation_rolled_back(other, found)


STARTED = sorted(STREAM_OPERATIONS.keys() - {RequestKind.CREATE_STREAM, RequestKind.DELETE_STREAM})


@pytest.mark.parametrize("kind", STARTED)
def test_operations_need_an_active_stream(kind: RequestKind):
    for busy in (NEW, SCALING, RECORDED, UPDATING, CONFIGURED, TRUNCATING, ROLLING, WAITING, SEALING):
        with pytest.raises(ConflictError):
            streams.started(busy, 1, kind)
    for closed in (SEALED, DELETING):
        with pytest.raises(SealedError):
            streams.started(closed, 1, kind)


def test_a_commit_does_not_wait_for_another_one():
    with pytest.raises(ConflictError):
        streams.started(COMMITTING, 1, RequestKind.COMMIT_TRANSACTIONS)


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (RequestKind.UPDATE_STREAM, StreamState.UPDATING),
        (RequestKind.TRUNCATE_STREAM, StreamState.TRUNCATING),
        (RequestKind.SCALE_STREAM, StreamState.SCALING),
        (RequestKind.SEAL_STREAM, StreamState.SEALING),
    ],
)
def test_an_operation_follows_a_batch_of_commits(kind: RequestKind, state: StreamState):
    waiting = streams.started(COMMITTING, 7, kind)
    check_write(COMMITTING, waiting)
    assert (waiting.state, waiting.shown_state, waiting.pending) == (
        StreamState.COMMITTING_TXN,
        state,
        COMMITTING.pending,
    )
    running = streams.commit_ended(waiting)
    check_write(waiting, running)
    assert (running.state, running.shown_state) == (state, state)
    assert (running.pending, running.following) == (waiting.following, None)


def test_only_a_running_operation_is_completed():
    for idle in (ACTIVE, SEALED, DELETING):
        with pytest.raises(CorruptError):
            streams.completed(idle)


def test_only_a_sealed_stream_is_deleted():
    for other in (NEW, ACTIVE, SCALING, SEALING):
        with pytest.raises(IllegalStateError) as refused:
            streams.start_deleting(other, 1)
        assert refused.value.specific_code == "stream_not_sealed"


def _with_segments(epoch: Epoch, *segments: StreamSegment) -> Epoch:
    return replace(epoch, segments=segments)


_LEFT, _RIGHT = ACTIVE.epoch.segments
BREACHES: dict[str, list[tuple[Stream | None, Stream]]] = {
    "key_space_is_covered_once": [
        (None, replace(NEW, epoch=_with_segments(NEW.epoch, _LEFT))),
        (None, replace(NEW, epoch=_with_segments(NEW.epoch, _LEFT, StreamSegment(5, KeyRange(0.4, 1.0))))),
        (None, replace(NEW, epoch=_with_segments(NEW.epoch))),
    ],
    "segments_are_sorted_and_unique": [
        (None, replace(NEW, epoch=_with_segments(NEW.epoch, _RIGHT, _LEFT))),
        (None, replace(NEW, epoch=_with_segments(NEW.epoch, _LEFT, StreamSegment(4, _RIGHT.key_range)))),
        (None, replace(NEW, epoch=_with_segments(NEW.epoch, _LEFT, StreamSegment(5, _LEFT.key_range)))),
    ],
    "state_transition_is_allowed": [
        (None, ACTIVE),
        (SEALED, replace(SEALED, state=StreamState.ACTIVE)),
        (ACTIVE, NEW),
        (SCALING, replace(SEALING, epoch=SCALING.epoch, recorded_epoch=0)),
    ],
    "identity_stays": [
        (ACTIVE, replace(ACTIVE, name="u")),
        (ACTIVE, replace(ACTIVE, first_segment_number=5)),
        (ACTIVE, replace(ACTIVE, creation_time_ms=0)),
    ],
    "configuration_changes_by_updates": [
        (None, replace(NEW, configuration_version=1)),
        (ACTIVE, replace(ACTIVE, configuration=UPDATE.after)),
        (ACTIVE, replace(ACTIVE, configuration=UPDATE.after, configuration_version=1)),
        (UPDATING, replace(CONFIGURED, configuration_version=2)),
        (UPDATING, UPDATED),
        (SCALED, CONFIGURED),
        (SCALING, replace(SCALING, configuration=UPDATE.after, configuration_version=1)),
        (CONFIGURED, replace(CONFIGURED, configuration_version=0)),
    ],
    "epochs_follow": [
        (None, replace(NEW, recorded_epoch=1)),
        (None, replace(NEW, epoch=replace(NEW.epoch, number=1))),
        (ACTIVE, replace(SCALED, epoch=replace(NEXT, creation_time_ms=1_001), recorded_epoch=0)),
        (RECORDED, replace(SCALED, epoch=replace(NEXT, number=2), recorded_epoch=2)),
        (ACTIVE, replace(ACTIVE, epoch=replace(ACTIVE.epoch, creation_time_ms=5))),
        (RECORDED, replace(SCALED, epoch=replace(NEXT, creation_time_ms=1_000))),
        (RECORDED, replace(SCALED, epoch=replace(NEXT, replaced=()))),
        (
            RECORDED,
            replace(
                SCALED,
                epoch=replace(
                    NEXT,
                    segments=(
                        StreamSegment(segment_id(1, 7), KeyRange(0.0, 0.25)),
                        StreamSegment(segment_id(1, 8), KeyRange(0.25, 0.5)),
                        _RIGHT,
                    ),
                ),
            ),
        ),
        (SCALED, replace(SCALED, epoch=ACTIVE.epoch, recorded_epoch=0)),
        (ROLLING, replace(ROLLED, recorded_epoch=4)),
        (ROLLING, replace(ROLLED, epoch=replace(ROLL.following, duplicate_of=0))),
        (ROLLING, replace(ROLLED, epoch=replace(ROLL.following, creation_time_ms=NEXT.creation_time_ms + 1))),
        (ROLLING, replace(ROLLED, epoch=replace(ROLL.following, segments=ROLL.following.segments[:1]))),
    ],
    "epoch_is_recorded_before_it_is_active": [
        (SCALING, SCALED),
        (ACTIVE, replace(ACTIVE, recorded_epoch=1)),
        (RECORDED, SCALING),
        (SCALING, replace(RECORDED, recorded_epoch=2)),
        (COMMITTING, replace(ROLLING, recorded_epoch=2)),
        (ROLLING, COMMITTING),
        (COMMITTING, ROLLED),
    ],
    "first_numbers_continue": [(None, replace(NEW, first_segment_number=0))],
    "one_request_runs": [
        (None, replace(NEW, pending=None)),
        (ACTIVE, replace(SCALING, pending=None)),
        (ACTIVE, replace(SCALING, pending=SEALING.pending)),
        (SCALED, replace(SCALED, pending=SCALING.pending)),
        (SEALING, replace(SEALED, pending=SEALING.pending)),
    ],
    "the_following_request_waits_for_commits": [
        (ACTIVE, replace(ACTIVE, following=SCALING.pending)),
        (COMMITTING, replace(COMMITTING, following=COMMITTING.pending)),
        (COMMITTING, replace(COMMITTING, following=PendingRequest(RequestKind.DELETE_STREAM, "x"))),
        (WAITING, COMMITTED),
        (WAITING, COMMITTING),
    ],
}


def test_every_invariant_can_be_broken():
    assert set(BREACHES) == {invariant.__name__ for invariant in INVARIANTS}


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [(name, before, after) for name, pairs in BREACHES.items() for before, after in pairs],
)
def test_a_breach_is_named_and_refused(name: str, before: Stream | None, after: Stream):
    (invariant,) = (invariant for invariant in INVARIANTS if invariant.__name__ == name)
    assert not invariant(before, after)
    with pytest.raises(CorruptError):
        check_write(before, after)


def _with(change: Callable[[Stream, T], Stream], value: T) -> Callable[[Stream], Stream]:
    return lambda before: change(before, value)


@given(data=st.data())
def test_random_lifetimes_keep_every_invariant(histories: Histories, data: st.DataObject):
    epochs = data.draw(histories())
    first = epochs[0]
    configuration = StreamConfiguration(ScalingPolicy.fixed(len(first.segments)))
    stream = streams.new_stream("s", "t", configuration, first.segments[0].number, first.creation_time_ms)
    check_write(None, stream)
    changes: list[Callable[[Stream], Stream]] = [streams.completed]
    coming = iter(epochs[1:])
    for version, epoch in enumerate(coming):
        if epoch.duplicate_of is not None:
            following = next(coming)
            changes += [
                _with(lambda before, at: streams.started(before, at, RequestKind.COMMIT_TRANSACTIONS), version),
                _with(streams.epoch_recorded, following),
                _with(streams.rolled, following),
                streams.commit_ended,
            ]
            continue
        changes += [
            _with(lambda before, at: streams.started(before, at, RequestKind.SCALE_STREAM), version),
            _with(streams.epoch_recorded, epoch),
            _with(streams.scaled, epoch),
        ]
    for event in changes:
        after = event(stream)
        check_write(stream, after)
        stream = after
    assert stream.epoch == epochs[-1]
