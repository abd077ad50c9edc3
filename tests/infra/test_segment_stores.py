"""One store per zone, with a volume of its own, replaced one at a time, reachable on the wire port by few."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cdk_assembly import Assembly, Resource, known_assets
from dockerfile_steps import stages
from msgspec.structs import replace

from headrace import topology
from headrace.adapters.tcp.listener import CONNECTIONS_MAX
from headrace.model.cluster import TAKE_OVER_AFTER_DEFAULT_S
from headrace.topology import SEGMENT_STORES
from infra.packaging.image_context import PACKAGES
from segmentstore_fargate.restart_policy import restart_pause_s
from segmentstore_fargate.supervised import EARLY_DEATHS_MAX

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]
STACK = "HeadraceSegmentStores"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def services(assembly: Assembly) -> list[Resource]:
    return _stores(assembly)


def _stores(assembly: Assembly) -> list[Resource]:
    found = assembly.resources("AWS::ECS::Service", STACK)
    return sorted(found, key=lambda service: str(service.properties["ServiceName"]))


def _container(assembly: Assembly, service: Resource) -> dict[str, Any]:
    container: dict[str, Any]
    (container,) = assembly.get(STACK, service.properties["TaskDefinition"]).properties["ContainerDefinitions"]
    return container


def _environment(assembly: Assembly, service: Resource) -> dict[str, str]:
    return {each["Name"]: each["Value"] for each in _container(assembly, service)["Environment"]}


def test_there_is_one_store_per_zone(services):
    assert [service.properties["ServiceName"] for service in services] == [
        f"headrace-store-{index}" for index in range(SEGMENT_STORES.stores)
    ]
    subnets = [service.properties["NetworkConfiguration"]["AwsvpcConfiguration"]["Subnets"] for service in services]
    assert all(len(each) == 1 for each in subnets)
    assert len({str(each) for each in subnets}) == len(services)


def test_a_new_task_starts_before_the_old_one_is_stopped(services):
    """The logs gain the new copy before they lose the old one, so that there are three throughout."""
    _check_deployment(services, healthy_percent=100, most_percent=200)


def test_a_store_with_one_copy_never_runs_twice(smallest_assembly: Assembly):
    _check_deployment(_stores(smallest_assembly), healthy_percent=0, most_percent=100)


def _check_deployment(services: list[Resource], *, healthy_percent: int, most_percent: int) -> None:
    """And ECS moves no task to another zone."""
    for service in services:
        assert service.properties["DesiredCount"] == SEGMENT_STORES.stores_per_zone
        assert service.properties["AvailabilityZoneRebalancing"] == "DISABLED"
        deployment = service.properties["DeploymentConfiguration"]
        assert deployment["MinimumHealthyPercent"] == healthy_percent
        assert deployment["MaximumPercent"] == most_percent
        assert deployment["DeploymentCircuitBreaker"] == {"Enable": True, "Rollback": True}


def test_stores_are_replaced_one_after_the_other(services, smallest_assembly: Assembly):
    for each in (services, _stores(smallest_assembly)):
        for before, after in pairwise(each):
            assert before.logical_id in after.attributes["DependsOn"]


def test_a_gate_stands_between_the_services_of_two_zones(assembly: Assembly, services):
    gates = {each.logical_id: each for each in assembly.resources("Custom::HeadraceReplicationGate", STACK)}
    for before, after in pairwise(services):
        (last,) = [each for name, each in gates.items() if name in after.attributes["DependsOn"]]
        chain = [last]
        while needed := [gates[name] for name in chain[0].attributes["DependsOn"] if name in gates]:
            chain = needed + chain
        assert before.logical_id in chain[0].attributes["DependsOn"]
        assert [each.properties["Last"] for each in chain] == ["false"] * (len(chain) - 1) + ["true"]
        assert sum(int(each.properties["WaitSeconds"]) for each in chain) >= 50 * 60
        for gate in chain:
            task = before.properties["TaskDefinition"]
            assert gate.properties["TaskDefinition"] == task, "an update of the zone before calls the gate"
            assert gate.properties["Zones"] == str(len(services))
            function = assembly.get(STACK, gate.properties["ServiceToken"])
            assert function.properties["FunctionName"] == "headrace-replication-gate"
            assert function.properties["Timeout"] == 900
            assert "VpcConfig" not in function.properties
            del gates[gate.logical_id]
    assert gates == {}


@pytest.mark.parametrize(("deployed", "tls"), [("assembly", "off"), ("default_assembly", "required")])
def test_no_store_changes_before_the_step_is_checked(deployed: str, tls: str, request: pytest.FixtureRequest):
    """Also without TLS: that is what an update from `required` would skip a step to."""
    assembly: Assembly = request.getfixturevalue(deployed)
    step = assembly.only("Custom::HeadraceTlsStep", STACK)
    assert step.properties["Tls"] == tls
    assert step.logical_id in _stores(assembly)[0].attributes["DependsOn"], "the other zones wait for the first one"
    function = assembly.get(STACK, step.properties["ServiceToken"])
    assert function.properties["FunctionName"] == "headrace-replication-gate"


def test_a_function_that_cannot_start_is_noticed_soon(assembly: Assembly, services):
    """CloudFormation waits for the time-out of a resource that does not report, and again when it rolls back."""
    gates = assembly.resources("Custom::HeadraceReplicationGate", STACK)
    first = [each for each in gates if set(each.attributes["DependsOn"]) & {service.logical_id for service in services}]
    assert len(first) == len(services) - 1
    assert all(int(each.properties["ServiceTimeout"]) <= 180 for each in first)
    for each in gates:
        assert int(each.properties["WaitSeconds"]) + 60 <= int(each.properties["ServiceTimeout"]) <= 900


def test_one_copy_needs_no_gate_and_no_store_gets_the_secret(smallest_assembly: Assembly):
    for kind in ("ReplicationGate", "TlsStep"):
        assert smallest_assembly.resources(f"Custom::Headrace{kind}") == []
    for service in _stores(smallest_assembly):
        assert _environment(smallest_assembly, service)["HEADRACE_COPIES"] == "1"
        assert "Secrets" not in _container(smallest_assembly, service)


def test_stores_share_a_generated_secret(assembly: Assembly, services):
    secret = assembly.only("AWS::SecretsManager::Secret", STACK)
    generated = secret.properties["GenerateSecretString"]
    assert "SecretString" not in secret.properties
    assert (generated["PasswordLength"], generated["ExcludePunctuation"]) == (64, True)
    for service in services:
        assert _container(assembly, service)["Secrets"] == [
            {"Name": "HEADRACE_REPLICA_SECRET", "ValueFrom": {"Ref": secret.logical_id}}
        ]


def test_the_cluster_is_named_by_the_stack(assembly: Assembly, services):
    """The random part of the stack's id, 32 hexadecimal digits with four dashes: it outlives every update."""
    uuid = {"Fn::Select": [2, {"Fn::Split": ["/", {"Ref": "AWS::StackId"}]}]}
    for service in services:
        found: Any = _environment(assembly, service)["HEADRACE_CLUSTER_ID"]
        assert found == {"Fn::Join": ["", {"Fn::Split": ["-", uuid]}]}


def test_every_task_gets_an_encrypted_volume_for_the_journal(assembly: Assembly, services):
    for service in services:
        (volume,) = service.properties["VolumeConfigurations"]
        managed = volume["ManagedEBSVolume"]
        assert managed["SizeInGiB"] == SEGMENT_STORES.volume_gib
        assert managed["VolumeType"] == "gp3"
        assert managed["Encrypted"] is True
        assert (managed["Iops"], managed["Throughput"]) == (3000, 125)
        task = assembly.get(STACK, service.properties["TaskDefinition"]).properties
        assert task["Volumes"] == [{"Name": volume["Name"], "ConfiguredAtLaunch": True}]
        (mount,) = _container(assembly, service)["MountPoints"]
        assert mount == {"ContainerPath": SEGMENT_STORES.volume_path, "ReadOnly": False, "SourceVolume": volume["Name"]}


def test_a_store_knows_its_number_and_place(assembly: Assembly, services, as_text: Callable[[object], str]):
    for index, service in enumerate(services):
        environment = _environment(assembly, service)
        assert "HEADRACE_STORE_ID" not in environment, "each task is another store: the supervisor names it"
        assert environment["HEADRACE_COPIES"] == str(SEGMENT_STORES.copies)
        assert environment["HEADRACE_REPLICA_PORT"] == str(SEGMENT_STORES.replica_port)
        assert environment["HEADRACE_STORE_INDEX"] == str(index)
        assert environment["HEADRACE_STORE_COUNT"] == str(len(services))
        assert environment["HEADRACE_CONTAINER_COUNT"] == str(topology.CONTAINER_COUNT)
        assert environment["HEADRACE_DATA_DIR"] == SEGMENT_STORES.volume_path
        assert environment["HEADRACE_LISTEN_PORT"] == str(SEGMENT_STORES.wire_port)
        assert environment["HEADRACE_METADATA_TABLE"] == topology.METADATA_TABLE.name
        assert as_text(environment["HEADRACE_CHUNK_BUCKET"]).startswith(topology.CHUNK_BUCKET.name)
        reports = as_text(environment["HEADRACE_SCALING_REPORTS_QUEUE_URL"])
        assert reports.endswith(f"/{topology.SCALING_REPORTS_QUEUE.name}")
        assert f"headracenetworkstorezone{index}" in as_text(environment["HEADRACE_ZONE"])
        assert environment["HEADRACE_CONNECTIONS_PER_ADDRESS_MAX"] == str(CONNECTIONS_MAX // 4)
        assert int(environment["HEADRACE_CACHE_BYTES"]) < SEGMENT_STORES.memory_mb * 1024 * 1024


def test_connections_are_reserved_for_the_functions(assembly: Assembly, services):
    """They are in the subnets of the stores, and clients are in others."""
    subnets = [each.properties for each in assembly.resources("AWS::EC2::Subnet")]
    is_own = {"Key": "aws-cdk:subnet-name", "Value": "stores"}
    own = {each["CidrBlock"] for each in subnets if is_own in each["Tags"]}
    for service in services:
        reserved = _environment(assembly, service)["HEADRACE_RESERVED_NETWORKS"].split(",")
        assert set(reserved) == own
        assert len(reserved) == len(services)


def test_stores_know_the_zones_of_their_clients(assembly: Assembly, services, as_text: Callable[[object], str]):
    """Those in the subnets of the deployment; others are a setting."""
    subnets = [each.properties["CidrBlock"] for each in assembly.resources("AWS::EC2::Subnet")]
    for service in services:
        environment = _environment(assembly, service)
        entries = as_text(environment["HEADRACE_ZONE_NETWORKS"]).split(",")
        assert len(entries) == 2 * len(services)
        for index, entry in enumerate(entries):
            zone, _, network = entry.partition("=")
            assert f"headracenetworkstorezone{index % len(services)}" in zone
            assert network in subnets


def test_what_older_tasks_need_stays(assembly: Assembly, smallest_assembly: Assembly, as_text: Callable[[object], str]):
    """ECS may start a task of before again, with other copies or tokens: its secret and its roles are as they were."""

    def allowed(each: Assembly, role: str) -> set[tuple[str, str]]:
        (task, *_) = each.resources("AWS::ECS::TaskDefinition", STACK)
        policy = each.get(STACK, task.properties[role]).properties["Policies"][0]["PolicyDocument"]
        return {
            (action, re.sub(r"[0-9A-F]{8}>", ">", as_text(statement["Resource"])))
            for statement in policy["Statement"]
            for action in (statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]])
        }

    for role in ("TaskRoleArn", "ExecutionRoleArn"):
        assert allowed(assembly, role) == allowed(smallest_assembly, role)
    names = [
        each.only("AWS::SecretsManager::Secret", STACK).properties["Name"] for each in (assembly, smallest_assembly)
    ]
    assert names == 2 * ["headrace-replica-secret"]


def test_volumes_have_the_tag_of_the_application(assembly: Assembly, services):
    for service in services:
        (volume,) = service.properties["VolumeConfigurations"]
        (tags,) = volume["ManagedEBSVolume"]["TagSpecifications"]
        assert tags == {"ResourceType": "volume", "Tags": [{"Key": "application", "Value": "headrace"}]}
        assert tags["Tags"][0] in service.properties["Tags"], "so propagation would give a volume the key twice"


def test_volumes_may_be_encrypted_with_a_key_of_the_account(assembly: Assembly, as_text: Callable[[object], str]):
    (service, *_) = assembly.resources("AWS::ECS::Service")
    role = assembly.get(STACK, service.properties["VolumeConfigurations"][0]["ManagedEBSVolume"]["RoleArn"])
    (policy,) = role.properties["Policies"]
    statements = policy["PolicyDocument"]["Statement"]
    actions = {action: each for each in statements for action in _list(each["Action"])}
    assert set(actions) == {
        "kms:CreateGrant",
        "kms:Decrypt",
        "kms:DescribeKey",
        "kms:GenerateDataKeyWithoutPlaintext",
    }
    for each in statements:
        assert as_text(each["Condition"]["StringEquals"]["kms:ViaService"]) == "ec2.<AWS::Region>.<AWS::URLSuffix>"
        assert each["Condition"]["StringEquals"]["kms:CallerAccount"] == {"Ref": "AWS::AccountId"}
    assert actions["kms:CreateGrant"]["Condition"]["Bool"] == {"kms:GrantIsForAWSResource": "true"}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_a_process_that_dies_finds_its_volume_again(assembly: Assembly, services):
    for service in services:
        container = _container(assembly, service)
        assert "Command" not in container, "the image starts the supervisor"
        assert "EntryPoint" not in container
        assert container["StopTimeout"] == SEGMENT_STORES.stop_timeout_s <= 120


def test_a_deployment_waits_until_a_store_has_settled(assembly: Assembly, services):
    """As long as a good store may take, and no longer: the probe of a settled one fails for dead processes only."""
    for service in services:
        check = _container(assembly, service)["HealthCheck"]
        assert check["Command"] == ["CMD", "python", "-m", "segmentstore_fargate.probe"]
        assert (check["Interval"], check["Retries"], check["StartPeriod"]) == (30, 10, 300)
        assert check["Timeout"] < check["Interval"]
        assert check["StartPeriod"] + check["Interval"] * check["Retries"] >= 2 * TAKE_OVER_AFTER_DEFAULT_S
        pauses_s = sum(map(restart_pause_s, range(1, EARLY_DEATHS_MAX)))
        assert check["Interval"] * check["Retries"] > pauses_s, "restarts come first"


def test_every_process_has_a_core_and_its_ports(assembly: Assembly, services):
    assert SEGMENT_STORES.processes == max(1, SEGMENT_STORES.cpu_units // 1024)
    for service in services:
        container = _container(assembly, service)
        assert _environment(assembly, service)["HEADRACE_PROCESSES"] == str(SEGMENT_STORES.processes)
        ports = {mapping["ContainerPort"] for mapping in container["PortMappings"]}
        assert ports == {
            first + process
            for first in (SEGMENT_STORES.wire_port, SEGMENT_STORES.health_port, SEGMENT_STORES.replica_port)
            for process in range(SEGMENT_STORES.processes)
        }


def test_a_store_of_two_cores_has_two_processes():
    larger = replace(SEGMENT_STORES, cpu_units=2048)
    assert (larger.processes, larger.wire_ports, larger.health_ports) == (2, (12345, 12346), (12545, 12546))
    assert larger.replica_ports == (12745, 12746)
    assert replace(SEGMENT_STORES, cpu_units=512).processes == 1


@pytest.mark.parametrize(
    ("cores", "iops", "throughput"), [(1, 3000, 125), (3, 3000, 375), (4, 4000, 500), (16, 16000, 1000)]
)
def test_a_volume_is_as_fast_as_its_processes_need(cores, iops, throughput):
    """Within the limits of a gp3 volume of ECS, and of a quarter of a MiB/s for each of its IOPS."""
    store = replace(SEGMENT_STORES, cpu_units=cores * 1024)
    assert (store.volume_iops, store.volume_throughput_mib_s) == (iops, throughput)
    assert throughput <= iops / 4


@pytest.mark.parametrize(("zones", "copies"), [(1, 1), (2, 1), (3, 3), (6, 3)])
def test_three_zones_keep_three_copies(zones, copies):
    assert SEGMENT_STORES.copies_in(zones) == copies


def test_a_store_runs_without_root_rights(assembly: Assembly, services):
    for service in services:
        container = _container(assembly, service)
        assert container["ReadonlyRootFilesystem"] is True
        assert not container.get("Privileged", False)
        assert service.properties["EnableExecuteCommand"] is False
        network = service.properties["NetworkConfiguration"]["AwsvpcConfiguration"]
        assert network["AssignPublicIp"] == "DISABLED"


def test_tasks_are_of_the_declared_size(assembly: Assembly):
    for task in assembly.resources("AWS::ECS::TaskDefinition"):
        assert task.properties["Cpu"] == str(SEGMENT_STORES.cpu_units)
        assert task.properties["Memory"] == str(SEGMENT_STORES.memory_mb)
        assert task.properties["RuntimePlatform"]["CpuArchitecture"] == "ARM64"


@pytest.fixture
def image_context(assembly: Assembly):
    (dockerfile,) = assembly.directory.glob("asset.*/segmentstore_fargate/Dockerfile")
    return dockerfile.parents[1]


def test_the_image_holds_everything_that_a_store_imports(
    image_context, imported_from_outside: Callable[[Path, str], set[str]]
):
    pins = (image_context / "requirements.txt").read_text().split()
    installed = {pin.partition("==")[0] for pin in pins if "==" in pin}
    modules = imported_from_outside(image_context, "segmentstore_fargate.__main__") - {"compression"}  # of Python 3.14
    imported = {PACKAGES.get(name, name.replace("_", "-")) for name in modules}
    assert "boto3" in imported or "botocore" in imported
    assert imported <= installed


def test_the_base_image_is_pinned(image_context):
    """A tag is moved; a digest is the image."""
    lines = (image_context / "segmentstore_fargate" / "Dockerfile").read_text().splitlines()
    first, *later = [line for line in lines if line.startswith("FROM ")]
    assert re.fullmatch(
        r"FROM public\.ecr\.aws/docker/library/python:3\.13-\S+@sha256:[0-9a-f]{64} AS installed", first
    )
    assert later == ["FROM installed AS compiler", "FROM installed"]


def test_the_image_compiles_the_hot_path(image_context):
    """The last stage has the compiler's output, not the compiler. The build ends if it is missing."""
    installed, compiler, last = stages((image_context / "segmentstore_fargate" / "Dockerfile").read_text())
    assert ("RUN", "python scripts/compile_modules.py /opt/compiled") in compiler.steps
    assert ("COPY", "--from=compiler /opt/compiled ./") in last.steps
    assert ("RUN", "python -m headrace.compiled") in last.steps
    kept = " ".join(arguments for _instruction, arguments in (*installed.steps, *last.steps))
    assert "gcc" not in kept
    assert "compiler-requirements" not in kept


def test_the_image_has_the_whole_list_of_compiled_modules(image_context):
    """Those that a store does not import are not in the image, and not compiled."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["headrace"]["compiled"]
    staged = tomllib.loads((image_context / "pyproject.toml").read_text())
    assert staged == {"tool": {"headrace": {"compiled": listed}}}
    script = Path("scripts") / "compile_modules.py"
    assert (image_context / script).read_bytes() == (ROOT / script).read_bytes()


def test_the_compiler_is_locked(image_context):
    pins = (image_context / "compiler-requirements.txt").read_text()
    names = {line.partition("==")[0] for line in pins.splitlines() if "==" in line}
    assert names == {"ast-serialize", "librt", "mypy", "mypy-extensions", "pathspec", "setuptools", "typing-extensions"}
    assert pins.count("--hash=sha256:") >= len(names)


def test_the_image_is_built_from_its_sources_only(image_context):
    context = image_context
    assert {path.name for path in context.iterdir()} == {
        *("headrace", "segmentstore_fargate", "requirements.txt"),
        *("compiler-requirements.txt", "pyproject.toml", "scripts"),
    }
    assert not list(context.rglob("__pycache__"))
    requirements = (context / "requirements.txt").read_text()
    assert "uvloop==" in requirements
    assert "pyspark" not in requirements


def test_as_many_stores_as_zones_were_chosen(smallest_assembly: Assembly):
    services = _stores(smallest_assembly)
    assert [each.properties["ServiceName"] for each in services] == ["headrace-store-0", "headrace-store-1"]
    for service in services:
        environment = _environment(smallest_assembly, service)
        assert environment["HEADRACE_STORE_COUNT"] == "2"
        assert environment["HEADRACE_STORE_ID"] == f"store-{environment['HEADRACE_STORE_INDEX']}"
    subnets = smallest_assembly.resources("AWS::EC2::Subnet")
    assert [subnet.properties["AvailabilityZone"] for subnet in subnets] == ["us-east-1a", "us-east-1d"]


LARGER = """
import json, sys
import aws_cdk as cdk
from infra import application
from infra.settings import Settings
context = json.load(open("cdk.json"))["context"]
app = cdk.App(outdir=sys.argv[1], context=context)
application.add_stacks(app, Settings(stores_per_zone=2, store_cpu=2, store_memory=8, volume_gib=100, containers=12))
app.synth()
"""


def test_stores_have_the_size_of_the_settings(project: Path, tmp_path: Path, run_python: Callable[..., Any]):
    with known_assets(project, tmp_path):
        finished = run_python(f"import sys; sys.argv[1:] = [{str(tmp_path)!r}]\n" + LARGER)
    assert finished.returncode == 0, finished.stderr
    larger = Assembly(tmp_path)
    for service in _stores(larger):
        assert service.properties["DesiredCount"] == 2
        volume = service.properties["VolumeConfigurations"][0]["ManagedEBSVolume"]
        assert (volume["SizeInGiB"], volume["Iops"], volume["Throughput"]) == (100, 3000, 250)
        task = larger.get(STACK, service.properties["TaskDefinition"]).properties
        assert (task["Cpu"], task["Memory"]) == ("2048", "8192")
        environment = _environment(larger, service)
        assert (environment["HEADRACE_PROCESSES"], environment["HEADRACE_CACHE_BYTES"]) == ("2", str(4 << 30))
        assert len(_container(larger, service)["PortMappings"]) == 6
    alarms = larger.named("AWS::CloudWatch::Alarm", "AlarmName")
    assert alarms["headrace-store-0-running"].properties["Threshold"] == 2
