"""Claims: this store tells the cluster which containers it has, under which address, and deposes whoever had them."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Mapping
from typing import Final

from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim, claim_body, claim_sort
from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import Create, Key, MetadataStore, Replace, WriteConflictError

_log = logging.getLogger(__name__)

CLAIM_ATTEMPTS_MAX: Final = 5
TASK_METADATA_VARIABLE: Final = "ECS_CONTAINER_METADATA_URI_V4"
TASK_METADATA_TIMEOUT_S: Final = 5.0


def claim_container(store: MetadataStore, container: int, claim: ContainerClaim) -> int:
    """Take the container over; its epoch, which is the version of the claim.

    Raises:
        UnavailableError: the metadata store does not answer, or others claim the container all the time.
    """
    key = Key(CLUSTER_PARTITION, claim_sort(container))
    for _ in range(CLAIM_ATTEMPTS_MAX):
        found = store.get(key)
        try:
            if found is None:
                store.write(Create(key, claim_body(claim)))
                return 0
            store.write(Replace(key, claim_body(claim), found.version))
        except WriteConflictError:
            _log.warning("event=claim_contended container=%d", container)
            continue
        return found.version + 1
    raise UnavailableError(f"container {container} is claimed by others again and again: is a store index used twice?")


def own_address(environment: Mapping[str, str], fallback: str) -> str:
    """The address of this task in its VPC if this is ECS, else `fallback`.

    Raises:
        UnavailableError: ECS does not say.
    """
    uri = environment.get(TASK_METADATA_VARIABLE)
    if not uri:
        return fallback
    try:
        with urllib.request.urlopen(uri, timeout=TASK_METADATA_TIMEOUT_S) as response:
            body = json.load(response)
        return str(body["Networks"][0]["IPv4Addresses"][0])
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise UnavailableError(f"the task metadata endpoint does not tell this task's address: {error!r}") from error
