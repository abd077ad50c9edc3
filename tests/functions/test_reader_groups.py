"""Reader groups through the handlers: a whole life over HTTP, and what is refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from functions_in_memory import Call, FunctionWorld

GROUPS = "/v1/scopes/s/reader-groups"
GROUP = f"{GROUPS}/g"
ID, OTHER_ID = "0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7"
STREAMS = [{"scopeName": "s", "streamName": "t", "from": {"0": 0, "1": 0}, "to": None}]
ASKED = {"readerGroupName": "g", "readerGroupId": ID, "streams": STREAMS, "retentionType": "MANUAL"}
DEFAULTS = {
    "groupRefreshTimeMillis": 3_000,
    "automaticCheckpointIntervalMillis": 30_000,
    "maxOutstandingCheckpointRequest": 3,
    "rolloverSizeBytes": 4 << 20,
}

pytestmark = pytest.mark.usefixtures("active_stream")


@pytest.fixture
def group(call: Call, world: FunctionWorld, active_stream: str) -> dict[str, Any]:
    """The ACTIVE group `g`, a subscriber of the stream s/t, as the API shows it."""
    assert call("POST", GROUPS, ASKED).status == 201
    world.work()
    return dict(call("GET", GROUP).body)


def test_a_life(call: Call, world: FunctionWorld):
    created = call("POST", GROUPS, ASKED)
    assert (created.status, created.body["state"]) == (201, "CREATING")
    world.work()
    body = call("GET", GROUP).body
    assert body == {
        "scopeName": "s",
        "readerGroupName": "g",
        "readerGroupId": ID,
        "generation": 0,
        "state": "ACTIVE",
        "streams": STREAMS,
        "retentionType": "MANUAL",
        "stateStreamName": "_RGg",
        **DEFAULTS,
    }
    subscribers = call("GET", "/v1/scopes/s/streams/t/subscribers").body["subscribers"]
    assert "s/g" in str(subscribers)
    unbounded = [{"streamName": "t"}]
    change = {"readerGroupId": ID, "generation": 0, "streams": unbounded, "groupRefreshTimeMillis": 7}
    updated = call("PUT", GROUP, change)
    assert (updated.status, updated.body["state"], updated.body["generation"]) == (202, "UPDATING", 1)
    world.work()
    body = call("GET", GROUP).body
    assert body["streams"] == [{"scopeName": "s", "streamName": "t", "from": None, "to": None}]
    assert (body["retentionType"], body["groupRefreshTimeMillis"]) == ("NONE", 7)
    assert call("GET", "/v1/scopes/s/streams/t/subscribers").body["subscribers"] == []
    reset = call("POST", f"{GROUP}/reset", {"readerGroupId": ID, "generation": 1})
    assert (reset.status, reset.body["generation"]) == (202, 2)
    world.work()
    assert call("GET", GROUPS).body == {"readerGroups": ["g"], "continuationToken": None}
    assert [stream["streamName"] for stream in call("GET", "/v1/scopes/s/streams").body["streams"]] == ["t"]
    gone = call("DELETE", GROUP, readerGroupId=ID)
    assert (gone.status, gone.body) == (202, {"state": "DELETING"})
    world.work()
    assert call("GET", GROUP).status == 404
    assert call("GET", GROUPS).body["readerGroups"] == []


def test_a_group_that_exists_is_answered_as_it_is(call: Call, group: dict[str, Any]):
    assert call("POST", GROUPS, ASKED | {"readerGroupId": OTHER_ID, "retentionType": "NONE"}).body == group


def test_an_id_is_made_for_who_has_none(call: Call):
    created = call("POST", GROUPS, {key: value for key, value in ASKED.items() if key != "readerGroupId"})
    assert UUID(created.body["readerGroupId"]).version == 4


def test_groups_by_page(call: Call):
    for name in ("c", "a", "b"):
        assert call("POST", GROUPS, ASKED | {"readerGroupName": name}).status == 201
    first = call("GET", GROUPS, limit="2").body
    assert first["readerGroups"] == ["a", "b"]
    assert call("GET", GROUPS, continuationToken=first["continuationToken"]).body["readerGroups"] == ["c"]
    assert call("GET", "/v1/scopes/none/reader-groups").status == 404


BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "name with a slash": ({"readerGroupName": "a/b"}, 400, "invalid_name"),
    "name of the system": ({"readerGroupName": "_g"}, 400, "invalid_name"),
    "no streams": ({"streams": []}, 400, "invalid_request"),
    "a stream twice": ({"streams": [{"streamName": "t"}] * 2}, 400, "invalid_request"),
    "too many streams": ({"streams": [{"streamName": f"t{n}"} for n in range(91)]}, 400, "invalid_request"),
    "stream name with a slash": ({"streams": [{"streamName": "a/b"}]}, 400, "invalid_name"),
    "unknown stream": ({"streams": [{"streamName": "nowhere"}]}, 404, "stream_not_found"),
    "negative offset": ({"streams": [{"streamName": "t", "from": {"0": -1}}]}, 400, "invalid_stream_cut"),
    "segment that is none": ({"streams": [{"streamName": "t", "from": {"x": 1}}]}, 400, "invalid_request"),
    "cut without segments": ({"streams": [{"streamName": "t", "to": {}}]}, 400, "invalid_stream_cut"),
    "start at a segment of another stream": (
        {"streams": [{"streamName": "t", "from": {"7": 0}}]},
        400,
        "invalid_stream_cut",
    ),
    "half of a cut as start of a bounded group": (
        {"streams": [{"streamName": "t", "from": {"1": 0}, "to": {"0": 0, "1": 0}}]},
        400,
        "invalid_stream_cut",
    ),
    "half of a cut": ({"streams": [{"streamName": "t", "to": {"0": 0}}]}, 400, "invalid_stream_cut"),
    "end before start": (
        {"streams": [{"streamName": "t", "from": {"0": 2}, "to": {"0": 1}}]},
        400,
        "invalid_stream_cut",
    ),
    "no UUID": ({"readerGroupId": "7"}, 400, "invalid_request"),
    "unknown retention": ({"retentionType": "SOME"}, 400, "invalid_request"),
    "negative time": ({"groupRefreshTimeMillis": -1}, 400, "invalid_request"),
    "no checkpoint at all": ({"maxOutstandingCheckpointRequest": 0}, 400, "invalid_request"),
    "number beyond 64 bits": ({"rolloverSizeBytes": 1 << 70}, 400, "invalid_request"),
    "unknown field": ({"colour": "red"}, 400, "invalid_request"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_changes_nothing(call: Call, world: FunctionWorld, name: str):
    wrong, status, code = BAD[name]
    before = world.contents()
    answer = call("POST", GROUPS, ASKED | wrong)
    assert (answer.status, answer.code) == (status, code)
    assert world.contents() == before


def test_changes_by_who_does_not_know_the_group(call: Call, world: FunctionWorld, group: dict[str, Any]):
    before = world.contents()
    change = {"readerGroupId": ID, "generation": 0, "streams": STREAMS}
    for answer in (
        call("PUT", GROUP, change | {"readerGroupId": OTHER_ID}),
        call("PUT", GROUP, change | {"generation": 1}),
        call("POST", f"{GROUP}/reset", {"readerGroupId": ID, "generation": 1}),
        call("DELETE", GROUP, readerGroupId=OTHER_ID),
    ):
        assert (answer.status, answer.code) == (412, "reader_group_mismatch")
    assert call("PUT", GROUP, change | {"generation": -1}).status == 400
    assert call("DELETE", GROUP).status == 400
    assert call("DELETE", GROUP, readerGroupId="x").status == 400
    assert world.contents() == before
