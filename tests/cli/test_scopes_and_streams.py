"""`headrace scope` and `headrace stream`: tables, JSON, exit codes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.codec.stream_cut_text import parse_stream_cut_text

STREAM_FIELDS = {
    "scope", "stream", "state", "epoch", "segments", "scaling", "retention", "tags", "timestampAggregationTimeoutMs",
    "rolloverSizeBytes", "configurationVersion", "creationTimeMs",
}  # fmt: skip


def test_the_life_of_a_scope(ok: Any, as_json: Any, run: Any):
    assert ok("scope", "create", "shop") == "scope shop exists\n"
    assert ok("scope", "create", "shop", "--exist-ok") == "scope shop exists\n"
    assert as_json("scope", "create", "b") == {"scope": "b"}
    assert ok("scope", "list") == "SCOPE\nb\nshop\n"
    assert as_json("scope", "list") == {"scopes": [{"scope": "b"}, {"scope": "shop"}]}
    assert ok("scope", "get", "shop") == "scope  shop\n"
    assert as_json("scope", "delete", "b") == {"scope": "b", "deleted": True}
    assert ok("scope", "delete", "shop") == "scope shop is deleted\n"
    assert ok("scope", "list") == "SCOPE\n"
    assert run("scope", "get", "shop").code == 3


def test_a_scope_is_deleted_with_everything_in_it(stream: str, api: Any, ok: Any, as_json: Any, run: Any):
    assert run("scope", "delete", "s").code == 1
    assert ok("scope", "delete", "s", "--recursive") == "scope s is deleted\n"
    assert run("stream", "get", stream).code == 3
    assert api.segment_stores.names() == []
    ok("scope", "create", "s")
    ok("stream", "create", "s/u")
    assert as_json("scope", "delete", "s", "--recursive", "--no-wait") == {"scope": "s", "deleted": False}
    assert ok("scope", "list") == "SCOPE\n"


def test_a_stream_is_created_with_all_that_can_be_said_of_it(ok: Any, as_json: Any):
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
    assert as_json("stream", "get", "s/t") == made
    assert as_json("stream", "create", "s/t", "--exist-ok") == made


def test_other_policies(ok: Any, as_json: Any):
    ok("scope", "create", "s")
    events = as_json("stream", "create", "s/e", "--events-per-s", "100", "--retain-mb", "10")
    assert events["scaling"]["type"] == "BY_RATE_IN_EVENTS_PER_SEC"
    assert events["retention"] == {"type": "LIMITED_SIZE_MB", "value": 10, "maxValue": None}
    fixed = as_json("stream", "create", "s/f")
    assert (fixed["scaling"]["minSegments"], fixed["retention"]) == (2, None)


def test_people_see_fields(stream: str, ok: Any):
    shown = dict(line.split(maxsplit=1) for line in ok("stream", "get", stream).splitlines())
    assert (shown["scope"], shown["stream"], shown["state"]) == ("s", "t", "ACTIVE")
    assert (shown["tags"], shown["retention"]) == ("-", "-")
    assert shown["creationTimeMs"] == "2023-11-14 22:13:20Z"


def test_streams_are_listed_by_name_and_tag(stream: str, ok: Any, as_json: Any):
    ok("stream", "create", "s/a", "--tag", "x", "--tag", "y")
    assert ok("stream", "list", "s") == "STREAM  TAGS\ns/a     x, y\ns/t     -\n"
    assert as_json("stream", "list", "s", "--tag", "x") == {
        "streams": [{"scope": "s", "stream": "a", "tags": ["x", "y"]}]
    }


def test_a_scale_and_how_far_it_is(stream: str, ok: Any, as_json: Any):
    done = as_json("stream", "scale", stream, "--seal", "0", "--range", "0:0.25", "0.25:0.5")
    first, second = 1 << 32 | 2, 1 << 32 | 3
    assert done == {
        "epoch": 1,
        "status": "SUCCESS",
        "segments": [
            {"segment": first, "low": 0.0, "high": 0.25},
            {"segment": second, "low": 0.25, "high": 0.5},
        ],
    }
    assert ok("stream", "scale-status", stream, "1") == "scale to epoch 1: SUCCESS\n"
    assert as_json("stream", "scale-status", stream, "9") == {"epoch": 9, "status": "INVALID", "segments": []}
    shown = ok("stream", "scale", stream, "--seal", "1", "--range", "0.5:1", "--no-wait")
    assert shown == f"scale to epoch 2: IN_PROGRESS: segments {2 << 32 | 4}\n"


def test_seal_and_delete(stream: str, ok: Any, as_json: Any, run: Any):
    assert run("stream", "delete", stream).code == 1
    assert ok("stream", "seal", stream) == "stream s/t is sealed\n"
    assert run("stream", "seal", stream).code == 1
    assert as_json("stream", "delete", stream, "--no-wait") == {"scope": "s", "stream": "t", "deleted": False}
    assert run("stream", "get", stream).code == 3


def test_cuts(stream: str, ok: Any, as_json: Any):
    assert ok("stream", "cut", stream) == "SEGMENT  OFFSET\n      0       0\n      1       0\n"
    cut = as_json("stream", "cut", stream, "--at", "head")
    assert (cut["scope"], cut["stream"], cut["cut"]) == ("s", "t", {"0": 0, "1": 0})
    assert parse_stream_cut_text(cut["text"]).offsets == {0: 0, 1: 0}


REFUSED = {
    "a stream that is not there": (("stream", "get", "s/none"), 3, "headrace scope list"),
    "a scope that is not there": (("stream", "list", "none"), 3, "there is no scope none"),
    "a scope that is there": (("scope", "create", "s"), 4, "--exist-ok"),
    "a stream that is there": (("stream", "create", "s/t"), 4, "--exist-ok"),
    "a scope in use": (("scope", "delete", "s"), 1, "headrace stream list"),
    "a stream that takes events": (("stream", "delete", "s/t"), 1, "headrace stream seal"),
    "segments that are not active": (
        ("stream", "scale", "s/t", "--seal", "9", "--range", "0:0.5"), 1, "headrace segment list",
    ),
    "ranges that leave a hole": (
        ("stream", "scale", "s/t", "--seal", "0", "--range", "0:0.25"), 1, "headrace segment list",
    ),
    "a name that only the system may give": (("scope", "create", "_s"), 1, "is not allowed"),
    "too many segments": (("stream", "create", "s/u", "--segments", "5000"), 1, "minSegments"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "hint"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_is_one_line_with_a_hint(
    stream: str, api: Any, run: Any, arguments: tuple[str, ...], code: int, hint: str
):
    before = api.contents()
    ran = run(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith(f"headrace {arguments[0]} {arguments[1]}: ")
    assert ran.err.count("\n") == 1
    assert hint in ran.err
    assert api.contents() == before


USAGE = [
    ("scope",),
    ("scope", "rename", "s"),
    ("scope", "create"),
    ("scope", "create", "a/b"),
    ("stream", "get", "t"),
    ("stream", "get", "s/t/u"),
    ("stream", "get", "/t"),
    ("stream", "create", "s/t", "--segments", "0"),
    ("stream", "create", "s/t", "--segments", "two"),
    ("stream", "create", "s/t", "--segments", "-1"),
    ("stream", "create", "s/t", "--events-per-s", "1", "--kbytes-per-s", "1"),
    ("stream", "scale", "s/t", "--seal", "0"),
    ("stream", "scale", "s/t", "--seal", "0", "--range", "0.5"),
    ("stream", "scale", "s/t", "--seal", "0", "--range", "0.5:0.1"),
    ("stream", "scale", "s/t", "--seal", "0", "--range", "nan:1"),
    ("stream", "scale-status", "s/t", "٣"),
    ("stream", "cut", "s/t", "--at", "middle"),
    ("stream", "get", "s/t", "--retry-s", "-1"),
    ("stream", "get", "s/t", "--auth", "magic"),
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_a_command_line_that_makes_no_sense(run: Any, api: Any, arguments: tuple[str, ...]):
    before = api.contents()
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "usage: headrace" in ran.err
    assert api.contents() == before
