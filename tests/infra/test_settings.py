"""Choices that would fail late are refused early."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from constructs import Node


import aws_cdk as cdk
import pytest

from headrace import topology
from infra.packaging.project import ROOT
from infra.settings import Settings


class _Context:
    """What `Settings` needs of a construct node."""

    def __init__(self, **values: object) -> None:
        self._values = values

    def try_get_context(self, name: str) -> object:
        return self._values.get(name)

    def get_all_context(self) -> dict[str, object]:
        return self._values


def _context(**values: object) -> Node:
    return cast("Node", _Context(**values))


def test_default_settings_keep_data_and_use_the_declared_zones():
    settings = Settings.from_context(_context())
    assert settings == Settings()
    assert settings.zone_count == topology.SEGMENT_STORES.stores
    assert settings.keep_data
    assert settings.spark_job


def test_choices_are_read():
    context = _context(zones="eu-west-1a, eu-west-1c", vpc_cidr="10.0.0.0/18", spark_job="false", keep_data=False)
    assert Settings.from_context(context) == Settings(
        zones=("eu-west-1a", "eu-west-1c"), vpc_cidr="10.0.0.0/18", spark_job=False, keep_data=False
    )
    assert Settings(zones=("us-gov-west-1a",)).zone_count == 1


def test_the_canary_is_on_by_default():
    assert Settings.from_context(_context(canary="on")) == Settings.from_context(_context()) == Settings()
    assert Settings.from_context(_context(canary="off")) == Settings(canary=False)


def test_tokens_are_demanded_by_default():
    assert Settings.from_context(_context(tokens="required")) == Settings.from_context(_context()) == Settings()
    assert Settings.from_context(_context(tokens="off")) == Settings(tokens=False)
    assert Settings(tokens=False).effective_grants(["token-keys:read", "metadata:read"]) == ("metadata:read",)
    assert Settings().effective_grants(["token-keys:read"]) == ("token-keys:read",)


def test_tls_is_demanded_by_default():
    assert Settings.from_context(_context()).tls == "required"
    assert not Settings(tls="off").has_certificates
    settings = Settings.from_context(_context(tls="permissive", ca_keys="1, 2", grpc_bridge="true"))
    assert settings == Settings(tls="permissive", ca_keys=(1, 2), grpc_bridge=True)
    assert settings.certificate_labels == ("store-0", "store-1", "store-2", "controller")
    assert Settings(tls="required").certificate_labels == ("store-0", "store-1", "store-2")


def test_the_size_of_stores_is_a_choice():
    choices = {"stores_per_zone": 2, "store_cpu": "2", "store_memory": "16", "volume_gib": "200"}
    settings = Settings.from_context(_context(**choices, containers=12))
    assert Settings().segment_stores == topology.SEGMENT_STORES
    size = settings.segment_stores
    assert (size.stores_per_zone, size.processes, size.memory_mb, size.volume_gib) == (2, 2, 16_384, 200)


OUTSIDE = {
    "external_domain": "streams.example.com",
    "external_zone_id": "Z0123456789ABCDEFGHIJ",
    "external_from": "203.0.113.0/24, 198.51.100.7/32",
    "tls": "required",
    "tokens": "required",
}


def test_clients_outside_are_an_opt_in():
    assert Settings().external_domain is None
    assert "HEADRACE_EXTERNAL_DOMAIN" not in Settings().environment
    chosen = Settings.from_context(_context(**OUTSIDE, restore_role="arn:aws:iam::111122223333:role/ops/restore"))
    assert chosen.external_from == ("203.0.113.0/24", "198.51.100.7/32")
    assert (chosen.external_scheme, chosen.restore_role) == (
        "internet-facing",
        "arn:aws:iam::111122223333:role/ops/restore",
    )
    assert chosen.environment["HEADRACE_EXTERNAL_DOMAIN"] == "streams.example.com"
    inside = Settings.from_context(_context(**OUTSIDE, external_scheme="internal"))
    assert inside.external_scheme == "internal"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tls": "permissive"}, "tls=required and tokens=required"),
        ({"tokens": "off"}, "tls=required and tokens=required"),
        ({"external_domain": "Streams.example.com"}, "lower case"),
        ({"external_domain": "headrace.internal"}, "such as streams.example.com"),
        ({"external_zone_id": "streams.example.com"}, "hosted zone"),
        ({"external_zone_id": None}, "hosted zone"),
        ({"external_from": None}, "0.0.0.0/0 for all"),
        ({"external_from": "all"}, "is not an IPv4 network"),
        ({"external_from": "203.0.113.7/24"}, "is not an IPv4 network"),
        ({"external_scheme": "public"}, "internet-facing or internal"),
        ({"external_domain": None}, "they need external_domain"),
        ({"restore_role": "restore"}, "the ARN of a role"),
        ({"store_cpu": "16", "store_memory": "32", "volume_gib": "200", "containers": "64"}, "96 listeners"),
    ],
)
def test_wrong_settings_of_clients_outside_are_refused(change: dict[str, str | None], words: str):
    given = {name: value for name, value in (OUTSIDE | change).items() if value is not None}
    with pytest.raises(ValueError, match=words):
        Settings.from_context(_context(**given))


def test_cdk_nag_is_off_unless_asked_for():
    assert not Settings.from_context(_context()).nag
    assert Settings.from_context(_context(nag="true")).nag is True
    with pytest.raises(ValueError, match="nag"):
        Settings.from_context(_context(nag="maybe"))


def test_three_zones_replicate_unless_told_otherwise():
    two_zones = ("eu-west-1a", "eu-west-1c")
    assert Settings().log_copies == 3
    assert Settings(zones=two_zones).log_copies == 1
    assert Settings.from_context(_context(copies="1")).log_copies == 1
    assert Settings.from_context(_context(copies=3)) == Settings(copies=3)
    for wrong in (0, 2, 4):
        with pytest.raises(ValueError, match="copies"):
            Settings(copies=wrong)
    with pytest.raises(ValueError, match="3 need as many zones, there are 2"):
        Settings(zones=two_zones, copies=3)
    with pytest.raises(ValueError, match="copies"):
        Settings.from_context(_context(copies="three"))


def test_metrics_are_opened_to_a_group_or_a_network():
    assert Settings.from_context(_context(metrics_from="sg-0a1b2c3d4e5f60718")).metrics_from == "sg-0a1b2c3d4e5f60718"
    assert Settings.from_context(_context(metrics_from="10.1.0.0/16")).metrics_from == "10.1.0.0/16"
    assert Settings.from_context(_context()).metrics_from is None


def test_networks_of_clients_have_zones():
    networks = "use1-az1=10.1.0.0/24,use1-az2=fd00::/64"
    assert Settings.from_context(_context(zone_networks=networks)).zone_networks == networks
    assert Settings.from_context(_context()).zone_networks is None


@pytest.mark.parametrize("key", ["0a1b2c3d-0000-4000-8000-0123456789ab", "mrk-0a1b2c3d000040008000000123456789"])
def test_keys_of_one_and_of_several_regions_are_taken(key: str):
    arn = f"arn:aws:kms:eu-west-1:111122223333:key/{key}"
    assert Settings.from_context(_context(kms_key=arn)).kms_key == arn


def test_reservations_leave_a_hundred_executions_unreserved():
    reserved = sum(declared.reserved_concurrency for declared in topology.FUNCTIONS)
    ticks = topology.function("ticks")
    assert Settings().reserved_concurrency(ticks) == ticks.reserved_concurrency
    assert Settings(account_concurrency=reserved + 100).reserved_concurrency(ticks) == ticks.reserved_concurrency
    assert Settings(account_concurrency=reserved + 99).reserved_concurrency(ticks) is None
    assert Settings().reserved_concurrency(topology.function("scopes")) is None


def test_containers_of_s3_reach_functions_and_stores():
    assert "HEADRACE_S3_CONTAINERS" not in Settings().environment
    settings = Settings.from_context(_context(s3_containers="4"))
    assert settings.environment["HEADRACE_S3_CONTAINERS"] == "4"
    assert settings.s3_environment == {"HEADRACE_S3_CONTAINERS": "4"}


def test_sizes_of_a_deployment_reach_its_functions():
    context = _context(containers="32", buckets=16, completed_transactions_hours="72", calls_per_second="2000")
    settings = Settings.from_context(context)
    assert settings.calls_per_second == 2_000
    assert settings.environment == {
        "HEADRACE_CONTAINER_COUNT": "32",
        "HEADRACE_BUCKET_COUNT": "16",
        "HEADRACE_COMPLETED_TRANSACTIONS_KEPT_S": str(72 * 3600),
        "HEADRACE_TOKENS": "required",
    }
    ticks = topology.function("ticks")
    assert settings.queue_concurrency(topology.TICKS_QUEUE) == settings.reserved_concurrency(ticks) == 48
    assert settings.queue_concurrency(topology.ABORTS_QUEUE) == topology.ABORTS_QUEUE.concurrency_max


@pytest.mark.parametrize(
    ("context", "word"),
    [
        ({"tokens": "true"}, "tokens: 'true' must be required or off"),
        ({"tokens": "permissive"}, "tokens"),
        ({"canary": "true"}, "canary: 'true' must be on or off"),
        ({"tls": "on"}, "tls: 'on' must be off, permissive or required"),
        ({"ca_keys": "2,1"}, "ca_keys"),
        ({"ca_keys": "1,1"}, "ca_keys"),
        ({"ca_keys": "1,2,3,4,5"}, "ca_keys"),
        ({"ca_keys": "0"}, "ca_keys"),
        ({"ca_keys": ""}, "ca_keys"),
        ({"kms_key": "true"}, "kms_key: 'true' must be create or the ARN of a key"),
        ({"kms_key": "arn:aws:kms:eu-west-1:111122223333:alias/headrace"}, "kms_key"),
        ({"grpc_bridge": "true", "tls": "off"}, "grpc_bridge: .* needs tls"),
        ({"containers": "0"}, "containers"),
        ({"containers": "2"}, "containers: 2 are too few for 3 processes"),
        ({"store_cpu": "4", "store_memory": "16", "containers": "8"}, "containers: 8 are too few for 12 processes"),
        ({"store_cpu": "3"}, "store_cpu: 3 must be one of 1, 2, 4, 8, 16"),
        ({"store_cpu": "0"}, "store_cpu"),
        ({"store_memory": "1"}, "store_memory: 1 must be between 2 and 8 with store_cpu=1"),
        ({"store_memory": "9"}, "store_memory"),
        ({"store_cpu": "8", "store_memory": "18"}, "store_memory: 18 must be between 16 and 60 in steps of 4"),
        ({"store_cpu": "2", "volume_gib": "19"}, "volume_gib: 19 must be between 20 and 16384"),
        ({"volume_gib": "16385"}, "volume_gib"),
        ({"stores_per_zone": "0"}, "stores_per_zone"),
        ({"stores_per_zone": "33", "containers": "1024"}, "stores_per_zone: 33 must be between 1 and 32"),
        ({"stores_per_zone": "2", "copies": "1"}, "stores_per_zone: .* must be 1 with copies=1"),
        ({"containers": "1025"}, "containers"),
        ({"s3_containers": "65"}, "s3_containers"),
        ({"buckets": "0"}, "buckets"),
        ({"buckets": "129"}, "buckets"),
        ({"calls_per_second": "0"}, "calls_per_second"),
        ({"completed_transactions_hours": "721"}, "completed_transactions_hours"),
        ({"zones": "use1-az1"}, "zones"),
        ({"zones": "us-east-1"}, "zones"),
        ({"zones": "us-east-1a,us-east-1a"}, "twice"),
        ({"vpc_cidr": "10.0.0.0/24"}, "vpc_cidr"),
        ({"vpc_cidr": "10.0.0.0/8"}, "vpc_cidr"),
        ({"vpc_cidr": "8.8.0.0/16"}, "vpc_cidr"),
        ({"vpc_cidr": "10.0.0.1/16"}, "vpc_cidr: .*host bits"),
        ({"vpc_cidr": "ten"}, "vpc_cidr: 'ten' is not an IPv4 network"),
        ({"vpc_cidr": "fd00::/16"}, "vpc_cidr"),
        ({"vpc_cidr": "127.0.0.0/16"}, "vpc_cidr: .* must be in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16"),
        ({"vpc_cidr": "169.254.0.0/16"}, "vpc_cidr"),
        ({"vpc_cidr": "0.0.0.0/16"}, "vpc_cidr"),
        ({"vpc_cidr": "198.18.0.0/16"}, "vpc_cidr"),
        ({"vpc_cidr": "240.0.0.0/16"}, "vpc_cidr"),
        ({"vpc_cidr": "172.32.0.0/16"}, "vpc_cidr"),
        ({"zones": "us-east-1a,eu-west-1b"}, "zones: .* several Regions, eu-west-1 and us-east-1"),
        ({"zones": "us-east-1a,us-east-1b,us-east-2c"}, "zones: .* several Regions"),
        ({"spark_job": "no"}, "spark_job"),
        ({"spark_jobs": "replay,repaly"}, "repaly is none of"),
        ({"spark_jobs": "replay", "spark_job": "false"}, "spark_jobs"),
        ({"keep_data": "0"}, "keep_data"),
        ({"alarm_email": "nobody"}, "alarm_email"),
        ({"metrics_from": "prometheus"}, "metrics_from"),
        ({"metrics_from": "sg-0"}, "metrics_from"),
        ({"metrics_from": "0.0.0.0/0"}, "metrics_from"),
        ({"zone_networks": "10.1.0.0/24"}, "zone_networks: '10.1.0.0/24' is not like use1-az1=10.0.0.0/24"),
        ({"zone_networks": "use1-az1=10.73.1.0/24"}, "zone_networks: 10.73.1.0/24 overlaps 10.73.0.0/16"),
        ({"zone_networks": ",".join(f"a=10.1.{n}.0/24" for n in range(129))}, "zone_networks: at most 128"),
        ({"account_concurrency": "many"}, "account_concurrency"),
        ({"account_concurrency": 0}, "account_concurrency"),
        ({"metrics_from": "127.0.0.0/8"}, "metrics_from: 127.0.0.0/8 is not a private network"),
        ({"metrics_from": "10.0.0.1/8"}, "metrics_from"),
        ({"metrics_from": 5}, "metrics_from"),
        ({"metrics_from": "sg-XYZ"}, "metrics_from: 'sg-XYZ' is not the id of a security group"),
        ({"alarm_email": 5}, "alarm_email"),
        ({"buckets": "9" * 5_000}, "buckets: '9+' must be a whole number of at most 9 digits"),
        ({"containers": "\u0663"}, "containers"),
        ({"copies": "3", "zones": "us-east-1a"}, "copies: 3 need as many zones"),
    ],
)
def test_wrong_choices_are_refused_by_name(context, word):
    with pytest.raises(ValueError, match=word) as raised:
        Settings.from_context(_context(**context))
    assert str(raised.value).partition(":")[0] in context


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("zone", "zone: there is no such setting; did you mean zones?"),
        ("vpc-cidr", "vpc-cidr: there is no such setting; did you mean vpc_cidr?"),
        ("keepData", "keepData: .*did you mean keep_data?"),
        ("SPARK_JOB", "SPARK_JOB: .*did you mean spark_job"),
        ("keep_data ", "keep_data : .*did you mean keep_data?"),
        ("zones.", "zones.: .*did you mean zones?"),
        ("_colour", "_colour: there is no such setting; the settings are"),
        ("", "'': there is no such setting; the settings are"),
        ("colour", "colour: there is no such setting; the settings are zones, vpc_cidr, "),
    ],
)
def test_a_name_that_is_no_setting_is_refused(name, hint):
    with pytest.raises(ValueError, match=hint):
        Settings.from_context(_context(**{name: "x"}))
    with pytest.raises(ValueError, match=hint):
        Settings.from_context(cdk.App(context={name: "x"}).node)


def test_keys_of_the_cdk_are_no_settings():
    own = json.loads((ROOT / "cdk.json").read_text())["context"]
    of_the_cli = {
        "aws:cdk:enable-path-metadata": True,
        "acknowledged-issue-numbers": [1],
        "availability-zones:account=1:region=us-east-1": ["us-east-1a"],
        "vpc-provider:account=1": {},
    }
    app = cdk.App(context=own | of_the_cli | {"zones": "us-east-1a"})
    assert Settings.from_context(app.node) == Settings(zones=("us-east-1a",))
