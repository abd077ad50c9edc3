"""`headrace cluster`: logs, and the decisions of an operator."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show

from headrace.metadata.cluster_records import write_lease
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.cluster import StoreLease, registered, task_stopped
from headrace.model.container_logs import REPLICA_ID_BYTES, LogState, ReplicaId, emptied, open_ledger
from headrace.topology import CONTAINER_COUNT

A, B, C = (ReplicaId(name.encode() * REPLICA_ID_BYTES) for name in "abc")
LOG = open_ledger(None, 4, 70, (A, B, C), 50, 3)


@pytest.fixture
def records(api: ApiInMemory) -> ContainerLogRecords:
    """The log of container 2 has three members; the tasks of two of their stores have stopped."""
    for name, member in (("a", A), ("b", B), ("c", C)):
        new = StoreLease(f"store-{name}", "h", 1, f"z{name}", 100, "disk", f"task-{name}", 0)
        lease = registered(replace(new, replica_id=member.hex(), replica_port=2), None, 0)
        api.store.write(write_lease(lease if member == A else task_stopped(lease, 0), None))
    made = ContainerLogRecords(api.store)
    made.replace_unowned(2, LOG, 0)
    return made


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


@pytest.mark.usefixtures("records")
def test_logs_are_listed_with_their_members(ok: Show, as_json: ReadJson):
    shown = ok("cluster", "logs").splitlines()
    assert len(shown) == CONTAINER_COUNT + 1
    assert "store-a/za, store-b/zb lost, store-c/zc lost" in shown[3]
    assert "4:70" in shown[3]
    logs = as_json("cluster", "logs")["logs"]
    assert [log["container"] for log in logs] == list(range(CONTAINER_COUNT))
    assert logs[0] == {
        "container": 0,
        "state": None,
        "copies": None,
        "version": 0,
        "members": [],
        "ledgers": [],
        "truncated": 0,
        "nextEntry": None,
        "complete": True,
        "blocked": False,
    }
    assert logs[2]["members"][1] == {
        "replica": B.hex(),
        "store": "store-b",
        "storeState": "LOST",
        "zone": "zb",
        "mayBeRemoved": True,
    }


def test_a_loss_is_accepted_after_a_confirmation(
    records: ContainerLogRecords, run: Run, monkeypatch: pytest.MonkeyPatch
):
    answer(monkeypatch, "accept\n")
    ran = run("cluster", "accept-loss", "--container", "2")
    assert (ran.code, ran.out) == (0, "container 2: 1 of 3 members remain\n")
    assert f"replica {B.hex()} of store store-b in zone zb" in ran.err
    assert A.hex() not in ran.err
    assert records.read(2) == (replace(LOG, members=(A,)), 2)


@pytest.mark.parametrize("text", ["", "y\n", "yes\n"])
def test_a_loss_that_is_not_confirmed_is_not_accepted(
    records: ContainerLogRecords, run: Run, monkeypatch: pytest.MonkeyPatch, text: str
):
    answer(monkeypatch, text)
    ran = run("cluster", "accept-loss", "--container", "2")
    assert ran.code == 1
    assert "not confirmed" in ran.err
    assert records.read(2) == (LOG, 1)


def test_the_loss_of_the_last_member_makes_the_log_lost(records: ContainerLogRecords, as_json: ReadJson):
    two = replace(LOG, members=(B, C))
    records.replace_unowned(3, two, 0)
    assert as_json("cluster", "accept-loss", "--container", "3", "--yes")["state"] == "LOST"
    stored = records.read(3)
    assert stored.log is not None
    assert stored.log.state is LogState.LOST


@pytest.mark.parametrize(("container", "problem"), [("1", "has no log"), ("5", "no member"), ("99999", "has no log")])
def test_a_log_without_lost_members_has_no_loss(records: ContainerLogRecords, run: Run, container: str, problem: str):
    records.replace_unowned(5, replace(LOG, members=(A,)), 0)
    ran = run("cluster", "accept-loss", "--container", container, "--yes")
    assert ran.code in (1, 3)
    assert problem in ran.err


def test_copies_are_set(records: ContainerLogRecords, run: Run, ok: Show):
    assert run("cluster", "set-copies", "1").code == 1
    records.replace_unowned(2, emptied(LOG, 90), 1)
    assert ok("cluster", "set-copies", "1") == "logs with 1 copies from now on: 1\n"
    assert run("cluster", "set-copies", "2").code == 2
    records.replace_unowned(2, replace(LOG, copies=1, members=(A,)), 3)
    assert "extend them" in ok("cluster", "set-copies", "3")


def test_epochs_are_raised_until_none_remains(
    api: ApiInMemory, as_json: ReadJson, run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.controller.services.cluster_service.CLAIM_WRITES_PER_REQUEST", 20)
    api.claim_containers()
    everything = list(range(CONTAINER_COUNT))
    assert as_json("cluster", "raise-epochs", "--above", "3") == {"above": 3, "raised": everything}
    assert {container["epoch"] for container in as_json("cluster", "containers")["containers"]} == {4}
    assert run("cluster", "raise-epochs", "--above", "-1").code == 2
