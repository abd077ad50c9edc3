"""A world with something of everything in it, for requests that nobody would think of."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from api_in_memory import ApiInMemory

from functions import wiring
from headrace.model.dead_letters import Cause

CAUSE = Cause("unavailable", "no segment store answers")
FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}
SCALE = {"sealedSegments": [0], "newRanges": [{"low": 0.0, "high": 0.25}, {"low": 0.25, "high": 0.5}]}
SUBSCRIBER = {"generation": 3, "streamCut": None}
LEASE = {"lease": 60_000}
TABLE = {"tableName": "table", "partitionCount": 2, "primaryKeyLength": 8}
GROUP_ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
GROUP = {
    "readerGroupName": "group",
    "readerGroupId": GROUP_ID,
    "streams": [{"streamName": "active"}],
    "retentionType": "MANUAL",
}


class FuzzWorld:
    """The API over a world that `reset` puts back to how it was; `names` are values that path parameters may have."""

    def __init__(self, api: ApiInMemory) -> None:
        self.api = api
        self.names: dict[str, list[str]] = {}
        self._populate()
        self._kept = copy.deepcopy(api.state())

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        answer = self.api.respond(httpx.Request(method, f"http://api{path}", content=content))
        assert answer.is_success, (method, path, answer.text)
        return answer.json() if answer.content else None

    def reset(self) -> None:
        partitions, queued, segments = copy.deepcopy(self._kept)
        self.api.store._partitions = partitions
        for name, messages in queued.items():
            self.api.queues[name]._messages = messages
        vars(self.api.segment_stores).update(segments)

    def _populate(self) -> None:
        self.api.claim_containers()
        for scope in ("s", "empty"):
            self.ask("POST", "/v1/scopes", {"scopeName": scope})
        for stream in ("active", "sealed", "busy", "dead"):
            body = {"streamName": stream, "scalingPolicy": FIXED, "streamTags": ["a"]}
            self.ask("POST", "/v1/scopes/s/streams", body)
        self.ask("POST", "/v1/scopes/s/streams/active/scale", SCALE)
        self.ask("PUT", "/v1/scopes/s/streams/sealed/state", {"streamState": "SEALED"})
        self.ask("POST", "/v1/scopes/s/key-value-tables", TABLE)
        self.ask("POST", "/v1/scopes/s/reader-groups", GROUP)
        transactions = [
            self.ask("POST", "/v1/scopes/s/streams/active/transactions", LEASE)["transaction"] for _ in range(3)
        ]
        set_of_one = {"key": "key", "transactions": transactions[:1]}
        self.ask("POST", "/v1/scopes/s/streams/active/commit-sets", set_of_one)
        self.ask("PUT", "/v1/scopes/s/streams/active/subscribers/g", SUBSCRIBER)
        self.api.works = False
        self.ask("POST", "/v1/scopes/s/streams/dead/scale", SCALE)
        undone = self.api.die(CAUSE)
        self.ask("PUT", "/v1/scopes/s/streams/dead/state", {"streamState": "SEALED"})
        stuck = self.api.die(CAUSE)
        self.ask("POST", "/v1/scopes/s/streams/busy/scale", SCALE)
        assert undone is not None
        assert stuck is not None
        self.names = {
            "scope": ["s", "empty"],
            "stream": ["active", "sealed", "busy", "dead"],
            "segment": ["0", "1", str(1 << 32 | 2), str(2 << 32 | 4)],
            "epoch": ["0", "1", "2"],
            "table": ["table", "active"],
            "group": ["group", "active"],
            "writer": ["w"],
            "subscriber": ["g", "s%2Fgroup"],
            "transaction": transactions[::-1],
            "key": ["key"],
            "letter": [undone.letter_id, stuck.letter_id],
        }


@pytest.fixture(scope="module")
def fuzz_world() -> Iterator[FuzzWorld]:
    """One for all examples; each begins with `reset`."""
    with pytest.MonkeyPatch.context() as patch:
        yield FuzzWorld(ApiInMemory(patch))
    wiring.forget_services()


@pytest.fixture(scope="module")
def good_bodies(fuzz_world: FuzzWorld) -> Callable[[str], list[Any]]:
    """Bodies that an operation takes, by its label; what mistakes are made from."""
    cut = {str(1 << 32 | 2): 0, str(1 << 32 | 3): 0, "1": 0}
    between = [{"from": {"0": 0, "1": 0}, "to": cut}, {"from": None, "to": None}]
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
        "POST /v1/scopes/{scope}/streams/{stream}/transactions": [LEASE],
        "PUT /v1/scopes/{scope}/streams/{stream}/transactions/{transaction}/lease": [LEASE],
        "PUT /v1/scopes/{scope}/streams/{stream}/transactions/{transaction}/state": [
            {"state": "COMMITTING"},
            {"state": "COMMITTING", "writer": "w", "time": 5},
            {"state": "ABORTING"},
        ],
        "POST /v1/scopes/{scope}/streams/{stream}/commit-sets": [
            {"key": "new", "transactions": fuzz_world.names["transaction"][:2]},
            {"key": "key", "transactions": fuzz_world.names["transaction"][2:]},
        ],
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
        "POST /v1/scopes/{scope}/streams/{stream}/stream-cuts/check": [{"cut": cut}, {"cut": {"0": 0, "1": 0}}],
        "POST /v1/scopes/{scope}/streams/{stream}/truncate": [{"cut": cut}, {"cut": {"0": 0, "1": 0}}],
    }
    return lambda label: bodies.get(label, [])
