"""The check of the target streams: at most once a minute for the same options."""

from __future__ import annotations

import pytest
from sink_double import SinkDouble

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.model.errors import SealedError
from headrace.spark.sink_commits import CHECKED_FOR_S, PreparedStreams
from headrace.spark.write_options import write_options

REQUIRED = {"controller": "http://c", "scope": "s", "stream": "t"}


def test_streams_are_checked_once_a_minute() -> None:
    clock, sink = ManualClock(), SinkDouble(["t"])
    prepared, options = PreparedStreams(clock), write_options(REQUIRED, streaming=True)
    prepared.prepare(sink, options)
    sink.sealed_streams.add("t")
    prepared.prepare(sink, options)
    with pytest.raises(SealedError):
        prepared.prepare(sink, write_options(REQUIRED | {"streams": "u"}, streaming=True))
    clock.advance(int(CHECKED_FOR_S * 1000))
    for _ in range(2):  # a failed check is not remembered
        with pytest.raises(SealedError):
            prepared.prepare(sink, options)
