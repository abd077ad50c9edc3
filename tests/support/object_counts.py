"""Whether the counts of packed objects agree with the chunk directory, whatever happened."""

from __future__ import annotations

from collections import defaultdict

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.model.chunks import ObjectCount, chunk_run, is_link, object_count, object_partition, packed_epoch


def counts_of(metadata: MemoryMetadataStore, container: int = 0) -> dict[str, ObjectCount]:
    """The counts of one container's objects, by name."""
    page = metadata.query(object_partition(container), limit=1_000_000)
    return {record.key.sort: object_count(record.body) for record in page.records}


def assert_counts_agree(metadata: MemoryMetadataStore, containers: int = 1) -> None:
    """Each object has the runs and bytes that its record counts, and is dated if it has none."""
    used: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for partition in [each for each in metadata._partitions if each.startswith("chunks/")]:
        for record in metadata.query(partition, first="run/", last="run0", limit=1_000_000).records:
            if is_link(record.body):
                continue
            run = chunk_run(record.key.sort, record.body)
            used[run.object_name][0] += 1
            used[run.object_name][1] += run.length
    for container in range(containers):
        counts = counts_of(metadata, container)
        for name, count in counts.items():
            assert [count.runs, count.run_bytes] == used.pop(name, [0, 0]), name
            assert (count.emptied_at_ms is None) == (count.runs > 0), name
            assert count.run_bytes <= count.length
        assert not [name for name in used if packed_epoch(container, name) is not None]
