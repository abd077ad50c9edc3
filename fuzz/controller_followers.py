"""Readers that follow a stream from its head, batch by batch, while it is scaled and commits run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fuzz.controller_events import parse_events
from fuzz.controller_model import KEYS, SCOPE, STREAMS, Reading
from fuzz.controller_run import ControllerRun
from headrace.api.plans import NextCutView
from headrace.controller.services.reader_plans import NextCutService

_BATCHES_MAX: Final = 15
_TURNS_MAX: Final = 30
_BATCH_BYTES: Final = (None, 1, 10, 25)


class Followers:
    """Each public method is the work of one process."""

    def __init__(self, run: ControllerRun) -> None:
        self._run = run
        self._random = run.random
        self._next_cuts = NextCutService(run.plane.store, run.plane.segment_stores)

    def follow(self) -> None:
        """Read batches from the head on. What was read must be the beginning of the stream in the end."""
        run, stream = self._run, self._random.choice(STREAMS)
        reading = Reading(stream, run.model.incarnation(stream), [[] for _ in KEYS])
        offsets: Mapping[int, int] | None = None
        for _ in range(self._random.randint(2, _BATCHES_MAX)):
            with run.refusals_noted("follower"):
                offsets = self._read_batch(reading, offsets)
                run.happened["batch read"] += 1
            for _ in range(self._random.randint(0, _TURNS_MAX)):
                run.give_turn()
        run.model.readings.append(reading)

    def _read_batch(self, reading: Reading, offsets: Mapping[int, int] | None) -> Mapping[int, int]:
        view = self._run.retry(lambda: self._next_cut(reading.stream, offsets))
        if offsets is None:  # The stream may have been deleted and created again meanwhile.
            reading.incarnation = self._run.model.incarnation(reading.stream)
        found: list[tuple[int, int]] = []
        for span in view.ranges:
            length = span.end_offset - span.start_offset
            found += parse_events(self._run.plane.bare_segment_stores.read(span.name, span.start_offset, length))
        for key, event in found:
            reading.events[key].append(event)
        return view.end.offsets

    def _next_cut(self, stream: str, offsets: Mapping[int, int] | None) -> NextCutView:
        bytes_max, is_strict = self._random.choice(_BATCH_BYTES), self._random.random() < 0.5
        return self._next_cuts.next_cut(SCOPE, stream, offsets, bytes_max=bytes_max, strict_key_order=is_strict)
