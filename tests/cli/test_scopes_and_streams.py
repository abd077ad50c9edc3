"""`headrace scope` and `headrace stream`: tables, JSON and exit codes."""

from __future__ import annotations

import pytest
from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show

from headrace.codec.stream_cut_text import parse_stream_cut_text

STREAM_FIELDS = {
    "scope", "stream", "state", "epoch", "segments", "scaling", "retention", "tags", "timestampAggregationTimeoutMs",
    "rolloverSizeBytes", "acknowledgedBy", "configurationVersion", "creationTimeMs",
}  # fmt: skip


def test_scope_is_created_listed_and_deleted(ok: Show, as_json: ReadJson, run: Run):
    assert ok("scope", "create", "shop") == "scope shop created\n"
    assert ok("scope", "create", "shop", "--exist-ok") == "scope shop exists\n"
    assert as_json("scope", "create", "b") == {"scope": "b"}
    assert ok("scope", "list") == "SCOPE\nb\nshop\n"
    assert as_json("scope", "list") == {"scopes": [{"scope": "b"}, {"scope": "shop"}]}
    assert ok("scope", "get", "shop") == "scope  shop\n"
    assert as_json("scope", "delete", "b") == {"scope": "b", "deleted": True}
    assert ok("scope", "delete", "shop") == "scope shop is deleted\n"
    assert ok("scope", "list") == "none\n"
    assert run("scope", "get", "shop").code == 3


def test_a_scope_is_deleted_with_everything_in_it(stream: str, api: ApiInMemory, ok: Show, as_json: ReadJson, run: Run):
    assert run("scope", "delete", "s").code == 1
    assert ok("scope", "delete", "s", "--recursive") == "scope s is deleted\n"
    assert run("stream", "get", stream).code == 3
    assert api.segment_stores.names() == []
    ok("scope", "create", "s")
    ok("stream", "create", "s/u")
    assert as_json("scope", "delete", "s", "--recursive", "--no-wait") == {"scope": "s", "deleted": False}
    assert ok("scope", "list") == "none\n"


def test_a_stream_is_created_with_all_that_can_be_said_of_it(ok: Show, as_json: ReadJson):
    ok("scope", "create", "s")
    made = as_json(
        "stream", "create", "s/t", "--segments", "3", "--kbytes-per-s", "500", "--scale-factor", "4", "--retain-days",
        "7", "--retain-max", "30", "--tag", "b", "--tag", "a", "--timestamp-aggregation-timeout-ms", "5",
        "--rollover-size-bytes", "6",
    )  # fmt: skip
    assert set(made) == STREAM_FIELDS
    assert made["scaling"] == {
        "type": "BY_RATE_IN_KBYTES_PER_SEC",
        "minSegments": 3,
        "targetRate": 500,
        "scaleFactor": 4,
    }
    assert made["retention"] == {"type": "LIMITED_DAYS", "value": 7, "maxValue": 30}
    assert (made["tags"], made["state"], made["segments"]) == (["a", "b"], "ACTIVE", 3)
    assert (made["timestampAggregationTimeoutMs"], made["rolloverSizeBytes"]) == (5, 6)
    assert made["acknowledgedBy"] == "STORES"
    assert as_json("stream", "get", "s/t") == made
    assert as_json("stream", "create", "s/t", "--exist-ok") == made


def test_other_policies(ok: Show, as_json: ReadJson):
    ok("scope", "create", "s")
    events = as_json("stream", "create", "s/e", "--events-per-s", "100", "--retain-mb", "10")
    assert events["scaling"]["type"] == "BY_RATE_IN_EVENTS_PER_SEC"
    assert events["retention"] == {"type": "LIMITED_SIZE_MB", "value": 10, "maxValue": None}
    fixed = as_json("stream", "create", "s/f")
    assert (fixed["scaling"]["minSegments"], fixed["retention"]) == (2, None)


def test_people_see_fields(stream: str, ok: Show):
    assert ok("stream", "get", stream).splitlines() == [
        "stream         s/t",
        "state          active",
        "segments       2",
        "scaling        not automatic, at least 2 segments",
        "retention      everything is kept",
        "tags           -",
        "created        2023-11-14 22:13:20Z",
        "epoch          0",
        "configuration  version 0",
    ]


def test_streams_are_listed_by_name_and_tag(stream: str, ok: Show, as_json: ReadJson):
    ok("stream", "create", "s/a", "--tag", "x", "--tag", "y")
    assert ok("stream", "list", "s") == "STREAM  TAGS\ns/a     x, y\ns/t     -\n"
    assert as_json("stream", "list", "s", "--tag", "x") == {
        "streams": [{"scope": "s", "stream": "a", "tags": ["x", "y"]}]
    }


def test_a_scale_and_how_far_it_is(stream: str, ok: Show, as_json: ReadJson):
    done = as_json("stream", "scale", stream, "--seal", "0", "--range", "0:0.25,0.25:0.5")
    first, second = 1 << 32 | 2, 1 << 32 | 3
    assert done == {
        "epoch": 1,
        "status": "SUCCESS",
        "segments": [
            {"segment": first, "low": 0.0, "high": 0.25},
            {"segment": second, "low": 0.25, "high": 0.5},
        ],
    }
    assert ok("stream", "scale-status", stream, "1") == "scale to epoch 1: success\n"
    assert as_json("stream", "scale-status", stream, "9") == {"epoch": 9, "status": "INVALID", "segments": []}
    shown = ok("stream", "scale", stream, "--seal", "1", "--range", "0.5:1", "--no-wait")
    assert shown == "scale to epoch 2: in progress: segments 4@2\n"


def test_seal_and_delete(stream: str, ok: Show, as_json: ReadJson, run: Run):
    assert run("stream", "delete", stream).code == 1
    assert ok("stream", "seal", stream) == "stream s/t is sealed\n"
    assert run("stream", "seal", stream).code == 1
    assert as_json("stream", "delete", stream, "--no-wait") == {"scope": "s", "stream": "t", "deleted": False}
    assert run("stream", "get", stream).code == 3


def test_cuts(stream: str, ok: Show, as_json: ReadJson):
    assert ok("stream", "cut", stream) == "SEGMENT  OFFSET\n0@0           0\n1@0           0\n"
    cut = as_json("stream", "cut", stream, "--at", "earliest")
    assert (cut["scope"], cut["stream"], cut["cut"]) == ("s", "t", {"0": 0, "1": 0})
    assert parse_stream_cut_text(cut["text"]).offsets == {0: 0, 1: 0}


def test_a_segment_is_split_and_merged(stream: str, ok: Show, as_json: ReadJson, run: Run):
    assert ok("segment", "split", stream, "0@0") == "scale to epoch 1: success: segments 2@1, 3@1\n"
    assert ok("segment", "split", stream, "2@1", "--at", "0.2", "--at", "0.1").endswith("segments 4@2, 5@2, 6@2\n")
    parts = as_json("segment", "split", stream, "3@1", "--into", "3")["segments"]
    assert [part["low"] for part in parts] == [0.25, pytest.approx(1 / 3), pytest.approx(5 / 12)]
    merged = as_json("segment", "merge", stream, "5@2", "4@2", "6@2")
    assert [(segment["low"], segment["high"]) for segment in merged["segments"]] == [(0.0, 0.25)]
    refused = run("segment", "merge", stream, "10@4", "1@0")
    assert (refused.code, "only neighbours can be merged" in refused.err) == (1, True)
    gone = run("segment", "split", stream, "0@0")
    assert (gone.code, "0@0 is not an active one" in gone.err) == (1, True)
    assert run("segment", "split", stream, "1@0", "--at", "0.4").code == 1
    assert run("segment", "split", stream, "1@0", "--into", "1").code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("merge", "0@0"),
        ("merge", "0@0", "0@0"),
        ("split", "0@0", "--into", "2", "--at", "0.1"),
        ("split", "0@0", "--into", "1000000000"),
    ],
)
def test_a_split_or_merge_that_makes_no_sense(stream: str, run: Run, arguments: tuple[str, ...]):
    assert run("segment", arguments[0], stream, *arguments[1:]).code == 2
