"""A program that uses Headrace: it stores orders and adds up what a customer has ordered."""

from __future__ import annotations

import json

from headrace.client import Headrace

STREAM = "orders"


def place_order(headrace: Headrace, scope: str, customer: str, amount: int) -> None:
    order = json.dumps({"customer": customer, "amount": amount}).encode()
    with headrace.writer(scope, STREAM) as writer:
        writer.write(order, routing_key=customer)


def total(headrace: Headrace, scope: str, customer: str) -> int:
    tail = headrace.admin.stream_cut(scope, STREAM, at="latest")
    with headrace.reader(scope, STREAM, end=tail) as reader:
        orders = [json.loads(read.event) for read in reader]
    return sum(order["amount"] for order in orders if order["customer"] == customer)
