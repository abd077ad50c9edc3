"""The lease of a tick: its golden value, its keys, and refusal of what does not decode."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.codec.records.bucket_lease_record import bucket_lease_body, bucket_lease_of_body, bucket_lease_sort
from headrace.model.errors import CorruptError


def test_golden():
    assert bucket_lease_body(1_700_000_000_000) == {"format": 1, "until": 1_700_000_000_000}
    assert bucket_lease_of_body(bucket_lease_body(7)) == 7


def test_kinds_and_buckets_have_their_own():
    keys = [bucket_lease_sort(kind, bucket) for kind in ("retention", "resend-intents") for bucket in range(20)]
    assert len(set(keys)) == len(keys)
    assert bucket_lease_sort("retention", 3) == "retention/0003"


@pytest.mark.parametrize("body", [{}, {"format": 2, "until": 1}, {"format": 1}, {"format": 1, "until": "soon"}])
def test_what_does_not_decode_is_corrupt(body: dict[str, Any]):
    with pytest.raises(CorruptError):
        bucket_lease_of_body(body)
