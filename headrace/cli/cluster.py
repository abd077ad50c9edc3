"""`headrace cluster`: the stores, the stores that serve the containers, and the containers' logs.

Some decisions about logs are made by an operator only.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from headrace.api.cluster import ContainerLogView, ContainerView, LogMemberView, StoreView
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome, cell, time_text
from headrace.cli.parameters import number
from headrace.cli.session import Session
from headrace.model.errors import IllegalStateError, InvalidRequestError, NotFoundError

app = new_app()


@action(app, "stores", examples=["headrace cluster stores"])
def stores(session: Session) -> Outcome:
    """List the segment stores with their leases."""
    cluster = session.client.admin.cluster.get()
    rows = [
        (
            store.store_id,
            store.state,
            f"{store.host}:{store.port}",
            store.zone,
            time_text(store.lease_until_ms),
            len(store.containers),
            store.capacity,
        )
        for store in cluster.stores
    ]
    document = {
        "mapVersion": cluster.map_version,
        "containerCount": cluster.container_count,
        "stores": [_store(store) for store in cluster.stores],
    }
    return Outcome(document, ("STORE", "STATE", "ADDRESS", "ZONE", "LEASE UNTIL", "CONTAINERS", "CAPACITY"), rows)


@action(app, "containers", examples=["headrace cluster containers --json"])
def containers(session: Session) -> Outcome:
    """List for each container its assigned store and the store that claimed it."""
    container_map = session.client.admin.cluster.containers()
    rows = [
        (
            container.container,
            container.state,
            container.store,
            container.claimed_by,
            _address(container),
            container.zone,
            container.epoch,
        )
        for container in container_map.containers
    ]
    document = {
        "mapVersion": container_map.map_version,
        "containers": [_container(container) for container in container_map.containers],
    }
    return Outcome(document, ("CONTAINER", "STATE", "STORE", "CLAIMED BY", "ADDRESS", "ZONE", "EPOCH"), rows)


def _store(store: StoreView) -> dict[str, Any]:
    return {
        "store": store.store_id,
        "state": store.state,
        "host": store.host,
        "port": store.port,
        "zone": store.zone,
        "capacity": store.capacity,
        "incarnation": store.incarnation,
        "task": store.task,
        "leaseUntilMs": store.lease_until_ms,
        "endedMs": store.ended_ms,
        "takeOverMs": store.take_over_ms,
        "containers": list(store.containers),
        "startsMs": list(store.starts_ms),
        "unflushedSinceMs": store.unflushed_since_ms,
    }


def _container(container: ContainerView) -> dict[str, Any]:
    return container.to_json()


def _address(container: ContainerView) -> str | None:
    return None if container.host is None else f"{container.host}:{container.port}"


_CONFIRMATION = "accept"
COPIES = ("1", "3")


def _copies(text: str) -> int:
    if text not in COPIES:
        raise typer.BadParameter(f"{text[:100]!a} is not one of {', '.join(COPIES)}")
    return int(text)


def _document(log: ContainerLogView) -> dict[str, Any]:
    return log.to_json()


def _member(member: LogMemberView) -> str:
    return f"{member.store or member.replica[:8]}/{member.zone or '?'}" + (" lost" if member.may_be_removed else "")


@action(app, "logs", examples=["headrace cluster logs"])
def logs(session: Session) -> Outcome:
    """List the log of each container with its members and ledgers."""
    container_logs = session.client.admin.cluster.logs().logs
    rows = [
        (
            log.container,
            log.state,
            log.copies,
            [_member(each) for each in log.members],
            [f"{ledger.epoch}:{ledger.first}" for ledger in log.ledgers],
            log.truncated if log.next_entry is None else log.next_entry,
            log.complete,
            log.blocked,
        )
        for log in container_logs
    ]
    columns = ("CONTAINER", "STATE", "COPIES", "MEMBERS", "LEDGERS", "TRUNCATED", "COMPLETE", "BLOCKED")
    return Outcome({"logs": [_document(each) for each in container_logs]}, columns, rows)


@action(app, "accept-loss", examples=["headrace cluster accept-loss --container 3"])
def accept_loss(
    session: Session,
    container: Annotated[int, typer.Option(parser=number, metavar="N", help="number of the container")],
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
) -> Outcome:
    """Take members that are lost for good out of a blocked container's log. Acknowledged events may be lost."""
    cluster = session.client.admin.cluster
    log = next((log for log in cluster.logs().logs if log.container == container), None)
    if log is None or log.state is None:
        raise NotFoundError(f"container {container} has no log", code="no_log")
    lost = [each for each in log.members if each.may_be_removed]
    if not lost:
        raise IllegalStateError(
            f"no member of the log of container {container} is known to be lost: their stores are there, or ECS has "
            "not reported that their tasks have stopped"
        )
    if not yes:
        _confirm(log, lost)
    after = cluster.accept_loss(container, [each.replica for each in lost], log.version)
    left = f"{len(after.members)} of {len(log.members)} members remain" if after.members else "the log is lost"
    return Outcome(_document(after), text=f"container {container}: {left}")


def _confirm(log: ContainerLogView, lost: list[LogMemberView]) -> None:
    """Asks the operator on standard error, so that standard output has the result only."""
    remaining = len(log.members) - len(lost)
    rest = (
        f"The longest copy of the {remaining} other members becomes the log."
        if remaining
        else "No other member remains: the container is restored from its newest snapshot in tier 2."
    )
    names = [f"  replica {each.replica} of store {cell(each.store)} in zone {cell(each.zone)}" for each in lost]
    lines = [
        f"Container {log.container} loses these members of its log for ever:",
        *names,
        rest,
        "Acknowledged events that only the lost members had will be missing.",
        f"Type '{_CONFIRMATION}' to go on: ",
    ]
    print("\n".join(lines), end="", file=sys.stderr, flush=True)
    answer = ""
    with suppress(OSError, ValueError):  # standard input cannot be read, or is not text
        answer = sys.stdin.readline()
    if answer.strip() != _CONFIRMATION:
        raise InvalidRequestError("not confirmed, so nothing was changed", code="not_confirmed")


@action(app, "set-copies", examples=["headrace cluster set-copies 3"])
def set_copies(
    session: Session,
    copies: Annotated[
        int,
        typer.Argument(
            parser=_copies, metavar="1|3", help="copies of each event before tier 2 has it", show_default=False
        ),
    ],
) -> Outcome:
    """Set the number of copies of logs that are not open."""
    done = session.client.admin.cluster.set_copies(copies)
    kept = f"; the owners of {len(done.kept)} open logs extend them when they run with 3 copies" if done.kept else ""
    return Outcome(done.to_json(), text=f"logs with {done.copies} copies from now on: {len(done.changed)}{kept}")


@action(app, "raise-epochs", examples=["headrace cluster raise-epochs --above 41"])
def raise_epochs(
    session: Session,
    above: Annotated[int, typer.Option(parser=number, metavar="EPOCH", help="the epoch that the stores have named")],
) -> Outcome:
    """Raise the epochs of containers after the metadata table was restored."""
    raised: set[int] = set()
    while True:
        done = session.client.admin.cluster.raise_epochs(above)
        raised |= set(done.raised)
        if not done.remaining:
            break
    document = {"above": above, "raised": sorted(raised)}
    return Outcome(document, text=f"the epochs of {len(raised)} containers are above {above}")
