"""What GET /metrics shows is what is documented, and what Prometheus can read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from store_world import World

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.segmentstore.metrics import MeasuredChunkStorage, MeasuredJournalDisk, MeasuredMetadataStore
from segmentstore_fargate.container_metrics import CONTAINER_METRICS
from segmentstore_fargate.metrics_page import STORE_METRICS, MeasuredStore, MetricsPage
from segmentstore_fargate.replication_metrics import REPLICATION_METRICS

pytestmark = pytest.mark.anyio

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operating" / "metrics.md"
ROW = re.compile(r"^\| `(headrace_\w+)` \| (\w+) \| ([\w, ]*?) ?\| (.+) \|$", re.MULTILINE)
SEGMENT = "scope/stream/0.#epoch.0"


def _declared() -> list[tuple[str, str, str, str]]:
    store = [(each.name, each.kind, ", ".join(each.labels), each.meaning) for each in STORE_METRICS]
    return store + [
        (each.name, each.kind, ", ".join(("container", *each.labels)), each.meaning) for each in CONTAINER_METRICS
    ]


def test_the_page_of_the_manual_lists_every_metric():
    replicated = [(each.name, each.kind, ", ".join(each.labels), each.meaning) for each in REPLICATION_METRICS]
    assert ROW.findall(DOCUMENT.read_text()) == _declared() + replicated


def _page(running) -> tuple[MetricsPage, MeasuredStore]:
    clock = running.world.clock
    measured = MeasuredStore(
        running.store,
        running.listener,
        running.journal,
        MeasuredJournalDisk(MemoryJournalDisk(), clock).metrics,
        MeasuredChunkStorage(running.world.chunks, clock),
        MeasuredMetadataStore(running.world.metadata, clock),
        lambda: True,
        lambda: 0,
        log_storage=MeasuredChunkStorage(running.world.log_chunks, clock),
    )
    return MetricsPage(measured), measured


async def test_every_metric_has_its_values_on_the_page(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, 7)
        await client.append(7, 1, b"x" * 3000)
        page, measured = _page(running)
        await measured.chunk_storage.put("a", [b"1234"])
        assert measured.log_storage is not None
        await measured.log_storage.put("b", [b"123"])
        measured.chunk_storage.requests["read"].count_error("throttled")
        world.clock.advance(4)
        container, text = running.store.owner_of(SEGMENT).container.container, page.render().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    shown = {sample.name for family in families.values() for sample in family.samples}
    for name, kind, _, meaning in _declared():
        family = families[name.removesuffix("_total")]
        assert (family.type, family.documentation) == (kind, meaning)
        assert (f"{name}_bucket" if kind == "histogram" else name) in shown or name == "headrace_metadata_errors_total"
    values = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    here = ("container", str(container))
    assert values["headrace_append_bytes_total", here] == 3000
    assert values["headrace_flush_lag_seconds", here] == 4
    assert values["headrace_append_seconds_count",] == 1
    assert values["headrace_plaintext_connections_total",] == 1
    assert values["headrace_append_seconds_bucket", ("le", "+Inf")] == 1
    assert values["headrace_storage_bytes_total", ("operation", "put"), ("use", "tier2")] == 4
    assert values["headrace_storage_bytes_total", ("operation", "put"), ("use", "log")] == 3
    assert values["headrace_storage_errors_total", ("code", "throttled"), ("operation", "read"), ("use", "tier2")] == 1
    assert values["headrace_connections",] == 1
    assert values["headrace_cache_unstored_bytes",] == 3000
    assert "process_resident_memory_bytes" in families
