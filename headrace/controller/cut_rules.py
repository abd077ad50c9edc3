"""What the stream cuts of a reader group must be, besides cuts of their streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.model.stream_cuts import StreamCut
from headrace.model.streams import Stream

CheckWritten = Callable[[Stream, StreamCut], None]
"""Raises InvalidRequestError, code "invalid_stream_cut", for a cut beyond the tail of the stream."""


@dataclass(frozen=True, slots=True)
class CutRules:
    """With `at_checkpoint` a starting cut may leave out what readers have finished."""

    at_checkpoint: bool = False
    check_written: CheckWritten | None = None

    def check_place(self, stream: Stream, cut: StreamCut) -> None:
        """Refuse a cut inside the first event or beyond the tail. Checkpoints are made by readers, between events."""
        if not self.at_checkpoint:
            cut.check_between_events()
        if self.check_written is not None:
            self.check_written(stream, cut)


NO_RULES = CutRules()
