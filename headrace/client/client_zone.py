"""The availability zone that a client runs in, by its id ("use1-az1"), which means the same place in every account.

A reader compares it with the zone of a segment's store: bytes between two zones cost money, bytes from S3 do not. If
the zone is not known, nothing changes. So one attempt is made to find it, with a short time limit.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.model.errors import InvalidRequestError
from headrace.zones import LOCAL_ZONE, is_zone_id

ZONE_VARIABLE: Final = "HEADRACE_ZONE"
"""Names the zone of a store, and that of a client. Empty for a client: its zone counts as unknown."""

LOOK_S_MAX: Final = 0.3
"""Of each request to a metadata endpoint. They are on the same machine, and answer in some milliseconds."""

WAIT_S_MAX: Final = 4 * LOOK_S_MAX
"""For another thread that looks."""

ANSWER_BYTES_MAX: Final = 1 << 20
"""The description of a task with all its containers has some 10 kB."""

_TASK_VARIABLE: Final = "ECS_CONTAINER_METADATA_URI_V4"
_TASK_PREFIX: Final = "http://169.254.170.2/"
_INSTANCE: Final = "http://169.254.169.254/latest"
_NO_INSTANCE_VARIABLE: Final = "AWS_EC2_METADATA_DISABLED"
"""As for the AWS SDKs."""
_VENDOR_FILE: Final = Path("/sys/devices/virtual/dmi/id/sys_vendor")
_VENDOR: Final = "Amazon EC2"


class ClientZone:
    """The zone of one client. `given` None: that of HEADRACE_ZONE, and without it the one that is found.

    `is_searched` is whether a zone that is not given is looked for.

    Raises:
        InvalidRequestError: what is given is not the id of a zone.
    """

    def __init__(
        self, given: str | None = None, *, environment: Mapping[str, str] = os.environ, is_searched: bool = True
    ) -> None:
        self._given = environment.get(ZONE_VARIABLE) if given is None else given
        self._is_searched = is_searched
        if self._given and not is_zone_id(self._given):
            raise InvalidRequestError(f"{self._given[:100]!r} is not the id of a zone, as use1-az1 is")

    async def differs_from(self, store_zone: str) -> bool:
        """Whether bytes from a store in `store_zone` come from another zone. False if either is not known.

        The first call of a process may look for its zone, in a thread.
        """
        if not store_zone:
            return False
        own = self._given
        if own is None:
            # Stores on this machine: there is nothing to find, and nothing to pay for.
            is_pointless = store_zone == LOCAL_ZONE or not self._is_searched
            own = "" if is_pointless else _found.known
            if own is None:
                own = await asyncio.to_thread(_found.zone)
        return bool(own) and own != store_zone


class ZoneSearch:
    """Looks for the zone of this process, and remembers what it finds, also that it finds nothing."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        *,
        task_prefix: str = _TASK_PREFIX,
        instance_url: str = _INSTANCE,
        vendor_file: Path = _VENDOR_FILE,
    ) -> None:
        self._environment = environment
        self._task_prefix = task_prefix
        self._instance_url = instance_url
        self._vendor_file = vendor_file
        self._zone: str | None = None
        self._looking = threading.Lock()

    @property
    def known(self) -> str | None:
        """What `zone` returns, if it has been looked for; else None."""
        return self._zone

    def zone(self) -> str:
        """Returns the id of the zone, "" if it is not known. Blocks for some tenths of a second at most.

        Many segments may ask at once. One of the callers looks, and the others wait for it.
        """
        # Not for longer: after a fork the thread that holds the lock may not exist.
        looks = self._looking.acquire(timeout=WAIT_S_MAX)
        try:
            if self._zone is None:
                self._zone = self._found()
            return self._zone
        finally:
            if looks:
                self._looking.release()

    def _found(self) -> str:
        try:
            zone = self._look()
        except (OSError, ValueError, http.client.HTTPException):  # no answer, or one that has no zone
            zone = ""
        return zone if is_zone_id(zone) else ""

    def _look(self) -> str:
        task = self._environment.get(_TASK_VARIABLE, "")
        if task:
            return self._zone_of_task(task)
        return self._zone_of_instance() if self._is_instance() else ""

    def _zone_of_task(self, url: str) -> str:
        """On ECS. The variable is set by the agent; an address elsewhere is not asked."""
        if not url.startswith(self._task_prefix):
            return ""
        described = json.loads(_answer(urllib.request.Request(f"{url}/task")))
        zone = described.get("AvailabilityZoneID") if isinstance(described, dict) else None
        return zone if isinstance(zone, str) else ""

    def _is_instance(self) -> bool:
        """Whether this machine is one of EC2: elsewhere its metadata address may belong to anything."""
        if self._environment.get(_NO_INSTANCE_VARIABLE, "").lower() == "true":
            return False
        return self._vendor_file.read_bytes()[:100].decode(errors="replace").strip() == _VENDOR

    def _zone_of_instance(self) -> str:
        """On EC2, with a token (IMDSv2)."""
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = _answer(urllib.request.Request(f"{self._instance_url}/api/token", headers=lifetime, method="PUT"))
        url = f"{self._instance_url}/meta-data/placement/availability-zone-id"
        proof = {"X-aws-ec2-metadata-token": token.decode("ascii")}
        return _answer(urllib.request.Request(url, headers=proof)).decode("ascii").strip()


def _answer(request: urllib.request.Request) -> bytes:
    """The answer to a request to this machine, which never goes through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=LOOK_S_MAX) as response:
        body: bytes = response.read(ANSWER_BYTES_MAX)
    return body


_found = ZoneSearch()
