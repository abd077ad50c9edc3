"""`headrace access`: policies of IAM for the routes that a use of a scope needs. Needs no controller."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome
from headrace.cli.parameters import checked
from headrace.cli.session import Session
from headrace.model.errors import InvalidRequestError
from headrace.model.names import check_known_name

if TYPE_CHECKING:
    from headrace.topology.kinds import Access

app = new_app()

_API_HOST = re.compile(r"([a-z0-9]+)\.execute-api\.([a-z0-9-]+)\.amazonaws\.(?:com|com\.cn|eu)")
_PART_OF_ARN = re.compile(r"[A-Za-z0-9_-]+")
_STAGE = re.compile(r"\$default|[A-Za-z0-9_-]+")
_PARTITIONS = {
    "cn-": "aws-cn",
    "eu-isoe-": "aws-iso-e",
    "eusc-": "aws-eusc",
    "us-gov-": "aws-us-gov",
    "us-iso-": "aws-iso",
    "us-isob-": "aws-iso-b",
    "us-isof-": "aws-iso-f",
}
"""By how their Regions begin. All others are in the partition `aws`."""


def _part_of_arn(text: str) -> str:
    if not _PART_OF_ARN.fullmatch(text):
        raise InvalidRequestError(f"{text[:100]!a} cannot be part of an ARN")
    return text


def _stage(text: str) -> str:
    if not _STAGE.fullmatch(text):
        raise InvalidRequestError(f"{text[:100]!a} is not the name of a stage")
    return text


def _name(kind: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        parser=checked(lambda text: check_known_name(kind, text)), metavar="NAME", show_default=False
    )
    return option


ScopeName = Annotated[str, _name("scope")]
StreamName = Annotated[str | None, _name("stream")]
GroupName = Annotated[str | None, _name("reader group")]
TableName = Annotated[str | None, _name("key-value table")]


@action(
    app,
    "policy",
    examples=[
        "headrace access policy --scope shop --stream orders --read",
        "headrace access policy --scope shop --stream orders --group billing --consume",
        "headrace access policy --scope shop --write --region eu-west-1 --account 111122223333 --api-id a1b2c3",
    ],
)
def policy(
    session: Session,
    scope: ScopeName,
    stream: StreamName = None,
    group: GroupName = None,
    table: TableName = None,
    read: Annotated[bool, typer.Option("--read", help="read events, and ask about the resources")] = False,
    consume: Annotated[
        bool, typer.Option("--consume", help="read as a member of a group, and publish positions; includes --read")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="write events and tables, also in transactions; includes --read")
    ] = False,
    manage: Annotated[
        bool, typer.Option("--manage", help="change and delete the resources; includes all of the above")
    ] = False,
    api_id: Annotated[
        str | None,
        typer.Option(
            parser=checked(_part_of_arn),
            metavar="ID",
            help="id of the HTTP API, the output ApiId (default: that of the controller's URL)",
            show_default=False,
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            parser=checked(_part_of_arn),
            metavar="REGION",
            help="Region of the deployment (default: that of the controller's URL)",
            show_default=False,
        ),
    ] = None,
    account: Annotated[
        str,
        typer.Option(parser=checked(_part_of_arn), metavar="ID", help="id of the account of the deployment"),
    ] = "ACCOUNT",
    stage: Annotated[
        str, typer.Option(parser=checked(_stage), metavar="NAME", help="stage of the HTTP API")
    ] = "$default",
) -> Outcome | None:
    """Print a policy of IAM for exactly the routes that a use of a scope, stream, group or table needs."""
    from headrace.topology.caller_access import INCLUDED, named_patterns, policy_document
    from headrace.topology.kinds import Access

    wanted = {Access.READ: read, Access.CONSUME: consume, Access.WRITE: write, Access.MANAGE: manage}
    granted = frozenset[Access]().union(*(INCLUDED[access] for access, is_wanted in wanted.items() if is_wanted))
    if not granted:
        raise typer.BadParameter("expected at least one of --read, --consume, --write and --manage")
    named = {"scope": scope, "stream": stream, "group": group, "table": table}
    names = {kind: name for kind, name in named.items() if name is not None}
    for note in _not_expressed(granted, names):
        session.complain(f"note: {note}")
    known_api, known_region = _deployment_of(session.shared.controller_url)
    arn = _stage_arn(api_id or known_api, region or known_region, account, stage)
    document = policy_document(named_patterns(granted, names), arn)
    print(json.dumps(document, indent=2))
    return None


def _not_expressed(granted: frozenset[Access], names: Mapping[str, str]) -> Iterator[str]:
    """What a caller may expect of this policy and does not get, because the path of a route does not say it."""
    from headrace.topology import ROUTES
    from headrace.topology.caller_access import patterns_of
    from headrace.topology.kinds import Access
    from headrace.topology.routes import RESOURCE_PATHS

    paths = {RESOURCE_PATHS[kind].rpartition("/")[0] for kind in names if kind != "scope" or len(names) == 1}
    for route in ROUTES:
        if route.created and route.access in granted and route.path in paths:
            (pattern,) = patterns_of([route], names)
            yield f"{route.action} is not allowed: {pattern} has the name in its body, so it would allow any name"
    if Access.CONSUME in granted and Access.MANAGE not in granted and "stream" in names and "group" not in names:
        yield "no reader group is named: a member of a group also needs the routes of --group NAME"


def _deployment_of(url: str) -> tuple[str, str]:
    """Id and Region of the HTTP API with this URL, or words to replace."""
    match = _API_HOST.fullmatch(urlsplit(url).hostname or "")
    return (match[1], match[2]) if match else ("API_ID", "REGION")


def _stage_arn(api_id: str, region: str, account: str, stage: str) -> str:
    partition = next((name for prefix, name in _PARTITIONS.items() if region.startswith(prefix)), "aws")
    return f"arn:{partition}:execute-api:{region}:{account}:{api_id}/{stage}"
