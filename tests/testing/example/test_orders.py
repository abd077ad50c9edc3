"""Each test has a scope of its own, so tests do not see each other's orders."""

from __future__ import annotations

import pytest
from orders import STREAM, place_order, total

from headrace.client import Headrace


@pytest.fixture
def shop(headrace_client: Headrace, headrace_scope: str) -> str:
    headrace_client.admin.create_stream(headrace_scope, STREAM)
    return headrace_scope


def test_orders_of_a_customer_are_added_up(headrace_client: Headrace, shop: str) -> None:
    place_order(headrace_client, shop, "anna", 3)
    place_order(headrace_client, shop, "bert", 5)
    place_order(headrace_client, shop, "anna", 4)
    assert total(headrace_client, shop, "anna") == 7


def test_a_new_shop_has_no_orders(headrace_client: Headrace, shop: str) -> None:
    assert total(headrace_client, shop, "anna") == 0
