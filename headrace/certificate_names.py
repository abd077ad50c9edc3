"""The names that certificates of a deployment are issued for: its segment stores, and the gRPC bridge.

They are not in the topology, so that a segment store does not import the declarations of functions and routes: each
change of these would make another image of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

DOMAIN: Final = "headrace.internal"
"""The private DNS zone of a deployment. A client that cannot look names up in it can still check them."""
BRIDGE_LABEL: Final = "controller"
"""Pravega's clients call the bridge their controller."""
SECRET_NAME_PREFIX: Final = "headrace-certificate-"
_STORE: Final = "store-"


def store_label(index: int) -> str:
    """The first part of the DNS name of store number `index`."""
    return f"{_STORE}{index}"


def certificate_labels(stores: int, *, has_bridge: bool) -> tuple[str, ...]:
    """The labels of a deployment with so many stores."""
    return (*map(store_label, range(stores)), *([BRIDGE_LABEL] if has_bridge else []))


def dns_name(label: str) -> str:
    """`store-0` is `store-0.headrace.internal`."""
    return f"{label}.{DOMAIN}"


def external_name(label: str, external_domain: str) -> str:
    """The name of a label for clients outside the network: `store-0` is `store-0.streams.example.com`."""
    return f"{label}.{external_domain}"


def certified_names(label: str, external_domain: str = "") -> tuple[str, ...]:
    """The names in the certificate of a label; without an external domain only the one in the private zone."""
    return (dns_name(label), *([external_name(label, external_domain)] if external_domain else []))


def is_store_label(label: str) -> bool:
    """Stores connect to each other, so their certificates also identify clients."""
    number = label.removeprefix(_STORE)
    return label.startswith(_STORE) and number.isascii() and number.isdigit()


def is_label(label: str) -> bool:
    """Whether certificates are issued for the label."""
    return label == BRIDGE_LABEL or is_store_label(label)


def secret_name(label: str) -> str:
    """The secret with the certificate of a label."""
    return f"{SECRET_NAME_PREFIX}{label}"


def labels_text(labels: Sequence[str]) -> str:
    """The labels as an environment variable has them."""
    return ",".join(labels)
