"""The programs of the guide on exactly-once processing, interrupted at each of their calls that change something."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from guide_blocks import USING, blocks_of
from guide_runner import GuideRunner

from headrace.client import EventReader, Headrace, KeyValueTable, Transaction, TransactionalWriter
from headrace.client.synchronous.synchronous_transactions_admin import TransactionsAdmin

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
    with client.writer(scope, "orders") as writer:
        writer.write_batch([json.dumps(order).encode() for order in orders], "carla")


@contextmanager
def _power_cut(kind: type, method: str, *, before: bool, call: int = 1) -> Iterator[None]:
    """A call of the method ends the program, before or after it has had its effect."""
    original: Callable[..., Any] = getattr(kind, method)
    calls = itertools.count(1)

    def run(*arguments: Any, **options: Any) -> Any:
        is_last = next(calls) == call
        if is_last and before:
            raise PowerCutError
        result = original(*arguments, **options)
        if is_last:
            raise PowerCutError
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, method, run)
        with pytest.raises(PowerCutError):
            yield


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (KeyValueTable, "replace"),
        (TransactionalWriter, "begin"),
        (Transaction, "flush"),
        (TransactionsAdmin, "commit_all"),
    ],
)
def test_each_order_gets_one_invoice(
    programs: dict[str, Any], client: Headrace, scope: str, kind: type, method: str, before: bool
):
    with _power_cut(kind, method, before=before):
        programs["invoice_new_orders"](client)
    _assert_all_are_invoiced(programs, client, scope)


def test_progress_that_was_not_noted_repeats_no_invoice(programs: dict[str, Any], client: Headrace, scope: str):
    """The second `replace`, after the commit, does not happen."""
    with _power_cut(KeyValueTable, "replace", before=True, call=2):
        programs["invoice_new_orders"](client)
    _assert_all_are_invoiced(programs, client, scope)


@pytest.mark.parametrize("method", ["read_batch", "close"])
def test_each_order_is_billed_once(programs: dict[str, Any], client: Headrace, method: str):
    with _power_cut(EventReader, method, before=False):
        programs["bill_new_orders"](client)
    programs["bill_new_orders"](client)
    billed = programs["database"].execute("select amount from bills where customer = 'carla' order by amount")
    assert billed.fetchall() == [(order["amount"],) for order in ORDERS]


def _assert_all_are_invoiced(programs: dict[str, Any], client: Headrace, scope: str) -> None:
    """The next run repeats the batch that was interrupted, without the order that arrives in between."""
    _place(client, scope, [LATER])
    programs["invoice_new_orders"](client)
    programs["invoice_new_orders"](client)
    assert programs["invoice_new_orders"](client) == 0
    client.admin.seal_stream(scope, "invoices")  # commits what was requested before, aborts the rest
    with client.reader(scope, "invoices") as reader:
        invoices = [read.event.decode() for read in reader if b"carla" in read.event]
    assert invoices == [f"carla pays {order['amount']}" for order in [*ORDERS, LATER]]
