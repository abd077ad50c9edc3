"""Computes CloudWatch alarms over recorded minutes: exactly the metric math that the templates use, and nothing else.

A minute is the sum of each metric in it, by namespace, name and dimension values; a metric that is absent reported
nothing. Windows slide, as those of CloudWatch do by default.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from syntax_trees import syntax_tree

Sample = tuple[str, tuple[str, ...]]
"""A metric: its name, and the values of its dimensions."""
Minute = Mapping[Sample, float]


def is_raised(alarm: Mapping[str, Any], minutes: Sequence[Minute]) -> bool:
    """Whether an alarm with one evaluated period is in the state ALARM after the last of the minutes."""
    assert alarm["EvaluationPeriods"] == 1
    assert alarm["TreatMissingData"] == "notBreaching"
    assert alarm["ComparisonOperator"] == "GreaterThanThreshold"
    values: dict[str, float | None] = {}
    expressions = []
    for query in alarm["Metrics"]:
        if "MetricStat" in query:
            values[query["Id"]] = _statistic(query["MetricStat"], minutes)
        else:
            expressions.append(query["Expression"])
    (expression,) = expressions
    value = compute(expression, values)
    return value is not None and value > alarm["Threshold"]


def _statistic(stat: Mapping[str, Any], minutes: Sequence[Minute]) -> float | None:
    assert stat["Stat"] == "Sum"
    assert stat["Period"] % 60 == 0
    metric = stat["Metric"]
    sample = (metric["MetricName"], tuple(str(each["Value"]) for each in metric["Dimensions"]))
    found = [minute[sample] for minute in minutes[-stat["Period"] // 60 :] if sample in minute]
    return sum(found) if found else None


def compute(expression: str, values: Mapping[str, float | None]) -> float | None:
    """One data point; None: there is none. Operators on a point that is missing, or a division by zero, give none."""
    (statement,) = syntax_tree(expression).body
    assert isinstance(statement, ast.Expr)
    return _evaluate(statement.value, values)


def _evaluate(node: ast.expr, values: Mapping[str, float | None]) -> float | None:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return values[name]
        case ast.Call(func=ast.Name(id="FILL"), args=[inner, other]):
            filled = _evaluate(inner, values)
            return _evaluate(other, values) if filled is None else filled
        case ast.Call(func=ast.Name(id="IF"), args=[condition, then, otherwise]):
            decided = _evaluate(condition, values)
            return None if decided is None else _evaluate(then if decided else otherwise, values)
        case ast.Compare(left=left, ops=[ast.GtE() | ast.Gt() as operator], comparators=[right]):
            return _combine(left, operator, right, values)
        case ast.BinOp(left=left, op=operator, right=right):
            return _combine(left, operator, right, values)
    raise AssertionError(f"metric math that this does not know: {ast.unparse(node)}")


def _combine(left: ast.expr, operator: ast.AST, right: ast.expr, values: Mapping[str, float | None]) -> float | None:
    first, second = _evaluate(left, values), _evaluate(right, values)
    if first is None or second is None:
        return None
    match operator:
        case ast.Add():
            return first + second
        case ast.Sub():
            return first - second
        case ast.Mult():
            return first * second
        case ast.Div():
            return first / second if second else None
        case ast.GtE():
            return float(first >= second)
        case ast.Gt():
            return float(first > second)
    raise AssertionError(f"metric math that this does not know: {operator}")
