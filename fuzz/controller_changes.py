"""What happens to streams under their writers: scales, truncations, updates, seals, deletions, and lost volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fuzz.controller_messages import Messages
from fuzz.controller_model import SCOPE, STREAMS
from fuzz.controller_run import ControllerRun
from headrace.model.errors import ConflictError, IllegalStateError, UnavailableError
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_configuration import StreamConfiguration
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream

_ATTEMPTS_TO_SEAL: Final = 8
_ATTEMPTS_TO_DELETE: Final = 10
_ATTEMPTS_TO_RECREATE: Final = 20
_SEGMENTS_MAX: Final = 4
_BYTES_AHEAD: Final = 1_000
_CHANGES: Final = ("scale", "scale", "scale", "truncate", "update", "freeze", "unfreeze", "unfreeze", "wait")
_ENDS: Final = ("seal", "delete")


class StreamChanges:
    """Each public method is the work of one process."""

    def __init__(self, run: ControllerRun, messages: Messages) -> None:
        self._run = run
        self._messages = messages
        self._random = run.random
        self._plane = run.plane

    def administer(self, *, ends: bool) -> None:
        """Change streams, with `ends` also seal and delete them. A stream that does not exist is created again."""
        for _ in range(self._random.randint(1, 3)):
            stream = self._random.choice(STREAMS)
            what = self._random.choice(_CHANGES + (_ENDS if ends else ()))
            with self._run.refusals_noted(what):
                self._change(what, stream)

    def _change(self, what: str, stream: str) -> None:
        stored = self._plane.records.find(SCOPE, stream)
        if stored is None:
            self._create(stream)
            return
        match what:
            case "scale":
                self._scale(stored.stream)
            case "truncate":
                self._truncate(stream)
            case "update":
                self._update(stored.stream)
            case "freeze":
                self._run.retry(lambda: self._plane.streams.freeze_stream(SCOPE, stream))
            case "unfreeze":
                self._run.retry(lambda: self._plane.streams.unfreeze_stream(SCOPE, stream))
            case "seal":
                self._seal(stream)
            case "delete":
                self._delete(stream)
            case _:
                self._run.give_turn()
        self._run.note(what)

    def _create(self, stream: str) -> None:
        configuration = StreamConfiguration(self._run.scaling_policy((1,)))
        self._run.retry(lambda: self._plane.streams.create_stream(SCOPE, stream, configuration))
        self._run.note("create again")

    def _scale(self, stream: Stream) -> None:
        sealed, created = self._scale_plan(stream.epoch.segments)
        self._run.retry(lambda: self._plane.streams.scale_stream(SCOPE, stream.name, sealed, created))

    def _scale_plan(self, segments: Sequence[StreamSegment]) -> tuple[list[int], list[KeyRange]]:
        """A split, a merge or a replacement: segments that are sealed, and the ranges of new ones."""
        place = self._random.randrange(len(segments))
        sealed, low, high = [segments[place].segment_id], segments[place].key_range.low, segments[place].key_range.high
        if len(segments) < _SEGMENTS_MAX and self._random.random() < 0.6:
            middle = (low + high) / 2
            return sealed, [KeyRange(low, middle), KeyRange(middle, high)]
        if place + 1 < len(segments):
            following = segments[place + 1]
            return [*sealed, following.segment_id], [KeyRange(low, following.key_range.high)]
        return sealed, [KeyRange(low, high)]

    def _truncate(self, stream: str) -> None:
        """Truncate at the tail, or wrongly after it."""
        self._run.model.truncated.add(stream)
        offsets = dict(self._plane.segments.stream_cut(SCOPE, stream, "tail").offsets)
        if self._random.random() < 0.15:
            offsets = {segment: at + _BYTES_AHEAD for segment, at in offsets.items()}
        self._run.retention.note_other(stream, offsets)
        self._run.retry(lambda: self._plane.streams.truncate_stream(SCOPE, stream, offsets))

    def _update(self, stream: Stream) -> None:
        scaling, retention = self._run.scaling_policy((1, 1, 2, 3)), stream.configuration.retention
        if self._random.random() < 0.1:
            retention = self._run.retention_policy if retention is None else None
            self._run.model.truncated.add(stream.name)
        configuration = StreamConfiguration(scaling, retention=retention)
        self._run.retry(lambda: self._plane.streams.update_stream(SCOPE, stream.name, configuration))

    def _seal(self, stream: str) -> None:
        self._run.retry(lambda: self._plane.streams.seal_stream(SCOPE, stream), _ATTEMPTS_TO_SEAL)

    def _delete(self, stream: str) -> None:
        """Delete a stream once it is sealed. Stops asking after some attempts."""
        self._seal(stream)
        for _ in range(_ATTEMPTS_TO_DELETE):
            self._run.collect()
            try:
                self._plane.streams.delete_stream(SCOPE, stream)
            except (IllegalStateError, ConflictError, UnavailableError):
                self._run.give_turn()
            else:
                return

    def recreate(self) -> None:
        """Seal and delete a stream, process its requests, and create it again as soon as it is gone."""
        stream = self._random.choice(STREAMS)
        for _ in range(self._random.randint(0, 100)):
            self._run.give_turn()
        for _ in range(_ATTEMPTS_TO_RECREATE):
            with self._run.refusals_noted("other incarnation"):
                stored = self._plane.records.find(SCOPE, stream)
                if stored is None:
                    self._create(stream)
                    return
                if stored.stream.state is StreamState.SEALED:
                    self._plane.streams.delete_stream(SCOPE, stream)
                else:
                    self._seal(stream)
                self._messages.process_requests(stream)

    def replay_letters(self) -> None:
        """An operator that replays and drops dead letters."""
        letters = self._plane.dead_letters
        for _ in range(self._random.randint(2, 6)):
            for _ in range(self._random.randint(1, 60)):
                self._run.give_turn()
            with self._run.refusals_noted("replay"):
                found = letters.list_letters(100).items
                if found:
                    letter = self._random.choice(found)
                    change = letters.replay_letter if self._random.random() < 0.8 else letters.drop_letter
                    change(letter.letter_id)
                    self._run.note(f"{letter.status} letter: {change.__name__}")

    def delete_scope(self) -> None:
        """Delete the scope with everything in it, some time after the others have begun."""
        for _ in range(self._random.randint(1, 200)):
            self._run.give_turn()
        with self._run.refusals_noted("delete scope"):
            self._run.retry(lambda: self._plane.scope_deletions.delete_scope_recursively(SCOPE))
            self._run.note("delete scope")
