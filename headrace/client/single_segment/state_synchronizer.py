"""The asynchronous API for a state that several processes share (Pravega's state synchronizer).

Each process has a copy of the state. The revisioned stream holds an initial state and updates, and all processes apply
them in the same order. An update is written on condition that the copy was current; else the copy is brought up to date
and the decision is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from headrace.client.single_segment.revisioned_stream import AsyncRevisionedStream, RevisionedEntry
from headrace.codec.stored_objects import InitialEntry, UpdatesEntry, entry_bytes, parse_entry
from headrace.model.arguments import checked_calls
from headrace.model.errors import (
    CorruptError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    TruncatedError,
)

STATE_TRUNCATED = "state_truncated"
"""The code of the error for a state that was removed with the entries that lead to it."""

S = TypeVar("S")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class StateForm(Generic[S, U]):
    """The stored form of states and updates, and how an update changes a state.

    `apply` returns another state, and depends on nothing else than its arguments. The parsers get bytes that another
    process has written; they raise CorruptError if they do not understand them.
    """

    apply: Callable[[S, U], S]
    state_bytes: Callable[[S], bytes]
    parse_state: Callable[[bytes | memoryview], S]
    update_bytes: Callable[[U], bytes]
    parse_update: Callable[[bytes | memoryview], U]


@checked_calls()
class AsyncStateSynchronizer(Generic[S, U]):
    """A copy of a shared state. Make it with `AsyncHeadrace.state_synchronizer`, use it with `async with`.

    Every method that asks the store raises NotFoundError if the stream was deleted, UnavailableError if its store could
    not be reached for too long, and CorruptError if it holds something else than entries of such a state. If something
    else than `compact` has truncated the stream and the state is gone, it raises TruncatedError, code
    "state_truncated", until `initialize` writes a state.
    """

    def __init__(
        self,
        entries: AsyncRevisionedStream,
        form: StateForm[S, U],
        on_applied: Callable[[U, S], None] | None = None,
    ) -> None:
        """`on_applied` is called with each update that was applied to the copy, and with the state after it."""
        self._entries = entries
        self._form = form
        self._on_applied = on_applied
        self._state: S | None = None
        self._revision = 0

    @property
    def state(self) -> S | None:
        """The copy, as it was when it was last brought up to date; None before that, or if there is no state yet."""
        return self._state

    @property
    def revision(self) -> int:
        """The revision of the copy: the offset in bytes after the last entry that was applied."""
        return self._revision

    async def initialize(self, state: S) -> bool:
        """Writes the first state, if there is none yet. Returns whether there was none. The copy is then up to date.

        If the state was truncated, a first state is written behind what is left.
        """
        entry = entry_bytes(InitialEntry(self._form.state_bytes(state)))
        revision = 0
        while (written := await self._entries.write_conditionally(revision, entry)) is None:
            try:
                await self.fetch()
            except TruncatedError as error:
                if error.specific_code != STATE_TRUNCATED:
                    raise
                revision = error.details["latest"]
                continue
            return False
        if self._revision < written:
            self._state, self._revision = state, written
        if revision > 0:
            await self._mark(revision)  # what is before it may be a part of an entry
        await self.fetch()
        return True

    async def fetch(self) -> S | None:
        """Brings the copy up to date. Returns it, None if there is no state yet."""
        if self._state is None:
            await self._load()
        else:
            try:
                await self._read_on(await self._entries.latest_revision())
            except TruncatedError:
                await self._load()
        return self._state

    async def wait(self) -> S | None:
        """Waits until another process has changed the state, at most some 10 seconds. Returns the copy."""
        if self._state is None:
            return await self.fetch()
        try:
            self._apply(await self._entries.read_after(self._revision))
        except TruncatedError:
            await self._load()
        return self._state

    async def update(self, decide: Callable[[S], Sequence[U]]) -> tuple[U, ...]:
        """Writes the updates that `decide` returns for the current state, all or none. Returns those that were written.

        `decide` is called again with a newer state if another process was faster. If it returns none, nothing is
        written. It runs on the client's event loop, so it must not block.

        Raises:
            IllegalStateError: there is no state yet; or what `decide` raises.
        """
        while True:
            state = self._state if self._state is not None else await self.fetch()
            if state is None:
                raise self._no_state()
            revision = self._revision
            if not (updates := tuple(decide(state))):
                return ()
            entry = self._entry_of(updates)
            states = self._states_after(state, updates)
            written = await self._entries.write_conditionally(revision, entry)
            if written is None:
                await self.fetch()
                continue
            if self._revision == revision:  # else it was read in the meantime
                self._state, self._revision = states[-1], written
                self._tell(updates, states)
            return updates

    async def update_unconditionally(self, updates: Sequence[U]) -> None:
        """Writes updates that are right in every state. The copy gets them when it is next brought up to date."""
        if updates:
            await self._entries.write(self._entry_of(updates))

    async def bytes_since_compaction(self) -> int:
        """Returns the number of bytes that another process would read before its copy is up to date."""
        return max(0, self._revision - (await self._entries.mark() or 0))

    async def compact(self) -> None:
        """Writes the state as a whole, and removes the entries before the state that was written so before that."""
        while True:
            state = await self.fetch()
            if state is None:
                raise self._no_state()
            revision = self._revision
            entry = entry_bytes(InitialEntry(self._form.state_bytes(state)))
            if (written := await self._entries.write_conditionally(revision, entry)) is not None:
                break
        if self._revision == revision:
            self._revision = written
        before = await self._mark(revision)
        if before is not None:
            await self._entries.truncate(min(before, revision))

    @property
    def closed(self) -> bool:
        return self._entries.closed

    async def close(self) -> None:
        """Closes the connections. The copy keeps its value. A second call does nothing."""
        await self._entries.close()

    async def __aenter__(self) -> AsyncStateSynchronizer[S, U]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _mark(self, revision: int) -> int | None:
        """Marks the revision before a state, unless a later one is marked. Returns what was marked before."""
        before = await self._entries.mark()
        if before is None or before < revision:
            await self._entries.compare_and_set_mark(before, revision)
        return before

    async def _load(self) -> None:
        """Reads from the mark, or from the oldest revision. Entries before the first state there are skipped."""
        while True:
            mark = await self._entries.mark() or 0
            oldest = await self._entries.oldest_revision()
            start = max(mark, oldest)
            end = await self._entries.latest_revision()
            was_cut = oldest > mark  # a compaction leaves the state at the mark
            try:
                entries = [entry async for entry in self._entries.read(start, end)]
            except TruncatedError:
                continue  # another process has compacted in the meantime
            except (CorruptError, InvalidRequestError) as error:
                if not was_cut:
                    raise
                raise self._state_truncated(oldest, end) from error  # cut inside an entry
            break
        first = next((n for n, entry in enumerate(entries) if isinstance(self._parsed(entry), InitialEntry)), None)
        if first is None:
            if was_cut:
                raise self._state_truncated(oldest, end)
            if entries:
                raise CorruptError(
                    f"stream {self._entries.scope}/{self._entries.stream} has updates and no state before them: was it "
                    "written by something else than a state synchronizer?"
                )
            return
        if entries[-1].revision > self._revision or self._state is None:
            self._state, self._revision = None, start
            self._apply(entries[first:])

    async def _read_on(self, end: int) -> None:
        while self._revision < end:
            self._apply(await self._entries.read_after(self._revision, end))

    def _apply(self, entries: Iterable[RevisionedEntry]) -> None:
        """Applies the entries that the copy does not have yet."""
        for each in entries:
            if each.revision <= self._revision:
                continue
            entry = self._parsed(each)
            if isinstance(entry, InitialEntry):
                self._state, self._revision = self._form.parse_state(entry.state), each.revision
                continue
            updates = tuple(map(self._form.parse_update, entry.updates))
            state = self._state
            assert state is not None, "`_load` begins with a state"
            try:
                states = self._states_after(state, updates)
            except IllegalStateError as error:
                raise CorruptError(f"the entry before revision {each.revision} is wrong: {error.message}") from error
            self._state, self._revision = (states or [state])[-1], each.revision
            self._tell(updates, states)

    def _parsed(self, entry: RevisionedEntry) -> InitialEntry | UpdatesEntry:
        try:
            return parse_entry(entry.value)
        except HeadraceError as error:
            raise CorruptError(f"{error.message}, before revision {entry.revision}") from error

    def _entry_of(self, updates: Sequence[U]) -> bytes:
        return entry_bytes(UpdatesEntry([self._form.update_bytes(update) for update in updates]))

    def _states_after(self, state: S, updates: Iterable[U]) -> list[S]:
        """The states after each of the updates."""
        states = []
        for update in updates:
            state = self._form.apply(state, update)
            states.append(state)
        return states

    def _tell(self, updates: Iterable[U], states: Iterable[S]) -> None:
        if self._on_applied is not None:
            for update, state in zip(updates, states, strict=True):
                self._on_applied(update, state)

    def _state_truncated(self, oldest: int, latest: int) -> TruncatedError:
        return TruncatedError(
            f"the state in stream {self._entries.scope}/{self._entries.stream} was truncated: no state is left after "
            f"revision {oldest}; initialize it again, or compact it where a copy is still up to date",
            details={"oldest": oldest, "latest": latest},
            code=STATE_TRUNCATED,
        )

    def _no_state(self) -> IllegalStateError:
        return IllegalStateError(
            f"stream {self._entries.scope}/{self._entries.stream} has no state yet: initialize it",
            code="state_not_initialized",
        )
