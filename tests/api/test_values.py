"""Each value of the API survives its JSON, and its JSON is what the OpenAPI document promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from pydantic import ValidationError

from functions.controller import (
    models_cluster,
    models_dead_letters,
    models_history,
    models_key_value_tables,
    models_plans,
    models_reader_groups,
    models_retention,
    models_scaling_events,
    models_segments,
    models_streams,
    models_transactions,
    models_watermarks,
)
from functions.controller.parameters import ApiValue, WireModel
from headrace.api.chunks import Chunk, Chunks
from headrace.api.cluster import ClusterView, ContainerMapView, ContainerView, StoreView
from headrace.api.cluster_logs import (
    ContainerLogsView,
    ContainerLogView,
    CopiesChanged,
    EpochsRaised,
    LogMemberView,
)
from headrace.api.dead_letters import DeadLetterView
from headrace.api.key_value_tables import TableSegments, TableView
from headrace.api.pages import Listing
from headrace.api.plans import LostBytes, NextCutView, PlannedPiece, RangePlan, RangePlans, RangeToPlan
from headrace.api.reader_groups import ReaderGroupView
from headrace.api.retention import RetentionDescription, SubscriberView
from headrace.api.segments import (
    EpochSegments,
    Predecessors,
    RangeBetween,
    RangesBetween,
    SegmentEndpoint,
    SegmentView,
    Successor,
    Successors,
)
from headrace.api.stream_cuts import stream_cut_from_json, stream_cut_json
from headrace.api.streams import (
    ScaleProgress,
    ScaleStatus,
    ScalingEvent,
    ScalingEvents,
    StreamSummary,
    StreamUpdate,
    StreamView,
    configuration_json,
)
from headrace.api.transactions import (
    CommitSetView,
    CommittedEpochView,
    CompletedTransaction,
    LabelledAborts,
    TransactionSegmentView,
    TransactionView,
)
from headrace.api.watermarks import NewestWatermark
from headrace.model.cluster import ContainerStanding, StoreState
from headrace.model.container_logs import LedgerStart, LogState
from headrace.model.dead_letters import DeadLetterStatus
from headrace.model.key_value_tables import TableConfiguration, TableState
from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, ReaderGroupState, RetentionMode
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_configuration import RetentionPolicy, RetentionType, ScalingPolicy, StreamConfiguration
from headrace.model.stream_cuts import StreamCut
from headrace.model.stream_state import StreamState
from headrace.model.transactions import TransactionState
from headrace.model.watermarks import Watermark
from headrace.model.writer_marks import positions_of

FIRST = SegmentView(0, "s/t/0.#epoch.0", KeyRange(0.0, 0.5), 7)
SECOND = SegmentView(1, "s/t/1.#epoch.0", KeyRange(0.5, 1.0))
UNREAD = SegmentView(1, "s/t/1.#epoch.0", KeyRange(0.5, 1.0), 0)
NEXT = SegmentView(1 << 32 | 2, "s/t/2.#epoch.1", KeyRange(0.0, 0.5))
SCALED = SegmentView(1 << 32 | 3, "", KeyRange(0.5, 1.0))
CUT = StreamCut.of("s", "t", {0: 7, 1: 0})
GROUP_CONFIGURATION = ReaderGroupConfiguration((GroupStream("s", "t", CUT, None),), RetentionMode.MANUAL, 1, 2, 3, 4)
TRANSACTION = "0" * 31 + "7"
WRITTEN_TO = TransactionSegmentView(0, "s/t/0.#epoch.0", "s/t/0.#epoch.0#transaction.7", KeyRange(0.0, 1.0))
CONFIGURATION = StreamConfiguration(
    ScalingPolicy.by_event_rate(100, 2, 3),
    RetentionPolicy(RetentionType.LIMITED_DAYS, 1, 3),
    tags=("a", "b"),
    timestamp_aggregation_timeout_ms=5,
    rollover_size_bytes=6,
)


class Exchanged(NamedTuple):
    """A value, the function that reads its JSON, and the model that the OpenAPI document shows."""

    value: ApiValue
    from_json: Callable[[Mapping[str, Any]], object]
    model: type[WireModel]


def _ranges_between(document: Mapping[str, Any]) -> RangesBetween:
    return RangesBetween.from_json("s", "t", document)


def _next_cut(document: Mapping[str, Any]) -> NextCutView:
    return NextCutView.from_json("s", "t", document)


EXCHANGED = {
    "stream": Exchanged(
        StreamView("s", "t", CONFIGURATION, StreamState.UPDATING, 2, 3, 1_000, 4),
        StreamView.from_json,
        models_streams.Stream,
    ),
    "stream without retention": Exchanged(
        StreamView("s", "t", StreamConfiguration(ScalingPolicy.fixed(2)), StreamState.ACTIVE, 0, 2, 1_000),
        StreamView.from_json,
        models_streams.Stream,
    ),
    "stream in a list": Exchanged(
        StreamSummary("s", "t", ("a", "b")), StreamSummary.from_json, models_streams.StreamEntry
    ),
    "update": Exchanged(StreamUpdate(StreamState.UPDATING, 5), StreamUpdate.from_json, models_streams.StreamUpdate),
    "scale": Exchanged(
        ScaleProgress(1, ScaleStatus.IN_PROGRESS, (SCALED,)), ScaleProgress.from_json, models_streams.Scale
    ),
    "scaling events": Exchanged(
        ScalingEvents((ScalingEvent(1_000, 1, (0, 1), (SCALED,), 0, 1),), 2_000),
        ScalingEvents.from_json,
        models_scaling_events.ScalingEventList,
    ),
    "transaction": Exchanged(
        TransactionView(TRANSACTION, TransactionState.OPEN, 1_000, 2_000, None, (WRITTEN_TO,)),
        TransactionView.from_json,
        models_transactions.NewTransaction,
    ),
    "completed transaction": Exchanged(
        CompletedTransaction(TRANSACTION, TransactionState.COMMITTED),
        CompletedTransaction.from_json,
        models_transactions.CompletedEntry,
    ),
    "commit set": Exchanged(
        CommitSetView("spark:1", (1 << 63) - 1, 3_000, new=True),
        CommitSetView.from_json,
        models_transactions.CommitSetModel,
    ),
    "committed epoch": Exchanged(
        CommittedEpochView("spark:1", 7, 3_000),
        CommittedEpochView.from_json,
        models_transactions.CommittedEpochModel,
    ),
    "no committed epoch": Exchanged(
        CommittedEpochView("spark:1", None, None),
        CommittedEpochView.from_json,
        models_transactions.CommittedEpochModel,
    ),
    "labelled aborts": Exchanged(
        LabelledAborts(3, TRANSACTION),
        LabelledAborts.from_json,
        models_transactions.LabelledAbortsModel,
    ),
    "transaction with a label": Exchanged(
        TransactionView(TRANSACTION, TransactionState.OPEN, 1_000, 2_000, 5, (WRITTEN_TO,), "q/7", on_demand=True),
        TransactionView.from_json,
        models_transactions.NewTransaction,
    ),
    "chunks": Exchanged(
        Chunks((Chunk(0, 7, "https://s3/run", {"Range": "bytes=0-6"}, 9_000),), 7, 7),
        Chunks.from_json,
        models_history.ChunkList,
    ),
    "next cut": Exchanged(
        NextCutView(
            RangesBetween((RangeBetween(FIRST, 7, 9, (), ()), RangeBetween(UNREAD, 0, 0, (), ())), CUT, CUT),
            reached_end=False,
            left_bytes=None,
            lost=(LostBytes(0, 2, 5),),
            lost_bytes=5,
        ),
        _next_cut,
        models_plans.NextCut,
    ),
    "range plans": Exchanged(
        RangePlans(
            (
                RangePlan(
                    0,
                    (
                        PlannedPiece(0, 9, (Chunk(0, 7, "https://s3/run", {"Range": "bytes=0-6"}, 9_000),), 7),
                        PlannedPiece(9, 12),
                    ),
                    SegmentEndpoint("10.0.0.1", 1, "use1-az1", 3, 4),
                ),
                RangePlan(1, (PlannedPiece(0, 1),), None),
            )
        ),
        RangePlans.from_json,
        models_plans.RangePlanList,
    ),
    "range to plan": Exchanged(RangeToPlan(1, 0, 9, 4), RangeToPlan.from_json, models_plans.PlanRequestRange),
    "whole range to plan": Exchanged(RangeToPlan(1, 0, 9), RangeToPlan.from_json, models_plans.PlanRequestRange),
    "cluster": Exchanged(
        ClusterView(
            3,
            16,
            (StoreView("a", StoreState.LOST, "10.0.0.1", 1, "use1-az1", 100, 4, None, 5_000, 6_000, None, (1, 2)),),
        ),
        ClusterView.from_json,
        models_cluster.Cluster,
    ),
    "container map": Exchanged(
        ContainerMapView(
            None,
            (
                ContainerView(0, "a", ContainerStanding.SERVED, "a", "10.0.0.1", 1, "use1-az1", 4),
                ContainerView(1, None, ContainerStanding.FREE, None, None, None, None, None),
            ),
        ),
        ContainerMapView.from_json,
        models_cluster.ContainerMap,
    ),
    "logs of containers": Exchanged(
        ContainerLogsView(
            (
                ContainerLogView(
                    container=3,
                    state=LogState.OPEN,
                    copies=3,
                    version=9,
                    members=(
                        LogMemberView("0a" * 16, "a", StoreState.SERVING, "use1-az1", may_be_removed=False),
                        LogMemberView("0b" * 16, None, None, None, may_be_removed=True),
                    ),
                    ledgers=(LedgerStart(4, 70), LedgerStart(6, 90)),
                    truncated=50,
                    next_entry=None,
                    complete=False,
                    blocked=True,
                ),
                ContainerLogView(4, None, None, 0, (), (), 0, 7, complete=True, blocked=False),
            )
        ),
        ContainerLogsView.from_json,
        models_cluster.ContainerLogs,
    ),
    "changed copies": Exchanged(CopiesChanged(3, (1, 2), (4,)), CopiesChanged.from_json, models_cluster.CopiesChanged),
    "raised epochs": Exchanged(EpochsRaised((1, 2), (4,)), EpochsRaised.from_json, models_cluster.EpochsRaised),
    "table": Exchanged(
        TableView("s", "t", TableConfiguration(2, 8, 4, 1_000), TableState.ACTIVE, 1_000),
        TableView.from_json,
        models_key_value_tables.KeyValueTable,
    ),
    "segments of a table": Exchanged(
        TableSegments((SECOND,), 8, 4), TableSegments.from_json, models_key_value_tables.TableSegmentList
    ),
    "reader group": Exchanged(
        ReaderGroupView("s", "g", "id", 2, ReaderGroupState.UPDATING, "_RGg", GROUP_CONFIGURATION),
        ReaderGroupView.from_json,
        models_reader_groups.ReaderGroup,
    ),
    "dead letter": Exchanged(
        DeadLetterView(
            "1",
            "requests",
            "scaleStream",
            "s/t",
            DeadLetterStatus.UNDONE,
            "conflict",
            "busy",
            1,
            2,
            3,
            4,
            "{}",
            {"a": 1},
        ),
        DeadLetterView.from_json,
        models_dead_letters.DeadLetter,
    ),
    "subscriber": Exchanged(
        SubscriberView("s/g", 2, {0: 7, 1: -1}, 1_000), SubscriberView.from_json, models_retention.SubscriberModel
    ),
    "watermark": Exchanged(
        NewestWatermark(
            Watermark(3, 5, positions_of({StreamSegment(0, KeyRange(0.0, 1.0)): 7})), "s/_MARKt/0.#epoch.0", 40
        ),
        NewestWatermark.from_json,
        models_watermarks.NewestWatermarkAnswer,
    ),
    "no watermark": Exchanged(
        NewestWatermark(None, "s/_MARKt/0.#epoch.0", 0),
        NewestWatermark.from_json,
        models_watermarks.NewestWatermarkAnswer,
    ),
    "segments of an epoch": Exchanged(
        EpochSegments(3, (FIRST, SECOND), sealed=True), EpochSegments.from_json, models_segments.SegmentList
    ),
    "successors": Exchanged(
        Successors((Successor(NEXT, (0, 1)),), sealed=False), Successors.from_json, models_segments.SuccessorList
    ),
    "predecessors": Exchanged(Predecessors((SECOND,)), Predecessors.from_json, models_segments.PredecessorList),
    "endpoint": Exchanged(
        SegmentEndpoint("10.0.0.1", 12345, "use1-az1", 3, 8), SegmentEndpoint.from_json, models_segments.Endpoint
    ),
    "ranges between": Exchanged(
        RangesBetween((RangeBetween(FIRST, 7, 9, (), (NEXT.segment_id,)),), CUT, CUT),
        _ranges_between,
        models_segments.Between,
    ),
}


@pytest.fixture(params=EXCHANGED.values(), ids=EXCHANGED)
def exchanged(request: pytest.FixtureRequest) -> Exchanged:
    found: Exchanged = request.param
    return found


def test_value_survives_its_json(exchanged: Exchanged):
    assert exchanged.from_json(exchanged.value.to_json()) == exchanged.value


def test_json_has_the_published_shape(exchanged: Exchanged):
    answered = exchanged.model.from_value(exchanged.value)
    assert answered.model_dump(by_alias=True) == exchanged.value.to_json()


def test_json_of_another_shape_is_not_answered(exchanged: Exchanged):
    class Longer:
        def to_json(self) -> dict[str, Any]:
            return {**exchanged.value.to_json(), "unknown": 1}

    with pytest.raises(ValidationError):
        exchanged.model.from_value(Longer())


def test_stream_cut_survives_its_json():
    document = stream_cut_json(CUT)
    assert stream_cut_from_json(document) == CUT
    assert models_segments.StreamCutModel.model_validate(document).model_dump() == document


def test_page_survives_its_json():
    page = Listing((StreamSummary("s", "t", ()), StreamSummary("s", "u", ("a",))), "u")
    document = page.to_json("streams", StreamSummary.to_json)
    assert Listing.from_json(document, "streams", StreamSummary.from_json) == page
    assert models_streams.StreamList.model_validate(document).model_dump() == document


def test_configuration_of_a_request_may_leave_out_defaults():
    shortest = {"scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}}
    request = models_streams.StreamConfigurationModel.model_validate(shortest)
    assert request.configuration() == StreamConfiguration(ScalingPolicy.fixed(2))


def test_configuration_of_a_request_survives_its_json():
    request = models_streams.StreamConfigurationModel.model_validate(configuration_json(CONFIGURATION))
    assert request.configuration() == CONFIGURATION


def test_transaction_changed_or_listed_is_told_without_segments():
    view = TransactionView(TRANSACTION, TransactionState.COMMITTED, 1_000, 2_000, 3_000)
    assert TransactionView.from_json(view.state_json()) == view
    assert models_transactions.TransactionModel.model_validate(view.state_json()).model_dump() == view.state_json()


@pytest.mark.parametrize("cut", [CUT, None], ids=["something-goes", "nothing-goes"])
def test_retention_survives_its_json(cut: StreamCut | None):
    found = RetentionDescription(
        CONFIGURATION.retention, 9, 1, 100, 2, 3, 4, 1, 10, 30 if cut else 0, cut, "WITHIN_LIMITS", "because"
    )
    document = found.to_json("s", "t")
    assert RetentionDescription.from_json(document) == found
    assert models_retention.Retention.model_validate(document).model_dump() == document
