"""The API with streams, tables, groups and dead letters in it, for requests with random content."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import httpx
from api_in_memory import ApiInMemory

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

GoodBodies = Callable[[str], list[Any]]
"""Bodies that an operation takes, by its label."""


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
        set_of_one = {"writer": "w", "epoch": 0, "transactions": {"active": transactions[:1]}}
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
            "letter": [undone.letter_id, stuck.letter_id],
        }
