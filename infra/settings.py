"""The settings that an operator can choose at `cdk deploy` with `-c name=value`; others are in headrace/topology/.

They are context values, not CloudFormation parameters: the number of zones decides the number of services, which a
synth without an account must know. Invalid values are refused here, because they would fail in mid-deployment.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from constructs import Node

from headrace import topology
from headrace.certificate_names import DOMAIN, certificate_labels
from headrace.deployment_defaults import S3_CONTAINERS_MAX, TOKENS_REQUIRED, TOKENS_VARIABLE
from headrace.topology.services import EXTERNAL_ACCESS
from headrace.zones import ZONE_NETWORKS_MAX, ZoneNetworks

DEFAULT_VPC_CIDR = "10.73.0.0/16"
VPC_PREFIX_BITS_MAX = 20
"""The smallest network that still holds the subnets of all zones with room for clients (4,096 addresses)."""

ACCOUNT_CONCURRENCY = 1_000
"""Lambda's usual quota of concurrent executions in a Region. New accounts start with 10."""
UNRESERVED_CONCURRENCY_MIN = 100
"""The executions that Lambda requires to remain for functions without a reservation."""

CONTAINERS_MAX = 1_024
COPIES = (1, 3)
STORES_PER_ZONE_MAX = 32
BUCKETS_MAX = 128
"""Each gets 19 ticks a minute, which one invocation sends, 10 at a time."""

CALLS_PER_SECOND = 500
CALLS_PER_SECOND_MAX = 10_000
"""API Gateway's quota for all APIs of a Region."""

COMPLETED_TRANSACTIONS_HOURS = 24
COMPLETED_TRANSACTIONS_HOURS_MAX = 24 * 30
"""A longer time costs more storage."""

SPARK_JOBS = ("stream-to-lake", "stream-to-iceberg", "replay", "report", "windowed-counts")
"""The jobs on Glue that a deployment may have in addition to the example."""

NUMBER_DIGITS_MAX = 9
"""Of a whole number; all settings have smaller limits."""

_ROUTABLE = tuple(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
"""The private networks of RFC 1918. Others that are not public, such as 127.0.0.0/8, cannot be routed in a VPC."""
_OF_THE_CDK = re.compile(r"[:/]")
"""Keys of the CDK have a colon or a slash. Those with hyphens may be its own, too."""
_ZONE_NAME = re.compile(r"[a-z]{2}(-[a-z]+)+-\d[a-z]")
_SECURITY_GROUP = re.compile(r"sg-[0-9a-f]{8,17}")
_SWITCH = {"true": True, "false": False}
_TOKENS = {"required": True, "off": False}
_CANARY = {"on": True, "off": False}
TLS_MODES = ("off", "permissive", "required")
CA_KEYS_MAX = 4
"""A replacement of a certification authority needs two keys."""
KMS_KEY_CREATED = "create"
_KMS_KEY = re.compile(
    r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32})", re.ASCII
)
"""The second form is that of a multi-Region key."""
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN_NAME = re.compile(rf"(?=.{{1,200}}$){_LABEL}(\.{_LABEL})+", re.ASCII)
"""Of at most 200 characters: names of stores are longer."""
EXTERNAL_SCHEMES = ("internet-facing", "internal")
_HOSTED_ZONE = re.compile(r"Z[0-9A-Z]{1,31}", re.ASCII)
_RESTORE_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]{1,512}", re.ASCII)
_CA_KEY = re.compile(r"[1-9][0-9]?")


@dataclass(frozen=True, slots=True)
class Settings:
    """Choices of one deployment.

    `zones` are availability zone names; empty means the Region's first ones. `stores_per_zone` is how many segment
    stores run in each; `store_cpu` (vCPU), `store_memory` (GB) and `volume_gib` are the size of a store's task and
    volume. `spark_job` adds the Glue job and the NAT gateway that it needs, and `spark_jobs` names further jobs.
    `keep_data` keeps table and bucket when their stack is deleted.
    `account_concurrency` is the account's quota of Lambda executions at once, of which some are reserved if it allows.
    `metrics_from` is a security group or an IPv4 network that may read the metrics of stores. `zone_networks` are
    networks of clients outside the VPC, with their zones ("use1-az1=10.1.0.0/24"): stores count what they send to other
    zones. `copies` is how many stores keep each entry of a log until S3 has it; None: what the topology says for this
    number of zones.

    `containers` and `buckets` must never change after the first deployment; `s3_containers`, additional containers for
    streams that S3 acknowledges, may change once, from 0. `calls_per_second` bounds the API, for all
    callers together. `completed_transactions_hours` is how long the outcome of a transaction can be queried. With
    `tokens` segment stores demand a delegation token of each request. `tls` says whether segment stores have
    certificates, and whether they also accept connections without TLS. `ca_keys` numbers the keys of certification
    authorities, from the oldest to the newest. `grpc_bridge` adds the bridge for Pravega's clients, which needs TLS.
    `kms_key` is the ARN of a customer managed key that encrypts all data, or "create"; None: AWS's own keys.
    `external_domain` makes stores and bridge reachable from outside the VPC, by names in this domain, which the hosted
    zone `external_zone_id` of Route 53 gets. `external_from` are the networks that may connect. `external_scheme` is
    "internal" for clients that come through a VPN or another VPC. `restore_role` is a role that may change and delete
    chunks, in addition to the stores.
    `canary` adds a function that writes an event to each container once a minute, and reads it again.
    `nag` checks the templates with cdk-nag, which takes most of the time of a synth.
    """

    zones: tuple[str, ...] = ()
    vpc_cidr: str = DEFAULT_VPC_CIDR
    spark_job: bool = True
    keep_data: bool = True
    alarm_email: str | None = None
    account_concurrency: int = ACCOUNT_CONCURRENCY
    metrics_from: str | None = None
    zone_networks: str | None = None
    copies: int | None = None
    stores_per_zone: int = topology.SEGMENT_STORES.stores_per_zone
    store_cpu: int = topology.SEGMENT_STORES.cores
    store_memory: int = topology.SEGMENT_STORES.memory_gb
    volume_gib: int = topology.SEGMENT_STORES.volume_gib
    containers: int = topology.CONTAINER_COUNT
    s3_containers: int = 0
    buckets: int = topology.BUCKET_COUNT
    calls_per_second: int = CALLS_PER_SECOND
    completed_transactions_hours: int = COMPLETED_TRANSACTIONS_HOURS
    spark_jobs: tuple[str, ...] = ()
    tokens: bool = True
    tls: str = TLS_MODES[-1]
    ca_keys: tuple[int, ...] = (1,)
    grpc_bridge: bool = False
    kms_key: str | None = None
    external_domain: str | None = None
    external_zone_id: str | None = None
    external_from: tuple[str, ...] = ()
    external_scheme: str = EXTERNAL_SCHEMES[0]
    restore_role: str | None = None
    canary: bool = True
    nag: bool = False

    def __post_init__(self) -> None:
        for zone in self.zones:
            if not _ZONE_NAME.fullmatch(zone):
                raise ValueError(f"zones: {zone!r} is not an availability zone name such as us-east-1a")
        if len(set(self.zones)) != len(self.zones):
            raise ValueError(f"zones: {', '.join(self.zones)} names a zone twice")
        if len(regions := sorted({zone[:-1] for zone in self.zones})) > 1:
            raise ValueError(f"zones: {', '.join(self.zones)} are in several Regions, {' and '.join(regions)}")
        if unknown := sorted(set(self.spark_jobs) - set(SPARK_JOBS)):
            raise ValueError(f"spark_jobs: {', '.join(unknown)} is none of {', '.join(SPARK_JOBS)}")
        if self.spark_jobs and not self.spark_job:
            raise ValueError("spark_jobs: they need spark_job=true")
        network = _private_network("vpc_cidr", self.vpc_cidr)
        if not 16 <= network.prefixlen <= VPC_PREFIX_BITS_MAX:
            raise ValueError(f"vpc_cidr: {self.vpc_cidr} must be between /16 and /{VPC_PREFIX_BITS_MAX}")
        if self.alarm_email is not None and "@" not in self.alarm_email:
            raise ValueError(f"alarm_email: {self.alarm_email!r} is not an address")
        if self.zone_networks is not None:
            _check_zone_networks(self.zone_networks, self.vpc_cidr)
        if self.metrics_from is not None:
            _check_metrics_source(self.metrics_from)
        if self.account_concurrency < 1:
            raise ValueError(f"account_concurrency: {self.account_concurrency} must be at least 1")
        for name, most in (
            ("containers", CONTAINERS_MAX),
            ("buckets", BUCKETS_MAX),
            ("stores_per_zone", STORES_PER_ZONE_MAX),
            ("calls_per_second", CALLS_PER_SECOND_MAX),
            ("completed_transactions_hours", COMPLETED_TRANSACTIONS_HOURS_MAX),
        ):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name}: {getattr(self, name)} must be between 1 and {most}")
        if not 0 <= self.s3_containers <= S3_CONTAINERS_MAX:
            raise ValueError(f"s3_containers: {self.s3_containers} must be between 0 and {S3_CONTAINERS_MAX}")
        if self.copies not in (None, *COPIES):
            raise ValueError(f"copies: {self.copies} must be 1 or 3")
        if self.log_copies > self.zone_count:
            raise ValueError(f"copies: {self.log_copies} need as many zones, there are {self.zone_count}")
        self._check_stores()
        self._check_tls()
        self._check_key()
        self._check_external()

    def _check_stores(self) -> None:
        if self.stores_per_zone > 1 and not self.is_replicated:
            raise ValueError("stores_per_zone: a log with one copy stays with its store, so it must be 1 with copies=1")
        processes = self.zone_count * self.stores_per_zone * self.segment_stores.processes
        if self.containers < processes:
            raise ValueError(f"containers: {self.containers} are too few for {processes} processes of stores")

    def _check_key(self) -> None:
        if self.kms_key not in (None, KMS_KEY_CREATED) and not _KMS_KEY.fullmatch(self.kms_key or ""):
            expected = f"{KMS_KEY_CREATED} or the ARN of a key, arn:aws:kms:REGION:ACCOUNT:key/ID"
            raise ValueError(f"kms_key: {self.kms_key!r} must be {expected}")

    def _check_tls(self) -> None:
        if self.tls not in TLS_MODES:
            raise ValueError(f"tls: {self.tls!r} must be {', '.join(TLS_MODES[:-1])} or {TLS_MODES[-1]}")
        if not 1 <= len(self.ca_keys) <= CA_KEYS_MAX or sorted(set(self.ca_keys)) != list(self.ca_keys):
            raise ValueError(f"ca_keys: expected 1 to {CA_KEYS_MAX} numbers in their order, such as 1 or 1,2")
        if self.grpc_bridge and not self.has_certificates:
            raise ValueError("grpc_bridge: it sends and receives passwords, so it needs tls=permissive or tls=required")

    def _check_external(self) -> None:
        if self.restore_role is not None and not _RESTORE_ROLE.fullmatch(self.restore_role):
            expected = "the ARN of a role, arn:aws:iam::ACCOUNT:role/NAME"
            raise ValueError(f"restore_role: {self.restore_role!r} must be {expected}")
        if self.external_scheme not in EXTERNAL_SCHEMES:
            raise ValueError(f"external_scheme: {self.external_scheme!r} must be {' or '.join(EXTERNAL_SCHEMES)}")
        if self.external_domain is None:
            if self.external_zone_id is not None or self.external_from:
                raise ValueError("external_zone_id and external_from: they need external_domain")
            return
        domain = self.external_domain
        if not _DOMAIN_NAME.fullmatch(domain) or domain.endswith(DOMAIN):
            raise ValueError(f"external_domain: {domain!r} must be a domain in lower case such as streams.example.com")
        if self.tls != TLS_MODES[-1] or not self.tokens:
            raise ValueError(
                "external_domain: clients outside need encryption and tokens. Deploy with tls=required and "
                "tokens=required first (docs/operating/security.md), and then add it"
            )
        if not _HOSTED_ZONE.fullmatch(self.external_zone_id or ""):
            raise ValueError(
                f"external_zone_id: {self.external_zone_id!r} must be the id of a hosted zone of Route 53 for "
                f"{domain}, such as Z0123456789ABCDEFGHIJ"
            )
        _check_networks("external_from", self.external_from)
        stores = self.zone_count * EXTERNAL_ACCESS.slots(self.segment_stores)
        if stores + self.grpc_bridge > EXTERNAL_ACCESS.listeners_max:
            raise ValueError(
                f"external_domain: {stores} listeners for stores are more than a load balancer has "
                f"({EXTERNAL_ACCESS.listeners_max}): use fewer stores_per_zone or a smaller store_cpu"
            )

    @property
    def has_certificates(self) -> bool:
        """Whether the deployment has a certification authority."""
        return self.tls != TLS_MODES[0]

    @property
    def certificate_labels(self) -> tuple[str, ...]:
        """What certificates are issued for."""
        return certificate_labels(self.zone_count, has_bridge=self.grpc_bridge)

    @property
    def zone_count(self) -> int:
        """Zones of this deployment, with an ECS service of segment stores each."""
        return len(self.zones) or topology.SEGMENT_STORES.stores

    @property
    def log_copies(self) -> int:
        """How many stores, in different zones, keep each entry of a log until S3 has it: 1 or 3."""
        return topology.SEGMENT_STORES.copies_in(self.zone_count) if self.copies is None else self.copies

    @property
    def segment_stores(self) -> topology.SegmentStoreService:
        """The segment stores in the size of this deployment."""
        return topology.SEGMENT_STORES.of_size(self.stores_per_zone, self.store_cpu, self.store_memory, self.volume_gib)

    @property
    def is_replicated(self) -> bool:
        return self.log_copies > 1

    def reserved_concurrency(self, declared: topology.Function) -> int | None:
        """Executions to reserve for a function; None if it needs none, or if Lambda would refuse the reservation."""
        reserved = sum(self._reserved(function) for function in topology.FUNCTIONS)
        if self.account_concurrency - reserved < UNRESERVED_CONCURRENCY_MIN:
            return None
        return self._reserved(declared) or None

    def _reserved(self, declared: topology.Function) -> int:
        is_of_ticks = declared.name == topology.TICKS_QUEUE.function
        return self.queue_concurrency(topology.TICKS_QUEUE) if is_of_ticks else declared.reserved_concurrency

    def queue_concurrency(self, queue: topology.Queue) -> int:
        """The number of batches of a queue that are processed concurrently; for ticks it depends on the buckets."""
        if queue is topology.TICKS_QUEUE:
            return topology.TICKS_AT_ONCE_PER_BUCKET * self.buckets
        return queue.concurrency_max

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with these settings that every function gets."""
        # API functions say in each answer whether segment stores demand tokens, also those that may not read the keys.
        tokens = {TOKENS_VARIABLE: TOKENS_REQUIRED} if self.tokens else {}
        external = {"HEADRACE_EXTERNAL_DOMAIN": self.external_domain} if self.external_domain else {}
        return (
            self.s3_environment
            | tokens
            | external
            | {
                "HEADRACE_CONTAINER_COUNT": str(self.containers),
                "HEADRACE_BUCKET_COUNT": str(self.buckets),
                "HEADRACE_COMPLETED_TRANSACTIONS_KEPT_S": str(self.completed_transactions_hours * 3600),
            }
        )

    @property
    def s3_environment(self) -> dict[str, str]:
        """The variable with `s3_containers`, for functions and stores; empty while there are none."""
        return {"HEADRACE_S3_CONTAINERS": str(self.s3_containers)} if self.s3_containers else {}

    def effective_grants(self, grants: Iterable[topology.Grant]) -> tuple[topology.Grant, ...]:
        """The grants that count in this deployment: one without tokens has no keys to read."""
        return tuple(grant for grant in grants if self.tokens or grant != "token-keys:read")

    @classmethod
    def from_context(cls, node: Node) -> Settings:
        """Read `-c name=value` of the fields that are given.

        Raises:
            ValueError: a value is wrong, or there is no such setting. The message names the setting.
        """
        _check_names(node)
        zones = str(node.try_get_context("zones") or "")
        jobs = str(node.try_get_context("spark_jobs") or "")
        from_outside = str(node.try_get_context("external_from") or "")
        usual = cls()
        return cls(
            zones=tuple(zone.strip() for zone in zones.split(",") if zone.strip()),
            vpc_cidr=str(node.try_get_context("vpc_cidr") or DEFAULT_VPC_CIDR),
            spark_job=_switch(node, "spark_job"),
            keep_data=_switch(node, "keep_data"),
            alarm_email=_text(node, "alarm_email"),
            account_concurrency=_number(node, "account_concurrency", ACCOUNT_CONCURRENCY),
            metrics_from=_text(node, "metrics_from"),
            zone_networks=_text(node, "zone_networks"),
            copies=_number(node, "copies", 0) if node.try_get_context("copies") is not None else None,
            stores_per_zone=_number(node, "stores_per_zone", usual.stores_per_zone),
            store_cpu=_number(node, "store_cpu", usual.store_cpu),
            store_memory=_number(node, "store_memory", usual.store_memory),
            volume_gib=_number(node, "volume_gib", usual.volume_gib),
            containers=_number(node, "containers", topology.CONTAINER_COUNT),
            s3_containers=_number(node, "s3_containers", 0),
            buckets=_number(node, "buckets", topology.BUCKET_COUNT),
            calls_per_second=_number(node, "calls_per_second", CALLS_PER_SECOND),
            completed_transactions_hours=_number(node, "completed_transactions_hours", COMPLETED_TRANSACTIONS_HOURS),
            spark_jobs=tuple(dict.fromkeys(name.strip() for name in jobs.split(",") if name.strip())),
            tokens=_chosen(node, "tokens", _TOKENS, "required"),
            tls=str(node.try_get_context("tls") or TLS_MODES[-1]),
            ca_keys=_ca_keys(node),
            grpc_bridge=_switch(node, "grpc_bridge", default=False),
            kms_key=_text(node, "kms_key"),
            external_domain=_text(node, "external_domain"),
            external_zone_id=_text(node, "external_zone_id"),
            external_from=tuple(each.strip() for each in from_outside.split(",") if each.strip()),
            external_scheme=str(node.try_get_context("external_scheme") or EXTERNAL_SCHEMES[0]),
            restore_role=_text(node, "restore_role"),
            canary=_chosen(node, "canary", _CANARY, "on"),
            nag=_switch(node, "nag", default=False),
        )


def _check_names(node: Node) -> None:
    """Refuse a key that is not the name of a setting: a misspelt one would have no effect, without a word."""
    if not hasattr(node, "get_all_context"):  # values that are not those of a construct
        return
    known = [field.name for field in fields(Settings)]
    for key in node.get_all_context():
        if key in known or _OF_THE_CDK.search(key):
            continue
        near = difflib.get_close_matches(key.strip().lower().replace("-", "_"), known, n=1)
        if near or "-" not in key:
            hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(known)}"
            raise ValueError(f"{key or repr(key)}: there is no such setting; {hint}")


def _private_network(name: str, text: str) -> ipaddress.IPv4Network:
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"{name}: {text!r} is not an IPv4 network: {error}") from error
    if not any(network.subnet_of(routable) for routable in _ROUTABLE):
        raise ValueError(f"{name}: {text} is not a private network: it must be in {', '.join(map(str, _ROUTABLE))}")
    return network


def _check_networks(name: str, networks: Iterable[str]) -> None:
    """Refuse what is not a network, and an empty list: an operator must choose that a port is open to all."""
    if not networks:
        raise ValueError(f"{name}: name the networks that may connect, such as 203.0.113.0/24, or 0.0.0.0/0 for all")
    for text in networks:
        try:
            ipaddress.IPv4Network(text)
        except ValueError as error:
            raise ValueError(f"{name}: {text!r} is not an IPv4 network: {error}") from error


def _check_metrics_source(source: str) -> None:
    """Refuse a source that is neither a security group nor a private network."""
    if source.startswith("sg-"):
        if not _SECURITY_GROUP.fullmatch(source):
            raise ValueError(f"metrics_from: {source!r} is not the id of a security group such as sg-0a1b2c3d4e5f60718")
        return
    _private_network("metrics_from", source)


def _check_zone_networks(text: str, vpc_cidr: str) -> None:
    """Refuse what stores could not read, and subnets of the VPC itself, whose zones the templates know."""
    try:
        networks = ZoneNetworks.parse(text).networks
    except ValueError as error:
        raise ValueError(f"zone_networks: {error}") from error
    if len(networks) > ZONE_NETWORKS_MAX // 2:  # the others are for the subnets of the VPC
        raise ValueError(f"zone_networks: at most {ZONE_NETWORKS_MAX // 2} networks are allowed, not {len(networks)}")
    vpc = ipaddress.IPv4Network(vpc_cidr)
    for network in networks:
        if isinstance(network, ipaddress.IPv4Network) and network.overlaps(vpc):
            raise ValueError(f"zone_networks: {network} overlaps {vpc_cidr}, the network of the stores")


def _text(node: Node, name: str) -> str | None:
    value = node.try_get_context(name)
    return None if value is None else str(value)


def _number(node: Node, name: str, default: int) -> int:
    """A whole number of at least 0; `default` if the context does not say."""
    value = node.try_get_context(name)
    text = str(default if value is None else value)
    if not (text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX):
        raise ValueError(f"{name}: {text[:100]!r} must be a whole number of at most {NUMBER_DIGITS_MAX} digits")
    return int(text)


def _switch(node: Node, name: str, *, default: bool = True) -> bool:
    """True or false as the context says; `default` if it does not."""
    value = node.try_get_context(name)
    text = str(default if value is None else value).lower()
    if text not in _SWITCH:
        raise ValueError(f"{name}: {value!r} must be true or false")
    return _SWITCH[text]


def _chosen(node: Node, name: str, words: Mapping[str, bool], default: str) -> bool:
    """What the word in the context means; that of `default` if there is none."""
    value = node.try_get_context(name)
    text = default if value is None else str(value)
    if text not in words:
        raise ValueError(f"{name}: {value!r} must be {' or '.join(words)}")
    return words[text]


def _ca_keys(node: Node) -> tuple[int, ...]:
    value = node.try_get_context("ca_keys")
    parts = [part.strip() for part in str(1 if value is None else value).split(",")]
    if not all(map(_CA_KEY.fullmatch, parts)):
        raise ValueError(f"ca_keys: {str(value)[:100]!r} must be numbers from 1 to 99, such as 1 or 1,2")
    return tuple(map(int, parts))
