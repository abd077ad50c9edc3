"""Segment stores that report hot and cold segments: each scale that follows must be justified by the reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Literal

from fuzz.control_plane import ControlPlane
from fuzz.controller_checks import require
from fuzz.controller_model import SCOPE, STREAMS
from fuzz.controller_run import ControllerRun
from headrace.controller.acceptance import Acceptance
from headrace.controller.services.auto_scaling import AutoScalingService, ReportOutcome
from headrace.metadata.stream import decode_epoch, transition_key
from headrace.metadata.stream_records import StoredStream
from headrace.model.epochs import Epoch
from headrace.model.errors import ConflictError, UnavailableError
from headrace.model.names import segment_name
from headrace.model.rates import ScalingReport
from headrace.model.scaling import COLD_VALID_MS, REPORT_VALID_MS
from headrace.model.stream_configuration import ScalingType
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Create, Write

_SEGMENTS_MAX: Final = 6
_AGES_MS: Final = (0, 0, 0, 60_000, REPORT_VALID_MS - 1_000, REPORT_VALID_MS + 1_000)
_SPLITS: Final = (0, 2, 2, 3, 9)
_REPEATED_SHARE: Final = 0.2


class AutoScaling:
    """`report` is the work of one process."""

    def __init__(self, run: ControllerRun) -> None:
        self._run = run
        self._random = run.random
        self._plane = run.plane
        self._waiting: list[ScalingReport] = []
        self._delivered: list[ScalingReport] = []

    def report(self) -> None:
        """Report segments. Reports arrive late, out of order and again; a refused one is delivered again."""
        random = self._random
        for _ in range(random.randint(2, 5)):
            self._send()
            self._run.give_turn()
            for _ in range(random.randint(1, 3)):
                if self._delivered and random.random() < _REPEATED_SHARE:
                    self._deliver(random.choice(self._delivered))
                elif self._waiting:
                    self._deliver(self._waiting.pop(random.randrange(len(self._waiting))))

    def _send(self) -> None:
        """Most reports are on streams that scale by rate. Others may have been updated meanwhile."""
        random = self._random
        stored = (self._plane.records.find(SCOPE, name) for name in STREAMS)
        found = [each.stream for each in stored if each is not None]
        wanted = [each for each in found if is_by_rate(each)] if random.random() < 0.9 else found
        if not wanted:
            return
        stream = random.choice(wanted)
        segments = stream.epoch.segments
        at_ms = self._plane.clock.now_ms() - random.choice(_AGES_MS)
        place = random.randrange(len(segments))
        if len(segments) < _SEGMENTS_MAX and random.random() < 0.4:
            name = _name(stream, segments[place].segment_id)
            self._waiting.append(ScalingReport(name, "hot", at_ms, splits=random.choice(_SPLITS)))
            return
        for segment in segments[place : place + random.randint(1, 3)]:
            name, is_silent = _name(stream, segment.segment_id), random.random() < 0.4
            self._waiting.append(ScalingReport(name, "cold", at_ms, silent=is_silent))

    def _deliver(self, report: ScalingReport) -> None:
        with self._run.refusals_noted("report"):
            try:
                self._run.note(f"report of a {report.kind} segment: {self.handle(report)}")
            except (ConflictError, UnavailableError):
                self._waiting.append(report)
                raise

    def handle(self, report: ScalingReport) -> ReportOutcome:
        """What the function does with a report."""
        self._run.trace.note(f"{report}")
        self._delivered.append(report)
        start_ms = self._plane.clock.now_ms()

        def check(stream: Stream, planned: Epoch) -> None:
            self._check(stream, planned, report, start_ms)

        acceptance = _CheckedAcceptance(self._plane, check)
        return AutoScalingService(self._plane.store, acceptance, self._plane.clock).handle(report)

    def use(self, name: str) -> None:
        """A hot segment of a stream that is at rest is split, and its parts are merged when both are cold."""
        stream = self._plane.records.get(SCOPE, name).stream
        if not is_by_rate(stream):
            return
        self._handle_now(stream, [stream.epoch.segments[0].segment_id], "hot", ReportOutcome.SPLIT)
        parts = [segment.segment_id for segment in self._plane.records.get(SCOPE, name).stream.epoch.created]
        self._handle_now(stream, parts[:2], "cold", ReportOutcome.MERGED)

    def _handle_now(
        self, stream: Stream, identifiers: Sequence[int], kind: Literal["hot", "cold"], wanted: ReportOutcome
    ) -> None:
        now_ms = self._plane.clock.now_ms()
        outcome = [self.handle(ScalingReport(_name(stream, identifier), kind, now_ms)) for identifier in identifiers][
            -1
        ]
        require(outcome is wanted, f"{stream.name}: {identifiers} are {kind}, and the last report was {outcome}")
        self._plane.drain()

    def _check(self, stream: Stream, planned: Epoch, report: ScalingReport, start_ms: int) -> None:
        """Raises WrongStateError unless the report, and those of the neighbours, justify the scale of the stream."""
        policy, sealed, created = stream.configuration.scaling, planned.replaced, planned.created
        names = [_name(stream, segment.segment_id) for segment in sealed]
        where = f"{stream.scoped_name}: {report} at {start_ms} seals {names} for {len(created)} segments"
        require(is_by_rate(stream) and report.segment in names and start_ms - report.at_ms <= REPORT_VALID_MS, where)
        if report.kind == "hot":
            is_allowed = 2 <= len(created) <= max(2, min(report.splits, policy.scale_factor))
            require(len(sealed) == 1 and is_allowed, where)
            return
        require(len(created) == 1 and 2 <= len(sealed) <= 3, where)
        require(all(before.key_range.high == after.key_range.low for before, after in pairwise(sealed)), where)
        require(all(self._is_cold(name, start_ms) for name in names), f"{where}, and not all are cold")
        require(len(planned.segments) >= policy.min_segments, f"{where}, fewer than {policy}")

    def _is_cold(self, segment: str, now_ms: int) -> bool:
        reports = [each for each in self._delivered if (each.segment, each.kind) == (segment, "cold")]
        return any(report.silent or now_ms < report.at_ms + COLD_VALID_MS for report in reports)


class _CheckedAcceptance(Acceptance):
    """Accepts the scale of one report. The write fails unless the stream is as it was read, so it can be checked."""

    def __init__(self, plane: ControlPlane, check: Callable[[Stream, Epoch], None]) -> None:
        super().__init__(plane.store, plane.queue, plane.clock)
        self._check = check

    def change_stream(self, stored: StoredStream, after: Stream, *writes: Write) -> None:
        for write in writes:
            if isinstance(write, Create) and write.key == transition_key(after.scope, after.name):
                self._check(stored.stream, decode_epoch(write.body))
        super().change_stream(stored, after, *writes)


def is_by_rate(stream: Stream) -> bool:
    return stream.configuration.scaling.type is not ScalingType.FIXED_NUM_SEGMENTS


def _name(stream: Stream, identifier: int) -> str:
    return segment_name(stream.scope, stream.name, identifier)
