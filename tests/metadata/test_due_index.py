"""The lease of a tick: golden values, keys, and refusal of invalid records."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.metadata.due_index import BucketLease, bucket_lease_body, bucket_lease_key, decode_bucket_lease
from headrace.model.errors import CorruptError
from headrace.ports.metadata_store import Key


def test_golden_values():
    assert bucket_lease_body(BucketLease(1_700_000_000_000)) == {"format": 1, "until": 1_700_000_000_000}
    stopped = BucketLease(7, "s/t", 2)
    assert bucket_lease_body(stopped) == {"format": 1, "until": 7, "position": "s/t", "crashes": 2}


@pytest.mark.parametrize("lease", [BucketLease(0), BucketLease(7, "s/t"), BucketLease(7, "", 1)])
def test_leases_come_back(lease: BucketLease):
    assert decode_bucket_lease(bucket_lease_body(lease)) == lease


def test_each_kind_and_bucket_has_its_own_key():
    keys = [bucket_lease_key(kind, bucket) for kind in ("retention", "resend-intents") for bucket in range(20)]
    assert len(set(keys)) == len(keys)
    assert bucket_lease_key("retention", 3) == Key("bucket-leases", "retention/0003")


@pytest.mark.parametrize("body", [{}, {"format": 2, "until": 1}, {"format": 1}, {"format": 1, "until": "soon"}])
def test_an_invalid_lease_is_refused(body: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_bucket_lease(body)
