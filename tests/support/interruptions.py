"""Disturbs a piece of work at each call of a port that it makes: its process dies there, or sleeps while others work.

A test says in a `Work` how to make a world in which the work is accepted, how a process runs it, and what to compare
two runs by. The functions here make a world for each call, disturb it at that call, and have the test, or do it
themselves, compare what is left with what a run without trouble leaves. The calls are counted in such a run; an
interruption that does not come about, or that the work keeps to itself, is a failure. So nothing passes because nothing
was tried; the functions that compare also say how many interruptions there were, for the test to have its own opinion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import pytest
from stream_world import StreamWorld

from fuzz.watched_ports import Calls, Crash
from headrace.model.errors import UnavailableError

CALLS_MAX = 600
"""More than any work here makes: what has not come to its end by then never does."""

SEGMENT_STORE = "segment store"
"""How the kinds of all calls of segment stores begin."""


class World(Protocol):
    """Anything whose calls of ports go through one `Calls`."""

    @property
    def calls(self) -> Calls: ...


W = TypeVar("W", bound=World)
T = TypeVar("T")


@dataclass(frozen=True)
class Work(Generic[W]):
    """A piece of work, as a test sees it.

    `accept` makes a new world, always the same, in which the work is accepted and not begun. `run` is what one process
    does about it, from the beginning or from where another has died. `outcome` is compared by equality. `recover` is
    what brings the work to its end when a process has died: that the same is run again, unless the test says otherwise.
    """

    accept: Callable[[], W]
    run: Callable[[W], object]
    outcome: Callable[[W], Any]
    recover: Callable[[W], object] | None = None

    def go_on(self, world: W) -> None:
        """What happens after a crash."""
        (self.recover or self.run)(world)


def work_on_request(
    accept: Callable[[StreamWorld], object],
    outcome: Callable[[StreamWorld], Any],
    run: Callable[[StreamWorld], object] = StreamWorld.process,
    make: Callable[[], StreamWorld] = StreamWorld,
) -> Work[StreamWorld]:
    """A processor has the message of the one request in hand that `accept` makes; when it has died, another has it."""

    def accepted() -> StreamWorld:
        world = make()
        accept(world)
        world.receive()
        return world

    return Work(accepted, run, outcome)


@dataclass(frozen=True)
class Undisturbed:
    """A run without trouble. `answered` calls are those of the `made` ones that returned and raised nothing."""

    made: int
    answered: int
    outcome: Any


def undisturbed(work: Work[W]) -> Undisturbed:
    """Run the work once and let nothing happen to it."""
    world = work.accept()
    made = answered = 0

    def begin(_kind: str) -> None:
        nonlocal made
        made += 1
        assert made <= CALLS_MAX, "the work does not come to its end"

    def end(_kind: str) -> None:
        nonlocal answered
        answered += 1

    world.calls.before, world.calls.after = begin, end
    work.run(world)
    world.calls.calm()
    assert made, "the work makes no call that could be disturbed"
    return Undisturbed(made, answered, work.outcome(world))


def die_at(work: Work[W], world: W, position: int, *, done: bool) -> None:
    """Run the work until its process dies at the call with this number: after it took effect, or before."""
    has_died = world.calls.dies(partial(work.run, world), position, done=done)
    assert has_died, f"the work outlived a crash at call {position}"


def sleep_at(work: Work[W], world: W, position: int, meanwhile: Callable[[W], T]) -> T:
    """Run the work, which sleeps before the call with this number while `meanwhile` happens; what that returned."""
    returned: list[T] = []
    world.calls.interrupt_at(position, lambda: returned.append(meanwhile(world)))
    work.run(world)
    world.calls.calm()
    assert returned, f"the work did not come as far as call {position}"
    return returned[0]


def after_each_crash(work: Work[W], *, done: bool, first: int = 0, every: int = 1) -> Iterator[tuple[int, W]]:
    """Each call, and the world as the process left it that died there: after the call took effect, or before.

    Args:
        first: Begin at this call.
        every: Try only each so many-th call, where they are many and the parts of the work are tried elsewhere.
    """
    return _after_each_crash(work, undisturbed(work), done=done, first=first, every=every)


def _after_each_crash(
    work: Work[W], alone: Undisturbed, *, done: bool, first: int, every: int
) -> Iterator[tuple[int, W]]:
    for position in range(first, alone.answered if done else alone.made, every):
        world = work.accept()
        die_at(work, world, position, done=done)
        yield position, world


def after_each_sleep(work: Work[W], meanwhile: Callable[[W], T]) -> Iterator[tuple[int, W, T]]:
    """Each call, the world after a run that slept before that call, and what `meanwhile` returned."""
    for position in range(undisturbed(work).made):
        world = work.accept()
        yield position, world, sleep_at(work, world, position, meanwhile)


def assert_crashes_lose_and_double_nothing(work: Work[W], *, done: bool, first: int = 0, every: int = 1) -> int:
    """After a crash at any call the work ends as without; once more and it changes nothing. How many crashes.

    `first` and `every` are those of `after_each_crash`.
    """
    alone = undisturbed(work)
    crashes = 0
    for position, world in _after_each_crash(work, alone, done=done, first=first, every=every):
        crashes += 1
        work.go_on(world)
        assert work.outcome(world) == alone.outcome, f"after a crash at call {position}"
        work.go_on(world)
        assert work.outcome(world) == alone.outcome, f"a repeat after the work is done, and a crash at call {position}"
    return crashes


def assert_dying_one_call_later_each_time_still_ends(work: Work[W]) -> int:
    """The process that dies after its first call is followed by one that dies after its second, and so on. How many."""
    world = work.accept()
    for position in range(CALLS_MAX):
        if world.calls.dies(partial(work.run, world), position, done=True):
            continue
        assert work.outcome(world) == undisturbed(work).outcome, f"after {position} crashes in a row"
        return position
    raise AssertionError("the work does not come to its end")


def assert_two_at_once_do_it_once(work: Work[W], other: Callable[[W], object] | None = None) -> int:
    """`other`, or the same once more, does the whole work while the first sleeps before a call. How many calls."""
    alone = undisturbed(work)
    for position in range(alone.made):
        world = work.accept()
        sleep_at(work, world, position, other or work.run)
        assert work.outcome(world) == alone.outcome, f"overtaken before call {position}"
    return alone.made


def assert_an_absent_segment_store_only_delays(work: Work[W]) -> None:
    """The work says that the store is away, in a way that has it tried again, and then ends as without."""
    world = work.accept()
    world.calls.refuse(SEGMENT_STORE, UnavailableError("the segment store restarts"))
    with pytest.raises(UnavailableError) as error:
        work.run(world)
    retry: str = error.value.retry
    assert retry != "never"
    world.calls.calm()
    work.go_on(world)
    assert work.outcome(world) == undisturbed(work).outcome, "after the segment store was away"


def sleep_and_die(world: World, kind: str, work: Callable[[], object], meanwhile: Callable[[], T]) -> T:
    """`work` sleeps before its first call of this kind, and its process dies when that is carried out.

    Returns what `meanwhile` returns, which others do during the sleep.
    """
    found: list[T] = []

    def sleep(called: str) -> None:
        if called == kind:
            world.calls.calm()
            found.append(meanwhile())
            world.calls.after = die

    def die(called: str) -> None:
        if called == kind:
            raise Crash(called)

    world.calls.before = sleep
    with pytest.raises(Crash):
        work()
    world.calls.calm()
    return found[0]
