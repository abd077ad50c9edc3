"""`headrace stream` on a stream that changes: update, truncate, cuts, distances, scaling events."""

from __future__ import annotations

import httpx
from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show

from headrace.cli.stream import UPDATE_ATTEMPTS_MAX

FIRST, SECOND = 1 << 32 | 2, 1 << 32 | 3


def test_an_update_changes_what_is_named_and_nothing_else(ok: Show, as_json: ReadJson):
    ok("scope", "create", "s")
    before = as_json(
        "stream", "create", "s/t", "--segments", "2", "--events-per-s", "9", "--retain-days", "3", "--tag", "a",
        "--tag", "b", "--rollover-size-bytes", "6",
    )  # fmt: skip
    after = as_json("stream", "update", "s/t", "--tag", "c", "--untag", "a", "--retain-max", "5")
    assert after == before | {
        "configurationVersion": 1,
        "tags": ["b", "c"],
        "retention": {"type": "LIMITED_DAYS", "value": 3, "maxValue": 5},
    }
    assert as_json("stream", "update", "s/t", "--kbytes-per-s", "4")["scaling"] == {
        "type": "BY_RATE_IN_KBYTES_PER_SEC", "minSegments": 2, "targetRate": 4, "scaleFactor": 2,
    }  # fmt: skip
    assert as_json("stream", "update", "s/t", "--fixed")["scaling"]["type"] == "FIXED_NUM_SEGMENTS"
    assert as_json("stream", "update", "s/t", "--retain-everything")["retention"] is None
    assert "state" in ok("stream", "update", "s/t", "--no-wait")


class _Rival:
    """Another user's updates, each of which comes between a command's reading and its replacing."""

    def __init__(self, api: ApiInMemory, updates: int) -> None:
        self._api = api
        self._honest = api.respond
        self.left = updates
        api.respond = self._respond

    def _respond(self, request: httpx.Request) -> httpx.Response:
        if request.method == "PUT" and self.left:
            self.left -= 1
            known = self._honest(httpx.Request("GET", request.url)).json()
            body = {name: known[name] for name in ("scalingPolicy", "streamTags")}
            body["streamTags"] = [*body["streamTags"], f"rival-{self.left}"]
            assert self._honest(httpx.Request("PUT", request.url, json=body)).status_code == 202
        return self._honest(request)


def test_updates_that_meet_lose_no_tag(stream: str, api: ApiInMemory, as_json: ReadJson):
    rival = _Rival(api, UPDATE_ATTEMPTS_MAX - 1)
    after = as_json("stream", "update", "s/t", "--tag", "mine")
    assert rival.left == 0
    assert after["tags"] == ["mine", *(f"rival-{number}" for number in range(UPDATE_ATTEMPTS_MAX - 1))]
    assert after["configurationVersion"] == UPDATE_ATTEMPTS_MAX


def test_an_update_that_meets_others_each_time_says_so(stream: str, api: ApiInMemory, run: Run, as_json: ReadJson):
    _Rival(api, UPDATE_ATTEMPTS_MAX)
    ran = run("stream", "update", "s/t", "--tag", "mine")
    assert ran.code == 1
    assert "another update came first" in ran.err
    assert "mine" not in as_json("stream", "get", "s/t")["tags"]


def test_streams_are_listed_by_prefix(stream: str, ok: Show, as_json: ReadJson):
    ok("stream", "create", "s/target")
    ok("stream", "create", "s/u")
    assert [listed["stream"] for listed in as_json("stream", "list", "s", "--prefix", "t")["streams"]] == [
        "t",
        "target",
    ]


def test_truncation_moves_the_head(stream: str, api: ApiInMemory, ok: Show, as_json: ReadJson, run: Run):
    api.segment_stores.extend("s/t/0.#epoch.0", 100)
    assert ok("stream", "truncate", stream, "0:40,1:0") == "stream s/t is truncated\n"
    assert as_json("stream", "cut", stream, "--at", "earliest")["cut"] == {"0": 40, "1": 0}
    refused = run("stream", "truncate", stream, "0:30,1:0")
    assert (refused.code, refused.out) == (1, "")
    tail = as_json("stream", "cut", stream)["text"]
    assert as_json("stream", "truncate", stream, tail, "--no-wait") == {
        "scope": "s", "stream": "t", "truncated": False,
    }  # fmt: skip


def test_cuts_are_checked_and_measured(stream: str, api: ApiInMemory, ok: Show, as_json: ReadJson):
    api.segment_stores.extend("s/t/0.#epoch.0", 100)
    assert ok("stream", "check-cut", stream, "0:40,1:0") == "valid\n"
    assert ok("stream", "check-cut", stream, "0:400,1:0") == "not valid\n"
    assert as_json("stream", "check-cut", stream, "0:40,1:0") == {"valid": True}
    assert ok("stream", "distance", stream) == "100 bytes\n"
    assert as_json("stream", "distance", stream, "--from", "0:30,1:0", "--to", "0:70,1:0") == {"bytes": 40}


def test_scaling_events(stream: str, ok: Show, as_json: ReadJson):
    ok("stream", "scale", stream, "--seal", "0", "--range", "0:0.25,0.25:0.5")
    (event,) = as_json("stream", "scaling-events", stream)["scalingEvents"]
    assert (event["epoch"], event["splits"], event["merges"], event["sealedSegments"]) == (1, 1, 0, [0])
    assert [segment["segment"] for segment in event["newSegments"]] == [FIRST, SECOND]
    assert as_json("stream", "scaling-events", stream, "--to-ms", "5") == {"scalingEvents": []}
    header, row = ok("stream", "scaling-events", stream, "--from-ms", str(event["timeMs"])).splitlines()
    assert header.split() == ["TIME", "EPOCH", "SPLITS", "MERGES", "SEALED", "NEW"]
    assert "2@1, 3@1" in row
