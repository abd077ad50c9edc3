"""Patches of MiniStack: what it lacks, or does differently from AWS. One function each, with the reason.

Run as a program by an interpreter that has MiniStack, this module applies the patches and starts the emulator. It
imports nothing of this project. A patch that does not fit the installed release fails at start with
EmulatorChangedError, since an emulator that lacks a patch would refuse what AWS accepts, or accept what AWS refuses.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
import tempfile
import threading
import time
import types
import uuid
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

SETTLED_FOLDER_VARIABLE: Final = "REHEARSAL_SETTLED"
"""The folder with a file for each service whose tasks run: its content is their task definition."""
FAILED: Final = "failed"
"""The file begins with it if the tasks of a task definition do not stay."""
SETTLE_TIMEOUT_S: Final = 1_200
SETTLE_POLL_S: Final = 0.3
ROTATION_STEPS: Final = ("createSecret", "setSecret", "testSecret", "finishSecret")
ACTIONS_OF_BATCHES: Final = {
    f"sqs:{name}Batch": f"sqs:{name}" for name in ("SendMessage", "DeleteMessage", "ChangeMessageVisibility")
}
TASK_PROTECTION: Final = "TaskProtection"
IF_NONE_MATCH: Final = "s3:if-none-match"
PRINCIPAL_ARN: Final = "aws:principalarn"
ASSUMED_ROLE: Final = re.compile(r"arn:([\w-]+):sts::(\d+):assumed-role/([^/]+)/.+")
HTTPS_PORT: Final = 443
HTTP_OK: Final = 200
_PROVISIONERS: Final = "services.cloudformation.provisioners"

Handlers = dict[str, dict[str, Callable[..., Any]]]


class EmulatorChangedError(RuntimeError):
    """The installed MiniStack has not what a patch changes, or has by itself what a patch adds."""


class Emulator:
    """The modules of MiniStack, and how they are changed."""

    def module(self, name: str) -> Any:
        """A module by its name below `ministack`. Raises EmulatorChangedError: there is none."""
        try:
            return importlib.import_module(f"ministack.{name}")
        except ModuleNotFoundError as error:
            raise EmulatorChangedError(f"MiniStack has no module {name}: {error}") from error

    def part(self, module: str, name: str) -> Any:
        """What has this name in a module. Raises EmulatorChangedError: nothing has."""
        found = getattr(self.module(module), name, None)
        if found is None:
            raise EmulatorChangedError(f"MiniStack's module {module} has no {name}")
        return found

    def replace(self, module: str, name: str, change: Callable[[Any], Any]) -> None:
        """Put what `change` makes of a function in its place. Raises EmulatorChangedError: there is none."""
        setattr(self.module(module), name, change(self.part(module, name)))

    def add_type(self, type_: str, create: Callable[..., Any], delete: Callable[..., Any]) -> None:
        """Teach CloudFormation a type. Raises EmulatorChangedError: it knows the type."""
        handlers: Handlers = self.part(_PROVISIONERS, "_RESOURCE_HANDLERS")
        if type_ in handlers:
            raise EmulatorChangedError(f"MiniStack knows {type_} by itself: remove the patch")
        handlers[type_] = {"create": create, "delete": delete}

    def change_type(self, type_: str, operation: str, change: Callable[[Any], Any]) -> None:
        """Change what CloudFormation does with a type. Raises EmulatorChangedError: it does not know it."""
        handlers: Handlers = self.part(_PROVISIONERS, "_RESOURCE_HANDLERS")
        if operation not in handlers.get(type_, {}):
            raise EmulatorChangedError(f"MiniStack has no handler that does {operation} of {type_}")
        handlers[type_][operation] = change(handlers[type_][operation])


def authorize_batches_as_single_calls(emulator: Emulator) -> None:
    """AWS authorizes the batch calls of SQS as the single ones. MiniStack asks for actions that do not exist."""

    def change(original: Callable[..., str | None]) -> Callable[..., str | None]:
        def extract_iam_action(*args: Any, **kwargs: Any) -> str | None:
            action = original(*args, **kwargs)
            return ACTIONS_OF_BATCHES.get(action or "", action)

        return extract_iam_action

    emulator.replace("core.iam_actions", "extract_iam_action", change)


def authorize_protection_on_tasks(emulator: Emulator) -> None:
    """AWS authorizes UpdateTaskProtection on the task. MiniStack does on the cluster."""

    def change(original: Callable[..., str]) -> Callable[..., str]:
        def extract_resource_arn(service: str, *args: Any, **kwargs: Any) -> str:
            arn = original(service, *args, **kwargs)
            is_protection = service == "ecs" and TASK_PROTECTION in f"{args}{kwargs}"
            return f"{arn.replace(':cluster/', ':task/')}/0" if is_protection else arn

        return extract_resource_arn

    emulator.replace("core.iam_actions", "extract_resource_arn", change)


def tell_conditions_of_writes(emulator: Emulator) -> None:
    """A policy may ask whether a PUT to S3 may replace an object. MiniStack does not know the key."""

    def change(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def s3_service_context(action: str, query: Any, path: str = "", headers: Any = None) -> dict[str, Any]:
            found = original(action, query, path, headers)
            condition = (headers or {}).get("if-none-match")
            if action == "s3:PutObject" and condition is not None:
                found[IF_NONE_MATCH] = condition
            return found

        return s3_service_context

    emulator.replace("core.iam_actions", "s3_service_context", change)


def name_roles_of_sessions(emulator: Emulator) -> None:
    """The key aws:PrincipalArn is the role, also for a session that has assumed it. MiniStack has the session's ARN."""

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def resolve_condition_key(key: str, context: Any) -> Any:
            value = original(key, context)
            session = ASSUMED_ROLE.fullmatch(value) if key.lower() == PRINCIPAL_ARN and isinstance(value, str) else None
            return value if session is None else f"arn:{session[1]}:iam::{session[2]}:role/{session[3]}"

        return resolve_condition_key

    emulator.replace("core.iam_evaluator", "_resolve_condition_key", change)


def serve_one_port(emulator: Emulator) -> None:
    """As root and with TLS MiniStack also takes port 443, for pools of users. Two rehearsals would meet there."""

    def change(original: Callable[[str, int], bool]) -> Callable[[str, int], bool]:
        return lambda host, port: port != HTTPS_PORT and original(host, port)

    emulator.replace("app", "_port_is_bindable", change)


def answer_null_with_nothing(emulator: Emulator) -> None:
    """A function may answer `"body": null`, as Powertools does with 204. AWS sends an empty body, MiniStack a 500."""

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        async def send_response(send: Any, status: int, headers: Any, body: Any, **kwargs: Any) -> Any:
            return await original(send, status, headers, b"" if body is None else body, **kwargs)

        return send_response

    emulator.replace("app", "_send_response", change)


def run_functions_without_packages(emulator: Emulator) -> None:
    """A function finds its bundle and the standard library. MiniStack also gives it the packages of its environment."""
    interpreter = getattr(sys, "_base_executable", sys.executable)

    def change(original: Callable[[str], tuple[str, str]]) -> Callable[[str], tuple[str, str]]:
        def detect_runtime_binary(runtime: str) -> tuple[str, str]:
            binary, script = original(runtime)
            return (interpreter if runtime.startswith("python") else binary), script

        return detect_runtime_binary

    emulator.replace("core.lambda_runtime", "_detect_runtime_binary", change)


class SharedZip(zipfile.ZipFile):
    """A zip file that is unpacked once for all that want its contents: they get links to them."""

    lock = threading.Lock()

    def extractall(self, path: Any = None, *args: Any, **kwargs: Any) -> None:
        """Fill `path` with links. All parameters but `path` are ignored."""
        content = Path(str(self.filename)).read_bytes()
        shared = Path(tempfile.gettempdir()) / "bundles" / hashlib.sha256(content).hexdigest()
        with self.lock:
            if not shared.exists():
                draft = shared.with_suffix(".draft")
                super().extractall(draft)
                draft.rename(shared)
        for entry in shared.iterdir():
            (Path(path) / entry.name).symlink_to(entry)


def unpack_bundles_once(emulator: Emulator) -> None:
    """MiniStack unpacks a bundle for each process of a function, and removes its files in its event loop, so that it
    answers no request for minutes on a slow disk.
    """

    def change(original: types.ModuleType) -> types.ModuleType:
        changed = types.ModuleType("zipfile")
        vars(changed).update(vars(original) | {"ZipFile": SharedZip})
        return changed

    emulator.replace("core.lambda_runtime", "zipfile", change)


def _note_down(store: Callable[[], dict[str, Any]], prefix: str, record: Callable[[str, Any], dict[str, Any]]) -> Any:
    """Create and delete of a type that exists only in the store that EC2's Describe calls read."""

    def create(_logical_id: str, props: Mapping[str, Any], _stack: str) -> tuple[str, dict[str, str]]:
        physical = f"{prefix}-{uuid.uuid4().hex[:17]}"
        store()[physical] = record(physical, props)
        return physical, {"Id": physical, "NatGatewayId": physical}

    def delete(physical: str, _props: Any) -> None:
        store().pop(physical, None)

    return create, delete


def add_nat_gateways_and_flow_logs(emulator: Emulator) -> None:
    """CloudFormation in MiniStack has no NAT gateways and no flow logs, though EC2 has both."""
    ec2 = emulator.module("services.ec2")
    emulator.part("services.ec2", "_nat_gateways")
    emulator.part("services.ec2", "_flow_logs")

    def gateway(physical: str, props: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "NatGatewayId": physical,
            "SubnetId": props["SubnetId"],
            "VpcId": ec2._subnets[props["SubnetId"]]["VpcId"],
            "AllocationId": props.get("AllocationId"),
            "ConnectivityType": "public",
            "State": "available",
            "CreateTime": ec2._now_ts(),
            "Tags": [],
        }

    def flow_log(physical: str, props: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "FlowLogId": physical,
            "ResourceId": props["ResourceId"],
            "ResourceType": props["ResourceType"],
            "TrafficType": props["TrafficType"],
            "LogDestinationType": props.get("LogDestinationType"),
            "LogDestination": props.get("LogGroupName"),
            "FlowLogStatus": "ACTIVE",
            "CreationTime": ec2._now_ts(),
        }

    emulator.add_type("AWS::EC2::NatGateway", *_note_down(lambda: ec2._nat_gateways, "nat", gateway))
    emulator.add_type("AWS::EC2::FlowLog", *_note_down(lambda: ec2._flow_logs, "fl", flow_log))


def add_elastic_addresses(emulator: Emulator) -> None:
    """CloudFormation in MiniStack has no elastic addresses, though EC2 has."""
    ec2 = emulator.module("services.ec2")
    allocate = emulator.part("services.ec2", "_allocate_address")
    emulator.part("services.ec2", "_addresses")

    def create(_logical_id: str, _props: Any, _stack: str) -> tuple[str, dict[str, str]]:
        before = set(ec2._addresses.keys())
        allocate({"Domain": "vpc"})
        (allocation,) = set(ec2._addresses.keys()) - before
        address = ec2._addresses[allocation]["PublicIp"]
        return address, {"AllocationId": allocation, "PublicIp": address}

    def delete(physical: str, _props: Any) -> None:
        for key in [key for key, value in ec2._addresses.items() if value["PublicIp"] == physical]:
            del ec2._addresses[key]

    emulator.add_type("AWS::EC2::EIP", create, delete)


def add_rules_of_security_groups(emulator: Emulator) -> None:
    """CloudFormation in MiniStack knows only the rules within a security group, and not those of their own."""
    ec2 = emulator.module("services.ec2")
    emulator.part("services.ec2", "_security_groups")
    permissions = emulator.part(_PROVISIONERS, "_ec2_sg_permissions")

    def handlers(side: str) -> Any:
        def create(logical_id: str, props: Mapping[str, Any], stack: str) -> tuple[str, dict[str, str]]:
            ec2._security_groups[props["GroupId"]].setdefault(side, []).extend(permissions([props]))
            physical = f"sgr-{stack}-{logical_id}"
            return physical, {"Id": physical}

        def delete(_physical: str, props: Mapping[str, Any]) -> None:
            if group := ec2._security_groups.get(props["GroupId"]):
                (gone,) = permissions([props])
                group[side] = [rule for rule in group.get(side, []) if rule != gone]

        return create, delete

    emulator.add_type("AWS::EC2::SecurityGroupIngress", *handlers("IpPermissions"))
    emulator.add_type("AWS::EC2::SecurityGroupEgress", *handlers("IpPermissionsEgress"))


def add_application_auto_scaling(emulator: Emulator) -> None:
    """MiniStack does not know Application Auto Scaling. The rehearsal keeps the number of tasks that ECS declares."""
    noted: dict[str, Any] = {}
    for type_, prefix in (("ScalableTarget", "target"), ("ScalingPolicy", "policy")):
        handlers = _note_down(lambda: noted, prefix, lambda _physical, props: dict(props))
        emulator.add_type(f"AWS::ApplicationAutoScaling::{type_}", *handlers)


def add_saved_queries(emulator: Emulator) -> None:
    """CloudWatch Logs in MiniStack saves no queries. Their log groups must exist, as for AWS."""
    noted: dict[str, Any] = {}
    groups = emulator.part("services.cloudwatch_logs", "_log_groups")

    def query(_physical: str, props: Mapping[str, Any]) -> dict[str, Any]:
        missing = [name for name in props["LogGroupNames"] if name not in groups]
        if missing:
            raise ValueError(f"ResourceNotFoundException: {', '.join(missing)}")
        return dict(props)

    emulator.add_type("AWS::Logs::QueryDefinition", *_note_down(lambda: noted, "query", query))


def drop_logs_of_deleted_functions(emulator: Emulator) -> None:
    """A call that ends after its function was deleted makes the log group again in MiniStack. In AWS it may not."""
    functions = emulator.part("services.lambda_svc", "_functions")

    def change(original: Callable[..., None]) -> Callable[..., None]:
        def emit_lambda_logs(func: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
            if (func.get("config") or func).get("FunctionName") in functions:
                original(func, *args, **kwargs)

        return emit_lambda_logs

    emulator.replace("services.lambda_svc", "_emit_lambda_logs", change)


def tell_zone_ids_of_subnets(emulator: Emulator) -> None:
    """MiniStack's `GetAtt Subnet.AvailabilityZoneId` fails, though EC2 knows the id."""
    ec2 = emulator.module("services.ec2")

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def create(*args: Any) -> tuple[str, dict[str, str]]:
            physical, attributes = original(*args)
            return physical, {**attributes, "AvailabilityZoneId": ec2._subnets[physical]["AvailabilityZoneId"]}

        return create

    emulator.change_type("AWS::EC2::Subnet", "create", change)


def without_metric_math(props: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of an alarm, on the first metric of its metric math; a query of metrics becomes a metric."""
    if not props.get("Metrics"):
        return dict(props)
    query: dict[str, Any] = {"Metric": {"MetricName": "query", "Namespace": "queries"}, "Stat": "Sum", "Period": 60}
    stat = next((each["MetricStat"] for each in props["Metrics"] if "MetricStat" in each), query)
    metric = stat["Metric"]
    return {
        **{name: value for name, value in props.items() if name != "Metrics"},
        "MetricName": metric["MetricName"],
        "Namespace": metric["Namespace"],
        "Dimensions": metric.get("Dimensions", []),
        "Statistic": stat["Stat"],
        "Period": stat["Period"],
    }


def accept_alarms_on_metric_math(emulator: Emulator) -> None:
    """MiniStack refuses alarms on metric math and queries. A rehearsal needs no alarm, so one metric is enough."""

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda name, props: original(name, without_metric_math(props))

    emulator.replace(_PROVISIONERS, "_cw_metric_alarm_record", change)


def add_composite_alarms(emulator: Emulator) -> None:
    """CloudFormation in MiniStack has no composite alarms, though CloudWatch has: their parts must exist."""
    put = emulator.part("services.cloudwatch", "_put_composite_alarm")
    alarms = emulator.part("services.cloudwatch", "_composite_alarms")

    def create(_logical_id: str, props: Mapping[str, Any], _stack: str) -> tuple[str, dict[str, str]]:
        status, _headers, answer = put({}, dict(props), False, True)
        if status != HTTP_OK:
            raise ValueError(str(answer))
        name = props["AlarmName"]
        return name, {"Arn": alarms[name]["AlarmArn"]}

    def delete(physical: str, _props: Any) -> None:
        alarms.pop(physical, None)

    emulator.add_type("AWS::CloudWatch::CompositeAlarm", create, delete)


def rotate_secrets_at_once(emulator: Emulator) -> None:
    """MiniStack does not know AWS::SecretsManager::RotationSchedule. Secrets Manager rotates when it is created:
    it announces a pending version, and calls the function for each of four steps.
    """
    secrets = emulator.module("services.secretsmanager")
    resolve = emulator.part("services.secretsmanager", "_resolve")
    find_function = emulator.part("services.lambda_svc", "_get_func_record_for_ref")
    execution = emulator.part("services.lambda_svc", "_execution_record_for_config")
    execute = emulator.part("services.lambda_svc", "_execute_function_with_config_scope")

    def create(_logical_id: str, props: Mapping[str, Any], _stack: str) -> tuple[str, dict[str, str]]:
        _, secret = resolve(props["SecretId"])
        days = (props.get("RotationRules") or {}).get("AutomaticallyAfterDays")
        secret["RotationLambdaARN"], secret["RotationEnabled"] = props["RotationLambdaARN"], True
        secret["RotationRules"] = {"AutomaticallyAfterDays": int(days)} if days else {}
        version = str(uuid.uuid4())
        pending = {"SecretString": None, "SecretBinary": None, "CreatedDate": 0, "Stages": ["AWSPENDING"]}
        secret["Versions"][version] = pending
        record, config, _ = find_function(props["RotationLambdaARN"])
        for step in ROTATION_STEPS:
            event = {"Step": step, "SecretId": props["SecretId"], "ClientRequestToken": version}
            execute(execution(record, config), event)
        return props["SecretId"], {}

    def change(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def get_secret_value(data: Mapping[str, Any]) -> Any:
            """A version that a rotation has announced has no value before PutSecretValue."""
            _, secret = resolve(data.get("SecretId"))
            version = (secret or {}).get("Versions", {}).get(data.get("VersionId"))
            if version and version["SecretString"] is None and version["SecretBinary"] is None:
                message = "Secrets Manager can't find the specified secret value."
                return secrets.error_response_json("ResourceNotFoundException", message, 400)
            return original(data)

        return get_secret_value

    emulator.add_type("AWS::SecretsManager::RotationSchedule", create, lambda _physical, _props: None)
    emulator.replace("services.secretsmanager", "_get_secret_value", change)
    _run_in_thread(emulator, "AWS::SecretsManager::RotationSchedule")


def refer_to_secrets_by_arn(emulator: Emulator) -> None:
    """`Ref` of a secret is its ARN on AWS, and its name in MiniStack. Policies and ECS's ValueFrom need the ARN."""
    resolve = emulator.part("services.secretsmanager", "_resolve")

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def create(*args: Any) -> tuple[str, Any]:
            physical, attributes = original(*args)
            return resolve(physical)[1]["ARN"], attributes

        return create

    def known_by_name(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda physical, *others: original(resolve(physical)[0], *others)

    emulator.change_type("AWS::SecretsManager::Secret", "create", change)
    emulator.change_type("AWS::SecretsManager::Secret", "delete", known_by_name)


def leave_buckets_full(emulator: Emulator) -> None:
    """The CDK's function that empties buckets is a Node program, whose SDK MiniStack has not. `rehearsal.cloud` empties
    them before it destroys the stacks.
    """

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def invoke(request_type: str, logical_id: str, props: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("resource_type") == "Custom::S3AutoDeleteObjects" or "S3AutoDelete" in str(
                props.get("ServiceToken")
            ):
                return logical_id, {}
            return original(request_type, logical_id, props, *args, **kwargs)

        return invoke

    emulator.replace("services.cloudformation.custom_resource", "invoke_custom_resource", change)


def keep_details_of_containers(emulator: Emulator) -> None:
    """MiniStack keeps the parts of `HealthCheck` and `Secrets` as CloudFormation spells them. The API of ECS, by which
    the rehearsal starts tasks, spells them in lower case.
    """
    task_definitions = emulator.part("services.ecs", "_task_defs")

    def in_api_form(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name[:1].lower() + name[1:]: in_api_form(each) for name, each in value.items()}
        return [in_api_form(each) for each in value] if isinstance(value, list) else value

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def create(*args: Any) -> tuple[str, Any]:
            arn, attributes = original(*args)
            for container in task_definitions[arn.rpartition("/")[2]]["containerDefinitions"]:
                for name in ("healthCheck", "secrets", "ulimits"):
                    if name in container:
                        container[name] = in_api_form(container[name])
            return arn, attributes

        return create

    emulator.replace(_PROVISIONERS, "_ecs_task_def_create", change)
    emulator.change_type("AWS::ECS::TaskDefinition", "create", change)


def set_numbers_of_tasks(emulator: Emulator) -> None:
    """An update of a service sets the number of tasks of the template, also if an operator has changed it meanwhile.
    MiniStack compares the template with the one before.
    """

    def change(update: Callable[..., Any]) -> Callable[..., Any]:
        def updated(physical_id: str, old: Mapping[str, Any], new: Mapping[str, Any], stack: str) -> Any:
            return update(physical_id, {name: old[name] for name in old if name != "DesiredCount"}, new, stack)

        return updated

    emulator.change_type("AWS::ECS::Service", "update", change)


def wait_for_services(emulator: Emulator) -> None:
    """CloudFormation is done with a service when its tasks run. MiniStack has no tasks without docker: it waits for
    `rehearsal.fargate`, which notes down in a folder what it has settled.
    """
    folder = Path(os.environ[SETTLED_FOLDER_VARIABLE])

    def changed(change: Callable[..., Any], args: tuple[Any, ...], props: Mapping[str, Any]) -> Any:
        result = change(*args)
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        note = folder / props["ServiceName"]
        while folder.is_dir() and time.monotonic() < deadline:
            state = note.read_text() if note.exists() else ""
            if state == props["TaskDefinition"]:
                return result
            if state == f"{FAILED} {props['TaskDefinition']}":
                break
            time.sleep(SETTLE_POLL_S)
        raise RuntimeError(f"{props['ServiceName']}: the deployment circuit breaker was triggered: no task is healthy")

    _run_in_thread(emulator, "AWS::ECS::Service")
    # Creations get (logical id, properties, stack), updates (physical id, old, new, stack).
    emulator.change_type("AWS::ECS::Service", "create", lambda create: lambda *args: changed(create, args, args[1]))
    emulator.change_type("AWS::ECS::Service", "update", lambda update: lambda *args: changed(update, args, args[2]))


def _run_in_thread(emulator: Emulator, type_: str) -> None:
    """MiniStack makes resources in its event loop, except those whose type may wait."""
    module = "services.cloudformation.stacks"
    emulator.replace(module, "_runs_on_worker_thread", lambda original: lambda kind: kind == type_ or original(kind))


def accept_events_of_services(emulator: Emulator) -> None:
    """The services of AWS send events to the default bus. `rehearsal.fargate` sends those of ECS, and MiniStack refuses
    the source `aws.ecs` in PutEvents, as AWS does for other callers.
    """

    def change(put: Callable[..., Any]) -> Callable[..., Any]:
        return lambda data, **_options: put(data, allow_aws_source=True)

    emulator.replace("services.eventbridge", "_put_events", change)


PATCHES: Final[tuple[Callable[[Emulator], None], ...]] = (
    # The first two before any other module of MiniStack imports what they change by its name.
    authorize_batches_as_single_calls,
    authorize_protection_on_tasks,
    tell_conditions_of_writes,
    name_roles_of_sessions,
    run_functions_without_packages,
    unpack_bundles_once,
    add_nat_gateways_and_flow_logs,
    add_elastic_addresses,
    add_rules_of_security_groups,
    add_application_auto_scaling,
    add_saved_queries,
    drop_logs_of_deleted_functions,
    tell_zone_ids_of_subnets,
    accept_alarms_on_metric_math,
    add_composite_alarms,
    rotate_secrets_at_once,
    refer_to_secrets_by_arn,
    leave_buckets_full,
    keep_details_of_containers,
    set_numbers_of_tasks,
    wait_for_services,
    accept_events_of_services,
    serve_one_port,
    answer_null_with_nothing,
)


def main() -> None:
    emulator = Emulator()
    for patch in PATCHES:
        patch(emulator)
    emulator.part("app", "main")()


if __name__ == "__main__":
    main()
