"""What the processes of a search tell one another by files: their names, or what is in them. Imports nothing heavy."""

from __future__ import annotations

from typing import Final

COMMIT_POINTS: Final = ("before-begin", "after-begin", "before-decision", "after-decision")
"""Of a commit set: before and after the write that notes it, then before and after the one that decides it. Its
transactions are prepared between the second and the third."""

BEGAN: Final = "began"
"""An attempt has begun to write. The process that sees its request to the controller tells this."""
FAILED: Final = "failed"
"""An attempt has failed after it had begun to write."""
SPECULATIVE: Final = "speculative"
OVERLAPPED: Final = "overlapped"
"""Two attempts at one partition ran at the same time, and then wrote."""
