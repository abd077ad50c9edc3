"""The persisted shape of a dead letter: golden value, round trip, and refusal of what does not decode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.records import dead_letter_record as record
from headrace.model.dead_letters import Cause, DeadLetter, DeadLetterStatus
from headrace.model.errors import CorruptError

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
BODY: dict[str, Any] = {
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


def test_golden_values():
    assert record.dead_letter_body(LETTER) == BODY
    assert record.dead_letter_of_body(BODY) == LETTER
    assert record.pointer_body(LETTER.letter_id) == {"format": 1, "letter": LETTER.letter_id}
    assert record.letter_id_of_body(record.pointer_body(LETTER.letter_id)) == LETTER.letter_id
    assert record.pointer_partition(LETTER.identity) == f"dead-letter/{IDENTITY}"


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
def test_round_trip_through_json(letter: DeadLetter):
    assert record.dead_letter_of_body(json.loads(json.dumps(record.dead_letter_body(letter)))) == letter


@pytest.mark.parametrize("name", sorted(set(BODY)))
def test_a_body_without_a_field_is_refused(name: str):
    with pytest.raises(CorruptError):
        record.dead_letter_of_body({field: value for field, value in BODY.items() if field != name})


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"status": "GONE"}, {"cause": ["one"]}, {"intent": ["one"]}, {"tries": "many"}]
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        record.dead_letter_of_body(BODY | change)
