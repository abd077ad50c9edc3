"""Watched groups: silent readers, groups that fail, and what is remembered of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.api.reader_groups import ReaderGroupSettings, ReaderGroupView
from headrace.cli.group import NO_STATE
from headrace.cli.parameters import ScopedName
from headrace.client import (
    GroupLag,
    GroupStatus,
    GroupStream,
    ReaderGroupConfiguration,
    ReaderStatus,
    SegmentLag,
    StreamCut,
    StreamSegmentName,
)
from headrace.console.group_watch import (
    CONFIGURATION_AGE_S,
    CONFIGURATIONS_PER_SCOPE_MAX,
    GROUPS_OPEN_MAX,
    LISTED_REQUESTS_MAX,
    NAMES_AGE_S,
    REQUESTS_PER_S,
    SILENT_AFTER_S,
    WATCHED_S,
    GroupFacts,
    GroupWatch,
)
from headrace.model.errors import HeadraceError, NotFoundError, UnavailableError

SEGMENT = StreamSegmentName("s", "t", 0)
STREAM = ScopedName("s", "t")


class Group:
    """A group that has `unread` bytes after its checkpoint at byte 10."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.is_open = world, name, True

    def status(self) -> GroupStatus:
        assert self.is_open
        if self.world.failure is not None:
            raise self.world.failure
        return GroupStatus(
            (ReaderStatus("r", dict.fromkeys(self.world.segments, self.world.position), None),), {}, self.world.waiting
        )

    def lag(self) -> GroupLag:
        self.world.measured += 1
        if self.world.missing is not None:
            raise self.world.missing
        unread = self.world.unread
        behind = (SegmentLag(SEGMENT, unread, 1, False, 10 + unread),) if unread else ()
        return GroupLag({"s/t": unread}, None, behind)

    def recorded_cuts(self) -> tuple[StreamCut, ...]:
        return (StreamCut.of("s", "t", {0: 10}),)

    def close(self) -> None:
        self.is_open = False


class World:
    """The client, the administration of reader groups and the clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.unread = 5
        self.position = 10
        self.measured = self.distances = 0
        self.segments = [SEGMENT]
        self.waiting: tuple[StreamSegmentName, ...] = ()
        self.names = ["g"]
        self.failure: HeadraceError | None = None
        self.missing: NotFoundError | None = None
        """Raised by the controller for a stream or a group that was deleted."""
        self.groups: list[Group] = []
        self.from_s3: list[bool] = []
        self.requests = 0
        client: Any = self
        self.admin = self.reader_groups = client
        self.is_reached = True
        self.watch = GroupWatch(client, client, lambda: self.now_s)

    def list(self, scope: str) -> list[str]:
        self.requests += 1
        return self.names

    def get(self, scope: str, name: str) -> ReaderGroupView:
        self.requests += 1
        if self.missing is not None:
            raise self.missing
        return group_view(name)

    def reader_group(
        self, scope: str, name: str, *, initialize: bool, give_up_after_s: float = 0, from_s3: bool = False
    ) -> Group:
        self.groups.append(Group(self, name))
        self.from_s3.append(from_s3)
        return self.groups[-1]

    def to_group(self, name: ScopedName) -> bool:
        """As `StoreReach`; so is `lost`."""
        return self.is_reached

    def lost(self) -> None:
        self.is_reached = False

    def answer(self, ask: Callable[[], object]) -> object:
        return ask()

    def store_answer(self, ask: Callable[[], object]) -> object:
        try:
            return ask()
        except UnavailableError:
            self.lost()
            raise

    def behind(self, stream: ScopedName, position: Mapping[int, int], end: object) -> int:
        assert (stream, end) == (("s", "t"), None)
        self.distances += 1
        if self.missing is not None:
            raise self.missing
        return 100 - position[0]


def group_view(name: str) -> ReaderGroupView:
    return ReaderGroupView.from_json(
        {
            "scopeName": "s",
            "readerGroupName": name,
            "readerGroupId": f"id-{name}",
            "generation": 0,
            "state": "ACTIVE",
            "stateStreamName": f"_RG{name}",
            "streams": [{"scopeName": "s", "streamName": "t"}],
        }
    )


@pytest.fixture
def world() -> World:
    return World()


def silence(world: World) -> float | None:
    return world.watch.look(group_view("g")).readers[0].silent_s


def test_a_reader_without_progress_is_silent(world: World):
    assert silence(world) is None
    world.now_s += SILENT_AFTER_S
    assert silence(world) == SILENT_AFTER_S
    world.position = 12
    assert silence(world) is None


def test_a_reader_that_passed_the_checkpoint_is_not_silent(world: World):
    world.position = 15
    for _ in range(3):
        world.now_s += SILENT_AFTER_S
        assert silence(world) is None


def test_groups_are_measured_as_rarely_as_requests_need(world: World):
    for _ in range(600):
        world.watch.look(group_view("g"))
        world.watch.look(group_view("h"))
        world.now_s += 1
    requests_of_each = 4  # a list of segments for each of two cuts, one between them, one place of a segment
    assert world.measured * requests_of_each <= 600 * REQUESTS_PER_S + 2 * requests_of_each
    assert world.measured > 10


def test_a_group_in_a_list_is_measured_in_bytes_only(world: World):
    for _ in range(3):
        facts = world.watch.look(group_view("g"), is_listed=True)
        assert (facts.bytes_behind, facts.lag, len(facts.readers)) == (90, None, 1)
        world.now_s += 1
    assert (world.measured, world.distances) == (0, 1)
    assert world.watch.look(group_view("g")).lag is not None
    assert world.watch.look(group_view("g"), is_listed=True).bytes_behind == world.unread
    assert (world.measured, world.distances) == (1, 1)


def test_a_group_of_many_requests_is_not_measured_in_a_list(world: World):
    world.segments = [StreamSegmentName("s", f"t{number}", 0) for number in range(LISTED_REQUESTS_MAX)]
    facts = world.watch.look(group_view("g"), is_listed=True)
    assert (facts.bytes_behind, facts.behind, len(facts.readers)) == (None, None, 1)
    assert (world.measured, world.distances) == (0, 0)
    world.segments = [SEGMENT]  # it has caught up; to find that it costs too much cost nothing
    assert world.watch.look(group_view("g"), is_listed=True).bytes_behind == 90


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_group_of_which_a_stream_was_deleted_keeps_its_readers(world: World, *, is_listed: bool):
    (view,) = world.watch.of_stream(STREAM)
    world.missing = NotFoundError("there is no stream s/t")
    for _ in range(3):
        facts = world.watch.look(view, is_listed=is_listed)
        assert (facts.has_status, len(facts.readers), facts.bytes_behind) == (True, 1, None)
        assert facts.note == "there is no stream s/t"
        assert world.watch.names("s") == ["g"]
    assert (world.requests, world.measured + world.distances, len(world.groups)) == (2, 1, 1)


def test_epochs_count_as_requests(world: World):
    world.segments = [StreamSegmentName("s", "t", epoch << 32) for epoch in range(LISTED_REQUESTS_MAX)]
    assert world.watch.look(group_view("g"), is_listed=True).bytes_behind is None


def test_segments_that_wait_for_others_count_as_requests(world: World):
    world.waiting = tuple(StreamSegmentName("s", "t", number) for number in range(1, LISTED_REQUESTS_MAX))
    assert world.watch.look(group_view("g"), is_listed=True).bytes_behind is None
    world.waiting = ()
    assert world.watch.look(group_view("g"), is_listed=True).bytes_behind == 90


def test_a_group_from_s3_is_measured_alike_in_a_list(world: World):
    world.is_reached = False
    for is_listed in (True, False, True):
        assert world.watch.look(group_view("g"), is_listed=is_listed).behind == {"s/t": 90}
    assert world.distances == 1


def test_bytes_behind_end_at_the_end_of_the_group(world: World, monkeypatch: pytest.MonkeyPatch):
    end = StreamCut.of("s", "t", {0: 30})
    configuration = ReaderGroupConfiguration((GroupStream("s", "t", end=end),))
    view = replace(group_view("g"), streams=ReaderGroupSettings.of(configuration).streams)
    monkeypatch.setattr(world, "behind", lambda stream, position, end: end.offsets[0] - position[0])
    assert world.watch.look(view, is_listed=True).bytes_behind == 20


def test_a_group_that_fails_has_no_known_readers(world: World):
    world.failure = UnavailableError("no store answers")
    facts = world.watch.look(group_view("g"), is_listed=True)
    assert (facts.has_status, facts.bytes_behind, facts.note) == (False, None, "no store answers")


def test_bytes_behind_are_unknown_if_those_of_a_stream_are():
    view = group_view("g")
    assert GroupFacts(view, behind={"s/t": 5, "s/u": None}).bytes_behind is None
    assert GroupFacts(view, behind={"s/t": 5, "s/u": 0}).bytes_behind == 5
    assert GroupFacts(view, behind={}).bytes_behind == 0


def test_a_reader_that_waited_for_events_is_not_silent(world: World):
    world.unread = 0
    assert silence(world) is None
    world.now_s += SILENT_AFTER_S
    world.unread = 5
    assert silence(world) is None
    world.now_s += SILENT_AFTER_S
    assert silence(world) == SILENT_AFTER_S


def test_time_without_a_look_does_not_count(world: World):
    assert silence(world) is None
    world.now_s += 3_600
    assert silence(world) is None
    world.now_s += SILENT_AFTER_S
    assert silence(world) == SILENT_AFTER_S


def test_a_group_without_readers_costs_no_lists(world: World):
    world.failure = NotFoundError("it has no state", code=NO_STATE)
    for _ in range(3):
        (view,) = world.watch.of_stream(STREAM)
        assert world.watch.look(view).note == "no reader has joined yet"
    assert world.requests == 2


def test_a_deleted_group_is_listed_again(world: World):
    (view,) = world.watch.of_stream(STREAM)
    world.failure = NotFoundError("there is no such group")
    assert world.watch.look(view).note == "there is no such group"
    world.watch.of_stream(STREAM)
    assert world.requests == 4


def test_a_group_that_was_deleted_has_no_configuration(world: World):
    assert len(world.watch.configurations("s", ["g"])) == 1
    world.now_s += CONFIGURATION_AGE_S - NAMES_AGE_S / 2
    assert world.watch.names("s") == ["g"]
    world.missing = NotFoundError("there is no such group")
    world.now_s += NAMES_AGE_S / 2 + 1
    for _ in range(2):
        assert world.watch.configurations("s", ["g"]) == []


def test_a_group_that_was_created_again_is_opened_again(world: World):
    world.watch.look(group_view("g"))
    for _ in range(2):
        assert world.watch.look(replace(group_view("g"), group_id="another")).has_status
    assert [group.is_open for group in world.groups] == [False, True]


def test_a_failed_look_leaves_a_group_that_was_opened_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch):
    again = replace(group_view("g"), group_id="another")
    looking = threading.Thread(target=world.watch.look, args=(again,))

    def fail_late(_: Group) -> GroupStatus:
        monkeypatch.undo()
        looking.start()
        while world.watch._known(ScopedName("s", "g"), "another", is_stored=False) is None:
            time.sleep(0.001)
        raise NotFoundError("there is no such group")

    monkeypatch.setattr(Group, "status", fail_late)
    assert world.watch.look(group_view("g")).note == "there is no such group"
    looking.join()
    assert world.watch.look(again).has_status
    assert [group.is_open for group in world.groups] == [False, True]


def test_old_configurations_are_forgotten_with_their_scope(world: World):
    for scope in ("s", "other"):
        world.watch.names(scope)
        world.now_s += CONFIGURATION_AGE_S
    world.watch.names("third")
    assert list(world.watch._configurations) == ["other", "third"]


def test_the_groups_of_a_stream_are_found_among_a_bounded_number(world: World):
    world.names = [f"g{number}" for number in range(CONFIGURATIONS_PER_SCOPE_MAX + 1)]
    assert len(world.watch.of_stream(STREAM)) == CONFIGURATIONS_PER_SCOPE_MAX
    assert world.requests == 1 + CONFIGURATIONS_PER_SCOPE_MAX


def test_a_group_that_failed_is_opened_again(world: World):
    world.failure = UnavailableError("no store answers")
    assert world.watch.look(group_view("g")).note == "no store answers"
    world.failure, world.is_reached = None, True
    assert world.watch.look(group_view("g")).lag is not None
    assert [group.is_open for group in world.groups] == [False, True]


def test_a_group_is_what_s3_has_while_stores_are_away(world: World):
    world.is_reached = False
    facts = world.watch.look(group_view("g"))
    assert (facts.is_stored, facts.lag, facts.behind) == (True, None, {"s/t": 90})
    assert facts.readers[0].segments == ((SEGMENT, 10, None),)
    world.now_s += SILENT_AFTER_S
    assert silence(world) is None
    world.is_reached = True
    facts = world.watch.look(group_view("g"))
    assert (facts.is_stored, facts.behind) == (False, {"s/t": 5})
    assert world.from_s3 == [True, False]
    assert [group.is_open for group in world.groups] == [False, True]


def test_a_store_that_fails_a_group_is_left_for_s3(world: World):
    world.failure = UnavailableError("no store answers")
    world.watch.look(group_view("g"))
    world.failure = None
    assert world.watch.look(group_view("g")).is_stored


def test_positions_are_those_of_the_last_look(world: World):
    assert world.watch.cuts_in(STREAM) == []
    world.watch.look(group_view("g"))
    assert world.watch.cuts_in(STREAM) == [(ScopedName("s", "g"), StreamCut.of("s", "t", {0: 10}))]
    assert world.watch.cuts_in(ScopedName("s", "other")) == []
    world.now_s += WATCHED_S + 1
    assert world.watch.cuts_in(STREAM) == []


def test_only_the_newest_groups_stay_open(world: World):
    for number in range(GROUPS_OPEN_MAX + 2):
        world.watch.look(group_view(f"g{number}"))
    assert [group.is_open for group in world.groups] == [False] * 2 + [True] * GROUPS_OPEN_MAX
    world.watch.close()
    assert not any(group.is_open for group in world.groups)


def test_a_group_that_others_push_out_is_opened_again(world: World, monkeypatch: pytest.MonkeyPatch):
    """Before its lock was taken."""
    opened, pushed = world.watch._open, iter([True, False])

    def push_out(name: ScopedName, group_id: str) -> Any:
        watched = opened(name, group_id)
        if next(pushed):
            for number in range(GROUPS_OPEN_MAX):
                opened(ScopedName("s", f"other{number}"), "id")
        return watched

    monkeypatch.setattr(world.watch, "_open", push_out)
    assert world.watch.look(group_view("g")).has_status
    assert [group.is_open for group in world.groups if group.name == "g"] == [False, True]


def test_two_looks_at_once_use_one_open_group(world: World):
    opened, both = world.reader_group, threading.Barrier(2)

    def open_together(*arguments: Any, **options: Any) -> Group:
        both.wait(60)
        return opened(*arguments, **options)

    world.reader_group = open_together
    notes: list[str] = []
    threads = [threading.Thread(target=lambda: notes.append(world.watch.look(group_view("g")).note)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert notes == ["", ""]
    assert sorted(group.is_open for group in world.groups) == [False, True]
