"""Kinds of requests and the kinds of resources that they change."""

from __future__ import annotations

import pytest

from headrace.model.requests import RequestKind, ResourceKind


@pytest.mark.parametrize("resource", [resource for resource in ResourceKind if resource is not ResourceKind.STREAM])
def test_request_kind_ends_with_its_resource_kind(resource: ResourceKind):
    """A new kind such as `move_reader_group` fails this test until it is assigned to reader groups."""
    ending = str(resource).replace("-", "_")
    for kind in RequestKind:
        assert (kind.resource is resource) == kind.endswith(ending), kind
