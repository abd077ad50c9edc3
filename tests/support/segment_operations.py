"""Operations on segments beside the model of what they do, on a store under a machine."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule
from store_machine_doubles import Modelled, State
from store_under_a_machine import StoreUnderAMachine

from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    HeadraceError,
    IllegalStateError,
    NotFoundError,
    SealedError,
    TruncatedError,
)
from headrace.model.segment_attributes import NO_VALUE
from headrace.segmentstore.containers import merges
from headrace.segmentstore.containers.attribute_updates import AttributeUpdate, UpdateKind

NAMES = [f"scope/stream/{number}.#epoch.0" for number in range(4)]
WRITERS = [1, 2]
ATTRIBUTE = 77

names = st.sampled_from(NAMES)


class SegmentOperations(StoreUnderAMachine):
    """Each is refused for the reason that the model knows, or changes what the model changes."""

    def __init__(self) -> None:
        super().__init__({})
        self.writer_pass: asyncio.Task[None] | None = None
        """A round of the storage writer, or a sweep of the evictor, that is stuck in the middle."""

    def turn(self) -> None:
        """Let everything run that can, without waiting for anything but records that are looked up."""

        async def some_turns() -> None:
            looking_up = True
            while looking_up:
                for _ in range(4):
                    await asyncio.sleep(0)
                looking_up = bool(self.owned.container.idle._queues)

        self.wait(some_turns())

    # Operations

    def operate(self, work: Any, after: State, error: type[HeadraceError] | None) -> None:
        """Start an operation whose outcome is known; wait for it unless the disk is held."""
        task = self.loop.create_task(work)
        self.running.append((task, error))
        if error is None:
            self.history.append(after)
        if self.sync.armed:
            self.turn()
        else:
            self.settle()

    def settle(self) -> None:
        """Everything that runs ends, as it should; then it is acknowledged."""
        running, self.running = self.running, []
        for task, error in running:
            raised = self.wait(self._finish(task))
            assert type(raised) is (error or type(None)), raised
        self.history = [self.state]

    async def _finish(self, task: asyncio.Task[Any]) -> Any:
        """A removed name is free again only after rounds, perhaps after a flush for its age."""
        while not task.done():
            if self.writer_pass is None:
                self.clock.advance(1000)
                await self.safe_pass()
            await asyncio.wait([task], timeout=0.002)
        return task.exception()

    async def safe_pass(self, *, evicts: bool = False) -> None:
        await self.safely(self.owned.evictor.sweep() if evicts else self.owned.writer.run_pass())

    def with_segment(self, name: str, segment: Modelled | None) -> State:
        state = dict(self.state)
        state.pop(name, None)
        if segment is not None:
            state[name] = segment
        return state

    def blocked(self, name: str) -> bool:
        """Whether an operation on this segment would wait for a directory write or a removal that is held back."""
        container = self.owned.container
        segment = container.metadata.segments.get(name)
        return name in container.metadata.deletions or (
            segment is not None and (segment.flushing is not None or segment.number in container.idle.recording)
        )

    @rule(name=names)
    def create(self, name: str) -> None:
        if self.blocked(name) and (self.sync.armed or self.writer_pass):
            return
        self.tier_2.fault = "none"
        known = name in self.state
        after = self.with_segment(name, Modelled())
        self.operate(self.owned.container.create(name, ()), after, AlreadyExistsError if known else None)

    @rule(name=names, writer=st.sampled_from(WRITERS), size=st.integers(0, 2500), kind=st.sampled_from("aaaaocn"))
    def append(self, name: str, writer: int, size: int, kind: str) -> None:
        """a: plain, o: at the right offset, c: at a wrong one, n: behind another number."""
        segment = self.wait(self.owned.container.find(name))
        assert (segment is None) == (name not in self.state)
        if segment is None:
            return
        data = self.pool.reserve(size)
        if data is None:
            return
        self.counter += 1
        content = (b"%06d " % self.counter * 400)[:size]
        position = 0
        for part in data.parts:
            part[:] = content[position : position + len(part)]
            position += len(part)
        model = self.state[name]
        previous = model.attribute(writer)
        number = max(previous, 0) + 1
        after = model._replace(data=model.data + content).with_attribute(writer, number)
        future = self.loop.create_future()
        future.add_done_callback(lambda done: done.exception())
        refused: HeadraceError | None = None
        try:
            self.owned.container.append(
                segment, writer, previous + (kind == "n"), number, 1, data,
                lambda error: future.set_exception(error) if error else future.set_result(None),
                expected_offset={"o": len(model.data), "c": len(model.data) + 1}.get(kind),
            )  # fmt: skip
        except (SealedError, ConflictError) as error:
            refused = error
        assert type(refused) is (SealedError if model.sealed else ConflictError if kind in "cn" else type(None))
        if refused is not None:
            self.pool.release(data)
            return
        self.operate(_outcome(future), self.with_segment(name, after), None)

    @rule(name=names)
    def seal(self, name: str) -> None:
        segment = self.state.get(name)
        error = NotFoundError if segment is None else SealedError if segment.sealed else None
        after = self.with_segment(name, segment and segment._replace(sealed=True))
        self.operate(self.owned.container.seal(name), after, error)

    @rule(name=names, share=st.floats(0, 1.1))
    def truncate(self, name: str, share: float) -> None:
        segment = self.state.get(name)
        offset = int(len(segment.data) * share) if segment else 0
        error: type[HeadraceError] | None = None
        if segment is None:
            error = NotFoundError
        elif offset > len(segment.data):
            error = TruncatedError
        else:
            segment = segment._replace(start=max(offset, segment.start))
        self.operate(self.owned.container.truncate(name, offset), self.with_segment(name, segment), error)

    @rule(name=names)
    def delete(self, name: str) -> None:
        if self.blocked(name) and self.writer_pass:
            return
        error = None if name in self.state else NotFoundError
        self.operate(self.owned.container.delete(name), self.with_segment(name, None), error)

    @rule(into_name=names, out_of_name=names, holds=st.booleans())
    def merge(self, into_name: str, out_of_name: str, holds: bool) -> None:
        target, source = into_name, out_of_name
        if self.blocked(source) and self.writer_pass:
            return
        into, out_of = self.state.get(target), self.state.get(source)
        after = self.state
        error: type[HeadraceError] | None = None
        current = into.attribute(ATTRIBUTE) if into else NO_VALUE
        update = AttributeUpdate(ATTRIBUTE, UpdateKind.REPLACE_IF_EQUALS, 5, current if holds else current - 1)
        if into is None or out_of is None:
            error = NotFoundError
        elif into.sealed:
            error = SealedError
        elif source == target or out_of.start:
            error = IllegalStateError
        elif not holds:
            error = ConflictError
        else:
            merged = into._replace(data=into.data + out_of.data).with_attribute(ATTRIBUTE, 5)
            after = self.with_segment(source, None) | {target: merged}
        self.operate(merges.merge(self.owned.container, target, source, [update]), after, error)

    @rule(name=names, value=st.integers(-5, 5))
    def update_attribute(self, name: str, value: int) -> None:
        segment = self.state.get(name)
        after = self.with_segment(name, segment and segment.with_attribute(ATTRIBUTE, value))
        updates = [AttributeUpdate(ATTRIBUTE, UpdateKind.REPLACE, value)]
        error = None if segment else NotFoundError
        self.operate(self.owned.container.update_attributes(name, updates), after, error)


async def _outcome(future: asyncio.Future[None]) -> None:
    await future
