"""`ReaderGroup` for programs without an event loop; thread-safe.

Generated from `groups.reader_group.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType

from headrace.client.groups.group_positions import GroupLag, GroupStatus
from headrace.client.groups.group_reader import GroupReaderOptions
from headrace.client.groups.reader_group import CHECKPOINT_TIMEOUT_S, AsyncReaderGroup, Checkpoint, ResetTo
from headrace.client.loop_thread import LoopCaller
from headrace.client.synchronous.synchronous_group_reader import GroupReader
from headrace.model.group_state import Positions
from headrace.model.names import StreamSegmentName
from headrace.model.stream_cuts import StreamCut


class ReaderGroup:
    """A reader group. Make it with `Headrace.reader_group`, use it with `with`.

    Every method raises NotFoundError if the group was deleted, and UnavailableError if the controller or a store could
    not be reached for too long.
    """

    def __init__(self, thread: LoopCaller, core: AsyncReaderGroup) -> None:
        self._thread = thread
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    def reader(self, name: str | None = None, options: GroupReaderOptions | None = None) -> GroupReader:
        """Adds a reader to the group, by default under a random name.

        Raises:
            IllegalStateError: code "reader_online": the group has a reader of this name. If its process has ended, call
                `reader_offline`.
            InvalidRequestError: code "invalid_name".
        """
        return GroupReader(self._thread, self._thread.run(self._core.reader(name, options)))

    def readers(self) -> dict[str, tuple[StreamSegmentName, ...]]:
        """Returns the readers that are online, each with the segments that it owns."""
        return self._thread.run(self._core.readers())

    def status(self) -> GroupStatus:
        """Returns which reader owns which segments, and how far it has read. No reader takes part."""
        return self._thread.run(self._core.status())

    def last_seen(self) -> dict[str, datetime]:
        """Returns when the readers that are online last wrote to the group's state, by the clock of its segment store.

        A reader writes several times per `lease_s`. One is missing if a compaction of the state has removed what it
        wrote last.
        """
        return self._thread.run(self._core.last_seen())

    def reader_offline(self, name: str, positions: Positions | None = None) -> bool:
        """Declares a reader dead. Other readers begin at `positions`, else at its last checkpoint.

        Returns whether it was online. A reader that is not dead gets an error when it reads on.
        """
        return self._thread.run(self._core.reader_offline(name, positions))

    def checkpoint(self, name: str | None = None, *, timeout_s: float = CHECKPOINT_TIMEOUT_S) -> Checkpoint:
        """Lets all readers agree on a position, and returns it. Each takes part when it asks for its next event.

        Raises:
            IllegalStateError: code "too_many_checkpoints": as many are in progress as the group's configuration allows.
            InvalidRequestError: the group has a checkpoint of this name.
            UnavailableError: not all readers took part within `timeout_s`; `cancel_checkpoints` ends the attempt.
        """
        return self._thread.run(self._core.checkpoint(name, timeout_s=timeout_s))

    def cancel_checkpoints(self) -> None:
        """Ends the checkpoints that are in progress."""
        self._thread.run(self._core.cancel_checkpoints())

    def stream_cuts(self, *, timeout_s: float = CHECKPOINT_TIMEOUT_S) -> tuple[StreamCut, ...]:
        """Returns where the readers are now, without moving where they begin after a failure. Raises as
        `checkpoint`.
        """
        return self._thread.run(self._core.stream_cuts(timeout_s=timeout_s))

    def reset(self, to: ResetTo | Sequence[StreamCut] = "checkpoint") -> None:
        """Moves the group to its starting cuts, to its last checkpoint, to a place in each of its streams, or to cuts.

        Without a checkpoint, "checkpoint" is its starting cuts. Readers that are online drop what they have not
        returned, and continue there. Streams without a cut begin at their heads. A reset that is refused changes
        nothing. After UnavailableError the readers find out whether the controller has accepted it.

        Raises:
            InvalidRequestError: code "invalid_stream_cut"; or a cut belongs to a stream that the group does not read.
            IllegalStateError: code "reader_group_mismatch": another process has changed the group at the same time.
        """
        self._thread.run(self._core.reset(to))

    def lag(self) -> GroupLag:
        """Returns how far the group is behind the tails of its streams, or behind its end cuts.

        Raises:
            TruncatedError: events after the positions have been truncated.
            InvalidRequestError: the group was opened `from_s3`: only stores know how many events there are.
        """
        return self._thread.run(self._core.lag())

    def recorded_cuts(self) -> tuple[StreamCut, ...]:
        """Returns where `lag` begins to count: the last checkpoint, or where the readers' segments were handed out.

        No reader takes part, and nothing is written. A stream that was read to its end has no cut.

        Raises:
            TruncatedError: events after the positions have been truncated.
        """
        return self._thread.run(self._core.recorded_cuts())

    def publish(self, cuts: Iterable[StreamCut]) -> None:
        """Tells retention that the group needs no event before these cuts (a group with MANUAL retention).

        Raises:
            NotFoundError: code "subscriber_not_found": the group is not a subscriber of the stream.
            InvalidRequestError: code "stream_cut_not_valid".
        """
        self._thread.run(self._core.publish(cuts))

    @property
    def closed(self) -> bool:
        return self._core.closed

    def close(self) -> None:
        """Closes the connections. Readers are closed by themselves. A second call does nothing."""
        if not self.closed:
            self._thread.end(self._core.close())

    def __enter__(self) -> ReaderGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._thread.end(self._core.__aexit__(kind, error, trace))
