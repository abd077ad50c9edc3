"""The level of access that each command needs."""

from __future__ import annotations

from typing import Any

import pytest
from rich.pretty import pretty_repr

from headrace import wire
from headrace.model import names, segment_attributes
from headrace.model.access import Access
from headrace.wire.fields import LAYOUTS
from headrace.wire.required_access import REQUIRED_ACCESS, required_access

SEGMENT = "s/t/0.#epoch.0"
TRANSIENT = names.transient_segment_name(SEGMENT, 1, 2)
TRANSACTION = names.transaction_segment_name(SEGMENT, 1)
OF_STORE = segment_attributes.SCALE_POLICY_RATE


def test_a4_every_command_with_a_token_is_in_the_table() -> None:
    with_token = {kind for kind in LAYOUTS if "delegation_token" in kind.__struct_fields__}
    assert with_token == REQUIRED_ACCESS.keys()
    assert Access.NONE not in REQUIRED_ACCESS.values()


def test_token_of_a_command_is_not_shown() -> None:
    command = wire.SealSegment(1, SEGMENT, "abc")
    assert repr(command) == f"SealSegment(request_id=1, segment={SEGMENT!r})"
    assert pretty_repr(command) == repr(command)  # Rich asks structs of msgspec for all their fields


@pytest.mark.parametrize(
    ("command", "access", "segments"),
    [
        (wire.ReadSegment(SEGMENT, 0, 9, "", 1), Access.READ, (SEGMENT,)),
        (wire.SetupAppend(1, 2, SEGMENT), Access.READ_UPDATE, (SEGMENT,)),
        (wire.TruncateSegment(1, SEGMENT, 5), Access.MANAGE, (SEGMENT,)),
        (wire.SealSegment(1, SEGMENT), Access.MANAGE, (SEGMENT,)),
        (wire.TruncateSegment(1, "s/_RGg/0.#epoch.0", 5), Access.READ_UPDATE, ("s/_RGg/0.#epoch.0",)),
        (wire.TruncateSegment(1, "_RGs/t/0.#epoch.0", 5), Access.MANAGE, ("_RGs/t/0.#epoch.0",)),
        (wire.CreateTransientSegment(1, 2, SEGMENT), Access.READ_UPDATE, (SEGMENT,)),
        (wire.DeleteSegment(1, TRANSIENT), Access.ADMIN, (TRANSIENT,)),
        (wire.MergeSegments(1, SEGMENT, TRANSIENT), Access.READ_UPDATE, (SEGMENT, TRANSIENT)),
        (wire.MergeSegments(1, SEGMENT, TRANSACTION), Access.ADMIN, (SEGMENT, TRANSACTION)),
        (wire.MergeSegments(1, "s/other/0.#epoch.0", TRANSIENT), Access.ADMIN, ("s/other/0.#epoch.0", TRANSIENT)),
        (wire.MergeSegments(1, "", TRANSIENT), Access.ADMIN, ("", TRANSIENT)),
        (wire.MergeSegmentsBatch(1, SEGMENT, (TRANSIENT,)), Access.READ_UPDATE, (SEGMENT, TRANSIENT)),
        (
            wire.MergeSegmentsBatch(1, SEGMENT, (TRANSIENT, TRANSACTION)),
            Access.ADMIN,
            (SEGMENT, TRANSIENT, TRANSACTION),
        ),
        (wire.MergeSegmentsBatch(1, SEGMENT, ()), Access.ADMIN, (SEGMENT,)),
        (wire.UpdateSegmentAttribute(1, SEGMENT, 5, 1, 0), Access.READ_UPDATE, (SEGMENT,)),
        (wire.UpdateSegmentAttribute(1, SEGMENT, OF_STORE, 1, 0), Access.ADMIN, (SEGMENT,)),
        (wire.UpdateSegmentAttributeUpTo(1, SEGMENT, 5, 1, 0, OF_STORE, 9), Access.READ_UPDATE, (SEGMENT,)),
        (wire.UpdateSegmentAttributeUpTo(1, SEGMENT, OF_STORE, 1, 0, 5, 9), Access.ADMIN, (SEGMENT,)),
        (
            wire.MergeSegments(1, SEGMENT, TRANSIENT, attribute_updates=(wire.AttributeUpdate(5, 4, 1, 0),)),
            Access.READ_UPDATE,
            (SEGMENT, TRANSIENT),
        ),
        (
            wire.MergeSegments(1, SEGMENT, TRANSIENT, attribute_updates=(wire.AttributeUpdate(OF_STORE, 4, 1, 0),)),
            Access.ADMIN,
            (SEGMENT, TRANSIENT),
        ),
        (wire.CreateTableSegment(1, "s/t_kvtable/0"), Access.READ_UPDATE, ("s/t_kvtable/0",)),
        (wire.CreateTableSegment(1, "s/t/0"), Access.ADMIN, ("s/t/0",)),
        (wire.DeleteTableSegment(1, "s/t_kvtable/0", False), Access.READ_UPDATE, ("s/t_kvtable/0",)),
        (wire.DeleteTableSegment(1, "_system/t", True), Access.ADMIN, ("_system/t",)),
    ],
)
def test_a4_access_of_a_command(command: Any, access: Access, segments: tuple[str, ...]) -> None:
    assert required_access(command) == (access, segments)


def test_transaction_of_a_transient_segment_is_no_part_of_it() -> None:
    inner = names.transaction_segment_name(TRANSIENT, 5)
    assert required_access(wire.MergeSegments(1, TRANSIENT, inner))[0] is Access.ADMIN
    nested = names.transient_segment_name(TRANSACTION, 5, 6)
    assert required_access(wire.MergeSegments(1, TRANSACTION, nested))[0] is Access.READ_UPDATE
