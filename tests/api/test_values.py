"""Each document of the API survives its JSON, and its JSON is what the OpenAPI document promises."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from rich.pretty import pretty_repr

from functions.openapi import DOCUMENT
from headrace.api.cluster import (
    ClusterView,
    ContainerLogsView,
    ContainerLogView,
    ContainerMapView,
    ContainerView,
    CopiesChanged,
    EpochsRaised,
    LedgerView,
    LogMemberView,
    StoreView,
)
from headrace.api.dead_letters import DeadLetterCause, DeadLetterView
from headrace.api.delegation_tokens import IssuedToken
from headrace.api.key_value_tables import CreateTableRequest, TableSegments, TableView
from headrace.api.plans import (
    Chunk,
    Chunks,
    LostBytes,
    NextCutRequest,
    NextCutView,
    PlannedPiece,
    RangePlan,
    RangePlans,
    RangePlansRequest,
    RangeToPlan,
)
from headrace.api.reader_groups import ReaderGroupSettings, ReaderGroupView
from headrace.api.retention import NextTruncation, RetentionDescription, SubscriberView
from headrace.api.segments import (
    EpochSegments,
    Predecessors,
    RangeBetween,
    RangesBetween,
    ScaledSegment,
    SegmentEndpoint,
    SegmentView,
    StartedSegment,
    Successor,
    Successors,
)
from headrace.api.stream_cuts import CutCheck, CutRequest, ExplainedCutCheck, StreamCutView
from headrace.api.streams import (
    CreateStreamRequest,
    EpochHistory,
    EpochView,
    NewRange,
    ReplacedSegment,
    ScaleProgress,
    ScaleRequest,
    ScaleStatus,
    ScalingEvent,
    ScalingEvents,
    StreamDeletion,
    StreamList,
    StreamSummary,
    StreamUpdate,
    StreamView,
    UpdateStreamRequest,
)
from headrace.api.transactions import (
    CommitSetView,
    CommittedEpochView,
    CompletedTransaction,
    LabelledAborts,
    NewTransaction,
    TransactionSegmentView,
    TransactionView,
)
from headrace.api.trust import TrustView
from headrace.api.watermarks import NewestWatermark, WatermarkView
from headrace.model.cluster import ContainerStanding, StoreState
from headrace.model.container_logs import LogState
from headrace.model.dead_letters import DeadLetterStatus
from headrace.model.documents import Document, json_name
from headrace.model.errors import InvalidRequestError, TruncatedError
from headrace.model.key_value_tables import TableConfiguration, TableState
from headrace.model.log_classes import LogClass
from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, ReaderGroupState, RetentionMode
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_configuration import RetentionPolicy, RetentionType, ScalingPolicy, StreamConfiguration
from headrace.model.stream_cuts import StreamCut
from headrace.model.stream_state import StreamState
from headrace.model.transactions import TransactionState
from headrace.model.watermarks import Watermark
from headrace.model.writer_marks import positions_of

NEXT = SegmentView(1 << 32 | 2, 0.0, 0.5, "s/t/2.#epoch.1")
SCALED = ScaledSegment(1 << 32 | 3, 0.5, 1.0)
CUT = StreamCut.of("s", "t", {0: 7, 1: 0})
GROUP_CONFIGURATION = ReaderGroupConfiguration((GroupStream("s", "t", CUT, None),), RetentionMode.MANUAL, 1, 2, 3, 4)
TRANSACTION = "0" * 31 + "7"
WRITTEN_TO = TransactionSegmentView(0, 0.0, 1.0, "s/t/0.#epoch.0", "s/t/0.#epoch.0#transaction.7")
CONFIGURATION = StreamConfiguration(
    ScalingPolicy.by_event_rate(100, 2, 3),
    RetentionPolicy(RetentionType.LIMITED_DAYS, 1, 3),
    tags=("a", "b"),
    timestamp_aggregation_timeout_ms=5,
    rollover_size_bytes=6,
)
RANGES = RangesBetween.between(CUT, CUT, (RangeBetween(0, 0.0, 0.5, "s/t/0.#epoch.0", 7, 9, (), (NEXT.segment_id,)),))
TRUNCATION = NextTruncation("WITHIN_LIMITS", "because", 30, StreamCutView.of(CUT))
WATERMARK = Watermark(3, 5, positions_of({StreamSegment(0, KeyRange(0.0, 1.0)): 7}))


def stream_view(configuration: StreamConfiguration) -> StreamView:
    return StreamView(
        **configuration.fields(),
        scope="s",
        stream="t",
        state=StreamState.UPDATING,
        epoch=2,
        segments=3,
        creation_time_ms=1_000,
        configuration_version=4,
    )


def description(following: NextTruncation) -> RetentionDescription:
    return RetentionDescription("s", "t", CONFIGURATION.retention, 9, 1, 100, 2, 3, None, 1, 10, following)


DOCUMENTS: dict[str, Document] = {
    "stream": stream_view(CONFIGURATION),
    "stream without retention": stream_view(StreamConfiguration(ScalingPolicy.fixed(2))),
    "page of streams": StreamList(streams=(StreamSummary("s", "t", ("a", "b")),), next_after="t"),
    "last page of streams": StreamList(streams=(), next_after=None),
    "new stream": CreateStreamRequest(**CONFIGURATION.fields(), stream="t"),
    "update": StreamUpdate(StreamState.UPDATING, 5),
    "request for an update": UpdateStreamRequest(scaling=ScalingPolicy.fixed(1), expected_configuration_version=3),
    "deletion": StreamDeletion(StreamState.SEALED, is_deleting=True),
    "scale": ScaleProgress(1, ScaleStatus.IN_PROGRESS, (SCALED,)),
    "scaling events": ScalingEvents((ScalingEvent(1_000, 1, (0, 1), (SCALED,), 0, 1),), 2_000),
    "epochs": EpochHistory(
        (EpochView(1, 1_000, (ReplacedSegment(0, 0.0, 0.5, 7), ReplacedSegment(1, 0.5, 1.0, None)), (SCALED,)),),
        (SCALED,),
        1,
    ),
    "listed transaction": TransactionView(TRANSACTION, TransactionState.COMMITTED, 1_000, 2_000, 3_000, None),
    "transaction with a label": NewTransaction(
        TRANSACTION, TransactionState.OPEN, 1_000, 2_000, 5, "q/7", segments=(WRITTEN_TO,), on_demand=True
    ),
    "completed transaction": CompletedTransaction(TRANSACTION, TransactionState.COMMITTED),
    "commit set": CommitSetView("spark:1", (1 << 63) - 1, 3_000, new=True),
    "no committed epoch": CommittedEpochView("spark:1", None, None),
    "labelled aborts": LabelledAborts(aborted=3, next_after=TRANSACTION),
    "chunks": Chunks((Chunk(0, 7, "https://s3/run", {"Range": "bytes=0-6"}, 9_000),), 7, 7),
    "next cut": NextCutView(
        **RANGES.fields(), reached_end=False, left_bytes=None, lost=(LostBytes(0, 2, 5),), lost_bytes=5
    ),
    "request for a cut": NextCutRequest({"0": 7}, None, 100, strict_key_order=True),
    "range plans": RangePlans(
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
    "request for plans": RangePlansRequest((RangeToPlan(1, 0, 9, 4), RangeToPlan(1, 0, 9)), links=False),
    "cluster": ClusterView(
        3, 16, (StoreView("a", StoreState.LOST, "10.0.0.1", 1, "use1-az1", 100, 4, None, 5_000, 6_000, None, (1, 2)),)
    ),
    "container map": ContainerMapView(
        None,
        (
            ContainerView(0, "a", ContainerStanding.SERVED, "a", "10.0.0.1", 1, "use1-az1", 4),
            ContainerView(1, None, ContainerStanding.FREE, None, None, None, None, None),
        ),
    ),
    "logs of containers": ContainerLogsView(
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
                ledgers=(LedgerView(4, 70), LedgerView(6, 90)),
                truncated=50,
                next_entry=None,
                complete=False,
                blocked=True,
            ),
            ContainerLogView(4, None, None, 0, (), (), 0, 7, complete=True, blocked=False),
        )
    ),
    "changed copies": CopiesChanged(3, (1, 2), (4,)),
    "raised epochs": EpochsRaised((1, 2), (4,)),
    "table": TableView(
        **TableConfiguration(2, 8, 4, 1_000).fields(),
        scope="s",
        table="t",
        state=TableState.ACTIVE,
        creation_time_ms=1_000,
    ),
    "new table": CreateTableRequest(**TableConfiguration(2, 8).fields(), table="t"),
    "segments of a table": TableSegments((NEXT,), 8, 4),
    "reader group": ReaderGroupView(
        **ReaderGroupSettings.of(GROUP_CONFIGURATION).fields(),
        scope="s",
        group="g",
        group_id="id",
        generation=2,
        state=ReaderGroupState.UPDATING,
        state_stream="_RGg",
    ),
    "dead letter": DeadLetterView(
        "1",
        "requests",
        "scaleStream",
        "s/t",
        DeadLetterStatus.UNDONE,
        DeadLetterCause("conflict", "busy"),
        1,
        2,
        3,
        4,
        {"a": 1},
        "{}",
        "grpc:ann",
        "deploy-7",
    ),
    "retention": description(TRUNCATION),
    "retention of all": description(NextTruncation("WITHIN_LIMITS", "because", 0, None)),
    "subscriber": SubscriberView("s/g", 2, {0: 7, 1: -1}, 1_000),
    "watermark": NewestWatermark(WatermarkView.of(WATERMARK), "s/_MARKt/0.#epoch.0", 40),
    "no watermark": NewestWatermark(None, "s/_MARKt/0.#epoch.0", 0),
    "segments of an epoch": EpochSegments(
        3, (StartedSegment(0, 0.0, 0.5, "s/t/0.#epoch.0", 7), StartedSegment(1, 0.5, 1.0, "s/t/1.#epoch.0", -1)), True
    ),
    "successors": Successors((Successor(*NEXT.fields().values(), (0, 1)),), sealed=False),
    "predecessors": Predecessors((NEXT,)),
    "endpoint": SegmentEndpoint("10.0.0.1", 12345, "use1-az1", 3, 8, "store-0.headrace.internal"),
    "trust": TrustView(("-----BEGIN CERTIFICATE-----",)),
    "ranges between": RANGES,
    "stream cut": StreamCutView.of(CUT),
    "valid cut": ExplainedCutCheck.of(None),
    "invalid cut": ExplainedCutCheck.of(TruncatedError("gone")),
    "token": IssuedToken("abc", 5),
}


@pytest.fixture(params=DOCUMENTS.values(), ids=DOCUMENTS)
def document(request: pytest.FixtureRequest) -> Document:
    found: Document = request.param
    return found


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DOCUMENT.read_text())
    return found


def test_document_survives_its_json(document: Document):
    assert type(document).from_json(json.loads(json.dumps(document.to_json()))) == document


def test_json_has_the_published_shape(document: Document, published: dict[str, Any]):
    name = type(document).__name__.removesuffix("View")
    schema = {"$ref": f"#/components/schemas/{name}", "components": published["components"]}
    shown = json.loads(json.dumps(document.to_json()))
    Draft202012Validator(schema).validate(shown)
    assert shown.keys() == published["components"]["schemas"][name]["properties"].keys()


def test_fields_of_a_newer_controller_are_ignored(document: Document):
    assert type(document).from_json(document.to_json() | {"addedLater": 1}) == document


def test_answer_without_a_field_is_refused():
    shown = SegmentEndpoint("10.0.0.1", 12345, "use1-az1", 3, 8).to_json()
    assert SegmentEndpoint.from_json({key: shown[key] for key in shown if key != "tlsName"}).tls_name == ""
    for name in shown.keys() - {"tlsName"}:
        with pytest.raises(ValueError, match=name):
            SegmentEndpoint.from_json({key: value for key, value in shown.items() if key != name})


def test_token_is_not_shown():
    token = IssuedToken("abc", 5)
    assert "abc" not in repr(token)
    assert "abc" not in pretty_repr(token)  # Rich asks msgspec's structs for all their fields


@pytest.mark.parametrize(
    ("name", "expected"), [("lease_end_ms", "leaseEnd"), ("epoch", "epoch"), ("low_ms_high", "lowMsHigh")]
)
def test_names_in_json(name: str, expected: str):
    assert json_name(name) == expected


def test_values_come_back_from_their_documents():
    stream = stream_view(CONFIGURATION)
    assert stream.configuration == CONFIGURATION
    assert stream.acknowledged_by is LogClass.STORES
    assert RANGES.start == RANGES.end == CUT
    assert StreamCutView.of(CUT).cut == CUT
    assert description(TRUNCATION).next_cut == CUT
    assert NewestWatermark(WatermarkView.of(WATERMARK), "", 0).watermark == WATERMARK
    group = ReaderGroupSettings.of(GROUP_CONFIGURATION)
    assert group.configured("other") == GROUP_CONFIGURATION
    known, unknown = (StartedSegment(0, 0.0, 1.0, "", offset) for offset in (0, -1))
    assert (known.start_offset, unknown.start_offset) == (0, None)


def test_configuration_of_a_request_may_leave_out_defaults():
    shortest = {"streamName": "t", "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}}
    assert CreateStreamRequest.from_json(shortest).configuration == StreamConfiguration(ScalingPolicy.fixed(2))


def test_numbers_and_texts_of_numpy_become_plain():
    scale = ScaleRequest((np.int64(1),), (NewRange(np.float32(0.5), np.float64(1)),))  # type: ignore[arg-type]
    numbers = [scale.to_json()["sealedSegments"][0], *scale.to_json()["newRanges"][0].values()]
    assert numbers == [1, 0.5, 1.0]
    assert list(map(type, numbers)) == [int, float, float]
    texts = StreamSummary(np.str_("s"), np.str_("t"), (np.str_("a"),)).to_json()
    assert json.dumps(texts) == '{"scopeName": "s", "streamName": "t", "streamTags": ["a"]}'


def test_value_that_json_cannot_have_is_refused():
    with pytest.raises(TypeError, match="object is not a value of JSON"):
        CutRequest({"0": object()}).to_json()  # type: ignore[dict-item]


def test_update_tells_a_class_only_if_it_was_given():
    shortest = {"scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}}
    assert UpdateStreamRequest.from_json(shortest).log_class is None
    assert UpdateStreamRequest.from_json(shortest | {"acknowledgedBy": "S3"}).log_class is LogClass.S3


def test_wrong_configuration_keeps_its_own_error():
    wrong = {"streamName": "t", "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 0}}
    with pytest.raises(InvalidRequestError, match="minSegments is 0"):
        CreateStreamRequest.from_json(wrong)


def test_error_of_an_invalid_cut():
    error = ExplainedCutCheck.of(TruncatedError("gone")).error()
    assert isinstance(error, TruncatedError)
    assert error.message == "gone"
    assert ExplainedCutCheck.of(None).error() is None
    assert CutCheck(valid=True).to_json() == {"valid": True}
