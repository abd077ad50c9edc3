"""`python -m segmentstore_fargate.probe`: the health check of a store's task, told by the environment of its processes.

Exit code 0 if every process is alive, else 1, with what the others say on stderr. A task that is replaced loses its
volume, so only the state of its processes and their journals counts here: a store that cannot renew its lease or open a
container is alive, and waits.
"""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Sequence
from typing import Final

from headrace.model.errors import InvalidRequestError
from segmentstore_fargate.config import process_environments, read_config

TIMEOUT_S: Final = 5.0
_HTTP_OK: Final = 200


def problems(ports: Sequence[int]) -> list[str]:
    """What is wrong with the processes whose pages are on these ports of this machine."""
    found = []
    for port in ports:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            if answer.status != _HTTP_OK:
                found.append(f"port {port}: {answer.read().decode(errors='replace')}")
        except (OSError, http.client.HTTPException) as error:
            found.append(f"port {port}: {error!r}")
        finally:
            connection.close()
    return found


def main() -> int:
    try:
        ports = [read_config(each).health_port for each in process_environments(os.environ)]
    except InvalidRequestError as error:
        print(error.message, file=sys.stderr)
        return 1
    known = [port for port in ports if port]
    found = problems(known)
    if len(known) < len(ports):
        found.append("HEADRACE_HEALTH_PORT does not say where to ask")
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
