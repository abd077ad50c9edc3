"""`headrace segment` and `headrace dead-letter`: tables, JSON and exit codes."""

from __future__ import annotations

import pytest
from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show

from headrace.model.dead_letters import Cause

FIRST, SECOND = 1 << 32 | 2, 1 << 32 | 3
CAUSE = Cause("unavailable", "no segment store\nanswers \x1b[31m")
LETTER_FIELDS = {
    "letter", "status", "kind", "subject", "cause", "queue", "tries", "replays", "firstTryTimeMs", "lastTryTimeMs",
    "requestedBy", "correlationId", "parameters", "message",
}  # fmt: skip


@pytest.fixture
def scaled(stream: str, ok: Show) -> str:
    """s/t whose segment 0 was split."""
    ok("stream", "scale", stream, "--seal", "0", "--range", "0:0.25,0.25:0.5")
    return stream


def test_segments_at_a_point(scaled: str, ok: Show, as_json: ReadJson):
    assert ok("segment", "list", scaled).splitlines() == [
        "SEGMENT  FROM KEY  TO KEY  NAME",
        "2@1           0.0    0.25  s/t/2.#epoch.1",
        "3@1          0.25     0.5  s/t/3.#epoch.1",
        "1@0           0.5     1.0  s/t/1.#epoch.0",
    ]
    head = as_json("segment", "list", scaled, "--at", "earliest")
    assert [segment["segment"] for segment in head["segments"]] == [0, 1]
    assert as_json("segment", "list", scaled, "--epoch", "0")["segments"][0] == {
        "segment": 0, "name": "s/t/0.#epoch.0", "low": 0.0, "high": 0.5, "startOffset": None,
    }  # fmt: skip
    assert as_json("segment", "list", scaled, "--at", "1")["epoch"] == 0
    for point in ("earliest", "2000-01-01"):
        assert as_json("segment", "list", scaled, "--at", point)["epoch"] == 0


@pytest.mark.parametrize(("cut", "epoch"), [("0@0:0,1@0:0", 0), (f"{FIRST}:0,3@1:0,1@0:0", 1)])
def test_segments_of_a_stream_cut(scaled: str, ok: Show, as_json: ReadJson, cut: str, epoch: int):
    document = as_json("segment", "list", scaled, "--at", cut)
    assert document["epoch"] == epoch
    at_epoch = as_json("segment", "list", scaled, "--epoch", str(epoch))
    assert document == at_epoch
    text = as_json("stream", "cut", scaled, "--at", "earliest" if epoch == 0 else "latest")["text"]
    assert as_json("segment", "list", scaled, "--at", text) == document
    assert ok("segment", "list", scaled, "--at", cut) == ok("segment", "list", scaled, "--epoch", str(epoch))


def test_a_cut_of_unknown_segments_is_refused(scaled: str, run: Run):
    ran = run("segment", "list", scaled, "--at", "7@0:0")
    assert (ran.code, ran.out) == (1, "")


def test_successors_and_predecessors(scaled: str, ok: Show, as_json: ReadJson):
    following = as_json("segment", "successors", scaled, "0")
    assert [(segment["segment"], segment["predecessors"]) for segment in following["segments"]] == [
        (FIRST, [0]),
        (SECOND, [0]),
    ]
    assert following["sealed"] is False
    assert ok("segment", "successors", scaled, "2@1") == "none\n"
    before = as_json("segment", "predecessors", scaled, str(FIRST))
    assert [segment["segment"] for segment in before["segments"]] == [0]
    assert "s/t/0.#epoch.0" in ok("segment", "predecessors", scaled, str(FIRST))


def test_the_endpoint_of_a_segment(stream: str, api: ApiInMemory, ok: Show, as_json: ReadJson):
    api.claim_containers("store.test", 4711)
    document = as_json("segment", "endpoint", stream, "0")
    assert (document["host"], document["port"], document["zone"]) == ("store.test", 4711, "local")
    assert set(document) == {"host", "port", "zone", "container", "epoch", "tlsName"}
    assert "store.test" in ok("segment", "endpoint", stream, "1")


def test_what_lies_between_two_cuts(scaled: str, ok: Show, as_json: ReadJson):
    everything = as_json("segment", "between", scaled)
    assert everything["from"] == {"0": 0, "1": 0}
    assert everything["to"] == {str(FIRST): 0, str(SECOND): 0, "1": 0}
    head = as_json("stream", "cut", scaled, "--at", "earliest")["text"]
    assert as_json("segment", "between", scaled, "--from", head) == everything
    assert ok("segment", "between", scaled, "--from", "0:0,1:0", "--to", "0:0,1:0").startswith("SEGMENT")


def test_chunks_of_a_segment_that_is_not_in_tier_2(stream: str, ok: Show, as_json: ReadJson):
    assert as_json("segment", "chunks", stream, "0") == {"storedUntil": 0, "nextOffset": None, "chunks": []}
    assert ok("segment", "chunks", stream, "0") == "none\n"


@pytest.fixture
def letter(stream: str, api: ApiInMemory, ok: Show) -> str:
    """The id of the letter of a scale that was taken back."""
    api.works = False
    ok("stream", "scale", stream, "--seal", "0", "--range", "0:0.25,0.25:0.5", "--no-wait")
    letter_id: str = api.die(CAUSE).letter_id
    api.works = True
    return letter_id


def test_dead_letters_are_listed(letter: str, ok: Show, as_json: ReadJson):
    document = as_json("dead-letter", "list")
    (dead_letter,) = document["letters"]
    assert set(dead_letter) == LETTER_FIELDS
    assert (dead_letter["letter"], dead_letter["status"], dead_letter["kind"], dead_letter["subject"]) == (
        letter,
        "UNDONE",
        "scale_stream",
        "s/t",
    )
    assert dead_letter["cause"] == {"code": "unavailable", "message": CAUSE.message}
    assert document["nextAfter"] is None
    header, row = ok("dead-letter", "list").splitlines()
    assert header.split() == ["LETTER", "STATUS", "LAST", "TRY", "KIND", "RESOURCE", "CAUSE"]
    assert row.split() == [letter, "UNDONE", "2023-11-14", "22:13:20Z", "scale_stream", "s/t", "unavailable"]
    assert as_json("dead-letter", "list", "--limit", "1", "--after", letter)["letters"] == []


def test_a_dead_letter_is_shown_without_moving_the_cursor(letter: str, ok: Show, as_json: ReadJson):
    assert as_json("dead-letter", "get", letter) == as_json("dead-letter", "list")["letters"][0]
    shown = ok("dead-letter", "get", letter)
    assert "\x1b" not in shown
    assert "no segment store\\x0aanswers \\x1b[31m" in shown
    assert len(shown.splitlines()) == len(LETTER_FIELDS)


def test_replay_and_drop(letter: str, ok: Show, as_json: ReadJson, run: Run):
    assert ok("dead-letter", "replay", letter) == "scale_stream of s/t: REPLAYED\n"
    assert as_json("segment", "list", "s/t")["epoch"] == 2, "the scale that was rolled back has used up epoch 1"
    assert as_json("dead-letter", "replay", letter)["status"] == "REPLAYED"
    assert ok("dead-letter", "drop", letter) == f"dead letter {letter} is deleted\n"
    assert run("dead-letter", "drop", letter).code == 3
    assert run("dead-letter", "get", letter).code == 3
    assert as_json("dead-letter", "list") == {"letters": [], "nextAfter": None}


def test_dropping_for_machines(letter: str, as_json: ReadJson):
    assert as_json("dead-letter", "drop", letter) == {"letter": letter, "dropped": True}
