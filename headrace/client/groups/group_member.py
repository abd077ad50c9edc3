"""One reader's part in the decisions of its group: which segments it has, checkpoints, and who has vanished.

The shell around `headrace/model/group_balance.py`: it writes what the model decides, always on condition that the state
is the one that the decision was made for. So a segment has one owner, also if readers decide at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from uuid import uuid4

from headrace.client.administration.admin import AsyncAdmin
from headrace.client.backoff import Backoff
from headrace.client.groups.group_positions import stream_cuts
from headrace.client.groups.group_segments import OwnedSegments
from headrace.client.groups.group_synchronizer import GroupSynchronizer
from headrace.model.errors import HeadraceError, IllegalStateError
from headrace.model.group_balance import LAG_BALANCE_S, TURN_S, SegmentTurns, comparable_lag_ms, readers_before
from headrace.model.group_state import GroupState
from headrace.model.group_updates import (
    AcquireSegment,
    AddReader,
    BeginCheckpoint,
    ClearCheckpointsBefore,
    CompleteSegment,
    GroupUpdate,
    NoteProgress,
    NotePublished,
    ReachCheckpoint,
    ReleaseSegment,
    RemoveReader,
)
from headrace.model.names import StreamSegmentName
from headrace.model.reader_groups import RetentionMode

BEATS_PER_LEASE = 4
Condition = Callable[[GroupState], bool]
COMPACTION_BYTES = 512 * 1024
"""The state is written as a whole after so many bytes of updates (Pravega's constant)."""


class GroupMember:
    """A reader's membership of its group."""

    def __init__(
        self, admin: AsyncAdmin, synchronizer: GroupSynchronizer, reader: str, lease_s: float, segments: OwnedSegments
    ) -> None:
        self._admin = admin
        self._group = synchronizer
        self._segments = segments
        self._lease_s = lease_s
        self.reader = reader
        self._generation = -1
        self._renewed_s = 0.0
        self._heard_s: dict[str, float] = {}
        self._checkpoint_s = 0.0
        self._last_checkpoint: str | None = None
        self._looked_s: float | None = None
        self._turns = SegmentTurns(reader, time.monotonic())

    def heard(self, update: GroupUpdate) -> None:
        """Notes that the sender of an update was alive."""
        if update.sender is not None:
            self._heard_s[update.sender] = time.monotonic()

    async def join(self) -> None:
        """Comes online. Raises IllegalStateError, code "reader_online", if the group has a reader of this name."""
        started_s = time.monotonic()
        await self._group.entries.update(lambda state: [AddReader(self.reader), self._progress(state)])
        self._renewed_s = self._checkpoint_s = started_s
        self._turns = SegmentTurns(self.reader, started_s)
        self._generation = self._group.state.configuration.generation

    async def leave(self) -> None:
        """Goes offline. The segments wait for other readers, which begin after the processed events."""
        positions = self._segments.positions
        self._segments.end_all()
        await self._group.entries.update(
            lambda state: [RemoveReader(self.reader, positions)] if self.reader in state.assigned else []
        )

    async def release(self, segment: StreamSegmentName) -> bool:
        """Releases a segment, and leaves it to other readers for a while. False if a checkpoint holds it."""
        offset = self._segments.positions[segment]
        written = await self._group.entries.update(
            lambda state: (
                [ReleaseSegment(self.reader, segment, offset)]
                if segment in state.assigned.get(self.reader, {}) and state.may_move(self.reader)
                else []
            )
        )
        if written:
            self._segments.end(segment)
            self._turns.left_to_others(segment, self._group.state, time.monotonic())
        return bool(written)

    async def take_part(self) -> float:
        """Does what the state asks of this reader. Returns after how many seconds at most it must be called again.

        Only called when the application has processed all events that it got, so that positions are true.

        Raises:
            IllegalStateError: code "reader_offline": the reader was declared offline.
        """
        if time.monotonic() - self._renewed_s > self._lease_s:
            await self._renew()  # others may have declared this reader dead in the meantime
            await self._group.fetch()
        look_s = await self._look_for_configuration()
        await self._check_online()
        await self._reach_checkpoints()
        await self._complete_segments()
        await self._release_surplus()
        wait_s = await self._acquire_share()
        return min(look_s, wait_s, await self._begin_checkpoint())

    async def beat(self) -> None:
        """Renews the reader's lease for ever, and declares readers dead whose lease has run out."""
        while True:
            try:
                await self._renew()
                await self._remove_vanished()
                if self._is_first() and await self._group.entries.bytes_since_compaction() > COMPACTION_BYTES:
                    await self._group.entries.compact()
            except HeadraceError as problem:
                if problem.retry == "never":
                    raise
            await asyncio.sleep(self._lease_s / BEATS_PER_LEASE)

    async def follow(self) -> None:
        """Keeps the copy of the state up to date for ever."""
        backoff = Backoff(float("inf"))
        while True:
            try:
                await self._group.entries.wait()
                backoff.progress()
            except HeadraceError as problem:
                if problem.retry == "never":
                    raise
                await backoff.wait(problem)

    async def _look_for_configuration(self) -> float:
        """Asks the controller while the group waits for a reset. Returns the seconds until it may be asked again.

        If the process that resets the group has died, it may have done so before or after the controller got the new
        configuration. Only the second look ends the wait, so that a living process has time for its request.
        """
        if not self._group.state.is_updating:
            self._looked_s = None
            return LAG_BALANCE_S
        interval_s = max(self._group.state.configuration.group_refresh_ms / 1000, TURN_S / 10)
        before_s, now_s = self._looked_s, time.monotonic()
        if before_s is not None and now_s < before_s + interval_s:
            return before_s + interval_s - now_s
        self._looked_s = now_s
        await self._group.take_configuration(may_settle=before_s is not None)
        return interval_s

    async def _check_online(self) -> None:
        """Reads what the state says that this reader owns: after an interrupted call it may be something else."""
        state = self._group.state
        if self.reader in state.assigned:
            self._read_owned(state)
            return
        self._segments.end_all()
        if state.configuration.generation == self._generation:
            raise IllegalStateError(
                f"reader {self.reader!r} was declared offline: its events since the last checkpoint are read again by "
                "others; open it again",
                code="reader_offline",
            )
        await self.join()  # the group was reset

    async def _reach_checkpoints(self) -> None:
        while (name := self._group.state.checkpoints.next_of(self.reader)) is not None:
            await self._reach(name)
        checkpoints = self._group.state.checkpoints
        if (
            self._group.state.configuration.retention is RetentionMode.AUTOMATIC
            and checkpoints.last is not None
            and not checkpoints.last_published
        ):
            await self._publish()

    async def _reach(self, name: str) -> None:
        reached = ReachCheckpoint(name, self.reader, self._segments.positions)
        await self._write(lambda state: state.checkpoints.next_of(self.reader) == name, [reached])

    async def _publish(self) -> None:
        """Tells the controller that events before the last checkpoint are no longer needed by the group."""
        state = self._group.state
        assert state.checkpoints.last is not None, "only called after a checkpoint"
        try:
            await self._group.publish(await stream_cuts(self._admin, state.checkpoints.last))
        except HeadraceError:
            return  # retention only keeps more than it must; the next reader that takes part tries it again
        await self._group.entries.update_unconditionally([NotePublished(True)])

    async def _complete_segments(self) -> None:
        for segment, following in self._segments.read_to_end.items():
            update = CompleteSegment(self.reader, segment, *following)
            if await self._write(lambda state: state.may_move(self.reader), [update]):
                self._read_owned(self._group.state)

    async def _release_surplus(self) -> None:
        lags_ms = self._segments.lags_ms(time.time() * 1000)

        def decide(state: GroupState) -> Sequence[GroupUpdate]:
            surplus = self._turns.to_release(state, lags_ms, time.monotonic())
            return [ReleaseSegment(self.reader, each, self._segments.positions[each]) for each in surplus]

        if await self._group.entries.update(decide):
            self._turns.released(time.monotonic())
            self._read_owned(self._group.state)

    async def _acquire_share(self) -> float:
        """Takes segments if it is this reader's turn. Returns the seconds until it may be."""

        def decide(state: GroupState) -> Sequence[GroupUpdate]:
            return [AcquireSegment(self.reader, each) for each in self._turns.to_acquire(state, time.monotonic())]

        if await self._group.entries.update(decide):
            self._turns.acquired(self._group.state, time.monotonic())
            self._read_owned(self._group.state)
        if self.reader not in self._group.state.assigned:
            return 0.0
        return self._turns.wait_s(self._group.state, time.monotonic())

    def _read_owned(self, state: GroupState) -> None:
        """Reads exactly the segments that this reader owns."""
        owned = state.assigned.get(self.reader, {})
        for segment in self._segments.owned.keys() - owned.keys():
            self._segments.end(segment)
        for segment in owned.keys() - self._segments.owned.keys():
            self._segments.begin(segment, owned[segment], state.ends.get(segment))

    async def _begin_checkpoint(self) -> float:
        """Begins an automatic checkpoint if one is due. Returns the seconds until then."""
        state, now_s = self._group.state, time.monotonic()
        newest = state.checkpoints.names[-1] if state.checkpoints.names else None
        if newest != self._last_checkpoint:
            self._last_checkpoint, self._checkpoint_s = newest, now_s
        interval_s = state.configuration.automatic_checkpoint_interval_ms / 1000
        if interval_s <= 0 or state.checkpoints.is_ongoing:
            return LAG_BALANCE_S
        # Those who come later wait a little longer, so that usually one reader begins it.
        wait_s = self._checkpoint_s + interval_s + len(readers_before(state, self.reader)) * TURN_S / 10 - now_s
        if wait_s > 0:
            return wait_s
        name = str(uuid4())
        updates = [BeginCheckpoint(name), ClearCheckpointsBefore(name)]
        await self._write(lambda current: not current.checkpoints.is_ongoing, updates)
        return 0.0

    async def _renew(self) -> None:
        started_s = time.monotonic()
        await self._group.entries.update_unconditionally([self._progress(self._group.state)])
        self._renewed_s = started_s

    def _progress(self, state: GroupState) -> NoteProgress:
        now_ms = time.time() * 1000
        lags = list(self._segments.lags_ms(now_ms).values())
        lag_ms = sum(lags) // len(lags) if lags else 0
        positions = self._segments.positions
        return NoteProgress(
            self.reader,
            comparable_lag_ms(state, self.reader, lag_ms, int(now_ms)),
            positions,
            {segment: state.ranges[segment] for segment in positions if segment in state.ranges},
            int(self._lease_s * 1000),
        )

    async def _remove_vanished(self) -> None:
        """Declares readers dead that have promised an update and have not written one in time."""

        def vanished(state: GroupState) -> Sequence[GroupUpdate]:
            now_s = time.monotonic()
            others = [reader for reader in state.leases_ms if reader != self.reader and reader in state.assigned]
            silent_s = {reader: now_s - self._heard_s.setdefault(reader, now_s) for reader in others}
            return [RemoveReader(reader) for reader in state.vanished(silent_s)]

        if vanished(self._group.state):
            await self._group.entries.update(vanished)

    def _is_first(self) -> bool:
        """Whether this reader is the one that compacts the state."""
        return self.reader == min(self._group.state.readers, default=self.reader)

    async def _write(self, condition: Condition, updates: Sequence[GroupUpdate]) -> bool:
        """Writes the updates if the condition holds for the newest state. Returns whether it did."""
        return bool(await self._group.entries.update(lambda state: updates if condition(state) else []))
