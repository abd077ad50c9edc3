"""The environment variables of a function as typed values. An error names the variable that is missing or invalid.

A function gets only the variables of what it may use, so each variable is read when it is needed, not earlier.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace import topology
from headrace.certificate_names import is_label
from headrace.deployment_defaults import (
    COMPLETED_TRANSACTIONS_KEPT_MS,
    RETENTION_PERIOD_MS,
    TOKENS_REQUIRED,
    TOKENS_VARIABLE,
)
from headrace.model.tls_modes import is_tls_name

METADATA_TABLE = "HEADRACE_METADATA_TABLE"
CHUNK_BUCKET = "HEADRACE_CHUNK_BUCKET"
REQUESTS_QUEUE_URL = "HEADRACE_REQUESTS_QUEUE_URL"
TABLES_QUEUE_URL = "HEADRACE_TABLES_QUEUE_URL"
COMMITS_QUEUE_URL = "HEADRACE_COMMITS_QUEUE_URL"
ABORTS_QUEUE_URL = "HEADRACE_ABORTS_QUEUE_URL"
TICKS_QUEUE_URL = "HEADRACE_TICKS_QUEUE_URL"
AUDIT_LOG_GROUP = "HEADRACE_AUDIT_LOG_GROUP"
CONTAINER_COUNT = "HEADRACE_CONTAINER_COUNT"
S3_CONTAINERS = "HEADRACE_S3_CONTAINERS"
CERTIFICATE_LABELS = "HEADRACE_CERTIFICATE_LABELS"
AUTHORITY_KEYS = "HEADRACE_AUTHORITY_KEYS"
COMPLETED_TRANSACTIONS_KEPT_S = "HEADRACE_COMPLETED_TRANSACTIONS_KEPT_S"
RETENTION_PERIOD_S = "HEADRACE_RETENTION_PERIOD_S"
EXTERNAL_DOMAIN = "HEADRACE_EXTERNAL_DOMAIN"
EXTERNAL_BALANCER = "HEADRACE_EXTERNAL_BALANCER"


class EnvironmentVariableError(RuntimeError):
    """A variable that this function needs is missing or invalid: the deployment is wrong, not the request."""


class Environment:
    """Reads `variables`, by default those of the process."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = os.environ if variables is None else variables

    @property
    def metadata_table(self) -> str:
        return self._text(METADATA_TABLE)

    @property
    def chunk_bucket(self) -> str:
        return self._text(CHUNK_BUCKET)

    @property
    def requests_queue_url(self) -> str:
        return self._text(REQUESTS_QUEUE_URL)

    @property
    def tables_queue_url(self) -> str:
        return self._text(TABLES_QUEUE_URL)

    @property
    def commits_queue_url(self) -> str:
        return self._text(COMMITS_QUEUE_URL)

    @property
    def aborts_queue_url(self) -> str:
        return self._text(ABORTS_QUEUE_URL)

    @property
    def ticks_queue_url(self) -> str:
        return self._text(TICKS_QUEUE_URL)

    @property
    def audit_log_group(self) -> str:
        return self._text(AUDIT_LOG_GROUP)

    @property
    def certificate_labels(self) -> tuple[str, ...]:
        """What certificates are issued for, such as `store-0`."""
        labels = self._list(CERTIFICATE_LABELS)
        if wrong := [label for label in labels if not is_label(label)]:
            raise EnvironmentVariableError(f"{CERTIFICATE_LABELS} has {wrong[0][:40]!r}: expected store-0 or such")
        return labels

    @property
    def external_domain(self) -> str:
        """The domain in which clients outside the network find segment stores; empty if they find none."""
        domain = self._variables.get(EXTERNAL_DOMAIN, "")
        if domain and not is_tls_name(domain):
            raise EnvironmentVariableError(f"{EXTERNAL_DOMAIN} is {domain[:40]!r}: expected a domain in lower case")
        return domain

    @property
    def external_balancer(self) -> str:
        """The ARN of the load balancer that such clients connect to."""
        return self._text(EXTERNAL_BALANCER)

    @property
    def authority_keys(self) -> tuple[str, ...]:
        """The ids of the keys in KMS with which authorities sign, from the oldest to the newest."""
        return self._list(AUTHORITY_KEYS)

    @property
    def container_count(self) -> int:
        """Segment containers of this deployment whose logs are on stores; by default the number in the topology."""
        return self._number(CONTAINER_COUNT, topology.CONTAINER_COUNT)

    @property
    def s3_containers(self) -> int:
        """Segment containers of this deployment whose logs are in S3; by default none."""
        return self._number(S3_CONTAINERS, 0, least=0)

    @property
    def containers(self) -> tuple[int, int]:
        """How many containers have their logs on stores, and how many in S3."""
        return self.container_count, self.s3_containers

    @property
    def all_containers(self) -> int:
        return self.container_count + self.s3_containers

    @property
    def requires_tokens(self) -> bool:
        """Whether segment stores want a token. `headrace.adapters.token_keys` checks the value where keys are read."""
        return self._variables.get(TOKENS_VARIABLE) == TOKENS_REQUIRED

    @property
    def retention_period_ms(self) -> int:
        """How often retention checks a stream; by default every half hour."""
        return self._number(RETENTION_PERIOD_S, RETENTION_PERIOD_MS // 1_000) * 1_000

    @property
    def completed_transactions_kept_ms(self) -> int:
        """How long the outcome of a completed transaction can be queried; by default a day."""
        return self._number(COMPLETED_TRANSACTIONS_KEPT_S, COMPLETED_TRANSACTIONS_KEPT_MS // 1_000) * 1_000

    def _number(self, name: str, default: int, least: int = 1) -> int:
        text = self._variables.get(name, str(default))
        if not text.isdecimal() or int(text) < least:
            raise EnvironmentVariableError(f"{name} is {text!r}: expected a number, at least {least}")
        return int(text)

    def _list(self, name: str) -> tuple[str, ...]:
        return tuple(filter(None, (each.strip() for each in self._text(name).split(","))))

    def _text(self, name: str) -> str:
        value = self._variables.get(name, "")
        if not value:
            raise EnvironmentVariableError(f"the environment variable {name} is not set")
        return value
