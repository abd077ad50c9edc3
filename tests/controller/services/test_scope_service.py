"""Scopes, and the race between deleting a scope and creating a stream in it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.metadata.scope import (
    CREATION_LOCKS,
    ScopeState,
    creation_lock_keys,
    decode_guard,
    guard_body,
    scope_guard_key,
)
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
)
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.ports.metadata_store import Key, Replace

FIXED_1 = StreamConfiguration(ScalingPolicy.fixed(1))


def test_a_scope_comes_and_goes(world: StreamWorld):
    world.scopes.create_scope("orders")
    assert world.scopes.get_scope("orders") == "orders"
    with pytest.raises(AlreadyExistsError):
        world.scopes.create_scope("orders")
    world.scopes.delete_scope("orders")
    for ask in (world.scopes.get_scope, world.scopes.delete_scope):
        with pytest.raises(NotFoundError):
            ask("orders")
    world.scopes.create_scope("orders")


def test_scopes_are_listed_by_page(world: StreamWorld):
    for name in ("b", "a", "c.1", "C"):
        world.scopes.create_scope(name)
    page = world.scopes.list_scopes(2)
    assert page.items == ("C", "a")
    assert world.scopes.list_scopes(10, page.next_after).items == ("b", "c.1", "s")


@pytest.mark.parametrize("name", ["", "_system", "a b", "a/b", "x" * 256])
def test_scope_names_outside_the_rules_are_refused(world: StreamWorld, name: str):
    with pytest.raises(InvalidRequestError) as refused:
        world.scopes.create_scope(name)
    assert refused.value.specific_code == "invalid_name"


def test_a_scope_with_streams_stays(world: StreamWorld):
    world.create()
    before = world.everything()
    with pytest.raises(IllegalStateError) as refused:
        world.scopes.delete_scope("s")
    assert refused.value.specific_code == "scope_not_empty"
    assert world.everything() == before
    world.seal()
    world.delete()
    world.scopes.delete_scope("s")


def _exists(world: StreamWorld) -> tuple[bool, bool]:
    found = []
    for ask in (lambda: world.scopes.get_scope("s"), lambda: world.streams.get_stream("s", "t")):
        try:
            ask()
            found.append(True)
        except NotFoundError:
            found.append(False)
    return found[0], found[1]


def _run_inside(world: StreamWorld, position: int, inner: Callable[[], object], outer: Callable[[], object]) -> int:
    """Run `outer`, and `inner` just before the store call of `outer` at `position`; how many calls `outer` made."""
    calls = 0

    def before(_kind: str) -> None:
        nonlocal calls
        calls += 1
        if calls == position + 1:
            world.calls.calm()
            try:
                inner()
            except HeadraceError:
                assert inner is not None
            finally:
                world.calls.before = before

    world.calls.before = before
    try:
        outer()
    except (IllegalStateError, NotFoundError, ConflictError):
        assert calls > 0
    finally:
        world.calls.calm()
    return calls


@pytest.mark.parametrize("position", range(10))
def test_creating_a_stream_amid_deleting_its_scope(world: StreamWorld, position: int):
    calls = _run_inside(
        world,
        position,
        inner=lambda: world.streams.create_stream("s", "t", FIXED_1),
        outer=lambda: world.scopes.delete_scope("s"),
    )
    scope_exists, stream_exists = _exists(world)
    assert scope_exists or not stream_exists, "a stream without its scope"
    assert stream_exists == (position < calls), "the one who came first should have won"


@pytest.mark.parametrize("position", range(2))
def test_deleting_a_scope_amid_creating_a_stream(world: StreamWorld, position: int):
    _run_inside(
        world,
        position,
        inner=lambda: world.scopes.delete_scope("s"),
        outer=lambda: world.streams.create_stream("s", "t", FIXED_1),
    )
    assert _exists(world) == (False, False)


def test_a_deleter_that_died_leaves_a_usable_scope(world: StreamWorld):
    assert world.calls.dies(lambda: world.scopes.delete_scope("s"), 4, done=True)
    assert world.everything()["scope-guard/s", "guard"][1]["state"] == "DELETING"
    assert world.scopes.get_scope("s") == "s"
    world.create()
    assert world.everything()["scope-guard/s", "guard"][1]["state"] == "OPEN"
    assert _exists(world) == (True, True)


def test_a_deleter_that_died_is_followed_by_another(world: StreamWorld):
    assert world.calls.dies(lambda: world.scopes.delete_scope("s"), 4, done=True)
    world.scopes.delete_scope("s")
    assert _exists(world) == (False, False)
    assert world.scopes.list_scopes(10).items == ()
    world.scopes.create_scope("s")
    world.create()
    assert _exists(world) == (True, True)


@pytest.mark.parametrize("position", range(10))
def test_a_deleter_that_slept_through_a_life_of_the_scope(world: StreamWorld, position: int):
    """Deleted, created again, filled, and marked by yet another deleter: the sleeper must not remove it."""

    def another_life() -> None:
        world.scopes.delete_scope("s")
        world.scopes.create_scope("s")
        world.streams.create_stream("s", "t", FIXED_1)
        with pytest.raises(IllegalStateError):
            world.scopes.delete_scope("s")

    calls = _run_inside(world, position, inner=another_life, outer=lambda: world.scopes.delete_scope("s"))
    assert _exists(world) == ((True, True) if position < calls else (False, False))


@pytest.mark.parametrize("position", range(2))
def test_a_creator_that_slept_through_a_life_of_the_scope(world: StreamWorld, position: int):
    def another_life() -> None:
        world.scopes.delete_scope("s")
        world.scopes.create_scope("s")
        world.scopes.delete_scope("s")

    _run_inside(world, position, inner=another_life, outer=lambda: world.streams.create_stream("s", "t", FIXED_1))
    assert _exists(world) == (False, False)


def test_threads_that_create_and_delete_agree(world: StreamWorld):
    def create(index: int) -> None:
        try:
            world.streams.create_stream("s", f"t{index}", FIXED_1)
            created.append(f"t{index}")
        except (NotFoundError, ConflictError):
            assert index >= 0

    def delete() -> None:
        try:
            world.scopes.delete_scope("s")
            deleted.append("s")
        except (IllegalStateError, ConflictError):
            assert not deleted

    for _ in range(30):
        created: list[str] = []
        deleted: list[str] = []
        threads = [threading.Thread(target=create, args=(index,)) for index in range(3)]
        threads.append(threading.Thread(target=delete))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not (deleted and created)
        assert deleted or created
        world = StreamWorld()


def test_creations_in_a_scope_do_not_meet_at_one_record(world: StreamWorld):
    shared: Counter[Key] = Counter()
    honest = world.bare_store.write

    def write(*writes: Any) -> None:
        shared.update(write.key for write in writes if write.key.partition == "scope-guard/s")
        honest(*writes)

    world.bare_store.write = write
    for number in range(160):
        world.streams.create_stream("s", f"stream-{number}", StreamConfiguration(ScalingPolicy.fixed(1)))
    assert len(shared) == CREATION_LOCKS
    assert max(shared.values()) < 3 * 160 / CREATION_LOCKS
    assert scope_guard_key("s") not in shared


def test_creations_in_a_recreated_scope_remove_old_marks(world: StreamWorld):
    """The creation locks are still marked by the deleter of the former scope."""
    world.scopes.delete_scope("s")
    world.scopes.create_scope("s")
    for number in range(160):
        world.streams.create_stream("s", f"stream-{number}", FIXED_1)
    locks = world.bare_store.get_many(creation_lock_keys("s"))
    assert {lock and decode_guard(lock.body) for lock in locks} == {ScopeState.OPEN}
    with pytest.raises(IllegalStateError):
        world.scopes.delete_scope("s")


@pytest.mark.parametrize("seed", range(6))
def test_a_scope_that_goes_amid_the_read_takes_nothing_in(seed: int):
    """The batch read may see the guard of before and the creation lock of after, or the other way round."""
    world = StreamWorld(seed)
    amid_the_read = world.calls.overtaken("between reads", by=lambda: world.scopes.delete_scope("s"))
    with amid_the_read, pytest.raises(NotFoundError):
        world.create()
    assert [place for place in world.everything() if place[0].startswith("stream/")] == []


@pytest.mark.parametrize("position", range(30))
def test_a_mark_on_the_guard_alone_protects_creations(world: StreamWorld, position: int):
    """Then a deleter marked the guard alone; its mark stayed if it died, or found a stream behind it."""
    guard = world.record(scope_guard_key("s"))
    world.bare_store.write(Replace(guard.key, guard_body(ScopeState.DELETING), guard.version))
    _run_inside(world, position, inner=lambda: world.create(), outer=lambda: world.scopes.delete_scope("s"))
    scope_exists, stream_exists = _exists(world)
    assert scope_exists or not stream_exists, "a stream without its scope"
