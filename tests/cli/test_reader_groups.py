"""`headrace group`: tables, JSON and exit codes."""

from __future__ import annotations

from uuid import UUID

import pytest
from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show

FIELDS = {
    "scope", "readerGroup", "id", "generation", "state", "stateStream", "retention", "groupRefreshMs",
    "automaticCheckpointIntervalMs", "outstandingCheckpointsMax", "rolloverSizeBytes", "streams",
}  # fmt: skip


@pytest.fixture
def group(stream: str, ok: Show) -> str:
    """The reader group s/g of the stream s/t."""
    ok("group", "create", "s/g", "--stream", stream)
    return "s/g"


def test_a_group_is_created_with_all_that_can_be_said_of_it(api: ApiInMemory, stream: str, ok: Show, as_json: ReadJson):
    for segment in ("s/t/0.#epoch.0", "s/t/1.#epoch.0"):
        api.segment_stores.extend(segment, 9)
    identifier = str(UUID(int=7))
    made = as_json(
        "group", "create", "s/g", "--stream", "s/t", "--start", "s/t=0:0,1:0", "--end", "s/t=0:9,1:9",
        "--retention", "automatic", "--group-refresh-ms", "5",
        "--automatic-checkpoint-interval-ms", "6", "--outstanding-checkpoints-max", "7", "--rollover-size-bytes", "8",
        "--id", identifier,
    )  # fmt: skip
    assert set(made) == FIELDS
    assert made["streams"] == [{"scope": "s", "stream": "t", "from": {"0": 0, "1": 0}, "to": {"0": 9, "1": 9}}]
    assert (made["id"], made["generation"], made["state"]) == (identifier, 0, "ACTIVE")
    assert (made["groupRefreshMs"], made["automaticCheckpointIntervalMs"]) == (5, 6)
    assert (made["outstandingCheckpointsMax"], made["rolloverSizeBytes"]) == (7, 8)
    assert as_json("group", "get", "s/g") == made
    assert as_json("group", "create", "s/g", "--stream", "s/t") == made


def test_group_is_created_changed_and_deleted(group: str, ok: Show, as_json: ReadJson, run: Run):
    ok("stream", "create", "s/u")
    before = as_json("group", "get", group)
    after = as_json("group", "update", group, "--stream", "s/t", "--stream", "s/u", "--group-refresh-ms", "9")
    assert after["generation"] == before["generation"] + 1
    assert [stream["stream"] for stream in after["streams"]] == ["t", "u"]
    assert as_json("group", "update", group, "--outstanding-checkpoints-max", "4")["groupRefreshMs"] == 9
    assert "generation" in ok("group", "reset", group, "--record-only")
    assert run("group", "reset", group, "--retry-s", "0").code == 5
    assert ok("group", "list", "s") == "READER GROUP\ns/g\n"
    assert as_json("group", "list", "s") == {"readerGroups": [{"scope": "s", "readerGroup": "g"}]}
    assert ok("group", "delete", group) == "reader group s/g is deleted\n"
    assert run("group", "get", group).code == 3
