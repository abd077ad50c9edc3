"""Queue messages of scaling reports: a segment store reports that a segment is too hot or too cold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.model.errors import InvalidRequestError
from headrace.model.rates import ScalingReport

_FIELDS = {"segment": str, "kind": str, "at": int, "splits": int, "silent": bool}


def report_message(report: ScalingReport) -> dict[str, Any]:
    return {
        "segment": report.segment,
        "kind": report.kind,
        "at": report.at_ms,
        "splits": report.splits,
        "silent": report.silent,
    }


def parse_report(body: Mapping[str, Any]) -> ScalingReport:
    """Raises InvalidRequestError: the body is not a report; repeating does not help."""
    if set(body) != set(_FIELDS) or any(type(body[name]) is not kind for name, kind in _FIELDS.items()):
        raise InvalidRequestError("a scaling report holds exactly segment, kind, at, splits and silent")
    if body["kind"] not in ("hot", "cold") or body["at"] < 0 or body["splits"] < 0:
        raise InvalidRequestError("a scaling report is hot or cold, and its numbers are not negative")
    return ScalingReport(body["segment"], body["kind"], body["at"], body["splits"], body["silent"])
