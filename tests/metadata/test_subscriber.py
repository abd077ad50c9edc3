"""The record of a subscriber: golden value and key."""

from __future__ import annotations

from cut_histories import History, histories
from golden_records import GoldenRecords
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.subscriber import decode_subscriber, subscriber_body, subscriber_key
from headrace.model.subscribers import Subscriber
from headrace.ports.metadata_store import Key

PLACE = History.begin(2).tail()
PLACE_BODY = {
    "scope": "s",
    "stream": "t",
    "positions": [[0, 0], [1, 0]],
    "segments": [[0, 0.0, 0.5], [1, 0.5, 1.0]],
}


class TestSubscriber(GoldenRecords):
    shapes = {
        "subscriber": (
            Subscriber("s/group", 3, PLACE, 11),
            subscriber_body,
            decode_subscriber,
            {"format": 1, "name": "s/group", "generation": 3, "position": PLACE_BODY, "updated": 11},
        )
    }


def test_each_incarnation_has_its_own_key():
    assert subscriber_key("s", "t", 3, "s/g") == Key("stream/s/t", "subscriber/0000000003/s/g")
    assert subscriber_key("s", "t", 4, "s/g") != subscriber_key("s", "t", 3, "s/g")


@given(histories(steps_max=8), st.integers(0, 2**62))
def test_subscribers_come_back(history: History, time_ms: int):
    subscriber = Subscriber("g", 0, history.tail(), time_ms)
    assert decode_subscriber(subscriber_body(subscriber)) == subscriber
