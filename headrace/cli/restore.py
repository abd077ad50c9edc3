"""`headrace restore`: plan, apply, verify. They read and write the table and the bucket, and need no controller."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.actions import action, new_app
from headrace.cli.outcome import ExitCode, Outcome, Section, time_text
from headrace.cli.parameters import moment
from headrace.cli.session import Session
from headrace.model.errors import IllegalStateError, InvalidRequestError

if TYPE_CHECKING:
    from headrace.doctor.findings import Finding
    from headrace.restore.applying import Deployment
    from headrace.restore.planning import ContainerPlan, RestorePlan

METADATA_TABLE_VARIABLE = "HEADRACE_METADATA_TABLE"
CHUNK_BUCKET_VARIABLE = "HEADRACE_CHUNK_BUCKET"
EXTRA = "to restore a deployment, install headrace[segment-store]"

_CONFIRMATION = "restore"

app = new_app()

Copy = Annotated[
    str,
    typer.Option(
        "--table", metavar="NAME", help="the copy of the table, as DynamoDB has restored it", show_default=False
    ),
]
At = Annotated[
    datetime | None,
    typer.Option(
        parser=moment,
        metavar="TIME",
        help="the time of the copy, only if DynamoDB does not say it: the table was copied in another way",
    ),
]
MetadataTable = Annotated[
    str | None,
    typer.Option(
        "--metadata-table", metavar="NAME", help=f"the deployment's table (default: {METADATA_TABLE_VARIABLE})"
    ),
]
Bucket = Annotated[
    str | None,
    typer.Option("--bucket", metavar="NAME", help=f"the deployment's chunk bucket (default: {CHUNK_BUCKET_VARIABLE})"),
]


@action(app, "plan", examples=["headrace restore plan --table headrace-metadata-at-noon"])
def plan(
    session: Session, table: Copy, at: At = None, metadata_table: MetadataTable = None, bucket: Bucket = None
) -> Outcome:
    """Say what a restore would bring back, discard and leave behind. It changes nothing.

    It exits with 1 if something cannot be brought back.
    """
    with _deployment(table, metadata_table, bucket) as deployment:
        return _plan_outcome(_plan(deployment, at))


@action(app, "apply", examples=["headrace restore apply --table headrace-metadata-at-noon --yes"])
def apply(
    session: Session,
    table: Copy,
    at: At = None,
    metadata_table: MetadataTable = None,
    bucket: Bucket = None,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
    functions_stopped: Annotated[
        bool,
        typer.Option(
            "--functions-stopped",
            help="do not look whether functions and the bridge are stopped: they are, or this is not on AWS",
        ),
    ] = False,
    replace_unfinished: Annotated[
        bool, typer.Option("--replace-unfinished", help="discard a restore from another copy that is not finished")
    ] = False,
) -> Outcome:
    """Restore the deployment to the time of the copy. Stop all stores, functions and the bridge before.

    What was written since is discarded. Repeat the command if it ends early: it continues. Until it has finished, no
    process of the deployment starts.
    """
    from headrace.restore.applying import apply_restore

    if not functions_stopped:
        _check_stopped()
    with _deployment(table, metadata_table, bucket) as deployment:
        planned = _plan(deployment, at)
        if not yes:
            _confirm(session, planned)
        run = apply_restore(
            deployment,
            planned,
            replaces_unfinished=replace_unfinished,
            on_step=lambda step: session.complain(f"step: {step}"),
        )
    counts = dict(sorted(run.counts.items()))
    document = {"table": run.unfinished.table, "atTimeMs": run.unfinished.at_ms, "counts": counts}
    return Outcome(
        document,
        text=f"restored to {time_text(run.unfinished.at_ms)}: verify it, then start the functions and all stores",
    )


@action(app, "verify", examples=["headrace restore verify", "headrace restore verify --json"])
def verify(session: Session, metadata_table: MetadataTable = None, bucket: Bucket = None) -> Outcome:
    """Verify that the records of the deployment agree, and that the bucket has what they name. It changes nothing.

    Use it after a restore, before writers start. It exits with 1 if a check has failed.
    """
    with _deployment(None, metadata_table, bucket) as deployment:
        from headrace.restore.verification import verify as verify_deployment

        findings = verify_deployment(
            deployment.now, deployment.store, deployment.bucket, deployment.chunks, deployment.clock
        )
    return _findings_outcome(findings)


def _plan(deployment: Deployment, at: datetime | None) -> RestorePlan:
    from headrace.restore.planning import make_plan

    now, origin = deployment.now.origin(), deployment.then.origin()
    if origin.arn == now.arn:
        raise InvalidRequestError(
            f"the table {deployment.then.table} is the deployment's own: name the copy that DynamoDB has restored"
        )
    if origin.restored_from not in (None, now.arn):
        raise InvalidRequestError(
            f"the table {deployment.then.table} was restored from {origin.restored_from}, not from {now.arn}"
        )
    at_ms = origin.restored_to_ms if origin.restored_from is not None else None
    if at_ms is None and at is not None:
        at_ms = int(at.timestamp() * 1000)
    if at_ms is None:
        raise InvalidRequestError(
            f"DynamoDB does not say to which time the table {deployment.then.table} was restored: give it with --at"
        )
    return make_plan(deployment.now, deployment.then, deployment.then_store, deployment.bucket, at_ms)


@contextmanager
def _deployment(copy: str | None, table: str | None, bucket: str | None) -> Iterator[Deployment]:
    """The deployment that the options and variables name. Without a copy its own table is used, and only read."""
    try:
        from headrace.adapters.dynamodb.client import dynamodb_client
        from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
        from headrace.adapters.dynamodb.table_items import TableItems
        from headrace.adapters.s3.chunk_storage import S3ChunkStorage
        from headrace.adapters.s3.client import s3_client
        from headrace.adapters.s3.object_versions import BucketVersions
        from headrace.adapters.system_clock import SystemClock
        from headrace.restore.applying import Deployment
    except ImportError as error:
        raise InvalidRequestError(EXTRA) from error
    table = _named(table, METADATA_TABLE_VARIABLE, "--metadata-table NAME")
    bucket = _named(bucket, CHUNK_BUCKET_VARIABLE, "--bucket NAME")
    copy = table if copy is None else copy
    dynamodb, s3 = dynamodb_client(), s3_client()
    chunks = S3ChunkStorage(bucket, s3)
    try:
        yield Deployment(
            TableItems(table, dynamodb),
            DynamoMetadataStore(table, dynamodb),
            TableItems(copy, dynamodb),
            DynamoMetadataStore(copy, dynamodb),
            BucketVersions(bucket, s3),
            chunks,
            SystemClock(),
        )
    finally:
        chunks.close()


def _named(given: str | None, variable: str, option: str) -> str:
    value = given or os.environ.get(variable)
    if not value:
        raise InvalidRequestError(f"expected {option}, or the variable {variable}")
    return value


def _check_stopped() -> None:
    from headrace.doctor.account import BotocoreAccount, CannotLookError
    from headrace.restore.stopping import running_bridges, running_functions
    from headrace.topology import SEGMENT_STORES

    account = BotocoreAccount()
    try:
        running, bridges = running_functions(account), running_bridges(account)
    except CannotLookError as error:
        raise IllegalStateError(
            f"whether functions and the bridge are stopped is not known ({error}): allow "
            "lambda:GetFunctionConcurrency, ecs:ListServices and ecs:DescribeServices, or say --functions-stopped"
        ) from error
    if running:
        raise IllegalStateError(
            f"{len(running)} functions may run, among them {running[0]}: stop them with aws lambda "
            "put-function-concurrency --reserved-concurrent-executions 0 --function-name NAME"
        )
    if bridges:
        raise IllegalStateError(
            f"the gRPC bridge runs: stop it with aws ecs update-service --desired-count 0 --service {bridges[0]} "
            f"--cluster {SEGMENT_STORES.cluster}"
        )


def _confirm(session: Session, planned: RestorePlan) -> None:
    what = f"{planned.later} objects that were written since stay, and no record names them"
    session.complain(f"everything after {time_text(planned.at_ms)} is discarded; {what}")
    session.complain(f"enter {_CONFIRMATION!r} to restore the table {planned.table}")
    if session.read_line(len(_CONFIRMATION) + 2).decode(errors="replace").strip() != _CONFIRMATION:
        raise InvalidRequestError("not confirmed, so nothing was changed", code="not_confirmed")


def _plan_outcome(planned: RestorePlan) -> Outcome:
    containers = [each for each in planned.containers if each.restored is not None]
    logs = [each for each in containers if each.discards_log]
    objects = {str(state): count for state, count in sorted(planned.objects.items())}
    document = {
        "table": planned.table,
        "atTimeMs": planned.at_ms,
        "records": dict(sorted(planned.records.items())),
        "runs": planned.runs,
        "runBytes": planned.run_bytes,
        "objects": objects,
        "deletedBytes": planned.deleted_bytes,
        "laterObjects": planned.later,
        "laterBytes": planned.later_bytes,
        "logsDiscarded": [each.container for each in logs],
        "logBytesDiscarded": sum(each.log_bytes for each in logs),
        "gapCount": planned.gap_count,
        "gaps": [{"name": gap.name, "reason": gap.reason} for gap in planned.gaps],
        "containers": [_container_document(each) for each in containers],
    }
    details = [
        ("time", time_text(planned.at_ms)),
        ("records", sum(planned.records.values())),
        ("runs", f"{planned.runs} ({planned.run_bytes} bytes)"),
        *((f"objects {state}", count) for state, count in objects.items()),
        ("later objects, which stay unused", f"{planned.later} ({planned.later_bytes} bytes)"),
        ("logs discarded", f"{len(logs)} of {len(containers)}: what only they had at that time is lost"),
        ("cannot come back", planned.gap_count),
    ]
    gaps = [Section("Cannot come back", ("NAME", "REASON"), planned.gaps)] if planned.gaps else []
    code = ExitCode.REFUSED if planned.gap_count else ExitCode.DONE
    return Outcome(document, details=details, sections=gaps, code=code)


def _container_document(each: ContainerPlan) -> Mapping[str, Any]:
    restored = each.restored
    assert restored is not None
    return {
        "container": each.container,
        "epochThen": each.then.epoch,
        "epochNow": each.now.epoch,
        "epochInNames": each.epoch_in_names,
        "epochRestored": restored.epochs.claim,
        "nextEntry": restored.next_entry,
        "discardsLog": each.discards_log,
    }


def _findings_outcome(findings: list[Finding]) -> Outcome:
    from headrace.doctor.findings import Verdict, worst
    from headrace.restore.verification import QUESTIONS

    verdict = worst(findings)
    document = {
        "verdict": verdict,
        "findings": [
            {"check": each.check, "verdict": each.verdict, "question": QUESTIONS[each.check], "evidence": each.evidence}
            for each in findings
        ],
    }
    rows = [(each.verdict.upper(), each.check, each.evidence) for each in findings]
    code = ExitCode.REFUSED if verdict is Verdict.FAILURE else ExitCode.DONE
    return Outcome(document, ("VERDICT", "CHECK", "EVIDENCE"), rows, code=code)
