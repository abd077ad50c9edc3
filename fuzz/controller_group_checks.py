"""What must hold of reader groups, subscribers, watermarks and tables when nothing is left to do."""

from __future__ import annotations

from itertools import pairwise

from fuzz.controller_checks import require
from fuzz.controller_groups import GROUPS, TABLES
from fuzz.controller_model import SCOPE, STREAMS
from fuzz.controller_run import ControllerRun
from headrace.codec.events import iter_events
from headrace.codec.stored_objects import watermark_of_payload
from headrace.metadata.key_value_table import KeyValueTableRecords
from headrace.metadata.reader_group import ReaderGroupRecords
from headrace.metadata.subscriber import SubscriberRecords
from headrace.model.key_value_tables import TableState
from headrace.model.names import mark_segment_name
from headrace.model.reader_groups import ReaderGroup, ReaderGroupState, state_stream_name
from headrace.model.streams import Stream


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
