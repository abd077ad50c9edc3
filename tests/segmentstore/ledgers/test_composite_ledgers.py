"""A store with containers of both classes: each container has a log of its class."""

from __future__ import annotations

import pytest
from ledger_worlds import ObjectWorld, OneCopyWorld, Reports, read_back

from headrace.model.errors import FencedError, UnavailableError
from headrace.model.log_classes import ContainerLayout
from headrace.segmentstore.log.composite_ledgers import CompositeLedgers

pytestmark = pytest.mark.anyio

ON_DISK, IN_S3 = 1, 2


async def test_each_container_has_a_log_of_its_class():
    on_disk, in_s3, reports = OneCopyWorld(), ObjectWorld(), Reports()
    store = CompositeLedgers(ContainerLayout(2, 1), on_disk.start(), in_s3.start())
    epochs = {ON_DISK: on_disk.claim(ON_DISK), IN_S3: in_s3.claim(IN_S3)}
    for container, epoch in epochs.items():
        reports.append(await store.open(container, epoch), b"%d" % container)
    await reports.all()
    assert (store.needs_lease(ON_DISK), store.needs_lease(IN_S3)) == (True, False)
    assert store.epochs() == {ON_DISK: epochs[ON_DISK]}
    assert [each.name.split("/")[1] for each in await in_s3.chunks.list("logs/")] == ["container-0002"]
    for container, epoch in epochs.items():
        await store.release(container)
        ledger = await store.open(container, epoch)
        assert await read_back(ledger) == {0: b"%d" % container}
        await store.forget(container)
        with pytest.raises((FencedError, UnavailableError)):
            ledger.append([b"late"], lambda _error: None)
    assert await in_s3.chunks.list("logs/") == []
    assert store.space().file_bytes == 4 << 20
    on_disk.end()
