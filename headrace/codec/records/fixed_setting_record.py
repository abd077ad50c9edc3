"""A setting that is chosen once for a deployment: one record for each, in the partition of the cluster."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned


def fixed_setting_sort(name: str) -> str:
    return f"setting/{name}"


def fixed_setting_body(value: int) -> dict[str, Any]:
    return versioned(value=value)


def fixed_setting_of_body(body: Body) -> int:
    return decoded("setting", body, lambda fields: int(fields["value"]))
