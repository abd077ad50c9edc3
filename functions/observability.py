"""Logs and metrics of all functions.

Logs are JSON lines that each have the request id, and the correlation id of what they tell of. They go to standard
error, so that the standard output of the local stack stays readable. Metrics are log lines too (CloudWatch's embedded
format), so counting costs no call; the variable POWERTOOLS_METRICS_DISABLED switches them off. There is no tracer:
Lambda traces invocations itself if X-Ray is switched on, and X-Ray's SDK would be the largest import of a cold start.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence

from aws_lambda_powertools import Logger, single_metric
from aws_lambda_powertools.metrics import MetricUnit

from headrace.adapters.log_lines import write_document
from headrace.codec.embedded_line import embedded_line
from headrace.embedded_metrics import EmbeddedMetric
from headrace.ports.request_queue import current_requester

NAMESPACE = "Headrace"
_FALSE = {"", "0", "false", "no", "off"}

logger = Logger(service=os.environ.get("POWERTOOLS_SERVICE_NAME", "headrace"), stream=sys.stderr)


def _add_requester(record: logging.LogRecord) -> bool:
    """Add who asked for the work that runs now, so that one filter finds all lines of an operation."""
    requester = current_requester()
    if requester is not None and not hasattr(record, "correlationId"):
        record.requestedBy, record.correlationId = requester.principal, requester.correlation_id
    return True


logger.addFilter(_add_requester)


def count(name: str, value: int = 1, **dimensions: str) -> None:
    """Add `value` to the metric `name`. Dimensions must have few values, since each combination costs money."""
    if os.environ.get("POWERTOOLS_METRICS_DISABLED", "").lower() not in _FALSE:
        return
    namespace = os.environ.get("POWERTOOLS_METRICS_NAMESPACE", NAMESPACE)
    with single_metric(name=name, unit=MetricUnit.Count, value=value, namespace=namespace) as metric:
        for dimension, text in dimensions.items():
            metric.add_dimension(name=dimension, value=text)


def report(metrics: Sequence[EmbeddedMetric], values: Mapping[str, float], service: str, time_ms: int) -> None:
    """Write the values of declared metrics. It is not switched off: this is all that its function is for.

    Raises as `embedded_line`, and OSError if the line cannot be written.
    """
    write_document(embedded_line(metrics, values, service, time_ms))
