"""The records of a dead letter: golden values, keys, round trips, and refusal of invalid records."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from golden_records import GoldenRecords
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.dead_letter import (
    dead_letter_body,
    decode_dead_letter,
    decode_pointer,
    letter_key,
    pointer_body,
    pointer_key,
)
from headrace.model.dead_letters import Cause, DeadLetter, DeadLetterStatus
from headrace.model.errors import CorruptError
from headrace.model.requests import Requester
from headrace.ports.metadata_store import Key

IDENTITY = "0123456789abcdef0123456789abcdef"
LETTER = DeadLetter(
    letter_id=f"1700000000000-{IDENTITY}",
    queue="headrace-requests.fifo",
    group="s/t",
    message='{"kind":"scale_stream"}',
    status=DeadLetterStatus.UNDONE,
    cause=Cause("unavailable", "no segment store answers"),
    first_try_ms=1_699_999_000_000,
    last_try_ms=1_700_000_000_000,
    tries=10,
    kind="scale_stream",
    subject="s/t",
    request_id="scale_stream-0-2",
    replays=1,
    parameters={"sealedSegments": [0], "newRanges": [[0.0, 0.5]]},
    intent=("requests/0003", "s/t"),
)
GOLDEN: dict[str, Any] = {
    "format": 1,
    "letter": f"1700000000000-{IDENTITY}",
    "queue": "headrace-requests.fifo",
    "group": "s/t",
    "message": '{"kind":"scale_stream"}',
    "status": "UNDONE",
    "cause": ["unavailable", "no segment store answers"],
    "first_try": 1_699_999_000_000,
    "last_try": 1_700_000_000_000,
    "tries": 10,
    "kind": "scale_stream",
    "subject": "s/t",
    "request": "scale_stream-0-2",
    "replays": 1,
    "parameters": {"sealedSegments": [0], "newRanges": [[0.0, 0.5]]},
    "intent": ["requests/0003", "s/t"],
}


class TestDeadLetter(GoldenRecords):
    shapes = {"dead letter": (LETTER, dead_letter_body, decode_dead_letter, GOLDEN)}


class TestDeadLetterWithItsRequester(GoldenRecords):
    left_out = {"dead letter": {"requested_by"}}
    shapes = {
        "dead letter": (
            replace(LETTER, requester=Requester("grpc:ann", "deploy-7")),
            dead_letter_body,
            decode_dead_letter,
            {**GOLDEN, "requested_by": ["grpc:ann", "deploy-7"]},
        )
    }


def test_golden_value_of_a_pointer():
    body = pointer_body(LETTER.letter_id)
    assert body == {"format": 1, "letter": f"1700000000000-{IDENTITY}"}
    assert decode_pointer(body) == LETTER.letter_id
    for strange in ({"format": 1}, {**body, "format": 2}):
        with pytest.raises(CorruptError):
            decode_pointer(strange)


def test_keys():
    assert letter_key(LETTER.letter_id) == Key("dead-letters", LETTER.letter_id)
    assert pointer_key(LETTER.identity) == Key(f"dead-letter/{IDENTITY}", "letter")


TEXTS = st.text(max_size=20)
LETTERS = st.builds(
    DeadLetter,
    letter_id=TEXTS,
    queue=TEXTS,
    group=TEXTS,
    message=TEXTS,
    status=st.sampled_from(DeadLetterStatus),
    cause=st.builds(Cause, TEXTS, TEXTS),
    first_try_ms=st.integers(0, 1 << 50),
    last_try_ms=st.integers(0, 1 << 50),
    tries=st.integers(0, 1 << 30),
    kind=TEXTS,
    subject=TEXTS,
    request_id=TEXTS,
    replays=st.integers(0, 1 << 30),
    parameters=st.dictionaries(TEXTS, st.integers(0, 9)),
    intent=st.none() | st.tuples(TEXTS, TEXTS),
)


@given(letter=LETTERS)
def test_letters_come_back(letter: DeadLetter):
    assert decode_dead_letter(json.loads(json.dumps(dead_letter_body(letter)))) == letter


@pytest.mark.parametrize("change", [{"status": "GONE"}, {"cause": ["one"]}, {"intent": ["one"]}, {"tries": "many"}])
def test_a_letter_that_cannot_be_is_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_dead_letter(GOLDEN | change)
