"""The programs of the guide on exactly-once processing, interrupted at each of their calls that change something."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from guide_blocks import USING, blocks_of
from guide_runner import GuideRunner

from headrace.client import AsyncTransaction, AsyncTransactionalWriter, EventReader, Headrace, transforms
from headrace.client.administration.retention_admin import AsyncSubscribersAdmin
from headrace.client.administration.transactions_admin import AsyncTransactionsAdmin

pytestmark = pytest.mark.xdist_group("guides")

PAGE = USING / "guides" / "exactly-once.md"
ORDERS = [{"customer": "carla", "amount": amount} for amount in range(4)]
LATER = {"customer": "carla", "amount": 4}


class PowerCutError(Exception):
    """The end of the process."""


@pytest.fixture
def programs(guide: GuideRunner, client: Headrace, scope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names of the guide after its programs have run once. Then more orders arrive."""
    client.admin.create_scope(scope)
    for block in blocks_of(PAGE.read_text()):
        guide.run(block, PAGE.name)
    _place(client, scope, ORDERS)
    monkeypatch.chdir(tmp_path)
    return guide.names


def _place(client: Headrace, scope: str, orders: list[dict[str, Any]]) -> None:
    with client.writer(scope, "sales") as writer:
        writer.write_batch([json.dumps(order).encode() for order in orders], "carla")


@contextmanager
def _power_cut(kind: type, method: str) -> Iterator[None]:
    """A call of the method ends the program after it has had its effect."""
    original: Callable[..., Any] = getattr(kind, method)

    def run(*arguments: Any, **options: Any) -> Any:
        original(*arguments, **options)
        raise PowerCutError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, method, run)
        with pytest.raises(PowerCutError):
            yield


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (AsyncTransactionsAdmin, "committed"),
        (AsyncSubscribersAdmin, "register"),
        (AsyncTransactionalWriter, "begin"),
        (AsyncTransaction, "write_batch"),
        (AsyncTransaction, "detach"),
        (AsyncTransactionsAdmin, "commit_all"),
    ],
)
def test_each_order_gets_one_invoice(
    programs: dict[str, Any], client: Headrace, scope: str, kind: type, method: str, before: bool
):
    with _power_cut_of_a_transform(kind, method, before=before):
        _invoice(programs, client, scope)
    _place(client, scope, [LATER])
    done = [_invoice(programs, client, scope) for _ in range(2)]
    was_committed = method == "commit_all" and not before
    assert done == [1 if was_committed else 5, 0]
    client.admin.seal_stream(scope, "invoices")  # commits what was requested before, aborts the rest
    with client.reader(scope, "invoices") as reader:
        invoices = [read.event.decode() for read in reader if b"carla" in read.event]
    assert invoices == [f"carla pays {order['amount']}" for order in [*ORDERS, LATER]]


@pytest.mark.parametrize("method", ["read_batch", "close"])
def test_each_order_is_billed_once(programs: dict[str, Any], client: Headrace, method: str):
    with _power_cut(EventReader, method):
        programs["bill_new_sales"](client)
    programs["bill_new_sales"](client)
    billed = programs["database"].execute("select amount from bills where customer = 'carla' order by amount")
    assert billed.fetchall() == [(order["amount"],) for order in ORDERS]


def _invoice(programs: dict[str, Any], client: Headrace, scope: str) -> int:
    """The number of orders that this run has read."""
    tail = client.admin.stream_cut(scope, "sales", at="latest")
    invoices = f"{scope}/invoices"
    return client.transform(f"{scope}/sales", programs["invoices"], into=invoices, name="invoicing", end=tail).events


@contextmanager
def _power_cut_of_a_transform(kind: type, method: str, *, before: bool) -> Iterator[None]:
    """As `_power_cut`; and nothing that the transform has begun is aborted."""
    original: Callable[..., Any] = getattr(kind, method)

    async def run(*arguments: Any, **options: Any) -> Any:
        if not before:
            await original(*arguments, **options)
        raise PowerCutError

    async def nothing(_: Any) -> None:
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, method, run)
        patch.setattr(transforms, "_abort", nothing)
        with pytest.raises(PowerCutError):
            yield
