"""The lease of a tick: its golden value, its keys, and refusal of what does not decode."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.codec.records.bucket_lease_record import (
    BucketLease,
    bucket_lease_body,
    bucket_lease_of_body,
    bucket_lease_sort,
)
from headrace.model.errors import CorruptError


def test_golden():
    assert bucket_lease_body(BucketLease(1_700_000_000_000)) == {"format": 1, "until": 1_700_000_000_000}
    stopped = BucketLease(7, "s/t", 2)
    assert bucket_lease_body(stopped) == {"format": 1, "until": 7, "position": "s/t", "crashes": 2}


@pytest.mark.parametrize("lease", [BucketLease(0), BucketLease(7, "s/t"), BucketLease(7, "", 1)])
def test_there_and_back(lease: BucketLease):
    assert bucket_lease_of_body(bucket_lease_body(lease)) == lease


def test_kinds_and_buckets_have_their_own():
    keys = [bucket_lease_sort(kind, bucket) for kind in ("retention", "resend-intents") for bucket in range(20)]
    assert len(set(keys)) == len(keys)
    assert bucket_lease_sort("retention", 3) == "retention/0003"


@pytest.mark.parametrize("body", [{}, {"format": 2, "until": 1}, {"format": 1}, {"format": 1, "until": "soon"}])
def test_what_does_not_decode_is_corrupt(body: dict[str, Any]):
    with pytest.raises(CorruptError):
        bucket_lease_of_body(body)
