"""Golden values of records: what every persisted shape must pass, and the epoch that several of them hold.

A golden value that changes is a change of format: old records would no longer be read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from headrace.model.epochs import Epoch
from headrace.model.errors import CorruptError

FIRST = Epoch.first(3, 5, 1_000)
THIRD, TWO_THIRDS = 0.3333333333333333, 0.6666666666666666

Shape = tuple[Any, Callable[[Any], dict[str, Any]], Callable[[Any], Any], dict[str, Any]]
"""A value, what makes a body of it, what makes a value of a body, and the body."""


class GoldenRecords:
    """What a class of tests that has `shapes` inherits; each test runs for each shape."""

    shapes: ClassVar[dict[str, Shape]]
    left_out: ClassVar[dict[str, set[str]]] = {}
    """Fields that a record lacks where they have their defaults."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        metafunc.parametrize("name", self.shapes)

    def test_golden_value(self, name: str) -> None:
        value, encode, decode, golden = self.shapes[name]
        assert encode(value) == golden
        assert decode(golden) == value
        assert decode(json.loads(json.dumps(golden))) == value

    def test_an_unknown_format_is_refused(self, name: str) -> None:
        _, _, decode, golden = self.shapes[name]
        for strange in ({**golden, "format": 2}, {key: value for key, value in golden.items() if key != "format"}, {}):
            with pytest.raises(CorruptError, match=f"{name} record of format"):
                decode(strange)

    def test_a_missing_field_is_refused(self, name: str) -> None:
        _, _, decode, golden = self.shapes[name]
        for field in golden.keys() - {"format"} - self.left_out.get(name, set()):
            with pytest.raises(CorruptError, match=name):
                decode({key: value for key, value in golden.items() if key != field})

    def test_a_field_of_another_kind_is_refused(self, name: str) -> None:
        _, _, decode, golden = self.shapes[name]
        refused = 0
        for field in golden.keys() - {"format"}:
            for strange in ([[1]], {"a": []}, object()):
                try:
                    decode({**golden, field: strange})
                except CorruptError:
                    refused += 1
        assert refused > 0
