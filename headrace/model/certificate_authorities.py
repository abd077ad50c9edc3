"""Which certification authority of a deployment issues certificates, and which ones are trusted: rules over dates.

An operator declares the signing keys of authorities, from the oldest to the newest. A new authority is trusted at once,
but issues only when every process and client has had time to read the new bundle. The older ones are trusted until the
last certificates that they issued have ended. An authority whose key is no longer declared is distrusted at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_DAY_S: Final = 86_400

AUTHORITY_LIFE_S: Final = 3_650 * _DAY_S
LEAF_LIFE_S: Final = 14 * _DAY_S
BACKDATED_S: Final = 5 * 60
"""A certificate is valid from this long before it is made, for clocks that are behind."""
RENEWED_BELOW_S: Final = 10 * _DAY_S
"""A certificate with less time left is replaced. So the daily run may fail for nine days before one ends."""
PUBLISHED_BEFORE_USE_S: Final = 30 * _DAY_S
"""A long-running client that reads the bundle once a month knows a new authority before a server shows it."""
TRUSTED_AFTER_USE_S: Final = LEAF_LIFE_S
"""Then the last certificate that the authority before issued has ended."""
ENDS_SOON_S: Final = 365 * _DAY_S
"""An authority with less time left should be replaced: that takes 44 days, and an operator."""


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """An authority by its signing key. It is in the bundle since `published_s`; times are seconds since 1970."""

    key: str
    published_s: int
    ends_s: int


@dataclass(frozen=True, slots=True)
class AuthorityPlan:
    """What to do now. `trusted` is in the order of the declared keys, and the issuer is one of them."""

    issuer: CertificateAuthority
    trusted: tuple[CertificateAuthority, ...]
    missing: tuple[str, ...]
    """The keys for which a certificate is made now; their authorities are in `trusted`."""

    def ends_soon(self, now_s: int) -> bool:
        """Whether a successor of the newest authority must be declared."""
        return self.trusted[-1].ends_s - now_s < ENDS_SOON_S


def plan_authorities(
    published: Iterable[CertificateAuthority], declared_keys: Sequence[str], now_s: int
) -> AuthorityPlan:
    """Decide over the published authorities, for one or more declared keys from the oldest to the newest.

    A key before one that has an authority gets none: it was dropped, and must not come back.
    """
    valid = {each.key: each for each in published if each.ends_s > now_s}
    first_new = max((at + 1 for at, key in enumerate(declared_keys) if key in valid), default=0)
    missing = tuple(declared_keys[first_new:])
    made = {key: CertificateAuthority(key, now_s, now_s + AUTHORITY_LIFE_S) for key in missing}
    known = [(valid | made)[key] for key in declared_keys if key in valid or key in made]
    settled = [at for at, each in enumerate(known) if each.published_s + PUBLISHED_BEFORE_USE_S <= now_s]
    issuing = settled[-1] if settled else 0
    issuer = known[issuing]
    issues_since_s = issuer.published_s + PUBLISHED_BEFORE_USE_S
    first_trusted = issuing if issues_since_s + TRUSTED_AFTER_USE_S <= now_s else 0
    return AuthorityPlan(issuer, tuple(known[first_trusted:]), missing)


def must_renew(ends_s: int, now_s: int) -> bool:
    """Whether a certificate that ends then must be replaced now."""
    return ends_s - now_s < RENEWED_BELOW_S


def leaf_end_s(issuer_ends_s: int, now_s: int) -> int:
    """The end of a certificate that is issued now: never after that of its issuer."""
    return min(now_s + LEAF_LIFE_S, issuer_ends_s)
