"""The record of a container's claim: golden values and key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.container_claim import (
    check_claim,
    claim_body,
    claim_key,
    decode_claim,
    find_claim,
    find_claims,
    write_claim,
)
from headrace.model.containers import ContainerClaim
from headrace.model.errors import CorruptError
from headrace.ports.metadata_store import Check, Key, Record

CLAIM = ContainerClaim("store-0", "10.0.0.1", 12345, "use1-az1")
GOLDEN = {"store": "store-0", "host": "10.0.0.1", "port": 12345, "zone": "use1-az1"}


def test_golden_values():
    assert claim_body(CLAIM) == GOLDEN
    assert decode_claim(GOLDEN) == CLAIM
    clean = ContainerClaim("store-0", "10.0.0.1", 12345, "use1-az1", from_clean=True)
    assert claim_body(clean) == GOLDEN | {"from_clean": True}
    assert decode_claim(claim_body(clean)) == clean
    in_s3 = ContainerClaim("store-0", "10.0.0.1", 12345, "use1-az1", log_in_s3=True)
    assert claim_body(in_s3) == GOLDEN | {"log_in_s3": True}
    assert decode_claim(claim_body(in_s3)) == in_s3


def test_key():
    assert claim_key(7) == Key("cluster", "container/0007")
    assert check_claim(7, 3) == Check(Key("cluster", "container/0007"), 3)


def test_each_claim_has_the_next_epoch():
    store = MemoryMetadataStore()
    assert find_claim(store, 7) is None
    store.write(write_claim(7, CLAIM, None))
    assert find_claim(store, 7) == (CLAIM, 0)
    store.write(write_claim(7, CLAIM, 0))
    assert find_claim(store, 7) == (CLAIM, 1)


@pytest.mark.parametrize(
    "change", [{"store": 1}, {"port": "x"}, {"port": -1}, {"zone": None}, {"from_clean": 1}, {"log_in_s3": 1}]
)
def test_an_invalid_claim_is_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_claim(GOLDEN | change)


def test_many_claims_are_read_a_hundred_at_a_time(monkeypatch: pytest.MonkeyPatch):
    store = MemoryMetadataStore()
    for container in range(0, 250, 2):
        store.write(write_claim(container, CLAIM, None))
    read = store.get_many
    batches: list[int] = []

    def counted(keys: Sequence[Key]) -> list[Record | None]:
        batches.append(len(keys))
        return read(keys)

    monkeypatch.setattr(store, "get_many", counted)
    assert find_claims(store, [3, *range(250), 4]) == dict.fromkeys(range(0, 250, 2), (CLAIM, 0))
    assert batches == [100, 100, 50]
    assert find_claims(store, []) == {}
