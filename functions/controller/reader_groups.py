"""Reader groups over HTTP: create, get, list, update, reset, delete."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from aws_lambda_powertools.event_handler.openapi.params import Query

from functions import wiring
from functions.controller import models_reader_groups as models
from functions.controller.parameters import (
    PAGE_LIMIT_DEFAULT,
    ContinuationToken,
    PageLimit,
    ReaderGroupName,
    ScopeName,
    continue_after,
)
from functions.http_api import http_api, lambda_handler
from headrace.api.reader_groups import ReaderGroupView
from headrace.model.reader_groups import ReaderGroup

api = http_api()

GroupId = Annotated[
    str, Query(description="The id of the group that is meant: it tells one life of a name from another")
]

_GROUPS = "/v1/scopes/<scope>/reader-groups"
_GROUP = f"{_GROUPS}/<group>"
_TAGS = ["Reader groups"]


def _answer(group: ReaderGroup) -> models.ReaderGroup:
    return models.ReaderGroup.from_value(ReaderGroupView.of(group))


@api.get(_GROUPS, summary="List the reader groups of a scope by name", tags=_TAGS)
def list_reader_groups(
    scope: ScopeName, limit: PageLimit = PAGE_LIMIT_DEFAULT, continuationToken: ContinuationToken = None
) -> models.ReaderGroupList:
    page = wiring.reader_group_service().list_reader_groups(scope, limit, continue_after(continuationToken))
    return models.ReaderGroupList.model_validate(page.to_json("readerGroups", str))


@api.post(
    _GROUPS,
    summary="Create a reader group; one that exists is answered as it is",
    tags=_TAGS,
    status_code=HTTPStatus.CREATED,
)
def create_reader_group(scope: ScopeName, request: models.CreateReaderGroupRequest) -> models.ReaderGroup:
    configuration = request.configuration(scope)
    service = wiring.reader_group_service()
    created = service.create_reader_group(scope, request.readerGroupName, request.group_id, configuration)
    return _answer(created)


@api.get(_GROUP, summary="Get a reader group", tags=_TAGS)
def get_reader_group(scope: ScopeName, group: ReaderGroupName) -> models.ReaderGroup:
    return models.ReaderGroup.from_value(
        ReaderGroupView.of(wiring.reader_group_service().get_reader_group(scope, group))
    )


@api.put(_GROUP, summary="Configure a reader group anew", tags=_TAGS, status_code=HTTPStatus.ACCEPTED)
def update_reader_group(
    scope: ScopeName, group: ReaderGroupName, request: models.UpdateReaderGroupRequest
) -> models.ReaderGroup:
    configuration = request.configuration(scope)
    service = wiring.reader_group_service()
    updated = service.update_reader_group(scope, group, request.readerGroupId, request.generation, configuration)
    return _answer(updated)


@api.post(
    f"{_GROUP}/reset", summary="Begin again at the starting stream cuts", tags=_TAGS, status_code=HTTPStatus.ACCEPTED
)
def reset_reader_group(
    scope: ScopeName, group: ReaderGroupName, request: models.ResetReaderGroupRequest
) -> models.ReaderGroup:
    service = wiring.reader_group_service()
    return models.ReaderGroup.from_value(
        ReaderGroupView.of(service.reset_reader_group(scope, group, request.readerGroupId, request.generation))
    )


@api.delete(_GROUP, summary="Delete a reader group", tags=_TAGS, status_code=HTTPStatus.ACCEPTED)
def delete_reader_group(scope: ScopeName, group: ReaderGroupName, readerGroupId: GroupId) -> models.ReaderGroupState:
    deleted = wiring.reader_group_service().delete_reader_group(scope, group, readerGroupId)
    return models.ReaderGroupState(state=deleted.state.value)


handler = lambda_handler(api)
