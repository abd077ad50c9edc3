"""Reader groups over HTTP: create, get, list, update, reset, delete."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated
from uuid import uuid4

from functions import wiring
from functions.controller.parameters import (
    PAGE_LIMIT_DEFAULT,
    ContinuationToken,
    PageLimit,
    ReaderGroupName,
    ScopeName,
    continue_after,
)
from functions.http_api import HttpApi, lambda_handler
from functions.operations import QueryParameter
from headrace.api.reader_groups import (
    CreateReaderGroupRequest,
    ReaderGroupList,
    ReaderGroupStateAnswer,
    ReaderGroupView,
    ResetReaderGroupRequest,
    UpdateReaderGroupRequest,
)

api = HttpApi()

GroupId = Annotated[
    str,
    QueryParameter("The id of the group that is meant: it tells one life of a name from another", "readerGroupId"),
]

_GROUPS = "/v1/scopes/<scope>/reader-groups"
_GROUP = f"{_GROUPS}/<group>"
_TAG = "Reader groups"


@api.route("GET", _GROUPS, summary="List the reader groups of a scope by name", tag=_TAG)
def list_reader_groups(
    scope: ScopeName, limit: PageLimit = PAGE_LIMIT_DEFAULT, continuation_token: ContinuationToken = None
) -> ReaderGroupList:
    page = wiring.reader_group_service().list_reader_groups(scope, limit, continue_after(continuation_token))
    return ReaderGroupList(groups=page.items, next_after=page.next_after)


@api.route(
    "POST",
    _GROUPS,
    summary="Create a reader group; one that exists is answered as it is",
    tag=_TAG,
    status=HTTPStatus.CREATED,
)
def create_reader_group(scope: ScopeName, request: CreateReaderGroupRequest) -> ReaderGroupView:
    configuration = request.configured(scope)
    service = wiring.reader_group_service()
    group_id = str(uuid4()) if request.group_id is None else request.group_id
    created = service.create_reader_group(scope, request.group, group_id, configuration)
    return ReaderGroupView.shown(created)


@api.route("GET", _GROUP, summary="Get a reader group", tag=_TAG)
def get_reader_group(scope: ScopeName, group: ReaderGroupName) -> ReaderGroupView:
    return ReaderGroupView.shown(wiring.reader_group_service().get_reader_group(scope, group))


@api.route("PUT", _GROUP, summary="Replace the configuration of a reader group", tag=_TAG, status=HTTPStatus.ACCEPTED)
def update_reader_group(scope: ScopeName, group: ReaderGroupName, request: UpdateReaderGroupRequest) -> ReaderGroupView:
    configuration = request.configured(scope)
    service = wiring.reader_group_service()
    updated = service.update_reader_group(scope, group, request.group_id, request.generation, configuration)
    return ReaderGroupView.shown(updated)


@api.route(
    "POST", f"{_GROUP}/reset", summary="Begin again at the starting stream cuts", tag=_TAG, status=HTTPStatus.ACCEPTED
)
def reset_reader_group(scope: ScopeName, group: ReaderGroupName, request: ResetReaderGroupRequest) -> ReaderGroupView:
    service = wiring.reader_group_service()
    return ReaderGroupView.shown(service.reset_reader_group(scope, group, request.group_id, request.generation))


@api.route("DELETE", _GROUP, summary="Delete a reader group", tag=_TAG, status=HTTPStatus.ACCEPTED)
def delete_reader_group(scope: ScopeName, group: ReaderGroupName, group_id: GroupId) -> ReaderGroupStateAnswer:
    deleted = wiring.reader_group_service().delete_reader_group(scope, group, group_id)
    return ReaderGroupStateAnswer(deleted.state)


handler = lambda_handler(api)
