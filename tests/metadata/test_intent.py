"""The record of an intent: golden values and keys."""

from __future__ import annotations

from dataclasses import replace

from golden_records import GoldenRecords

from headrace.metadata.intent import Intent, decode_intent, intent_body, intent_key, intents_partition
from headrace.metadata.request_messages import request_message_body
from headrace.model.requests import PendingRequest, Requester, RequestKind, ResourceKind
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


class TestIntentWithItsRequester(GoldenRecords):
    left_out = {"intent": {"requested_by"}}
    shapes = {
        "intent": (
            replace(INTENT, requester=Requester("arn:aws:sts::1:assumed-role/a/b", "deploy-7")),
            intent_body,
            decode_intent,
            {
                "format": 1,
                "kind": "scale_stream",
                "scope": "s",
                "stream": "t",
                "request": "scale_stream-0-3",
                "accepted": 99,
                "requested_by": ["arn:aws:sts::1:assumed-role/a/b", "deploy-7"],
            },
        )
    }


def test_a_message_is_that_of_a_former_release():
    """Its processors refuse a message with a field that they do not know: the requester is no part of it."""
    asked = replace(INTENT, requester=Requester("local", ""))
    assert request_message_body(asked) == request_message_body(INTENT)
    assert set(request_message_body(asked)) == {"kind", "scope", "stream", "request"}


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
