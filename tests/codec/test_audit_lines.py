"""Audit lines as JSON: the fields that queries rely on, and the limits of what callers choose."""

from __future__ import annotations

import json
from dataclasses import replace
from string import ascii_letters, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.audit_lines import (
    DETAILS_CHARACTERS_MAX,
    TEXT_CHARACTERS_MAX,
    AuditLine,
    Outcome,
    audit_text,
    correlation_id,
)

LINE = AuditLine(
    time_ms=1_763_800_000_123,
    action="stream.truncate",
    resource="shop/orders",
    principal="arn:aws:sts::1:assumed-role/a/b",
    source="198.51.100.7",
    outcome=Outcome.REFUSED,
    status=409,
    code="conflict",
    call="POST /v1/scopes/{scope}/streams/{stream}/truncate",
    component="stream-cuts",
    request_id="r-1",
    correlation_id="deploy-7",
    details={"body": {"cut": {"0": 4}}},
)


def test_a_line_has_the_documented_fields():
    assert audit_text(LINE) == (
        '{"audit":1,"time":"2025-11-22T08:26:40.123Z","action":"stream.truncate","resource":"shop/orders",'
        '"principal":"arn:aws:sts::1:assumed-role/a/b","sourceIp":"198.51.100.7","outcome":"refused","status":409,'
        '"code":"conflict","call":"POST /v1/scopes/{scope}/streams/{stream}/truncate","component":"stream-cuts",'
        '"requestId":"r-1","correlationId":"deploy-7","details":{"body":{"cut":{"0":4}}}}'
    )


def test_what_is_not_known_is_left_out():
    text = audit_text(replace(LINE, principal="", code="", resource="", details={}))
    assert not {"principal", "code", "resource", "details"} & json.loads(text).keys()


@pytest.mark.parametrize(("more", "is_kept"), [(0, True), (1, False)])
def test_details_are_kept_up_to_a_limit(more: int, is_kept: bool):
    frame = len('{"body":""}')
    details = {"body": "x" * (DETAILS_CHARACTERS_MAX - frame + more)}
    shown = json.loads(audit_text(replace(LINE, details=details)))["details"]
    assert shown == (details if is_kept else {"characters": DETAILS_CHARACTERS_MAX + 1})


@given(text=st.text(max_size=3_000))
def test_no_text_makes_another_line_or_field(text: str):
    line = audit_text(replace(LINE, resource=text, principal=text, details={"body": text}))
    assert line.isascii()
    assert line.isprintable()
    document = json.loads(line)
    assert document.get("resource", "") == text[:TEXT_CHARACTERS_MAX]
    assert document["action"] == LINE.action
    assert len(line) < 12 * (2 * TEXT_CHARACTERS_MAX) + DETAILS_CHARACTERS_MAX + 1_000


@given(text=st.text())
def test_only_an_id_is_taken_as_a_correlation_id(text: str):
    found = correlation_id(text, "r-1")
    assert found in (text, "r-1")
    assert set(found) <= set(f"{ascii_letters}{digits}._-")
    assert 1 <= len(found) <= 64


def test_the_id_of_the_request_is_the_default():
    assert correlation_id(None, "r-1") == "r-1"
    assert correlation_id("deploy-7", "r-1") == "deploy-7"
