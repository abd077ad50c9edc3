"""What a client may do with what a segment store holds: levels of access, resources, and the grants of a token.

A resource is written as Pravega writes it in the claims of a delegation token: `prn::/scope:shop/stream:orders`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from headrace.model.names import TABLE_SUFFIX

EVERYTHING: Final = "*"
"""The resource that contains all others."""

_READER_GROUP_PREFIX: Final = "_RG"
_MARK_PREFIX: Final = "_MARK"


class Access(IntEnum):
    """A level includes all lower ones. ADMIN is for the parts of a deployment: clients never get it.

    MANAGE also removes what was written, and seals: writers of a stream do not need it.
    """

    NONE = 0
    READ = 1
    READ_UPDATE = 2
    MANAGE = 3
    ADMIN = 4


def scope_resource(scope: str) -> str:
    return f"prn::/scope:{scope}"


def stream_resource(scope: str, stream: str) -> str:
    return f"{scope_resource(scope)}/stream:{stream}"


def reader_group_resource(scope: str, group: str) -> str:
    return f"{scope_resource(scope)}/reader-group:{group}"


def table_resource(scope: str, table: str) -> str:
    return f"{scope_resource(scope)}/key-value-table:{table}"


def named_resource(scope: str, name: str) -> str:
    """The resource whose segments are called `scope/name/…`.

    Clients name segments of reader groups `_RG<group>`, of watermarks `_MARK<stream>` and of tables
    `<table>_kvtable`.
    """
    if name.startswith(_READER_GROUP_PREFIX):
        return reader_group_resource(scope, name.removeprefix(_READER_GROUP_PREFIX))
    if name.startswith(_MARK_PREFIX):
        return stream_resource(scope, name.removeprefix(_MARK_PREFIX))
    if name.endswith(TABLE_SUFFIX):
        return table_resource(scope, name.removesuffix(TABLE_SUFFIX))
    return stream_resource(scope, name)


def segment_resource(segment: str) -> str | None:
    """The resource of a segment's name; None if only the parts of the deployment use it."""
    scope, _, rest = segment.partition("/")
    name, separator, _ = rest.partition("/")
    return named_resource(scope, name) if scope and name and separator else None


def is_table_segment(segment: str) -> bool:
    """Whether the name is one that clients give to the segments of tables."""
    _, _, rest = segment.partition("/")
    name, separator, _ = rest.partition("/")
    return bool(separator) and name.endswith(TABLE_SUFFIX)


def is_reader_group_segment(segment: str) -> bool:
    """Whether the name is one that clients give to the state of a reader group."""
    _, _, rest = segment.partition("/")
    return "/" in rest and rest.startswith(_READER_GROUP_PREFIX)


def allows(grants: Mapping[str, Access], segment: str, access: Access) -> bool:
    """Do the grants of a token include this access to the segment?

    A grant is for one resource, for a scope with everything in it, or for EVERYTHING. Prefixes of names do not match.
    Clients read the watermarks of a stream. Only the parts of the deployment write them.
    """
    if grants.get(EVERYTHING, Access.NONE) >= access:
        return True
    scope_name, _, rest = segment.partition("/")
    if rest.startswith(_MARK_PREFIX) and access > Access.READ:
        return False
    resource = segment_resource(segment)
    if resource is None:
        return False
    return any(grants.get(each, Access.NONE) >= access for each in (scope_resource(scope_name), resource))
