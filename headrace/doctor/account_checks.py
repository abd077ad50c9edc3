"""Checks of the AWS account: stacks, alarms, services, and what protects the data. Each asks one or two questions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from headrace import topology
from headrace.doctor.account import Account, CannotLookError, NotThereError
from headrace.doctor.findings import CHECKS, Finding, failure, listed, skipped, warning, well

STACK_PREFIX: Final = "Headrace"
REQUIRED_STACKS: Final = (
    "HeadraceMetadata",
    "HeadraceChunks",
    "HeadraceAuditLog",
    "HeadraceQueues",
    "HeadraceObservability",
    "HeadraceNetwork",
    "HeadraceControllerApi",
    "HeadraceProcessors",
    "HeadraceSegmentStores",
)
"""The stacks of each deployment; others belong to settings."""

ALARM_PREFIX: Final = "headrace-"
RESTORABLE_WITHIN: Final = timedelta(minutes=10)
"""DynamoDB keeps the table restorable to a moment about five minutes ago."""

ROTATIONS_MISSED_MAX: Final = 2
SERVICES_AT_ONCE: Final = 10
"""The limit of ECS for one request."""


def account_findings(account: Account, now: datetime) -> list[Finding]:
    """What all checks of the account find. `now` has a time zone."""
    checks: dict[str, Callable[[], Finding]] = {
        "stacks": lambda: _stacks(account),
        "alarms": lambda: _alarms(account),
        "services": lambda: _services(account),
        "schedule": lambda: _schedule(account),
        "table-recovery": lambda: _table_recovery(account, now),
        "table-protection": lambda: _table_protection(account),
        "bucket-versions": lambda: _bucket_versions(account),
        "bucket-access": lambda: _bucket_access(account),
        "token-keys": lambda: _token_keys(account, now),
    }
    return [_examined(check, examine) for check, examine in checks.items()]


def _examined(check: str, examine: Callable[[], Finding]) -> Finding:
    try:
        return examine()
    except CannotLookError as error:
        return skipped(check, f"{error}; it needs {CHECKS[check].permission}")
    except NotThereError as error:
        return failure(check, f"it does not exist ({error})")


def _stacks(account: Account) -> Finding:
    stacks = account.ask_all("cloudformation", "describe_stacks", "Stacks")
    states = {each["StackName"]: each["StackStatus"] for each in stacks if each["StackName"].startswith(STACK_PREFIX)}
    missing = [name for name in REQUIRED_STACKS if name not in states]
    if missing:
        return failure("stacks", f"not deployed in {account.region}: {listed(missing)}")
    broken = [f"{name} {state}" for name, state in states.items() if state.endswith("FAILED") or _is_undone(state)]
    if broken:
        return failure("stacks", listed(broken))
    unusual = [f"{name} {state}" for name, state in states.items() if "ROLLBACK" in state or "PROGRESS" in state]
    if unusual:
        return warning("stacks", listed(unusual))
    return well("stacks", f"{len(states)} stacks are complete")


def _is_undone(state: str) -> bool:
    """The first deployment was rolled back, so that nothing of the stack is left."""
    return state in ("ROLLBACK_COMPLETE", "ROLLBACK_IN_PROGRESS")


def _alarms(account: Account) -> Finding:
    # Alarms without an action are parts of composite alarms, which say whether the parts together mean something.
    alarms = [
        alarm
        for kind in ("MetricAlarm", "CompositeAlarm")
        for alarm in account.ask_all(
            "cloudwatch", "describe_alarms", f"{kind}s", AlarmNamePrefix=ALARM_PREFIX, AlarmTypes=[kind]
        )
        if alarm["AlarmActions"]
    ]
    if not alarms:
        return failure("alarms", f"no alarm has a name that begins with {ALARM_PREFIX}")
    on = sorted(alarm["AlarmName"] for alarm in alarms if alarm["StateValue"] == "ALARM")
    if on:
        return failure("alarms", f"on: {listed(on)}")
    silent = [alarm["AlarmName"] for alarm in alarms if not alarm.get("ActionsEnabled", True)]
    if silent:
        return warning("alarms", f"their actions are disabled: {listed(silent)}")
    return well("alarms", f"{len(alarms)} alarms, none is on")


def ecs_services(account: Account) -> list[Any]:
    """All services of the deployment's cluster, as ECS describes them.

    Raises:
        CannotLookError: the credentials do not allow it (`ecs:ListServices` and `ecs:DescribeServices`).
        NotThereError: there is no cluster.
    """
    cluster = topology.SEGMENT_STORES.cluster
    names = account.ask_all("ecs", "list_services", "serviceArns", cluster=cluster)
    services: list[Any] = []
    for first in range(0, len(names), SERVICES_AT_ONCE):
        asked = names[first : first + SERVICES_AT_ONCE]
        services += account.ask("ecs", "describe_services", cluster=cluster, services=asked)["services"]
    return services


def _services(account: Account) -> Finding:
    services = ecs_services(account)
    if not services:
        return failure("services", f"the cluster {topology.SEGMENT_STORES.cluster} has no service")
    short = [
        f"{each['serviceName']} {each['runningCount']} of {each['desiredCount']}"
        for each in services
        if each["runningCount"] < each["desiredCount"]
    ]
    if short:
        return failure("services", f"tasks run: {listed(short)}")
    stopped = [each["serviceName"] for each in services if not each["desiredCount"]]
    if stopped:
        return warning("services", f"no task is wanted: {listed(stopped)}")
    changing = [
        f"{each['serviceName']} {deployment['rolloutState']}"
        for each in services
        for deployment in each.get("deployments", ())
        if deployment.get("rolloutState", "COMPLETED") != "COMPLETED"
    ]
    if changing:
        return warning("services", f"deployments: {listed(changing)}")
    return well("services", f"{len(services)} services run all their tasks")


def _schedule(account: Account) -> Finding:
    off = []
    for schedule in topology.SCHEDULES:
        name = f"headrace-{schedule.name}"
        if account.ask("events", "describe_rule", Name=name)["State"] == "DISABLED":
            off.append(name)
    return failure("schedule", f"disabled: {listed(off)}") if off else well("schedule", "the rule is enabled")


def _table_recovery(account: Account, now: datetime) -> Finding:
    answer = account.ask("dynamodb", "describe_continuous_backups", TableName=topology.METADATA_TABLE.name)
    recovery = answer["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    if recovery.get("PointInTimeRecoveryStatus") != "ENABLED":
        return failure("table-recovery", "point-in-time recovery is off")
    latest = recovery.get("LatestRestorableDateTime")
    if latest is None or now - latest > RESTORABLE_WITHIN:
        return failure("table-recovery", f"the table can be restored to {latest} only")
    return well("table-recovery", f"since {recovery.get('EarliestRestorableDateTime')}")


def _table_protection(account: Account) -> Finding:
    table = account.ask("dynamodb", "describe_table", TableName=topology.METADATA_TABLE.name)["Table"]
    if not table.get("DeletionProtectionEnabled"):
        return warning("table-protection", f"the table {topology.METADATA_TABLE.name} can be deleted")
    return well("table-protection", "deletion protection is on")


def _bucket_versions(account: Account) -> Finding:
    bucket = _bucket(account)
    if account.ask("s3", "get_bucket_versioning", Bucket=bucket).get("Status") != "Enabled":
        return failure("bucket-versions", f"the bucket {bucket} keeps no versions")
    rules = account.ask("s3", "get_bucket_lifecycle_configuration", Bucket=bucket)["Rules"]
    days = [
        rule["NoncurrentVersionExpiration"]["NoncurrentDays"]
        for rule in rules
        if rule["Status"] == "Enabled" and "NoncurrentDays" in rule.get("NoncurrentVersionExpiration", {})
    ]
    if not days:
        return failure("bucket-versions", f"no lifecycle rule of {bucket} removes old versions, which cost for ever")
    return well("bucket-versions", f"deleted chunks stay for {max(days)} days")


def _bucket_access(account: Account) -> Finding:
    bucket = _bucket(account)
    block = account.ask("s3", "get_public_access_block", Bucket=bucket)["PublicAccessBlockConfiguration"]
    names = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    missing = [name for name in names if not block.get(name)]
    if missing:
        return failure("bucket-access", f"off for {bucket}: {listed(missing)}")
    return well("bucket-access", f"all public access of {bucket} is blocked")


def _bucket(account: Account) -> str:
    number = account.ask("sts", "get_caller_identity")["Account"]
    return f"{topology.CHUNK_BUCKET.name}-{number}-{account.region}"


def _token_keys(account: Account, now: datetime) -> Finding:
    try:
        secret = account.ask("secretsmanager", "describe_secret", SecretId=topology.TOKEN_KEYS_SECRET)
    except NotThereError:
        return skipped("token-keys", "the deployment has no keys of delegation tokens")
    if not secret.get("RotationEnabled"):
        return failure("token-keys", "rotation is off")
    rotated = secret.get("LastRotatedDate")
    days = secret.get("RotationRules", {}).get("AutomaticallyAfterDays")
    if days is None:  # an operator has given the rotation a schedule of its own
        return skipped("token-keys", f"rotated last at {rotated}, due by a schedule that is not that of the template")
    every = timedelta(days=days)
    if rotated is None or now - rotated > ROTATIONS_MISSED_MAX * every:
        return failure("token-keys", f"rotated last at {rotated}, due every {every.days} days")
    return well("token-keys", f"rotated at {rotated}")
