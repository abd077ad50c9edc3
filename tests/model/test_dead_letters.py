"""Dead letters as values: the identity of messages, and the fields that a letter keeps."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.dead_letters import (
    CAUSE_CHARACTERS_MAX,
    MESSAGE_CHARACTERS_MAX,
    Cause,
    DeadLetterStatus,
    Delivery,
    cause_of,
    check_letter_id,
    died_again,
    identity_of,
    new_letter,
    replayed,
)
from headrace.model.errors import InvalidRequestError, SealedError
from headrace.model.requests import Requester

BODY = {"kind": "scale_stream", "scope": "s", "stream": "t", "request": "scale_stream-0-2"}
REQUESTER, OPERATOR = Requester("arn:aws:iam::1:role/r", "c-1"), Requester("local", "c-2")
CAUSE = Cause("unavailable", "no segment store answers")


def delivery(text: str, **changes: Any) -> Delivery:
    return replace(Delivery("headrace-requests.fifo", "s/t", text, 1_000, 10), **changes)


def test_a_letter_tells_what_its_message_tells():
    letter = new_letter(delivery(json.dumps(BODY)), CAUSE, 5_000)
    assert (letter.kind, letter.subject, letter.request_id) == ("scale_stream", "s/t", "scale_stream-0-2")
    assert (letter.first_try_ms, letter.last_try_ms, letter.tries) == (1_000, 5_000, 10)
    assert letter.letter_id == check_letter_id(
        f"{5_000:013d}-{identity_of('headrace-requests.fifo', json.dumps(BODY))}"
    )
    assert letter.requester is None
    assert letter.body == BODY


def test_messages_with_equal_content_have_one_identity():
    turned = json.dumps(dict(reversed(BODY.items())), indent=1)
    assert identity_of("q", json.dumps(BODY)) == identity_of("q", turned)
    assert identity_of("q", json.dumps(BODY)) != identity_of("other", json.dumps(BODY))
    assert identity_of("q", json.dumps(BODY)) != identity_of("q", json.dumps(BODY | {"request": "another"}))
    assert identity_of("q", "no object") != identity_of("q", "another")


def test_golden_identity():
    """The letters of an earlier release are found again."""
    assert identity_of("q", '{"b": 1, "a": 2}') == hashlib.sha256(b'q\n{"a":2,"b":1}').hexdigest()[:32]


@given(
    text=st.text(max_size=60)
    | st.sampled_from(["[1]", "7", "null"])
    | st.just("[" * 100_000)
    | st.just("\ud800")
    | st.binary().map(repr)
)
def test_any_text_has_a_letter(text: str):
    letter = new_letter(delivery(text), CAUSE, 0)
    assert letter.status is DeadLetterStatus.UNPROCESSED
    assert check_letter_id(letter.letter_id) == letter.letter_id
    assert letter.subject == ""


@pytest.mark.parametrize("now_ms", [0, -1])
def test_a_clock_at_its_beginning_gives_an_id(now_ms: int):
    letter = new_letter(delivery("{}"), CAUSE, now_ms)
    assert check_letter_id(letter.letter_id).startswith(f"{0:013d}-")


def test_what_is_no_name_is_not_told_as_one():
    letter = new_letter(delivery(json.dumps(BODY | {"scope": ["s"], "kind": None})), CAUSE, 0)
    assert (letter.kind, letter.subject) == ("", "t")


def test_a_letter_is_bounded():
    letter = new_letter(delivery("x" * 10_000_000), cause_of(RuntimeError("y" * 1_000_000)), 0)
    assert len(letter.message) == MESSAGE_CHARACTERS_MAX
    assert len(letter.cause.message) == CAUSE_CHARACTERS_MAX
    assert len(cause_of(SealedError("y" * 1_000_000)).message) == CAUSE_CHARACTERS_MAX
    assert new_letter(delivery(json.dumps({"scope": "s" * 10_000_000})), CAUSE, 0).subject == "s" * 600


def test_dying_again_adds_up():
    first = replayed(new_letter(delivery("{}"), CAUSE, 5_000))
    second = new_letter(delivery("{}", first_try_ms=8_000, tries=3), cause_of(SealedError("t is sealed")), 9_000)
    letter = died_again(first, second)
    assert letter.letter_id == first.letter_id
    assert (letter.first_try_ms, letter.last_try_ms, letter.tries, letter.replays) == (1_000, 9_000, 13, 1)
    assert letter.cause == Cause("sealed", "t is sealed")
    assert letter.status is DeadLetterStatus.UNPROCESSED


def test_what_is_stuck_stays_stuck_when_it_is_replayed():
    letter = new_letter(delivery("{}"), CAUSE, 5_000)
    assert replayed(letter).status is DeadLetterStatus.REPLAYED
    assert replayed(replace(letter, status=DeadLetterStatus.STUCK)).status is DeadLetterStatus.STUCK
    assert replayed(replayed(letter)).replays == 2


@pytest.mark.parametrize("text", ["", "1-2", f"{0:013d}-{'g' * 32}", f"{0:013d}-{'0' * 33}", f"{0:012d}-{'0' * 32}\n"])
def test_text_that_is_not_an_id_is_refused(text: str):
    with pytest.raises(InvalidRequestError):
        check_letter_id(text)


def test_the_refusal_of_a_long_text_is_short():
    with pytest.raises(InvalidRequestError, match="is not the id") as refused:
        check_letter_id("x" * 1_000_000)
    assert len(refused.value.message) < 300


def test_the_first_who_asked_stays_the_requester():
    asked = [new_letter(delivery("{}", requester=requester), CAUSE, 5_000) for requester in (None, REQUESTER, OPERATOR)]
    unknown, first, replayer = asked
    assert first.requester == REQUESTER
    assert died_again(first, replayer).requester == REQUESTER
    assert died_again(first, unknown).requester == REQUESTER
    assert died_again(unknown, replayer).requester == OPERATOR
