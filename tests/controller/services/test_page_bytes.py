"""Pages of lists are bounded by bytes: whatever is asked for, an answer fits into what a Lambda function may answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.api.listings import Listing
from headrace.api.retention import SubscriberList, SubscriberView
from headrace.api.streams import StreamList
from headrace.controller.services import paging, stream_service
from headrace.controller.services.retention_service import SubscriberService
from headrace.controller.write_dead_letter import handle_dead_letter
from headrace.metadata import dead_letter, transaction_records
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.subscriber import SubscriberRecords
from headrace.model.dead_letters import Cause, Delivery
from headrace.model.documents import Document
from headrace.model.limits import PAGE_BYTES_MAX, PAGE_ITEMS_MAX
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.transactions import WRITER_CHARACTERS_MAX, WriterTime, parse_transaction_id
from headrace.topology import REQUESTS_QUEUE

ANSWER_BYTES_MAX = 6_000_000
"""Lambda's limit for the answer of a function, whose body is a string of JSON within JSON."""

Page = Callable[[str | None], Listing[Any]]


def _answer_bytes(answer: Document) -> int:
    return len(json.dumps({"body": json.dumps(answer.to_json(), separators=(",", ":"))}))


def _subscriber_bytes(page: Listing[Any]) -> int:
    shown = tuple(map(SubscriberView.of, page.items))
    return _answer_bytes(SubscriberList(subscribers=shown, next_after=page.next_after))


def _walk(page: Page) -> list[Listing[Any]]:
    """All pages, from the first to the last."""
    pages = [page(None)]
    while pages[-1].next_after is not None:
        pages.append(page(pages[-1].next_after))
    return pages


@pytest.mark.parametrize("letter", ["x", '"', "\u00e9", "\U0001f600"])
@pytest.mark.parametrize("tag", [None, "shared"])
def test_a_page_of_streams_with_all_the_tags_there_may_be(world: StreamWorld, letter: str, tag: str | None):
    """64 KiB of tags each; quotes and what is not ASCII grow when they become JSON in JSON."""
    size = len(letter.encode())
    tags = ("shared", *(f"{number:03}{letter * (240 if size < 3 else 125)}" for number in range(120)))
    names = [f"stream-{number:03}" for number in range(40)]
    for name in names:
        world.streams.create_stream("s", name, StreamConfiguration(ScalingPolicy.fixed(1), tags=tags))
    world.drain()
    pages = _walk(lambda after: world.streams.list_streams("s", PAGE_ITEMS_MAX, after, tag))
    assert [summary.stream for page in pages for summary in page.items] == names
    assert len(pages) > 1
    assert all(
        page.items and _answer_bytes(StreamList(streams=page.items, next_after=page.next_after)) < ANSWER_BYTES_MAX
        for page in pages
    )


@pytest.mark.nightly
def test_a_page_of_subscribers_with_long_positions(world: StreamWorld):
    segments, count = 900, 100
    world.create(segments=segments)
    offsets = dict.fromkeys(range(segments), 0)
    subscribers = SubscriberService(world.store, world.clock)
    names = [f"group-{number:03}" for number in range(count)]
    for name in names:
        subscribers.register("s", "t", name, 0, offsets)
    pages = _walk(lambda after: subscribers.list_subscribers("s", "t", PAGE_ITEMS_MAX, after))
    assert [subscriber.name for page in pages for subscriber in page.items] == names
    assert len(pages) > 1
    assert all(_subscriber_bytes(page) < ANSWER_BYTES_MAX for page in pages)
    stream = world.streams.get_stream("s", "t")
    stored = StreamRecords(world.store).get(stream.scope, stream.stream).stream
    assert len(SubscriberRecords(world.store).all(stored)) == count


def test_a_page_of_scaling_events(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paging.PageRoom, "__init__", lambda room: setattr(room, "left_bytes", 1_000))
    world.create(segments=1)
    for number in range(9):
        world.clock.advance(10)
        world.scale([number << 32 | number], [0.0, 1.0])
    found: list[int] = []
    start: int | None = 0
    pages = 0
    while start is not None:
        page = world.scaling_events.scaling_events("s", "t", start, stream_service.TIME_MS_MAX, PAGE_ITEMS_MAX)
        assert _answer_bytes(page) < 4_000
        found += [event.epoch for event in page.events]
        start, pages = page.next_time_ms, pages + 1
    assert (found, pages) == ([*range(1, 10)], 3)


def test_a_page_of_dead_letters(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dead_letter, "PAGE_BYTES_MAX", 1_000)
    world.create()
    for number in range(9):
        body = {
            "kind": "seal_stream",
            "scope": "s",
            "stream": f"t{number}",
            "request": f"seal-{number}",
            "pad": "x" * 300,
        }
        delivery = Delivery(REQUESTS_QUEUE.name, "g", json.dumps(body), world.clock.now_ms(), 10)
        handle_dead_letter(world.store, delivery, Cause("internal", "it failed"), world.clock.now_ms())
        world.clock.advance(1)
    pages = _walk(lambda after: world.dead_letters.list_letters(PAGE_ITEMS_MAX, after))
    letters = [letter.letter_id for page in pages for letter in page.items]
    assert len(letters) == len(set(letters)) == 9
    assert len(pages) > 2


def test_a_page_of_open_transactions(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    """Those that wait for their commit carry the name of a writer."""
    monkeypatch.setattr(transaction_records, "PAGE_BYTES_MAX", 1_000)
    world.create()
    begun = sorted(world.begin() for _ in range(20))
    for transaction in begun:
        world.transactions.commit_transaction("s", "t", transaction, WriterTime("w" * WRITER_CHARACTERS_MAX, 1))

    def page(after: str | None) -> Listing[Any]:
        behind = None if after is None else parse_transaction_id(after)
        return world.transactions.list_open("s", "t", PAGE_ITEMS_MAX, behind)

    pages = _walk(page)
    assert [stored.transaction_id for page in pages for stored in page.items] == begun
    assert len(pages) > 4
    world.seal()
    assert [part.items for part in _walk(page)] == [()], "sealing comes to all pages"


def test_the_bound_leaves_room_for_the_answer():
    """One record above it, doubled, and a hundred bytes of names for each item."""
    assert 2 * (PAGE_BYTES_MAX + 400_000) + PAGE_ITEMS_MAX * 300 < ANSWER_BYTES_MAX
