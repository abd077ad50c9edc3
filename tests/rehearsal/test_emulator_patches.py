"""The patches of the emulator, on modules that look like its own, and that a patch which does not fit is refused."""

from __future__ import annotations

import asyncio
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rehearsal import emulator_patches as patches
from rehearsal.emulator_patches import PATCHES, SETTLED_FOLDER_VARIABLE, Emulator, EmulatorChangedError

PROVISIONERS = "services.cloudformation.provisioners"
STACKS = "services.cloudformation.stacks"


class FakeEmulator(Emulator):
    """Modules by name; a module that is not given has nothing."""

    def __init__(self, **modules: Any) -> None:
        self.modules = {name.replace("__", "."): module for name, module in modules.items()}

    def module(self, name: str) -> Any:
        return self.modules.setdefault(name, SimpleNamespace())


def with_types(**types: dict[str, Callable[..., Any]]) -> FakeEmulator:
    """An emulator whose CloudFormation knows these types, with `__` for `::`."""
    handlers = {name.replace("__", "::"): handler for name, handler in types.items()}
    return FakeEmulator(services__cloudformation__provisioners=SimpleNamespace(_RESOURCE_HANDLERS=handlers))


def handlers_of(emulator: FakeEmulator, type_: str) -> Any:
    return emulator.modules[PROVISIONERS]._RESOURCE_HANDLERS[type_]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.__name__)
def test_a_patch_that_does_not_fit_is_refused(
    patch: Callable[[Emulator], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv(SETTLED_FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(EmulatorChangedError):
        patch(FakeEmulator())


def test_without_the_emulator_its_modules_are_missing():
    with pytest.raises(EmulatorChangedError, match="no module app"):
        Emulator().module("app")


def test_a_type_that_the_emulator_knows_is_not_added():
    emulator = with_types(AWS__EC2__EIP={})
    with pytest.raises(EmulatorChangedError, match="by itself"):
        emulator.add_type("AWS::EC2::EIP", lambda: None, lambda: None)


@pytest.mark.parametrize(
    ("asked", "authorized"),
    [("sqs:SendMessageBatch", "sqs:SendMessage"), ("sqs:SendMessage", "sqs:SendMessage"), (None, None)],
)
def test_batches_are_authorized_as_single_calls(asked: str | None, authorized: str | None):
    module = SimpleNamespace(extract_iam_action=lambda _service: asked)
    patches.authorize_batches_as_single_calls(FakeEmulator(core__iam_actions=module))
    assert module.extract_iam_action("sqs") == authorized


def test_protection_is_authorized_on_tasks():
    module = SimpleNamespace(extract_resource_arn=lambda *_: "arn:aws:ecs:r:1:cluster/headrace")
    patches.authorize_protection_on_tasks(FakeEmulator(core__iam_actions=module))
    headers = {"x-amz-target": "AmazonEC2ContainerServiceV20141113.UpdateTaskProtection"}
    assert module.extract_resource_arn("ecs", headers) == "arn:aws:ecs:r:1:task/headrace/0"
    assert module.extract_resource_arn("ecs", {}) == "arn:aws:ecs:r:1:cluster/headrace"


def test_a_put_says_whether_it_may_replace_an_object():
    module = SimpleNamespace(s3_service_context=lambda _action, _query, _path, _headers: {"s3:x": "y"})
    patches.tell_conditions_of_writes(FakeEmulator(core__iam_actions=module))
    conditional, plain = {"if-none-match": "*"}, {"host": "h"}
    assert module.s3_service_context("s3:PutObject", {}, "/b/k", conditional) == {"s3:x": "y", "s3:if-none-match": "*"}
    assert module.s3_service_context("s3:PutObject", {}, "/b/k", plain) == {"s3:x": "y"}
    assert module.s3_service_context("s3:GetObject", {}, "/b/k", conditional) == {"s3:x": "y"}


def test_the_principal_of_a_session_is_its_role():
    module = SimpleNamespace(_resolve_condition_key=lambda _key, context: context)
    patches.name_roles_of_sessions(FakeEmulator(core__iam_evaluator=module))
    session = "arn:aws:sts::000000000000:assumed-role/HeadraceSegmentStores-TaskRole-1/task"
    role = "arn:aws:iam::000000000000:role/HeadraceSegmentStores-TaskRole-1"
    assert module._resolve_condition_key("aws:PrincipalArn", session) == role
    assert module._resolve_condition_key("aws:PrincipalArn", role) == role
    assert module._resolve_condition_key("aws:SourceArn", session) == session


def test_only_the_given_port_is_served():
    module = SimpleNamespace(_port_is_bindable=lambda _host, _port: True)
    patches.serve_one_port(FakeEmulator(app=module))
    assert module._port_is_bindable("127.0.0.1", 8443)
    assert not module._port_is_bindable("127.0.0.1", 443)


def test_a_null_body_is_answered_with_nothing():
    sent = []

    async def send_response(_send: Any, status: int, _headers: Any, body: Any) -> None:
        sent.append((status, body))

    module = SimpleNamespace(_send_response=send_response)
    patches.answer_null_with_nothing(FakeEmulator(app=module))
    asyncio.run(module._send_response(None, 204, {}, None))
    asyncio.run(module._send_response(None, 200, {}, b"body"))
    assert sent == [(204, b""), (200, b"body")]


def test_services_of_aws_send_events():
    """Step Functions of the emulator says itself that it may."""
    module = SimpleNamespace(_put_events=lambda data, allow_aws_source=False: (data, allow_aws_source))
    patches.accept_events_of_services(FakeEmulator(services__eventbridge=module))
    assert module._put_events("entries") == ("entries", True)
    assert module._put_events("entries", allow_aws_source=True) == ("entries", True)


def test_functions_have_no_packages_of_the_emulator():
    module = SimpleNamespace(_detect_runtime_binary=lambda runtime: ("venv/python" if runtime else "", "script"))
    patches.run_functions_without_packages(FakeEmulator(core__lambda_runtime=module))
    binary, script = module._detect_runtime_binary("python3.13")
    assert (binary != "venv/python", script) == (True, "script")
    assert module._detect_runtime_binary("nodejs24.x")[0] == "venv/python"


def test_a_bundle_is_unpacked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    module = SimpleNamespace(zipfile=zipfile)
    patches.unpack_bundles_once(FakeEmulator(core__lambda_runtime=module))
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as bundle:
        bundle.writestr("functions/handler.py", "pass")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        with module.zipfile.ZipFile(tmp_path / "code.zip") as bundle:
            bundle.extractall(tmp_path / name)
    sources = [(tmp_path / name / "functions" / "handler.py").resolve() for name in ("first", "second")]
    assert sources[0] == sources[1]
    assert sources[0].read_text() == "pass"


def test_a_nat_gateway_exists_until_it_is_deleted():
    emulator = with_types()
    ec2 = SimpleNamespace(_nat_gateways={}, _flow_logs={}, _subnets={"s": {"VpcId": "v"}}, _now_ts=lambda: "now")
    emulator.modules["services.ec2"] = ec2
    patches.add_nat_gateways_and_flow_logs(emulator)
    gateway = handlers_of(emulator, "AWS::EC2::NatGateway")
    physical, attributes = gateway["create"]("Nat", {"SubnetId": "s", "AllocationId": "a"}, "Stack")
    assert attributes["NatGatewayId"] == physical
    assert ec2._nat_gateways[physical]["VpcId"] == "v"
    gateway["delete"](physical, {})
    assert ec2._nat_gateways == {}


def test_an_elastic_address_exists_until_it_is_deleted():
    emulator = with_types()
    ec2 = SimpleNamespace(_addresses={"old": {"PublicIp": "192.0.2.1"}})
    ec2._allocate_address = lambda _request: ec2._addresses.update(new={"PublicIp": "192.0.2.2"})
    emulator.modules["services.ec2"] = ec2
    patches.add_elastic_addresses(emulator)
    address = handlers_of(emulator, "AWS::EC2::EIP")
    assert address["create"]("Eip", {}, "Stack") == ("192.0.2.2", {"AllocationId": "new", "PublicIp": "192.0.2.2"})
    address["delete"]("192.0.2.2", {})
    assert list(ec2._addresses) == ["old"]


def test_a_rule_of_a_security_group_is_added_and_removed():
    emulator = with_types()
    emulator.modules[PROVISIONERS]._ec2_sg_permissions = lambda rules: [{"port": each["FromPort"]} for each in rules]
    ec2 = SimpleNamespace(_security_groups={"sg": {}})
    emulator.modules["services.ec2"] = ec2
    patches.add_rules_of_security_groups(emulator)
    rule = handlers_of(emulator, "AWS::EC2::SecurityGroupIngress")
    physical, _attributes = rule["create"]("Rule", {"GroupId": "sg", "FromPort": 1}, "Stack")
    assert ec2._security_groups["sg"] == {"IpPermissions": [{"port": 1}]}
    rule["delete"](physical, {"GroupId": "sg", "FromPort": 1})
    assert ec2._security_groups["sg"] == {"IpPermissions": []}


def test_scaling_of_services_is_noted_down():
    emulator = with_types()
    patches.add_application_auto_scaling(emulator)
    policy = handlers_of(emulator, "AWS::ApplicationAutoScaling::ScalingPolicy")
    physical, _attributes = policy["create"]("Policy", {}, "Stack")
    policy["delete"](physical, {})


def test_saved_queries_need_their_log_groups():
    emulator = with_types()
    emulator.modules["services.cloudwatch_logs"] = SimpleNamespace(_log_groups={"/audit": {}})
    patches.add_saved_queries(emulator)
    query = handlers_of(emulator, "AWS::Logs::QueryDefinition")
    physical, _attributes = query["create"]("Query", {"LogGroupNames": ["/audit"]}, "Stack")
    query["delete"](physical, {})
    with pytest.raises(ValueError, match="ResourceNotFoundException: /stores"):
        query["create"]("Query", {"LogGroupNames": ["/audit", "/stores"]}, "Stack")


def test_a_deleted_function_writes_no_log():
    written: list[Any] = []
    functions: dict[str, Any] = {"kept": {}}
    part = SimpleNamespace(_functions=functions, _emit_lambda_logs=lambda func, *rest: written.append((func, *rest)))
    patches.drop_logs_of_deleted_functions(FakeEmulator(services__lambda_svc=part))
    kept, gone = {"config": {"FunctionName": "kept"}}, {"config": {"FunctionName": "gone"}}
    for func in (kept, gone):
        part._emit_lambda_logs(func, "request-1")
    assert written == [(kept, "request-1")]


def test_subnets_tell_the_id_of_their_zone():
    emulator = with_types(AWS__EC2__Subnet={"create": lambda *_: ("subnet-1", {"SubnetId": "subnet-1"})})
    emulator.modules["services.ec2"] = SimpleNamespace(_subnets={"subnet-1": {"AvailabilityZoneId": "use1-az1"}})
    patches.tell_zone_ids_of_subnets(emulator)
    _physical, attributes = handlers_of(emulator, "AWS::EC2::Subnet")["create"]("Subnet", {}, "Stack")
    assert attributes == {"SubnetId": "subnet-1", "AvailabilityZoneId": "use1-az1"}


def test_an_alarm_on_metric_math_is_one_on_a_metric():
    metric = {"MetricName": "Errors", "Namespace": "AWS/Lambda"}
    math = [{"Expression": "a / b"}, {"MetricStat": {"Metric": metric, "Stat": "Sum", "Period": 60}}]
    module = SimpleNamespace(_cw_metric_alarm_record=lambda _name, props: props)
    patches.accept_alarms_on_metric_math(FakeEmulator(services__cloudformation__provisioners=module))
    record = module._cw_metric_alarm_record("alarm", {"Metrics": math, "Threshold": 1})
    assert record == {"Threshold": 1, **metric, "Dimensions": [], "Statistic": "Sum", "Period": 60}
    query = module._cw_metric_alarm_record("alarm", {"Metrics": [{"Expression": "SELECT SUM(x)"}]})
    assert query["MetricName"] == "query"
    assert module._cw_metric_alarm_record("alarm", {"MetricName": "Errors"}) == {"MetricName": "Errors"}


def emulator_of_alarms() -> FakeEmulator:
    """Like MiniStack's CloudWatch, which refuses a composite alarm on a part that does not exist."""
    emulator, alarms = with_types(), dict[str, Any]()

    def put(_params: Any, body: dict[str, Any], _is_cbor: bool, _is_json: bool) -> tuple[int, dict[str, str], bytes]:
        if "missing" in body["AlarmRule"]:
            return 400, {}, b"ValidationError"
        alarms[body["AlarmName"]] = {**body, "AlarmArn": f"arn:{body['AlarmName']}"}
        return 200, {}, b"{}"

    module = SimpleNamespace(_put_composite_alarm=put, _composite_alarms=alarms)
    emulator.modules["services.cloudwatch"] = module
    patches.add_composite_alarms(emulator)
    return emulator


def test_a_composite_alarm_is_made_and_deleted():
    emulator = emulator_of_alarms()
    handlers, alarms = (
        handlers_of(emulator, "AWS::CloudWatch::CompositeAlarm"),
        emulator.modules["services.cloudwatch"]._composite_alarms,
    )
    made = handlers["create"]("Page", {"AlarmName": "page", "AlarmRule": "ALARM(a)"}, "Stack")
    assert made == ("page", {"Arn": "arn:page"})
    assert handlers["create"]("Page", {"AlarmName": "page", "AlarmRule": "ALARM(b)"}, "Stack") == made
    assert alarms["page"]["AlarmRule"] == "ALARM(b)"
    handlers["delete"]("page", {})
    assert alarms == {}


def test_a_composite_alarm_needs_its_parts():
    handlers = handlers_of(emulator_of_alarms(), "AWS::CloudWatch::CompositeAlarm")
    with pytest.raises(ValueError, match="ValidationError"):
        handlers["create"]("Page", {"AlarmName": "page", "AlarmRule": "ALARM(missing)"}, "Stack")


def rotating_emulator(secret: dict[str, Any]) -> FakeEmulator:
    emulator = with_types()
    emulator.modules["services.secretsmanager"] = SimpleNamespace(
        _resolve=lambda _id: ("name", secret),
        _get_secret_value=lambda _data: "value",
        error_response_json=lambda code, _message, status: (code, status),
    )
    emulator.modules["services.lambda_svc"] = SimpleNamespace(
        _get_func_record_for_ref=lambda _arn: ("record", "config", "name"),
        _execution_record_for_config=lambda record, config: (record, config),
        _execute_function_with_config_scope=lambda _execution, event: secret["Steps"].append(event["Step"]),
    )
    emulator.modules[STACKS] = SimpleNamespace(_runs_on_worker_thread=lambda kind: kind == "Custom::X")
    patches.rotate_secrets_at_once(emulator)
    return emulator


def test_a_rotation_calls_the_function_for_each_step():
    secret: dict[str, Any] = {"Versions": {}, "Steps": []}
    emulator = rotating_emulator(secret)
    schedule = {"SecretId": "arn", "RotationLambdaARN": "f", "RotationRules": {"AutomaticallyAfterDays": "30"}}
    handlers_of(emulator, "AWS::SecretsManager::RotationSchedule")["create"]("Rotation", schedule, "Stack")
    assert secret["Steps"] == ["createSecret", "setSecret", "testSecret", "finishSecret"]
    assert secret["RotationRules"] == {"AutomaticallyAfterDays": 30}
    (version,) = secret["Versions"]
    refused = emulator.modules["services.secretsmanager"]._get_secret_value({"SecretId": "arn", "VersionId": version})
    assert refused == ("ResourceNotFoundException", 400)
    assert emulator.modules["services.secretsmanager"]._get_secret_value({"SecretId": "arn"}) == "value"


def test_a_rotation_does_not_block_the_emulator():
    runs_on_worker_thread = rotating_emulator({"Versions": {}}).modules[STACKS]._runs_on_worker_thread
    assert runs_on_worker_thread("AWS::SecretsManager::RotationSchedule")
    assert runs_on_worker_thread("Custom::X")
    assert not runs_on_worker_thread("AWS::S3::Bucket")


def test_a_secret_is_referred_to_by_its_arn():
    secret = {"create": lambda *_: ("name", {}), "delete": lambda *args: args}
    emulator = with_types(AWS__SecretsManager__Secret=secret)
    emulator.modules["services.secretsmanager"] = SimpleNamespace(_resolve=lambda _name: ("name", {"ARN": "arn:name"}))
    patches.refer_to_secrets_by_arn(emulator)
    handlers = handlers_of(emulator, "AWS::SecretsManager::Secret")
    assert handlers["create"]("Secret", {}, "Stack") == ("arn:name", {})
    assert handlers["delete"]("arn:name", {}) == ("name", {})


def test_functions_that_empty_buckets_are_not_called():
    module = SimpleNamespace(invoke_custom_resource=lambda *_args, **_kwargs: "called")
    patches.leave_buckets_full(FakeEmulator(services__cloudformation__custom_resource=module))
    invoke = module.invoke_custom_resource
    assert invoke("Delete", "Id", {"ServiceToken": "f"}, resource_type="Custom::S3AutoDeleteObjects") == ("Id", {})
    assert invoke("Delete", "Id", {"ServiceToken": "f"}, resource_type="Custom::Other") == "called"


def test_details_of_containers_are_in_the_form_of_the_api():
    container = {
        "healthCheck": {"Command": ["CMD"], "StartPeriod": 300},
        "secrets": [{"ValueFrom": "arn"}],
        "name": "c",
    }

    def create(*_: Any) -> tuple[str, dict[str, str]]:
        return "arn:task-definition/store:1", {}

    emulator = with_types(AWS__ECS__TaskDefinition={"create": create})
    emulator.modules[PROVISIONERS]._ecs_task_def_create = create
    emulator.modules["services.ecs"] = SimpleNamespace(_task_defs={"store:1": {"containerDefinitions": [container]}})
    patches.keep_details_of_containers(emulator)
    handlers_of(emulator, "AWS::ECS::TaskDefinition")["create"]("Task", {}, "Stack")
    assert container["healthCheck"] == {"command": ["CMD"], "startPeriod": 300}
    assert container["secrets"] == [{"valueFrom": "arn"}]


def service_emulator(monkeypatch: pytest.MonkeyPatch, folder: Path) -> FakeEmulator:
    monkeypatch.setenv(SETTLED_FOLDER_VARIABLE, str(folder))
    emulator = with_types(AWS__ECS__Service={"create": lambda *_: "created", "update": lambda *_: "updated"})
    emulator.modules[STACKS] = SimpleNamespace(_runs_on_worker_thread=lambda _kind: False)
    patches.wait_for_services(emulator)
    return emulator


def test_an_update_sets_the_number_of_tasks():
    emulator = with_types(AWS__ECS__Service={"update": lambda *args: args})
    patches.set_numbers_of_tasks(emulator)
    before, now = {"DesiredCount": 1, "ServiceName": "store"}, {"DesiredCount": 1, "ServiceName": "store"}
    updated = handlers_of(emulator, "AWS::ECS::Service")["update"]("physical", before, now, "Stack")
    assert updated == ("physical", {"ServiceName": "store"}, now, "Stack")


def test_a_service_is_done_when_its_tasks_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    service = handlers_of(service_emulator(monkeypatch, tmp_path), "AWS::ECS::Service")
    props = {"ServiceName": "store", "TaskDefinition": "arn:2"}
    (tmp_path / "store").write_text("arn:2")
    assert service["create"]("Id", props, "Stack") == "created"
    assert service["update"]("physical", {}, props, "Stack") == "updated"


def test_a_service_whose_tasks_fail_is_rolled_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    service = handlers_of(service_emulator(monkeypatch, tmp_path), "AWS::ECS::Service")
    (tmp_path / "store").write_text("failed arn:2")
    with pytest.raises(RuntimeError, match="circuit breaker"):
        service["create"]("Id", {"ServiceName": "store", "TaskDefinition": "arn:2"}, "Stack")
