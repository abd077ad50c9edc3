"""The record of an intent: golden values and keys."""

from __future__ import annotations

from dataclasses import replace

from golden_records import GoldenRecords

from headrace.metadata.intent import Intent, decode_intent, intent_body, intent_key, intents_partition
from headrace.model.requests import PendingRequest, RequestKind, ResourceKind
from headrace.ports.metadata_store import Key

INTENT = Intent("s", "t", PendingRequest(RequestKind.SCALE_STREAM, "scale_stream-0-3"), 99)
GROUP_INTENT = Intent("s", "g", PendingRequest(RequestKind.CREATE_READER_GROUP, "create_reader_group-0"), 7)


class TestIntent(GoldenRecords):
    shapes = {
        "intent": (
            INTENT,
            intent_body,
            decode_intent,
            {
                "format": 1,
                "kind": "scale_stream",
                "scope": "s",
                "stream": "t",
                "request": "scale_stream-0-3",
                "accepted": 99,
            },
        )
    }


def test_keys():
    assert intents_partition(3) == "requests/0003"
    assert intent_key("s", "t") == Key("requests/0000", "s/t")
    assert intent_key("s", "g", ResourceKind.READER_GROUP) == Key("requests/0003", "reader-group:s/g")
    assert intent_key("s", "", ResourceKind.SCOPE) == Key("requests/0005", "scope:s")


def test_an_intent_names_its_resource():
    """The golden value of an intent on a stream is from a version without requests on other resources."""
    body = intent_body(GROUP_INTENT)
    assert body == {
        "format": 1,
        "kind": "create_reader_group",
        "scope": "s",
        "reader-group": "g",
        "request": "create_reader_group-0",
        "accepted": 7,
    }
    assert decode_intent(body) == GROUP_INTENT


def test_an_intent_that_was_put_off_says_for_how_long():
    put_off = replace(INTENT, failures=2, not_before_ms=120)
    body = intent_body(put_off)
    assert body == {**intent_body(INTENT), "failures": 2, "not_before": 120}
    assert decode_intent(body) == put_off
