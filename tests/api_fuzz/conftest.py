"""A world with streams, tables and groups in it, for requests with random content."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from api_in_memory import ApiInMemory
from fuzz_world import FIXED, GROUP, GROUP_ID, LEASE, SCALE, SUBSCRIBER, TABLE, FuzzWorld, GoodBodies

from functions import wiring


@pytest.fixture(scope="module")
def fuzz_world() -> Iterator[FuzzWorld]:
    """One for all examples; each begins with `reset`."""
    with pytest.MonkeyPatch.context() as patch:
        yield FuzzWorld(ApiInMemory(patch))
    wiring.forget_services()


@pytest.fixture(scope="module")
def good_bodies(fuzz_world: FuzzWorld) -> GoodBodies:
    """Bodies that an operation takes, by its label; what mistakes are made from."""
    cut = {str(1 << 32 | 2): 0, str(1 << 32 | 3): 0, "1": 0}
    between: list[dict[str, Any]] = [{"from": {"0": 0, "1": 0}, "to": cut}, {"from": None, "to": None}]
    bodies: dict[str, list[Any]] = {
        "POST /v1/scopes": [{"scopeName": "new"}, {"scopeName": "s"}],
        "POST /v1/scopes/{scope}/streams": [
            {"streamName": "new", "scalingPolicy": FIXED},
            {
                "streamName": "new",
                "scalingPolicy": {
                    "type": "BY_RATE_IN_EVENTS_PER_SEC",
                    "minSegments": 1,
                    "targetRate": 5,
                    "scaleFactor": 2,
                },
                "retentionPolicy": {"type": "LIMITED_DAYS", "value": 1, "maxValue": 2},
                "streamTags": ["x", "y"],
                "timestampAggregationTimeout": 5,
                "rolloverSizeBytes": 5,
            },
        ],
        "POST /v1/scopes/{scope}/key-value-tables": [
            {"tableName": "new", "partitionCount": 2, "primaryKeyLength": 8},
            TABLE | {"secondaryKeyLength": 3, "rolloverSizeBytes": 5},
        ],
        "POST /v1/scopes/{scope}/reader-groups": [
            GROUP | {"readerGroupName": "new"},
            GROUP
            | {
                "readerGroupName": "new",
                "streams": [{"scopeName": "s", "streamName": "active", "from": cut, "to": cut}],
                "retentionType": "AUTOMATIC",
                "groupRefreshTimeMillis": 5,
                "automaticCheckpointIntervalMillis": 5,
                "maxOutstandingCheckpointRequest": 5,
                "rolloverSizeBytes": 5,
            },
        ],
        "PUT /v1/scopes/{scope}/reader-groups/{group}": [
            {"readerGroupId": GROUP_ID, "generation": 0, "streams": [{"streamName": "sealed", "to": {"0": 0, "1": 0}}]},
        ],
        "POST /v1/scopes/{scope}/reader-groups/{group}/reset": [{"readerGroupId": GROUP_ID, "generation": 0}],
        "PUT /v1/scopes/{scope}/streams/{stream}/writers/{writer}/position": [{"time": 5, "position": cut}],
        "POST /v1/scopes/{scope}/streams/{stream}/transactions": [
            LEASE,
            LEASE | {"label": "q/7", "segments": "on-demand"},
        ],
        "PUT /v1/scopes/{scope}/streams/{stream}/transactions/{transaction}/lease": [LEASE],
        "PUT /v1/scopes/{scope}/streams/{stream}/transactions/{transaction}/state": [
            {"state": "COMMITTING"},
            {"state": "COMMITTING", "writer": "w", "time": 5},
            {"state": "ABORTING"},
        ],
        "POST /v1/scopes/{scope}/streams/{stream}/commit-sets": [
            {"writer": "w", "epoch": 1, "transactions": {"active": fuzz_world.names["transaction"][:2]}},
            {
                "writer": "w",
                "epoch": 0,
                "transactions": {"active": fuzz_world.names["transaction"][2:]},
                "abortLabels": "q",
            },
        ],
        "POST /v1/scopes/{scope}/streams/{stream}/transaction-aborts": [{"labelPrefix": "q"}],
        "POST /v1/scopes/{scope}/streams/{stream}/transaction-leases": [
            {"lease": 10_000, "transactions": [*fuzz_world.names["transaction"], "0" * 32]},
        ],
        "POST /v1/scopes/{scope}/streams/{stream}/transactions/{transaction}/segments": [{"segments": [1]}],
        "PUT /v1/scopes/{scope}/streams/{stream}/subscribers/{subscriber}": [
            SUBSCRIBER,
            {"generation": 4, "streamCut": cut},
        ],
        "PUT /v1/scopes/{scope}/streams/{stream}/subscribers/{subscriber}/position": [
            {"generation": 3, "streamCut": cut},
        ],
        "PUT /v1/scopes/{scope}/streams/{stream}/state": [{"streamState": "SEALED"}],
        "POST /v1/scopes/{scope}/streams/{stream}/scale": [
            SCALE,
            {"sealedSegments": [1], "newRanges": [{"low": 0.5, "high": 1.0}]},
        ],
        "PUT /v1/scopes/{scope}/streams/{stream}": [
            {"scalingPolicy": FIXED},
            {"scalingPolicy": FIXED | {"minSegments": 3}, "streamTags": ["a", "b"]},
        ],
        "POST /v1/scopes/{scope}/streams/{stream}/segments/between": between,
        "POST /v1/scopes/{scope}/streams/{stream}/stream-cuts/distance": between,
        "POST /v1/scopes/{scope}/streams/{stream}/next-cut": [
            body | {"bytes": 5, "strictKeyOrder": True, "onTruncation": "skip"} for body in between
        ],
        "POST /v1/scopes/{scope}/streams/{stream}/range-plans": [
            {"ranges": [{"segmentId": 1, "start": 0, "end": 9, "pieceBytes": 2}], "links": True},
        ],
        "POST /v1/scopes/{scope}/streams/{stream}/stream-cuts/check": [{"cut": cut}, {"cut": {"0": 0, "1": 0}}],
        "POST /v1/scopes/{scope}/streams/{stream}/truncate": [{"cut": cut}, {"cut": {"0": 0, "1": 0}}],
    }
    return lambda label: bodies.get(label, [])
