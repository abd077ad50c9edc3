"""The definition of a metric, and the conversion of its values to a family of Prometheus samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, Literal, TypeVar

from prometheus_client.core import Metric as MetricFamily

from headrace.segmentstore.metrics import Histogram

Source = TypeVar("Source")
Value = float | Histogram


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    """`read` gives one value or, with `labels`, one for each combination of label values."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    meaning: str
    read: Callable[[Source], Value | Mapping[tuple[str, ...], Value]]
    labels: tuple[str, ...] = ()


def metric_family(
    metric: Metric[Source], sources: Mapping[tuple[str, ...], Source], source_labels: tuple[str, ...]
) -> MetricFamily:
    family = MetricFamily(metric.name.removesuffix("_total"), metric.meaning, metric.kind)
    names = (*source_labels, *metric.labels)
    for source_values, source in sources.items():
        values = metric.read(source)
        for label_values, value in values.items() if isinstance(values, Mapping) else [((), values)]:
            _add(family, metric.name, dict(zip(names, (*source_values, *label_values), strict=True)), value)
    return family


def _add(family: MetricFamily, name: str, labels: dict[str, str], value: Value) -> None:
    if not isinstance(value, Histogram):
        family.add_sample(name, labels, value)
        return
    bounds = [*(repr(float(bound)) for bound in value.bounds), "+Inf"]
    counts = list(accumulate(value.counts))
    for bound, count in zip(bounds, counts, strict=True):
        family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
    family.add_sample(f"{name}_count", labels, counts[-1])
    family.add_sample(f"{name}_sum", labels, value.total)
