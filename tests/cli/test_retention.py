"""`headrace retention` and `headrace subscriber`: tables, JSON and exit codes."""

from __future__ import annotations

from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show


def test_what_is_kept_of_a_stream(stream: str, ok: Show, as_json: ReadJson):
    shown = ok("retention", "get", stream)
    assert "retention      everything is kept" in shown
    assert "next check" not in shown
    document = as_json("retention", "get", stream)
    assert set(document) == {
        "policy", "timeMs", "oldestEventAfterMs", "keptBytes", "retentionSet", "oldestCutMs", "newestCutMs",
        "subscribers", "nextCutMs", "next",
    }  # fmt: skip
    assert set(document["next"]) == {"case", "why", "bytes", "cut"}
    assert (document["policy"], document["keptBytes"], document["nextCutMs"], document["next"]["cut"]) == (
        None,
        0,
        None,
        None,
    )


def test_the_policy_is_shown(ok: Show, as_json: ReadJson):
    ok("scope", "create", "s")
    ok("stream", "create", "s/t", "--retain-days", "7", "--retain-max", "30")
    shown = ok("retention", "get", "s/t")
    assert "at least 7 d, at most 30 d" in shown
    assert "next check" in shown
    assert "would delete" in shown
    document = as_json("retention", "get", "s/t")
    assert document["policy"] == {"type": "LIMITED_DAYS", "value": 7, "maxValue": 30}
    assert document["nextCutMs"] == document["timeMs"]


def test_a_subscriber_from_beginning_to_end(api: ApiInMemory, stream: str, ok: Show, as_json: ReadJson, run: Run):
    for segment in ("s/t/0.#epoch.0", "s/t/1.#epoch.0"):
        api.segment_stores.extend(segment, 20)
    assert ok("subscriber", "register", stream, "s/group") == "s/group needs no bytes of s/t before 0@0:0,1@0:0\n"
    moved = as_json("subscriber", "publish", stream, "s/group", "0:10,1:20")
    assert (moved["subscriber"], moved["generation"], moved["cut"]) == ("s/group", 0, {"0": 10, "1": 20})
    assert as_json("subscriber", "get", stream, "s/group") == moved
    assert as_json("subscriber", "list", stream) == {"subscribers": [moved]}
    header, row = ok("subscriber", "list", stream).splitlines()
    assert header.split()[:3] == ["SUBSCRIBER", "GENERATION", "UPDATED"]
    assert row.startswith("s/group")
    assert row.endswith("0@0:10,1@0:20")
    assert as_json("subscriber", "unregister", stream, "s/group") == {"subscriber": "s/group", "registered": False}
    assert run("subscriber", "get", stream, "s/group").code == 3


def test_generations(stream: str, ok: Show, run: Run):
    ok("subscriber", "register", stream, "group", "--generation", "2", "--start", "0:0,1:0")
    for arguments in (
        ("publish", stream, "group", "0:1,1:1"),
        ("register", stream, "group", "--generation", "1"),
        ("unregister", stream, "group", "--generation", "1"),
    ):
        refused = run("subscriber", *arguments)
        assert (refused.code, "generation 2" in refused.err) == (1, True)
    ok("subscriber", "unregister", stream, "group")
