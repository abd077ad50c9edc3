"""Readers and the resources next to streams: reader groups, subscribers, watermarks and tables, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

from fuzz.controller_checks import require
from fuzz.controller_model import SCOPE, STREAMS
from fuzz.controller_run import ControllerRun
from headrace.codec.events import iter_events
from headrace.codec.stored_objects import watermark_of_payload
from headrace.controller.services.retention_service import SubscriberService
from headrace.controller.services.watermark_service import WatermarkService
from headrace.metadata.key_value_table import KeyValueTableRecords
from headrace.metadata.reader_group import ReaderGroupRecords
from headrace.metadata.subscriber import SubscriberRecords
from headrace.model.key_value_tables import TableConfiguration, TableState
from headrace.model.names import mark_segment_name
from headrace.model.reader_groups import (
    GroupStream,
    ReaderGroup,
    ReaderGroupConfiguration,
    ReaderGroupState,
    RetentionMode,
    state_stream_name,
)
from headrace.model.stream_cuts import StreamCut
from headrace.model.streams import Stream

GROUPS: Final = ("g", "h")
SUBSCRIBERS: Final = ("x", "y")
TABLES: Final = ("k",)
_WRITERS_OF_MARKS: Final = ("u", "v")
_STEPS: Final = 4


class Readers:
    """Each public method is the work of one process."""

    def __init__(self, run: ControllerRun) -> None:
        self._run = run
        self._random = run.random
        self._plane = run.plane
        self._subscribers = SubscriberService(run.plane.store, run.plane.clock)
        self._records = SubscriberRecords(run.plane.bare_store)
        self._watermarks = WatermarkService(run.plane.store)
        self._groups_made = 0

    def begin(self) -> None:
        """Let reader groups and subscribers exist from the beginning. Not the work of a process."""
        for _ in range(self._random.randint(1, len(GROUPS))):
            self._create_group()
        self._plane.drain()
        for name in SUBSCRIBERS:
            self._subscribers.register(SCOPE, self._stream(), name, 0)

    def manage_groups(self) -> None:
        """Create, update, reset and delete reader groups, which subscribe to their streams."""
        self._take_steps("group", (self._create_group, self._update_group, self._update_group, self._delete_group))

    def read(self) -> None:
        """Subscribers that register, publish how far they have read, and unregister."""
        self._take_steps("subscriber", (self._register, self._publish, self._publish, self._publish, self._unregister))

    def note_positions(self) -> None:
        """Writers that note their times and positions, from which watermarks are made."""
        self._take_steps("mark", (self._note_position,))

    def manage_tables(self) -> None:
        """Create and delete a key-value table."""
        self._take_steps("table", (self._create_table, self._delete_table))

    def _take_steps(self, what: str, choices: tuple[Callable[[], object], ...]) -> None:
        for _ in range(self._random.randint(1, _STEPS)):
            with self._run.refusals_noted(what):
                choice = self._random.choice(choices)
                self._run.trace.note(f"{choice.__name__.strip('_')}")
                choice()
                self._run.note(choice.__name__.strip("_").replace("_", " "))

    def _create_group(self) -> None:
        self._groups_made += 1
        identifier = f"00000000-0000-4000-8000-{self._groups_made:012x}"
        group, configuration = self._random.choice(GROUPS), self._group_configuration()
        groups = self._plane.reader_groups
        self._run.retry(lambda: groups.create_reader_group(SCOPE, group, identifier, configuration))

    def _group_configuration(self) -> ReaderGroupConfiguration:
        random = self._random
        streams = []
        for name in random.sample(STREAMS, random.randint(1, len(STREAMS))):
            start = None
            if random.random() < 0.3 and self._run.exists(name):
                start = StreamCut.of(SCOPE, name, self._cut(name))
            streams.append(GroupStream(SCOPE, name, start))
        return ReaderGroupConfiguration(tuple(streams), random.choice(list(RetentionMode)))

    def _update_group(self) -> None:
        groups, name = self._plane.reader_groups, self._random.choice(GROUPS)
        known = self._run.retry(lambda: groups.get_reader_group(SCOPE, name))
        if self._random.random() < 0.3:
            groups.reset_reader_group(SCOPE, name, known.group_id, known.generation)
            return
        wanted = self._group_configuration()
        self._run.retry(lambda: groups.update_reader_group(SCOPE, name, known.group_id, known.generation, wanted))

    def _delete_group(self) -> None:
        groups, name = self._plane.reader_groups, self._random.choice(GROUPS)
        known = self._run.retry(lambda: groups.get_reader_group(SCOPE, name))
        self._run.retry(lambda: groups.delete_reader_group(SCOPE, name, known.group_id))

    def _register(self) -> None:
        stream, name, generation = self._stream(), self._random.choice(SUBSCRIBERS), self._random.randint(0, 2)
        start = self._cut(stream) if self._random.random() < 0.3 else None
        self._run.retry(lambda: self._subscribers.register(SCOPE, stream, name, generation, start))

    def _publish(self) -> None:
        """A subscriber that is registered publishes a new position."""
        streams = [stored for name in STREAMS if (stored := self._plane.records.find(SCOPE, name)) is not None]
        known = [(stream.stream.name, each) for stream in streams for each in self._records.all(stream.stream)]
        if not known:
            return
        stream, subscriber = self._random.choice(known)
        offsets, place = self._cut(stream), (SCOPE, stream, subscriber.name)
        self._run.retry(lambda: self._subscribers.update_stream_cut(*place, subscriber.generation, offsets))

    def _unregister(self) -> None:
        stream, name = self._stream(), self._random.choice(SUBSCRIBERS)
        self._run.retry(lambda: self._subscribers.unregister(SCOPE, stream, name, self._random.randint(0, 2)))

    def _stream(self) -> str:
        """A stream, mostly one with retention."""
        retained = sorted(self._run.model.retained)
        return self._random.choice(retained if retained and self._random.random() < 0.8 else STREAMS)

    def _cut(self, stream: str) -> Mapping[int, int]:
        is_head = self._random.random() < 0.3
        return self._plane.segments.stream_cut(SCOPE, stream, "head" if is_head else "tail").offsets

    def _note_position(self) -> None:
        stream, writer = self._random.choice(STREAMS), self._random.choice(_WRITERS_OF_MARKS)
        offsets, time = self._plane.segments.stream_cut(SCOPE, stream, "tail").offsets, self._run.model.next_moment()
        self._run.retry(lambda: self._watermarks.note_position(SCOPE, stream, writer, time, offsets))

    def _create_table(self) -> None:
        table, configuration = self._random.choice(TABLES), TableConfiguration(self._random.randint(1, 3), 4)
        self._run.retry(lambda: self._plane.tables.create_table(SCOPE, table, configuration))

    def _delete_table(self) -> None:
        table = self._random.choice(TABLES)
        self._run.retry(lambda: self._plane.tables.delete_table(SCOPE, table))


class GroupChecks:
    """Every method raises WrongStateError."""

    def __init__(self, run: ControllerRun) -> None:
        self._run = run
        self._plane = run.plane
        self._groups = ReaderGroupRecords(run.plane.bare_store)
        self._tables = KeyValueTableRecords(run.plane.bare_store)
        self._subscribers = SubscriberRecords(run.plane.bare_store)

    def check_all(self) -> None:
        self._check_groups()
        for name in STREAMS:
            stored = self._plane.records.find(SCOPE, name)
            if stored is not None:
                self._check_subscribers(stored.stream)
                self._check_watermarks(name)
        self._check_tables()

    def group(self, name: str) -> ReaderGroup | None:
        stored = self._groups.find(SCOPE, name)
        return None if stored is None else stored.group

    def _check_groups(self) -> None:
        """A group is at rest, and its state stream exists with it."""
        for name in GROUPS:
            group = self.group(name)
            require(group is None or group.state is ReaderGroupState.ACTIVE, f"group {name} is at work: {group}")
            has_stream = self._run.exists(state_stream_name(name))
            require(has_stream == (group is not None), f"the state stream of group {name} is there: {has_stream}")

    def _check_subscribers(self, stream: Stream) -> None:
        """The groups among the subscribers are those that the stream's retention waits for, in their generation."""
        found = {each.name: each.generation for each in self._subscribers.all(stream) if "/" in each.name}
        wanted = {
            each.scoped_name: each.generation
            for each in map(self.group, GROUPS)
            if each is not None and stream.scoped_name in each.configuration.subscribed
        }
        require(found.items() <= wanted.items(), f"{stream.name} has the subscribers {found}, and not {wanted}")
        is_first = stream.first_segment_number == 0  # Groups do not subscribe to a stream that was created again.
        require(not is_first or found == wanted, f"{stream.name} has the subscribers {found}, and not {wanted}")

    def _check_watermarks(self, stream: str) -> None:
        """Times and positions of the watermarks grow."""
        name, stores = mark_segment_name(SCOPE, stream), self._plane.bare_segment_stores
        if name not in stores.names():
            return
        info = stores.segment_info(name)
        payloads, consumed = iter_events(stores.read(name, info.start_offset, info.length))
        require(consumed == info.length - info.start_offset, f"{name} ends in the middle of a watermark")
        for before, after in pairwise([watermark_of_payload(payload) for payload in payloads]):
            is_later = before.lower_time <= after.lower_time and before.upper_time <= after.upper_time
            require(is_later, f"{name}: {after} follows {before}")
            earlier = {position.segment.segment_id: position.offset for position in before.cut}
            behind = [
                position for position in after.cut if position.offset < earlier.get(position.segment.segment_id, 0)
            ]
            require(not behind, f"{name}: {after} follows {before}")

    def _check_tables(self) -> None:
        """A table is at rest, and has exactly its segments."""
        for name in TABLES:
            stored = self._tables.find(SCOPE, name)
            table = None if stored is None else stored.table
            require(table is None or table.state is TableState.ACTIVE, f"table {name} is at work: {table}")
            prefix = f"{SCOPE}/{name}_kvtable/"
            wanted = {f"{prefix}{segment.segment_id}.#epoch.0" for segment in table.segments} if table else set()
            found = {name for name in self._plane.bare_segment_stores.names() if name.startswith(prefix)}
            require(found == wanted, f"table {name} has the segments {sorted(found)}, and not {sorted(wanted)}")
