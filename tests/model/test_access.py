"""Which segments the grants of a token include."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import names
from headrace.model.access import (
    Access,
    allows,
    is_table_segment,
    reader_group_resource,
    scope_resource,
    segment_resource,
    stream_resource,
    table_resource,
)

ORDERS = stream_resource("shop", "orders")


@pytest.mark.parametrize(
    ("segment", "resource"),
    [
        ("shop/orders/0.#epoch.0", ORDERS),
        (names.transaction_segment_name("shop/orders/0.#epoch.0", 7), ORDERS),
        (names.transient_segment_name("shop/orders/0.#epoch.0", 7, 8), ORDERS),
        ("shop/_RGbuyers/0.#epoch.0", "prn::/scope:shop/reader-group:buyers"),
        ("shop/_MARKorders/0.#epoch.0", ORDERS),
        ("shop/prices_kvtable/0.#epoch.0", "prn::/scope:shop/key-value-table:prices"),
        ("shop/orders", None),
        ("shop//0", None),
        ("/orders/0", None),
        ("", None),
    ],
)
def test_resource_of_a_segment(segment: str, resource: str | None) -> None:
    assert segment_resource(segment) == resource


@pytest.mark.parametrize(
    ("resource", "segment", "allowed"),
    [
        (ORDERS, "shop/orders/0.#epoch.0", True),
        (ORDERS, "shop/orders-of-2025/0.#epoch.0", False),
        (ORDERS, "shop/order/0.#epoch.0", False),
        (ORDERS, "shop2/orders/0.#epoch.0", False),
        (ORDERS, "shop/_RGorders/0.#epoch.0", False),
        (ORDERS, "shop/orders_kvtable/0.#epoch.0", False),
        (ORDERS, "shop/orders", False),
        (scope_resource("shop"), "shop/orders/0.#epoch.0", True),
        (scope_resource("shop"), "shop2/orders/0.#epoch.0", False),
        (scope_resource("shop"), "shop", False),
        (table_resource("shop", "t"), "shop/t_kvtable/0.#epoch.0", True),
        (reader_group_resource("shop", "t"), "shop/t_kvtable/0.#epoch.0", False),
        (reader_group_resource("shop", "t"), "shop/_RGt/0.#epoch.0", True),
        (stream_resource("shop", "t_kvtable"), "shop/t_kvtable/0.#epoch.0", False),
        ("*", "anything", True),
    ],
)
def test_grant_is_for_a_whole_name(resource: str, segment: str, allowed: bool) -> None:
    assert allows({resource: Access.READ_UPDATE}, segment, Access.READ_UPDATE) is allowed
    assert not allows({resource: Access.READ_UPDATE}, segment, Access.ADMIN)
    assert not allows({resource: Access.READ}, segment, Access.READ_UPDATE)
    assert not allows({resource: Access.NONE}, segment, Access.READ)
    assert not allows({}, segment, Access.READ)


def test_clients_only_read_watermarks() -> None:
    mark = names.mark_segment_name("shop", "orders")
    for resource in (ORDERS, scope_resource("shop")):
        assert allows({resource: Access.READ_UPDATE}, mark, Access.READ)
        assert not allows({resource: Access.ADMIN}, mark, Access.READ_UPDATE)
    assert allows({"*": Access.ADMIN}, mark, Access.ADMIN)


NAME_PARTS = ["a", "b", "/", ":", "*", "_", "_RG", "_MARK", "_kvtable"]
any_names = st.sampled_from(["a", "ab"]) | st.lists(st.sampled_from(NAME_PARTS), max_size=4).map("".join)
STARTS = ["{0}/{1}/", "{0}/_MARK{1}/", "{0}/_RG{1}/", "{0}/{1}_kvtable/", "{0}/{1}b/", "{0}/b{1}/", "{0}b/{1}/"]
"""Of the segments of the stream, and of others whose names differ little: they are what a wrong comparison mixes up."""


@given(any_names, any_names, st.data())
def test_grant_never_opens_another_stream(scope: str, stream: str, data: st.DataObject) -> None:
    """For any names, also those that contain the separators of resources."""
    parts = [scope, stream, "/", "_RG", "_MARK", "_kvtable", "a", "0.#epoch.0"]
    any_segment = st.lists(st.sampled_from(parts), max_size=7).map("".join)
    starts = st.sampled_from([start.format(scope, stream) for start in STARTS])
    segment = data.draw(st.builds("{}{}".format, starts, any_segment) | any_segment)
    if allows({stream_resource(scope, stream): Access.READ}, segment, Access.READ):
        assert segment.startswith((f"{scope}/{stream}/", f"{scope}/_MARK{stream}/"))


@pytest.mark.parametrize(
    ("segment", "is_table"),
    [("s/t_kvtable/0", True), ("s/t_kvtable", False), ("t_kvtable/s/0", False), ("s/t/0_kvtable", False)],
)
def test_names_of_table_segments(segment: str, is_table: bool) -> None:
    assert is_table_segment(segment) is is_table
