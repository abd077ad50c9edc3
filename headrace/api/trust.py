"""The authorities that clients trust, as the API publishes them."""

from __future__ import annotations

from typing import Annotated

from headrace.codec.certificates import TrustBundle, decode_trust_bundle
from headrace.model.documents import Document, about


class TrustView(Document, frozen=True):
    """Certificates of the authorities that have issued those of the segment stores."""

    certificates: Annotated[tuple[str, ...], about("One PEM each; empty in a deployment without TLS")]

    @property
    def bundle(self) -> TrustBundle:
        """Raises CorruptError if there are none or too many, or one is not in its form."""
        return decode_trust_bundle({"certificates": list(self.certificates)})
