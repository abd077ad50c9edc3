"""The record of the trust bundle."""

from __future__ import annotations

from typing import ClassVar

import pytest
from golden_records import GoldenRecords, Shape
from stream_world import StreamWorld

from headrace.codec.certificates import TrustBundle
from headrace.metadata.trust import decode_trust, find_trust, trust_body, write_trust
from headrace.ports.metadata_store import Key, WriteConflictError

CA = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
OTHER = CA.replace("AAAA", "BBBB")
BUNDLE = TrustBundle((CA,))


class TestTrust(GoldenRecords):
    shapes: ClassVar[dict[str, Shape]] = {
        "trust": (BUNDLE, trust_body, decode_trust, {"format": 1, "certificates": [CA]})
    }


def test_a_bundle_is_replaced_only_if_it_is_the_one_read():
    store = StreamWorld().store
    assert find_trust(store) is None
    store.write(write_trust(BUNDLE, None))
    trust = find_trust(store)
    assert trust is not None
    assert trust.bundle == BUNDLE
    assert store.get(Key("trust", "ca")) is not None
    store.write(write_trust(TrustBundle((CA, OTHER)), trust.version))
    with pytest.raises(WriteConflictError):
        store.write(write_trust(BUNDLE, trust.version))
