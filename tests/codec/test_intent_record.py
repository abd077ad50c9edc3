"""Requests that were accepted, as they are stored until they are done."""

from __future__ import annotations

from dataclasses import replace

from golden_records import GoldenRecords, Shape

from headrace.codec.records import (
    intent_record,
)
from headrace.codec.records.intent_record import Intent
from headrace.model.requests import PendingRequest, RequestKind, ResourceKind

INTENT = Intent("s", "t", PendingRequest(RequestKind.SCALE_STREAM, "scale_stream-0-3"), 99)
GROUP_INTENT = Intent("s", "g", PendingRequest(RequestKind.CREATE_READER_GROUP, "create_reader_group-0"), 7)


SHAPES: dict[str, Shape] = {
    "intent": (
        INTENT,
        intent_record.intent_body,
        intent_record.intent_of_body,
        {
            "format": 1,
            "kind": "scale_stream",
            "scope": "s",
            "stream": "t",
            "request": "scale_stream-0-3",
            "accepted": 99,
        },
    ),
}


class TestIntentRecord(GoldenRecords):
    shapes = SHAPES


def test_keys_are_where_they_always_were():
    assert intent_record.intents_partition(3) == "requests/0003"
    assert intent_record.intent_sort(ResourceKind.STREAM, "s/t") == "s/t"
    assert intent_record.intent_sort(ResourceKind.READER_GROUP, "s/t") == "reader-group:s/t"


def test_an_intent_names_what_it_is_on():
    """The golden value of an intent on a stream is from a version without requests on other resources."""
    body = intent_record.intent_body(GROUP_INTENT)
    assert body == {
        "format": 1,
        "kind": "create_reader_group",
        "scope": "s",
        "reader-group": "g",
        "request": "create_reader_group-0",
        "accepted": 7,
    }
    assert intent_record.intent_of_body(body) == GROUP_INTENT


def test_an_intent_that_was_put_off_tells_for_how_long():
    put_off = replace(INTENT, failures=2, not_before_ms=120)
    body = intent_record.intent_body(put_off)
    assert body == {**intent_record.intent_body(INTENT), "failures": 2, "not_before": 120}
    assert intent_record.intent_of_body(body) == put_off
