"""Default values that the entry points share with the parts that they open."""

from __future__ import annotations

LEASE_MS_DEFAULT = 60_000
"""Of a transaction, in milliseconds: it is aborted if its writer does not renew it for so long."""

RETRY_TIMEOUT_S = 60.0
"""The usual `give_up_after_s`: for so long a request to a segment store is repeated while no store answers."""
