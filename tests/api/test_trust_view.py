"""The authorities as a client receives them: from a server that may answer anything."""

from __future__ import annotations

import pytest
from certificates_at_hand import Authority

from headrace.api.trust import TrustView
from headrace.codec.certificates import AUTHORITIES_MAX
from headrace.model.errors import CorruptError

ONE = Authority().bundle.certificates[0]


def test_authorities_arrive() -> None:
    assert TrustView((ONE, ONE)).bundle.certificates == (ONE, ONE)


@pytest.mark.parametrize(
    "certificates", [(), (ONE,) * (AUTHORITIES_MAX + 1), (ONE * 2,), (f"# {ONE}",), ("A" * 100_000,)]
)
def test_other_texts_are_refused(certificates: tuple[str, ...]) -> None:
    """OpenSSL would take thousands of certificates, for seconds in which the client's loop stands still."""
    with pytest.raises(CorruptError):
        _ = TrustView(certificates).bundle
