"""A segment store that lets members catch up with next to nothing, apart from their share of what is appended.

Run it as a module. A test machine appends less than the usual rate of catching up, with which each member comes back.
"""

from __future__ import annotations

import runpy
from typing import Final

from headrace import topology
from headrace.replication import member_states

BYTES_PER_S: Final = 64 << 10
"""Less than the writers of a test append on any machine."""

if __name__ == "__main__":
    member_states.CATCH_UP_BYTES_PER_S = BYTES_PER_S  # type: ignore[attr-defined]
    runpy.run_module(topology.SEGMENT_STORES.module, run_name="__main__", alter_sys=True)
