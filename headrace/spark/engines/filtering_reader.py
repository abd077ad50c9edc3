"""Batch reads that Spark hands filters to, Spark 4.1 and later.

A class of its own, because Spark refuses a reader with `pushFilters` if spark.sql.python.filterPushdown.enabled is off.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from headrace.spark.engines.batch_reader import HeadraceBatchReader
from headrace.spark.range_filters import Comparison, Condition, RangeFilter

_COMPARISONS: Final[dict[type[Filter], Comparison]] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    In: "in",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}


class HeadraceFilteringReader(HeadraceBatchReader):
    """Leaves out streams, segments and ranges of offsets that the query does not ask for."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Returns the filters that Spark still has to apply."""
        own = self._options.own_columns()
        conditions: list[Condition] = []
        left: list[Filter] = []
        for each in filters:
            is_own = _column(each) in own
            if is_own and isinstance(each, IsNotNull):
                continue  # none of our columns is ever null
            condition = _condition(each) if is_own else None
            if condition is not None:
                conditions.append(condition)
            if condition is None or not condition.is_of_segment:
                left.append(each)
        self._wanted = RangeFilter(tuple(conditions))
        return left


def _column(pushed: Filter) -> str | None:
    """The column that the filter is about; None if it is about several, or a field of one."""
    name, *nested = getattr(pushed, "attribute", (None,))
    return None if nested else name


def _condition(pushed: Filter) -> Condition | None:
    """A filter on one of our columns; None: planning has no use for it."""
    comparison = _COMPARISONS.get(type(pushed))
    if comparison is None:
        return None
    column, value = pushed.attribute[0], pushed.value  # type: ignore[attr-defined]
    condition = Condition(column, comparison, tuple(value) if comparison == "in" else value)
    return condition if condition.is_known else None
