"""`headrace restore` on a small deployment: what it prints, asks and refuses."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from command_line import Run, runner
from restore_world import AT_MS, CONTAINERS, RestoreWorld

from headrace.adapters.dynamodb.table_items import TableItems, TableOrigin
from headrace.cli.outcome import ExitCode
from headrace.doctor import account
from headrace.doctor.account import CannotLookError, NotThereError
from headrace.restore.applying import is_under_way
from headrace.restore.stopping import deployed_name, running_functions, writing_functions
from headrace.restore.verification import QUESTIONS

AT = datetime.fromtimestamp(AT_MS / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def run(world: RestoreWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("verify")` runs `headrace restore verify` on the deployment."""
    monkeypatch.setenv("HEADRACE_METADATA_TABLE", world.deployment.now.table)
    monkeypatch.setenv("HEADRACE_CHUNK_BUCKET", world.bucket)
    return runner(capsys, "restore")


class FunctionsOfAnAccount:
    """An account in which each function has this reserved concurrency: None if none, or an error.

    Its bridge has so many tasks; None: there is no cluster.
    """

    region = "us-east-1"

    def __init__(self, concurrency: int | Exception | None, bridges: int | None = 0) -> None:
        self._concurrency, self._bridges = concurrency, bridges

    def ask(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        if (service, operation) == ("ecs", "describe_services"):
            names = ("headrace-store-0", "headrace-grpc-bridge")
            return {"services": [_service(name, self._bridges or 0) for name in names]}
        assert (service, operation) == ("lambda", "get_function_concurrency")
        if isinstance(self._concurrency, Exception):
            raise self._concurrency
        return {} if self._concurrency is None else {"ReservedConcurrentExecutions": self._concurrency}

    def ask_all(self, service: str, operation: str, items: str, **parameters: Any) -> list[Any]:
        assert (service, operation) == ("ecs", "list_services")
        if self._bridges is None:
            raise NotThereError("ClusterNotFoundException")
        return ["arn"]


def _service(name: str, tasks: int) -> dict[str, Any]:
    return {"serviceName": name, "runningCount": tasks, "desiredCount": tasks}


def copied(world: RestoreWorld) -> tuple[str, ...]:
    return "--table", world.deployment.then.table, "--at", AT


def test_plan_has_a_stable_document(run: Run, world: RestoreWorld):
    ran = run("plan", *copied(world), "--json")
    assert ran.code == ExitCode.DONE
    document = ran.document
    assert (document["table"], document["atTimeMs"]) == (world.deployment.then.table, AT_MS)
    assert (document["objects"], document["gapCount"]) == ({"deleted": 4}, 0)
    assert document["logsDiscarded"] == list(range(CONTAINERS))
    assert set(document["containers"][0]) == {
        "container", "epochThen", "epochNow", "epochInNames", "epochRestored", "nextEntry", "discardsLog"
    }  # fmt: skip


def test_plan_with_gaps_names_them_and_fails(run: Run, world: RestoreWorld):
    world.expire(world.packed)
    ran = run("plan", *copied(world))
    assert ran.code == ExitCode.REFUSED
    assert world.packed in ran.out
    assert "no version of the object is left" in ran.out


def test_restore_from_plan_to_verification(run: Run, world: RestoreWorld):
    ran = run("apply", *copied(world), "--yes", "--functions-stopped", "--json")
    assert ran.code == ExitCode.DONE
    assert ran.document["counts"]["objects"] == 4
    assert [line.rpartition(" ")[2] for line in ran.err.splitlines()] == [
        "claims", "objects", "import", "removal", "containers", "positions", "stores", "end"
    ]  # fmt: skip
    verified = run("verify", "--json")
    assert (verified.code, verified.document["verdict"]) == (ExitCode.DONE, "well")
    assert [each["check"] for each in verified.document["findings"]] == list(QUESTIONS)


def test_verification_that_fails_ends_with_one(run: Run, world: RestoreWorld):
    run("apply", *copied(world), "--yes", "--functions-stopped")
    world.expire(world.packed)
    ran = run("verify")
    assert ran.code == ExitCode.REFUSED
    assert "FAILURE" in ran.out


@pytest.mark.parametrize(("answer", "is_restored"), [("restore\n", True), ("yes\n", False), ("", False)])
def test_restore_asks_for_confirmation(
    run: Run, world: RestoreWorld, monkeypatch: pytest.MonkeyPatch, answer: str, is_restored: bool
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(answer.encode())))
    before = world.content()
    ran = run("apply", *copied(world), "--functions-stopped")
    assert (ran.code == ExitCode.DONE) == is_restored
    assert (world.content() != before) == is_restored
    assert "is discarded" in ran.err


@pytest.mark.parametrize(
    ("concurrency", "said"),
    [(None, "functions may run"), (5, "functions may run"), (CannotLookError("no"), "--functions-stopped")],
)
def test_functions_that_may_run_prevent_a_restore(
    run: Run, world: RestoreWorld, monkeypatch: pytest.MonkeyPatch, concurrency: int | Exception | None, said: str
):
    monkeypatch.setattr(account, "BotocoreAccount", lambda: FunctionsOfAnAccount(concurrency))
    ran = run("apply", *copied(world), "--yes")
    assert ran.code == ExitCode.REFUSED
    assert said in ran.err
    assert not is_under_way(world.deployment.store)


@pytest.mark.parametrize(("bridges", "is_restored"), [(1, False), (0, True), (None, True)])
def test_bridge_that_runs_prevents_a_restore(
    run: Run, world: RestoreWorld, monkeypatch: pytest.MonkeyPatch, bridges: int | None, is_restored: bool
):
    monkeypatch.setattr(account, "BotocoreAccount", lambda: FunctionsOfAnAccount(0, bridges))
    ran = run("apply", *copied(world), "--yes")
    assert (ran.code == ExitCode.DONE) == is_restored
    assert ("--service headrace-grpc-bridge" in ran.err) != is_restored


@pytest.mark.parametrize("concurrency", [0, NotThereError("none")])
def test_stopped_and_missing_functions_do_not_run(concurrency: int | Exception):
    assert running_functions(FunctionsOfAnAccount(concurrency)) == []


def test_functions_that_write_metadata_are_looked_at():
    assert running_functions(FunctionsOfAnAccount(None)) == [deployed_name(each) for each in writing_functions()]
    assert "headrace-ticks" in map(deployed_name, writing_functions())


def test_time_of_a_copy_that_nothing_tells_must_be_given(run: Run, world: RestoreWorld):
    ran = run("plan", "--table", world.deployment.then.table)
    assert ran.code == ExitCode.REFUSED
    assert "--at" in ran.err


def test_copy_of_another_deployment_is_refused(run: Run, world: RestoreWorld, monkeypatch: pytest.MonkeyPatch):
    def origin(items: TableItems) -> TableOrigin:
        return TableOrigin(f"arn:{items.table}", "arn:other", AT_MS)

    monkeypatch.setattr(TableItems, "origin", origin)
    ran = run("plan", "--table", world.deployment.then.table)
    assert ran.code == ExitCode.REFUSED
    assert "was restored from arn:other" in ran.err


def test_time_of_a_restored_table_is_read_from_it(run: Run, world: RestoreWorld, monkeypatch: pytest.MonkeyPatch):
    def origin(items: TableItems) -> TableOrigin:
        is_copy = items.table == world.deployment.then.table
        return TableOrigin("arn:copy" if is_copy else "arn:now", "arn:now" if is_copy else None, AT_MS - 1_000)

    monkeypatch.setattr(TableItems, "origin", origin)
    ran = run("plan", "--table", world.deployment.then.table, "--at", AT, "--json")
    assert ran.document["atTimeMs"] == AT_MS - 1_000


@pytest.mark.parametrize("action", ["plan", "apply"])
def test_copy_that_does_not_exist_is_not_found(run: Run, action: str):
    more = () if action == "plan" else ("--yes", "--functions-stopped")
    assert run(action, "--table", "no-such-table", "--at", AT, *more).code == ExitCode.NOT_FOUND


def test_table_must_be_named(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HEADRACE_METADATA_TABLE")
    ran = run("verify")
    assert ran.code == ExitCode.REFUSED
    assert "--metadata-table NAME" in ran.err


@pytest.mark.parametrize("action", ["plan", "apply"])
def test_table_of_the_deployment_is_not_its_own_copy(run: Run, world: RestoreWorld, action: str):
    """Its logs would be discarded, and nothing would come back."""
    more = () if action == "plan" else ("--yes", "--functions-stopped")
    before = world.content()
    ran = run(action, "--table", world.deployment.now.table, "--at", AT, *more)
    assert ran.code == ExitCode.REFUSED
    assert "is the deployment's own" in ran.err
    assert world.content() == before
