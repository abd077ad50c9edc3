"""A scope. `is_deleting` marks that somebody is looking whether it is empty; creating a stream takes the mark away."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned

SCOPES_PARTITION = "scopes"


def scope_body(*, is_deleting: bool) -> dict[str, Any]:
    return versioned(deleting=is_deleting)


def is_deleting_of_body(body: Body) -> bool:
    return decoded("scope", body, lambda fields: bool(fields["deleting"]))
