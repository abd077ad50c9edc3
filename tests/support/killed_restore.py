"""`headrace restore apply` in a process that ends without warning, as by kill -9, at its Nth write or removal.

`python killed_restore.py N ARGUMENT...` runs the command line with these arguments.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from botocore.client import BaseClient

from headrace.cli import main

KILLED = 9
CHANGES = ("PutItem", "DeleteItem", "TransactWriteItems", "DeleteObjects", "PutObject")


def end_at_change(number: int) -> None:
    """End the process before it sends its change with this number, the first one being 1."""
    left = [number]
    send = BaseClient._make_api_call  # type: ignore[attr-defined]

    def counted(client: BaseClient, operation: str, parameters: Any) -> Any:
        if operation in CHANGES:
            left[0] -= 1
            if not left[0]:
                os._exit(KILLED)
        return send(client, operation, parameters)

    BaseClient._make_api_call = counted  # type: ignore[attr-defined]


if __name__ == "__main__":
    end_at_change(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
