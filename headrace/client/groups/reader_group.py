"""The asynchronous API of a reader group: its readers, checkpoints, lag, and where it begins again."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Literal
from uuid import uuid4

from headrace.client.administration.admin import AsyncAdmin
from headrace.client.closing import handle_text
from headrace.client.defaults import RETRY_TIMEOUT_S
from headrace.client.groups.group_positions import (
    GroupLag,
    GroupStatus,
    lag_of_state,
    recorded_cuts,
    status_of_state,
    stream_cuts,
)
from headrace.client.groups.group_reader import AsyncGroupReader, GroupReaderOptions
from headrace.client.groups.group_synchronizer import GroupSynchronizer
from headrace.client.places import Place, end_or_cut
from headrace.model.arguments import checked_calls
from headrace.model.errors import HeadraceError, InvalidRequestError, UnavailableError
from headrace.model.group_state import GroupState, Positions, silent_checkpoint_name
from headrace.model.group_updates import (
    BeginCheckpoint,
    ClearCheckpointsBefore,
    GroupUpdate,
    NoteUpdating,
    RemoveOutstandingCheckpoints,
    RemoveReader,
)
from headrace.model.names import StreamSegmentName
from headrace.model.reader_groups import ReaderGroupConfiguration
from headrace.model.stream_cuts import StreamCut

CHECKPOINT_TIMEOUT_S = 60.0

QUESTIONS_AT_ONCE_MAX = 16
"""Of one call, to the store of the group's state."""

ResetTo = Literal["start", "checkpoint"] | Place
"""The group's starting cuts, its last checkpoint, or a place in each of its streams."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A position on which all readers of a group agreed: a stream cut for each stream."""

    name: str
    cuts: tuple[StreamCut, ...]


@checked_calls()
class AsyncReaderGroup:
    """A reader group. Make it with `AsyncHeadrace.reader_group`, use it with `async with`.

    Every method raises NotFoundError if the group was deleted, and UnavailableError if the controller or a store could
    not be reached for too long.
    """

    def __init__(
        self,
        admin: AsyncAdmin,
        scope: str,
        group: str,
        give_up_after_s: float = RETRY_TIMEOUT_S,
        *,
        from_s3: bool = False,
    ) -> None:
        self.scope, self.group = scope, group
        self._admin = admin
        self._give_up_after_s = give_up_after_s
        self._from_s3 = from_s3
        self._complete: dict[str, Positions] = {}
        self._awaited: set[str] = set()
        self._heard: dict[str, int] = {}
        self._synchronizer = GroupSynchronizer(admin, scope, group, self._applied, give_up_after_s, from_s3=from_s3)
        self._is_closed = False

    def __repr__(self) -> str:
        return handle_text(self, f"{self.scope}/{self.group}", closed=self.closed)

    async def open(self, *, initialize: bool = True) -> None:
        """Reads the state of the group. Raises as `AsyncHeadrace.reader_group`."""
        await self._synchronizer.open(initialize=initialize)

    async def reader(self, name: str | None = None, options: GroupReaderOptions | None = None) -> AsyncGroupReader:
        """Adds a reader to the group, by default under a random name.

        Raises:
            IllegalStateError: code "reader_online": the group has a reader of this name. If its process has ended, call
                `reader_offline`.
            InvalidRequestError: code "invalid_name".
        """
        chosen = name or f"reader-{secrets.token_hex(8)}"
        reader = AsyncGroupReader(self._admin, self.scope, self.group, chosen, options or GroupReaderOptions())
        await reader.open()
        return reader

    async def readers(self) -> dict[str, tuple[StreamSegmentName, ...]]:
        """Returns the readers that are online, each with the segments that it owns."""
        state = await self._synchronizer.fetch()
        return {reader: tuple(owned) for reader, owned in state.assigned.items()}

    async def status(self) -> GroupStatus:
        """Returns which reader owns which segments, and how far it has read. No reader takes part."""
        return status_of_state(await self._synchronizer.fetch())

    async def last_seen(self) -> dict[str, datetime]:
        """Returns when the readers that are online last wrote to the group's state, by the clock of its segment store.

        A reader writes several times per `lease_s`. One is missing if a compaction of the state has removed what it
        wrote last.
        """
        state = await self._synchronizer.fetch()
        revisions = {reader: self._heard[reader] for reader in state.assigned if reader in self._heard}
        limit = asyncio.Semaphore(QUESTIONS_AT_ONCE_MAX)

        async def time_of(revision: int) -> datetime | None:
            async with limit:
                return await self._synchronizer.time_of(revision)

        times = await asyncio.gather(*map(time_of, revisions.values()))
        return {reader: seen for reader, seen in zip(revisions, times, strict=True) if seen is not None}

    async def reader_offline(self, name: str, positions: Positions | None = None) -> bool:
        """Declares a reader dead. Other readers begin at `positions`, else at its last checkpoint.

        Returns whether it was online. A reader that is not dead gets an error when it reads on.
        """
        await self._synchronizer.fetch()
        removed = await self._synchronizer.entries.update(
            lambda state: [RemoveReader(name, positions or {})] if name in state.assigned else []
        )
        return bool(removed)

    async def checkpoint(self, name: str | None = None, *, timeout_s: float = CHECKPOINT_TIMEOUT_S) -> Checkpoint:
        """Lets all readers agree on a position, and returns it. Each takes part when it asks for its next event.

        Raises:
            IllegalStateError: code "too_many_checkpoints": as many are in progress as the group's configuration allows.
            InvalidRequestError: the group has a checkpoint of this name.
            UnavailableError: not all readers took part within `timeout_s`; `cancel_checkpoints` ends the attempt.
        """
        chosen = name or str(uuid4())
        positions = await self._positions_at(chosen, timeout_s)
        return Checkpoint(chosen, await stream_cuts(self._admin, positions))

    async def cancel_checkpoints(self) -> None:
        """Ends the checkpoints that are in progress."""
        await self._synchronizer.entries.update_unconditionally([RemoveOutstandingCheckpoints()])

    async def stream_cuts(self, *, timeout_s: float = CHECKPOINT_TIMEOUT_S) -> tuple[StreamCut, ...]:
        """Returns where the readers are now, without moving where they begin after a failure. Raises as
        `checkpoint`."""
        positions = await self._positions_at(silent_checkpoint_name(secrets.token_hex(16)), timeout_s)
        return await stream_cuts(self._admin, positions)

    async def reset(self, to: ResetTo | Sequence[StreamCut] = "checkpoint") -> None:
        """Moves the group to its starting cuts, to its last checkpoint, to a place in each of its streams, or to cuts.

        Without a checkpoint, "checkpoint" is its starting cuts. Readers that are online drop what they have not
        returned, and continue there. Streams without a cut begin at their heads. A reset that is refused changes
        nothing. After UnavailableError the readers find out whether the controller has accepted it.

        Raises:
            InvalidRequestError: code "invalid_stream_cut"; or a cut belongs to a stream that the group does not read.
            IllegalStateError: code "reader_group_mismatch": another process has changed the group at the same time.
        """
        if not to:
            raise InvalidRequestError(
                'reset: to is empty, but must have at least one stream cut: "earliest" begins at the first event'
            )
        state = await self._synchronizer.fetch()
        view = await self._admin.reader_groups.get(self.scope, self.group)
        configuration = view.configuration
        if to == "checkpoint" and state.checkpoints.last is not None:
            cuts: Iterable[StreamCut] = await stream_cuts(self._admin, state.checkpoints.last)
            configuration = configuration.beginning_at(cuts)
        elif isinstance(to, str | datetime | timedelta):
            if to not in ("start", "checkpoint"):
                configuration = configuration.beginning_at(await self._cuts_at(configuration, to))
        else:
            configuration = configuration.beginning_at((to,) if isinstance(to, StreamCut) else to)
        await self._synchronizer.entries.update(lambda _: [NoteUpdating(True)])
        try:
            view = await self._admin.reader_groups.update(view, configuration)
        except HeadraceError as problem:
            if problem.retry == "never":  # else the controller may have the configuration: then the readers take it
                with suppress(HeadraceError):
                    await self._synchronizer.take_configuration(may_settle=True)
            raise
        await self._synchronizer.begin_again(view)

    async def _cuts_at(self, configuration: ReaderGroupConfiguration, place: Place) -> list[StreamCut]:
        """The cuts at a place of each stream; none for the beginning, which may be truncated further meanwhile."""
        cuts = [await end_or_cut(self._admin, stream.scope, stream.stream, place) for stream in configuration.streams]
        return [
            await self._admin.stream_cut(stream.scope, stream.stream, at="latest") if cut == "latest" else cut
            for stream, cut in zip(configuration.streams, cuts, strict=True)
            if cut != "earliest"
        ]

    async def lag(self) -> GroupLag:
        """Returns how far the group is behind the tails of its streams, or behind its end cuts.

        Raises:
            TruncatedError: events after the positions have been truncated.
            InvalidRequestError: the group was opened `from_s3`: only stores know how many events there are.
        """
        if self._from_s3:
            raise InvalidRequestError(
                "a group from S3 has no lag: `admin.stream_cut_distance` has the bytes behind a cut"
            )
        return await lag_of_state(self._admin, await self._synchronizer.fetch(), self._give_up_after_s)

    async def recorded_cuts(self) -> tuple[StreamCut, ...]:
        """Returns where `lag` begins to count: the last checkpoint, or where the readers' segments were handed out.

        No reader takes part, and nothing is written. A stream that was read to its end has no cut.

        Raises:
            TruncatedError: events after the positions have been truncated.
        """
        return await recorded_cuts(self._admin, await self._synchronizer.fetch())

    async def publish(self, cuts: Iterable[StreamCut]) -> None:
        """Tells retention that the group needs no event before these cuts (a group with MANUAL retention).

        Raises:
            NotFoundError: code "subscriber_not_found": the group is not a subscriber of the stream.
            InvalidRequestError: code "stream_cut_not_valid".
        """
        await self._synchronizer.fetch()
        await self._synchronizer.publish(cuts)

    @property
    def closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """Closes the connections. Readers are closed by themselves. A second call does nothing."""
        self._is_closed = True
        await self._synchronizer.close()

    async def __aenter__(self) -> AsyncReaderGroup:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _positions_at(self, name: str, timeout_s: float) -> Positions:
        """The positions of a new checkpoint, when all readers have taken part."""
        self._awaited.add(name)
        entries = self._synchronizer.entries
        try:
            await entries.fetch()
            await entries.update(lambda state: self._begin(state, name))
            async with asyncio.timeout(timeout_s):
                while name not in self._complete:
                    await entries.wait()
        except TimeoutError:
            missing = ", ".join(self._synchronizer.state.checkpoints.waiting_for.get(name, ()))
            raise UnavailableError(
                f"checkpoint {name!r} is not complete after {timeout_s:g} s: each reader takes part when it asks for "
                f"its next event, and these have not: {missing}",
                details={"checkpoint": name},
            ) from None
        finally:
            self._awaited.discard(name)
        positions = self._complete.pop(name)
        await entries.update_unconditionally([ClearCheckpointsBefore(name)])
        return positions

    def _begin(self, state: GroupState, name: str) -> Sequence[GroupUpdate]:
        state.checkpoints.check_may_begin(name, state.configuration.outstanding_checkpoints_max)
        return [BeginCheckpoint(name)]

    def _applied(self, update: GroupUpdate, state: GroupState) -> None:
        """Keeps the positions of a checkpoint that is waited for: the next one may clear it at once.

        Also keeps behind which revision each reader was heard of last.
        """
        if update.sender is not None:
            self._heard[update.sender] = self._synchronizer.entries.revision
        self._heard = {reader: at for reader, at in self._heard.items() if reader in state.assigned}
        for name in self._awaited:
            if (positions := state.checkpoints.complete_positions(name)) is not None:
                self._complete[name] = positions
