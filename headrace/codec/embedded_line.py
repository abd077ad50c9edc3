"""The log line of some metrics in CloudWatch's embedded metric format."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.embedded_metrics import DIMENSION, NAMESPACE, EmbeddedMetric
from headrace.model.errors import InvalidRequestError

METRICS_PER_LINE_MAX: Final = 100
"""Of the specification, for one directive; a line here has one."""
DIMENSION_VALUE_CHARACTERS_MAX: Final = 1024
VALUE_MAX: Final = 2.0**360
"""CloudWatch refuses values beyond it, in both directions."""


def embedded_line(metrics: Sequence[EmbeddedMetric], values: Mapping[str, float], service: str, time_ms: int) -> str:
    """The log line, without its end, that tells `values` of some of `metrics` by name. A metric without one is absent.

    `service` is the value of the dimension. `time_ms` is in milliseconds since 1970; CloudWatch takes times up to two
    weeks ago.

    Raises:
        InvalidRequestError: CloudWatch would drop the line, or a metric of it: there is no value, or there are too
            many, one is not a finite number, or of no such metric, or `service` is not a text for a dimension.
    """
    declared = {metric.name: metric for metric in metrics}
    if unknown := sorted(values.keys() - declared.keys()):
        raise InvalidRequestError(f"{unknown[0]!r} is not one of the metrics {', '.join(declared)}")
    if not 1 <= len(values) <= METRICS_PER_LINE_MAX:
        raise InvalidRequestError(f"{len(values)} metrics: a line has 1 to {METRICS_PER_LINE_MAX}")
    for name, value in values.items():
        if not math.isfinite(value) or abs(value) > VALUE_MAX:
            raise InvalidRequestError(f"{name} is {value}: CloudWatch takes finite numbers only")
    is_text = service.isascii() and service.isprintable() and service.strip()
    if not is_text or len(service) > DIMENSION_VALUE_CHARACTERS_MAX:
        raise InvalidRequestError(f"{service[:40]!r} is not the value of a dimension")
    directive = {
        "Namespace": NAMESPACE,
        "Dimensions": [[DIMENSION]],
        "Metrics": [{"Name": name, "Unit": declared[name].unit} for name in values],
    }
    document = {"_aws": {"Timestamp": time_ms, "CloudWatchMetrics": [directive]}, DIMENSION: service, **values}
    return json.dumps(document, allow_nan=False)
