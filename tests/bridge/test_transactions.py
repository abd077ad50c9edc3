"""Transactions through Pravega's rpcs."""

from __future__ import annotations

import grpc
import pytest
from bridge_in_memory import Bridge

from headrace.bridge import controller_pb2 as pb
from headrace.bridge.transaction_rpcs import NO_TIMESTAMP
from headrace.model.transactions import EXECUTION_MS_MAX

INFO = pb.StreamInfo(scope="s", stream="t")
UNKNOWN = pb.TxnId(highBits=1, lowBits=2)
LEASE_MS = 90_000


@pytest.fixture
def begun(bridge: Bridge) -> pb.TxnId:
    """An open transaction on a stream of two segments."""
    bridge.world.create(segments=2)
    answer = bridge.call("createTransaction", pb.CreateTxnRequest(streamInfo=INFO, lease=LEASE_MS))
    assert isinstance(answer, pb.CreateTxnResponse)
    return answer.txnId


def _request(transaction: pb.TxnId, writer: str = "", timestamp: int = NO_TIMESTAMP) -> pb.TxnRequest:
    return pb.TxnRequest(streamInfo=INFO, txnId=transaction, writerId=writer, timestamp=timestamp)


def _state(bridge: Bridge, transaction: pb.TxnId) -> str:
    return pb.TxnState.State.Name(bridge.call("checkTransactionState", _request(transaction)).state)


def _ping(bridge: Bridge, transaction: pb.TxnId, lease_ms: int = LEASE_MS) -> str:
    request = pb.PingTxnRequest(streamInfo=INFO, txnId=transaction, lease=lease_ms)
    return pb.PingTxnStatus.Status.Name(bridge.call("pingTransaction", request).status)


def _mark(bridge: Bridge, rpc: str, request: pb.TxnRequest) -> str:
    return pb.TxnStatus.Status.Name(bridge.call(rpc, request).status)


def test_a_transaction_is_created_with_the_segments_it_is_for(bridge: Bridge):
    bridge.world.create(segments=2)
    bridge.world.scale([0], [0.0, 0.25, 0.5])
    made = bridge.call("createTransaction", pb.CreateTxnRequest(streamInfo=INFO, lease=LEASE_MS))
    assert made.txnId.highBits >> 32 == 1
    assert made.txnId.lowBits >= 0
    assert [(segment.minKey, segment.maxKey) for segment in made.activeSegments] == [
        (0.0, 0.25),
        (0.25, 0.5),
        (0.5, 1.0),
    ]
    assert [segment.segmentId.segmentId for segment in made.activeSegments] == [1 << 32 | 2, 1 << 32 | 3, 1]
    epoch = bridge.call("getEpochSegments", pb.GetEpochSegmentsRequest(streamInfo=INFO, epoch=1))
    assert list(epoch.segmentRanges) == list(made.activeSegments), "what a client finds by the epoch in the id"


def test_a_commit_is_repeated_without_harm(bridge: Bridge, begun: pb.TxnId):
    assert _state(bridge, begun) == "OPEN"
    for _ in range(2):
        assert _mark(bridge, "commitTransaction", _request(begun, str(1 << 127))) == "SUCCESS"
        assert _state(bridge, begun) == "COMMITTING"
        assert _ping(bridge, begun) == "COMMITTED"
    bridge.world.drain_transactions()
    assert _state(bridge, begun) == "COMMITTED"
    assert _mark(bridge, "abortTransaction", _request(begun)) == "FAILURE"
    listed = bridge.call("listCompletedTransactions", pb.ListCompletedTxnRequest(streamInfo=INFO))
    assert list(listed.response) == [pb.TxnResponse(txnId=begun, status=pb.TxnResponse.COMMITTED)]


def test_an_abort_is_repeated_without_harm(bridge: Bridge, begun: pb.TxnId):
    for _ in range(2):
        assert _mark(bridge, "abortTransaction", _request(begun, timestamp=0)) == "SUCCESS"
        assert _ping(bridge, begun) == "ABORTED"
    bridge.world.drain_transactions()
    assert _state(bridge, begun) == "ABORTED"
    assert _mark(bridge, "commitTransaction", _request(begun)) == "FAILURE"
    listed = bridge.call("listCompletedTransactions", pb.ListCompletedTxnRequest(streamInfo=INFO))
    assert [status.status for status in listed.response] == [pb.TxnResponse.ABORTED]


def test_pings(bridge: Bridge, begun: pb.TxnId):
    assert _ping(bridge, begun) == "OK"
    assert _ping(bridge, begun, 600_001) == "LEASE_TOO_LARGE"
    bridge.world.clock.advance(EXECUTION_MS_MAX)
    assert _ping(bridge, begun) == "MAX_EXECUTION_TIME_EXCEEDED"
    request = pb.PingTxnRequest(streamInfo=INFO, txnId=begun, lease=1)
    assert bridge.refused("pingTransaction", request) is grpc.StatusCode.INVALID_ARGUMENT


def test_the_time_of_a_commit_is_noted(bridge: Bridge, begun: pb.TxnId):
    _mark(bridge, "commitTransaction", _request(begun, "w", 77))
    bridge.world.drain_transactions()
    (done,) = [body for (_, sort), (_, body) in bridge.world.everything().items() if sort.startswith("done/")]
    assert done["writer_time"] == ["w", 77]


def test_what_is_unknown(bridge: Bridge, begun: pb.TxnId):
    for rpc in ("commitTransaction", "abortTransaction"):
        assert _mark(bridge, rpc, _request(UNKNOWN)) == "TRANSACTION_NOT_FOUND"
        elsewhere = pb.TxnRequest(streamInfo=pb.StreamInfo(scope="s", stream="none"), txnId=UNKNOWN)
        assert _mark(bridge, rpc, elsewhere) == "STREAM_NOT_FOUND"
    assert _state(bridge, UNKNOWN) == "UNKNOWN"
    ping = pb.PingTxnRequest(streamInfo=INFO, txnId=UNKNOWN, lease=LEASE_MS)
    assert bridge.refused("pingTransaction", ping) is grpc.StatusCode.NOT_FOUND
    negative = pb.TxnId(highBits=-1, lowBits=-1)
    assert _mark(bridge, "commitTransaction", _request(negative)) == "TRANSACTION_NOT_FOUND"


@pytest.mark.parametrize("lease_ms", [0, 9_999, 600_001, -1])
def test_a_lease_out_of_bounds_is_refused_for_good(bridge: Bridge, lease_ms: int):
    bridge.world.create(segments=1)
    request = pb.CreateTxnRequest(streamInfo=INFO, lease=lease_ms)
    assert bridge.refused("createTransaction", request) is grpc.StatusCode.INVALID_ARGUMENT
