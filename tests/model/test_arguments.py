"""Which arguments are refused, and what a refusal says."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from math import inf, nan
from types import ModuleType
from typing import Any, Literal, Protocol, TypeVar, Union

import pytest

from headrace.model.arguments import check_argument, checked_calls
from headrace.model.errors import InvalidRequestError

T_co = TypeVar("T_co", covariant=True)


@pytest.mark.parametrize(("characters", "shown"), [(198, 200), (199, 203), (1_000_000, 203)])
def test_a_long_value_is_shown_in_part(characters: int, shown: int) -> None:
    """`repr` adds two quotation marks."""
    with pytest.raises(InvalidRequestError) as refused:
        check_argument("count", "x" * characters, int)
    message = refused.value.message
    assert len(message) == len("count is  (str), but must be int") + shown, message
    assert refused.value.specific_code == "invalid_argument"


@pytest.mark.parametrize(
    ("hint", "accepted", "refused"),
    [
        (bool, True, 1),
        (int | None, None, "1"),
        (tuple[int, str], (1, "a"), (1,)),
        (tuple[int, str], (1, "a"), (1, 2)),
        (tuple[int, str], (1, "a"), ("1", "a")),
        (dict[str, int], {"a": 1}, {"a": 1, "b": "2"}),
        (list[int], [1, 2], [1, "2"]),
    ],
)
def test_each_part_of_a_value_is_looked_at(hint: object, accepted: object, refused: object) -> None:
    check_argument("value", accepted, hint)
    with pytest.raises(InvalidRequestError, match="value is"):
        check_argument("value", refused, hint)


class Colour(Enum):
    RED = 1
    GREEN = 2


class Sized(Protocol[T_co]):
    """Python cannot tell whether a value has such a method with the right types."""

    def size(self) -> T_co: ...


@pytest.mark.parametrize(
    ("hint", "wanted"),
    [
        (None, "None"),
        (type(None), "None"),
        (int | str, "int or str"),
        (Union[int, Literal["a", "b"]], "int or 'a' or 'b'"),  # noqa: UP007 - another type than that of `int | str`
        (Literal["a", 2], "'a' or 2"),
        (Colour, "Colour.RED or Colour.GREEN"),
        (float, "a number"),
        (tuple[int, ...], "a tuple of int"),
        (Mapping[str, float], "a Mapping of str, a number"),
        (list, "list"),
        (int, "int"),
    ],
)
def test_a_refusal_says_what_is_accepted(hint: object, wanted: str) -> None:
    value = object()
    with pytest.raises(InvalidRequestError) as refused:
        check_argument("value", value, hint)
    assert refused.value.message == f"value is {value!r} (object), but must be {wanted}"
    assert refused.value.details == {"argument": "value"}


@pytest.mark.parametrize(
    ("hint", "accepted", "refused"),
    [
        (None, [None], [0, False]),
        (type(None), [None], [0]),
        (Any, [None, 1, object], []),
        (T_co, [None, 1], []),
        (Sized, [None, 1], []),
        (Sized[int], [None, 1], []),
        (bool, [True], [1, None]),
        (int, [1], [True, 1.0]),
        (float, [1, 1.5, inf], [nan, True, 10**400, "1"]),
        (Literal[1, "a"], [1, "a"], [True, 1.0, "b"]),
        (Colour, [Colour.RED], [1, "RED"]),
        (Mapping[str, int], [{}, {"a": 1}], [[("a", 1)], {1: 1}, {"a": "b"}]),
        (tuple[int, str], [(1, "a"), [1, "a"]], [5, {1, "a"}, (1, "a", 2), ("a", 1)]),
        (tuple[int, ...], [(), (1, 2)], [("a",), (1, "a"), 5]),
        (Iterable[int], [[1], (1,), {1, 2}, iter([1])], ["1", b"1", bytearray(1), {1: 1}, 5, ["a"], [1, "a"], {"a"}]),
        (Iterable, [[1], {1, 2}, iter([1])], ["1", {1: 1}, 5]),
        (Sequence[int], [[1], (1,)], [{1}, iter([1]), {1: 1}, "1", [1, "a"]]),
        (Sequence, [[1], ["a"]], [{1}, iter([1]), "1"]),
        (Iterator[int], [iter([1])], [[1]]),
    ],
)
def test_values_of_each_kind_are_told_apart(hint: object, accepted: list[object], refused: list[object]) -> None:
    for value in accepted:
        check_argument("value", value, hint)
    for value in refused:
        with pytest.raises(InvalidRequestError):
            check_argument("value", value, hint)


def test_what_can_be_read_once_is_not_read() -> None:
    numbers = (each for each in (1, "a"))
    check_argument("numbers", numbers, Iterable[int])
    assert list(numbers) == [1, "a"]


def test_durations_are_not_negative() -> None:
    for value in (0, 0.5, None):
        check_argument("open: timeout_s", value, float | None)
    check_argument("offset", -1, int)
    with pytest.raises(InvalidRequestError) as refused:
        check_argument("open: timeout_s", -0.5, float | None)
    assert refused.value.message == "open: timeout_s is -0.5 (float), but must be a number of seconds from 0 on"


@pytest.mark.anyio
async def test_calls_are_checked_and_return_what_they_did() -> None:
    @checked_calls("judged")
    class Calls:
        def plain(self, count: int, *, name: str = "") -> tuple[int, str]:
            return count, name

        async def later(self, count: int) -> int:
            return count

        def free(self, anything) -> object:
            return anything

        def judged(self, count: int) -> int:
            return count

        def _inner(self, count: int) -> int:
            return count

        @property
        def size(self) -> int:
            return 3

    calls: Any = Calls()
    assert calls.plain(1, name="a") == (1, "a")
    assert await calls.later(2) == 2
    assert (calls.free("a"), calls.judged("a"), calls._inner("a")) == ("a", "a", "a")
    for refused in (
        lambda: calls.plain("a"),
        lambda: calls.plain(1, name=2),
        lambda: calls.plain(count="a"),
        lambda: calls.plain("a", 1),
    ):
        with pytest.raises(InvalidRequestError, match=r"Calls\.plain: (count|name) is"):
            refused()
    with pytest.raises(TypeError, match="positional"):
        calls.plain(1, 2)
    later = calls.later("a")  # refused when it is awaited
    with pytest.raises(InvalidRequestError, match=r"Calls\.later: count is 'a'"):
        await later
    assert calls.size == 3


LAZY_MODULE = """
from __future__ import annotations
from headrace.model.arguments import checked_calls

def __getattr__(name):
    if name == "Number":
        return int
    if name == "Text":
        return str
    raise AttributeError(name)

@checked_calls()
class Calls:
    def both(self, value: Number | Text) -> None: ...
    def unknown(self, value: Absent, count: Number) -> None: ...
"""


def test_types_that_are_imported_late_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A type that cannot be had at run time is not checked, but the other parameters are."""
    module = ModuleType("late_types")
    monkeypatch.setitem(sys.modules, "late_types", module)
    exec(LAZY_MODULE, module.__dict__)  # noqa: S102 - the annotations must be of another module
    calls = module.Calls()
    calls.both(1)
    calls.both("a")
    with pytest.raises(InvalidRequestError, match="must be int or str"):
        calls.both(1.5)
    calls.unknown(object(), 1)
    with pytest.raises(InvalidRequestError, match="count is"):
        calls.unknown(object(), "a")
