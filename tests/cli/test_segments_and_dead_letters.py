"""`headrace segment` and `headrace dead-letter`: tables, JSON, exit codes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.dead_letters import Cause

FIRST, SECOND = 1 << 32 | 2, 1 << 32 | 3
CAUSE = Cause("unavailable", "no segment store\nanswers \x1b[31m")
LETTER_FIELDS = {
    "letter", "status", "kind", "subject", "cause", "queue", "tries", "replays", "firstTryTimeMs", "lastTryTimeMs",
    "parameters", "message",
}  # fmt: skip


@pytest.fixture
def scaled(stream: str, ok: Any) -> str:
    """s/t whose segment 0 was split."""
    ok("stream", "scale", stream, "--seal", "0", "--range", "0:0.25", "0.25:0.5")
    return stream


def test_segments_at_a_point(scaled: str, ok: Any, as_json: Any):
    assert ok("segment", "list", scaled).splitlines() == [
        "   SEGMENT   LOW  HIGH  NAME",
        "4294967298   0.0  0.25  s/t/2.#epoch.1",
        "4294967299  0.25   0.5  s/t/3.#epoch.1",
        "         1   0.5   1.0  s/t/1.#epoch.0",
    ]
    head = as_json("segment", "list", scaled, "--at", "head")
    assert [one["segment"] for one in head["segments"]] == [0, 1]
    assert as_json("segment", "list", scaled, "--epoch", "0")["segments"][0] == {
        "segment": 0, "name": "s/t/0.#epoch.0", "low": 0.0, "high": 0.5, "startOffset": None,
    }  # fmt: skip
    assert as_json("segment", "list", scaled, "--at", "1")["epoch"] == 0


def test_successors_and_predecessors(scaled: str, ok: Any, as_json: Any):
    following = as_json("segment", "successors", scaled, "0")
    assert [(one["segment"], one["predecessors"]) for one in following["segments"]] == [(FIRST, [0]), (SECOND, [0])]
    assert following["sealed"] is False
    assert ok("segment", "successors", scaled, str(FIRST)) == "SEGMENT  LOW  HIGH  NAME  PREDECESSORS\n"
    before = as_json("segment", "predecessors", scaled, str(FIRST))
    assert [one["segment"] for one in before["segments"]] == [0]
    assert "s/t/0.#epoch.0" in ok("segment", "predecessors", scaled, str(FIRST))


def test_the_endpoint_of_a_segment(stream: str, api: Any, ok: Any, as_json: Any):
    api.claim_containers("store.test", 4711)
    found = as_json("segment", "endpoint", stream, "0")
    assert (found["host"], found["port"], found["zone"]) == ("store.test", 4711, "local")
    assert set(found) == {"host", "port", "zone", "container", "epoch"}
    assert "store.test" in ok("segment", "endpoint", stream, "1")


def test_what_lies_between_two_cuts(scaled: str, ok: Any, as_json: Any):
    everything = as_json("segment", "between", scaled)
    assert everything["from"] == {"0": 0, "1": 0}
    assert everything["to"] == {str(FIRST): 0, str(SECOND): 0, "1": 0}
    head = as_json("stream", "cut", scaled, "--at", "head")["text"]
    assert as_json("segment", "between", scaled, "--from", head) == everything
    assert ok("segment", "between", scaled, "--from", "0:0,1:0", "--to", "0:0,1:0").startswith("SEGMENT")


def test_chunks_of_a_segment_that_is_not_in_tier_2(stream: str, ok: Any, as_json: Any):
    assert as_json("segment", "chunks", stream, "0") == {"storedUntil": 0, "nextOffset": None, "chunks": []}
    assert ok("segment", "chunks", stream, "0") == "OFFSET  LENGTH  URL\n"


@pytest.fixture
def letter(stream: str, api: Any, ok: Any) -> str:
    """The id of the letter of a scale that was taken back."""
    api.works = False
    ok("stream", "scale", stream, "--seal", "0", "--range", "0:0.25", "0.25:0.5", "--no-wait")
    found: str = api.die(CAUSE).letter_id
    api.works = True
    return found


def test_dead_letters_are_listed(letter: str, ok: Any, as_json: Any):
    document = as_json("dead-letter", "list")
    (one,) = document["letters"]
    assert set(one) == LETTER_FIELDS
    assert (one["letter"], one["status"], one["kind"], one["subject"]) == (letter, "UNDONE", "scale_stream", "s/t")
    assert one["cause"] == {"code": "unavailable", "message": CAUSE.message}
    assert document["nextAfter"] is None
    header, row = ok("dead-letter", "list").splitlines()
    assert header.split() == ["LETTER", "STATUS", "LAST", "TRY", "KIND", "RESOURCE", "CAUSE"]
    assert row.split() == [letter, "UNDONE", "2023-11-14", "22:13:20Z", "scale_stream", "s/t", "unavailable"]
    assert as_json("dead-letter", "list", "--limit", "1", "--after", letter)["letters"] == []


def test_a_dead_letter_is_shown_without_moving_the_cursor(letter: str, ok: Any, as_json: Any):
    assert as_json("dead-letter", "get", letter) == as_json("dead-letter", "list")["letters"][0]
    shown = ok("dead-letter", "get", letter)
    assert "\x1b" not in shown
    assert "no segment store\\x0aanswers \\x1b[31m" in shown
    assert len(shown.splitlines()) == len(LETTER_FIELDS)


def test_replay_and_drop(letter: str, ok: Any, as_json: Any, run: Any):
    assert ok("dead-letter", "replay", letter) == "scale_stream of s/t: REPLAYED\n"
    assert as_json("segment", "list", "s/t")["epoch"] == 2, "the scale that was rolled back has used up epoch 1"
    assert as_json("dead-letter", "replay", letter)["status"] == "REPLAYED"
    assert ok("dead-letter", "drop", letter) == f"dead letter {letter} is deleted\n"
    assert run("dead-letter", "drop", letter).code == 3
    assert run("dead-letter", "get", letter).code == 3
    assert as_json("dead-letter", "list") == {"letters": [], "nextAfter": None}


def test_dropping_for_machines(letter: str, as_json: Any):
    assert as_json("dead-letter", "drop", letter) == {"letter": letter, "dropped": True}


REFUSED = [
    (("segment", "list", "s/none"), 3),
    (("segment", "list", "s/t", "--epoch", "7"), 3),
    (("segment", "successors", "s/t", "77"), 3),
    (("segment", "predecessors", "s/t", "77"), 3),
    (("segment", "endpoint", "s/t", "0", "--retry-s", "0"), 5),
    (("segment", "between", "s/t", "--from", "0:0"), 1),
    (("segment", "chunks", "s/t", "0", "--from-offset", "5", "--to-offset", "4"), 1),
    (("dead-letter", "get", f"{0:013d}-{'0' * 32}"), 3),
]


@pytest.mark.parametrize(("arguments", "code"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_what_is_refused(stream: str, run: Any, arguments: tuple[str, ...], code: int):
    ran = run(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.count("\n") == 1


USAGE = [
    ("segment", "list", "s/t", "--at", "middle"),
    ("segment", "list", "s/t", "--at", "head", "--epoch", "0"),
    ("segment", "successors", "s/t"),
    ("segment", "successors", "s/t", "-1"),
    ("segment", "endpoint", "s/t", str(1 << 63)),
    ("segment", "between", "s/t", "--from", "0:0,0:1"),
    ("segment", "between", "s/t", "--from", "0:x"),
    ("segment", "between", "s/t", "--from", "no-cut"),
    ("segment", "chunks", "s/t", "0", "--limit", "0"),
    ("dead-letter",),
    ("dead-letter", "get", "x"),
    ("dead-letter", "list", "--limit", "0"),
    ("dead-letter", "list", "--after", "x"),
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_a_command_line_that_makes_no_sense(run: Any, arguments: tuple[str, ...]):
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "usage: headrace" in ran.err
