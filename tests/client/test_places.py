"""Places of a stream and names with their scopes, as callers of the client write them."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from scripted_cluster import Cluster

from headrace.client import InvalidRequestError, StreamCut, places
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.administration.scoped_names import scope_and_name


@pytest.fixture
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _read(cluster: Cluster, start: Any, end: Any = "latest") -> list[bytes]:
    with cluster.client() as headrace, headrace.reader("s/t", start=start, end=end) as reader:
        return [read.event for read in reader]


@pytest.mark.usefixtures("_without_warnings")
def test_a_reader_starts_and_ends_at_places(cluster: Cluster):
    cluster.put(0, b"1", b"2", b"3")
    second = StreamCut.of("s", "t", {0: 9, 1: 0})
    assert _read(cluster, "earliest") == [b"1", b"2", b"3"]
    assert _read(cluster, "latest") == []
    assert _read(cluster, second) == [b"2", b"3"]
    assert _read(cluster, "0@0:9,1@0:0", "0@0:18,1@0:0") == [b"2"]
    with pytest.raises(InvalidRequestError, match="'middle' is not earliest, latest, a time"):
        _read(cluster, "middle")


@pytest.mark.parametrize(("old", "current"), [("head", "earliest"), ("tail", "latest")])
def test_old_words_of_ends_work_with_a_warning(cluster: Cluster, old: Any, current: str):
    cluster.put(0, b"1")
    notice = f"`{old}` is `{current}` now"
    with pytest.warns(DeprecationWarning, match=notice):
        assert _read(cluster, old) == _read(cluster, current)
    with cluster.client() as headrace:
        with pytest.warns(DeprecationWarning, match=notice):
            cut = headrace.admin.stream_cut("s", "t", at=old)
        assert cut == headrace.stream_cut_at("s", "t", current)


def test_times_become_moments(monkeypatch: pytest.MonkeyPatch):
    asked: list[datetime] = []

    async def stream_cut_at(admin: object, scope: str, stream: str, time: datetime) -> StreamCut:
        asked.append(time)
        return StreamCut.of(scope, stream, {0: 0})

    monkeypatch.setattr(places, "stream_cut_at", stream_cut_at)
    moment = datetime(2026, 11, 23, 10, 5, tzinfo=UTC)
    for place in (moment, "2026-11-23T10:05:00Z", timedelta(minutes=5), timedelta(minutes=-5), "-5m"):
        stream_cut = asyncio.run(places.cut_of_place(cast(AsyncAdmin, None), "s", "t", place))
        assert stream_cut == StreamCut.of("s", "t", {0: 0})
    assert asked[:2] == [moment, moment]
    assert all(abs(datetime.now(UTC) - timedelta(minutes=5) - each) < timedelta(minutes=1) for each in asked[2:])
    with pytest.raises(InvalidRequestError, match="before now is not a time"):
        asyncio.run(places.cut_of_place(cast(AsyncAdmin, None), "s", "t", timedelta.max))


def test_names_have_one_form_or_the_other():
    assert scope_and_name("shop/orders", None) == scope_and_name("shop", "orders") == ("shop", "orders")
    for scope, name in (("shop", None), ("shop/orders", "orders")):
        with pytest.raises(InvalidRequestError, match="expected 'SCOPE/NAME'"):
            scope_and_name(scope, name)


def test_handles_say_what_they_are(cluster: Cluster):
    with cluster.client() as headrace:
        with headrace.writer("s/t") as writer, headrace.reader("s/t") as reader:
            assert (repr(writer), repr(reader)) == ("<EventWriter s/t>", "<EventReader s/t>")
        assert (repr(writer), repr(reader)) == ("<EventWriter s/t, closed>", "<EventReader s/t, closed>")
        assert repr(headrace).startswith("<Headrace http")
    assert repr(headrace).endswith(", closed>")
