"""The trust bundle of a deployment: the authorities whose certificates its processes and clients accept.

The function that issues certificates writes the record; segment stores, functions and the HTTP API read it. It has a
partition of its own, so that no other process needs the right to write it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headrace.codec.certificates import TrustBundle, decode_trust_bundle, trust_bundle_fields
from headrace.metadata.record_layout import decoded, versioned
from headrace.ports.metadata_store import Body, Create, Key, MetadataStore, Replace

TRUST_PARTITION: Final = "trust"
TRUST_SORT: Final = "ca"


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """A bundle as it was read, and the version of its record."""

    bundle: TrustBundle
    version: int


def trust_key() -> Key:
    return Key(TRUST_PARTITION, TRUST_SORT)


def trust_body(bundle: TrustBundle) -> dict[str, Any]:
    return versioned(**trust_bundle_fields(bundle))


def decode_trust(body: Body) -> TrustBundle:
    return decoded("trust", body, lambda fields: decode_trust_bundle(dict(fields)))


def find_trust(store: MetadataStore) -> StoredBundle | None:
    """The bundle; one read. None if the deployment has issued no certificate yet.

    Raises:
        CorruptError: the record is not a bundle.
        UnavailableError, ThrottledError: the metadata store does not answer.
    """
    record = store.get(trust_key())
    return None if record is None else StoredBundle(decode_trust(record.body), record.version)


def write_trust(bundle: TrustBundle, version: int | None) -> Create | Replace:
    """The write that replaces the bundle of this version, or creates the first one if `version` is None."""
    key, body = trust_key(), trust_body(bundle)
    return Create(key, body) if version is None else Replace(key, body, version)
