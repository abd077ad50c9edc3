"""The driver of interruptions interrupts every call, and catches work that loses, doubles or hides something."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
from interruptions import (
    Work,
    after_each_crash,
    after_each_sleep,
    assert_an_absent_segment_store_only_delays,
    assert_crashes_lose_and_double_nothing,
    assert_dying_one_call_later_each_time_still_ends,
    assert_two_at_once_do_it_once,
    undisturbed,
)
from turns import run_in_turns

from fuzz.watched_ports import Calls, Crash
from headrace.model.errors import UnavailableError

CALLS = ["read", "segment store append", "write"]


class Purse:
    """A world whose work is to put one coin into a purse, and to note that it is there."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.coins: list[str] = []
        self.is_noted = False

    def asks(self) -> bool:
        return self.calls("read", lambda: self.is_noted)

    def notes(self) -> None:
        self.calls("write", partial(setattr, self, "is_noted", True))

    def adds(self) -> None:
        self.calls("segment store append", lambda: self.coins.append("coin"))

    def adds_the_first(self) -> None:
        def add() -> None:
            if not self.coins:
                self.coins.append("coin")

        self.calls("segment store append", add)


def _sound(purse: Purse) -> None:
    if not purse.asks():
        purse.adds_the_first()
        purse.notes()


def _loses(purse: Purse) -> None:
    if not purse.asks():
        purse.notes()
        purse.adds()


def _doubles(purse: Purse) -> None:
    if not purse.asks():
        purse.adds()
        purse.notes()


def _forgets_that_it_is_done(purse: Purse) -> None:
    purse.adds()


def _hides_every_error(purse: Purse) -> None:
    try:
        _sound(purse)
    except Exception:  # noqa: BLE001  This is what is to be found out.
        return


def _makes_no_call(purse: Purse) -> None:
    purse.coins = ["coin"]


def _never_ends(purse: Purse) -> None:
    while True:
        purse.asks()


def _work(run: Callable[[Purse], None]) -> Work[Purse]:
    return Work(Purse, run, lambda purse: (list(purse.coins), purse.is_noted))


@pytest.mark.parametrize("done", [False, True])
def test_every_call_is_interrupted_once(done: bool):
    died: list[str] = []

    def run(purse: Purse) -> None:
        try:
            _sound(purse)
        except Crash as crash:
            died.append(str(crash))
            raise

    assert assert_crashes_lose_and_double_nothing(_work(run), done=done) == len(CALLS)
    assert died == CALLS


def test_a_crash_comes_before_a_call_takes_effect_or_after():
    left = {
        done: [(len(purse.coins), purse.is_noted) for _, purse in after_each_crash(_work(_sound), done=done)]
        for done in (False, True)
    }
    assert left == {
        False: [(0, False), (0, False), (1, False)],
        True: [(0, False), (1, False), (1, True)],
    }


def test_some_calls_only():
    crashes = [position for position, _ in after_each_crash(_work(_sound), done=False, first=1, every=2)]
    assert crashes == [1]
    assert assert_crashes_lose_and_double_nothing(_work(_sound), done=True, every=2) == 2


def test_a_sleep_before_every_call():
    found = [(at, woken) for at, _, woken in after_each_sleep(_work(_sound), lambda purse: len(purse.coins))]
    assert found == [(0, 0), (1, 0), (2, 1)]


def test_what_is_sound_passes():
    work = _work(_sound)
    assert undisturbed(work).outcome == (["coin"], True)
    assert assert_two_at_once_do_it_once(work) == len(CALLS)
    assert assert_dying_one_call_later_each_time_still_ends(work) == len(CALLS)
    assert_an_absent_segment_store_only_delays(work)


@pytest.mark.parametrize(
    ("run", "done", "message"),
    [
        (_loses, False, "after a crash at call 2"),
        (_loses, True, "after a crash at call 1"),
        (_doubles, False, "after a crash at call 2"),
        (_doubles, True, "after a crash at call 1"),
        (_forgets_that_it_is_done, False, "a repeat after the work is done"),
        (_forgets_that_it_is_done, True, "after a crash at call 0"),
        (_hides_every_error, False, "outlived a crash at call 0"),
        (_makes_no_call, False, "makes no call"),
        (_never_ends, False, "does not come to its end"),
    ],
)
def test_what_a_crash_breaks_is_caught(run: Callable[[Purse], None], done: bool, message: str):
    with pytest.raises(AssertionError, match=message):
        assert_crashes_lose_and_double_nothing(_work(run), done=done)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (_loses, "after 2 crashes in a row"),
        (_doubles, "after 3 crashes in a row"),
        (_never_ends, "does not come to its end"),
    ],
)
def test_what_many_crashes_break_is_caught(run: Callable[[Purse], None], message: str):
    with pytest.raises(AssertionError, match=message):
        assert_dying_one_call_later_each_time_still_ends(_work(run))


def test_work_that_repeats_what_another_did_is_caught():
    with pytest.raises(AssertionError, match="overtaken before call 1"):
        assert_two_at_once_do_it_once(_work(_doubles))


def test_a_run_that_is_shorter_than_the_one_before_is_caught():
    """Else the calls at its end would go untried."""
    made = itertools.count()

    def accept() -> Purse:
        purse = Purse()
        purse.is_noted = next(made) > 0
        return purse

    work = Work(accept, _sound, lambda purse: purse.is_noted)
    with pytest.raises(AssertionError, match="did not come as far as call 1"):
        assert_two_at_once_do_it_once(work)


@pytest.mark.parametrize("run", [_hides_every_error, _makes_no_call])
def test_who_does_not_miss_the_segment_store_is_caught(run: Callable[[Purse], None]):
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        assert_an_absent_segment_store_only_delays(_work(run))


def test_what_an_absent_segment_store_breaks_is_caught():
    with pytest.raises(AssertionError, match="after the segment store was away"):
        assert_an_absent_segment_store_only_delays(_work(_loses))


def test_only_calls_of_the_kind_are_refused():
    purse = Purse()
    purse.calls.refuse("segment store", UnavailableError("away"))
    purse.notes()
    with pytest.raises(UnavailableError):
        purse.adds()
    purse.calls.calm()
    purse.adds()
    assert (purse.coins, purse.is_noted) == (["coin"], True)


@pytest.mark.parametrize(("order", "coins"), [([0], 1), ([0, 0, 0, 1], 1), ([0, 1], 2)])
def test_turns_decide_who_is_first(order: list[int], coins: int):
    purse = Purse()
    assert run_in_turns(purse.calls, lambda: _doubles(purse), order) == []
    assert len(purse.coins) == coins


def test_turns_without_end_are_caught():
    purse = Purse()
    with pytest.raises(AssertionError, match="keep each other from ending"):
        run_in_turns(purse.calls, lambda: _never_ends(purse), [0, 1])


def test_who_is_said_to_be_overtaken_must_be():
    purse = Purse()
    with purse.calls.overtaken("read", purse.adds):
        assert not purse.asks()
        assert not purse.asks()
    assert purse.coins == ["coin"]
    with pytest.raises(AssertionError, match="no call of the kind write"), purse.calls.overtaken("write", purse.adds):
        purse.asks()
    assert purse.coins == ["coin"]


def test_a_process_dies_at_a_call_that_it_comes_to():
    purse = Purse()
    assert not purse.calls.dies(lambda: _doubles(purse), len(CALLS), done=True)
    assert not purse.calls.dies(lambda: _doubles(purse), None, done=False)
    assert purse.calls.dies(lambda: _doubles(purse), 0, done=False)
    assert purse.coins == ["coin"]
