"""The rpcs of Pravega's controller service about subscribers: reader groups that retention waits for."""

from __future__ import annotations

from headrace.bridge import controller_pb2 as pb
from headrace.bridge import messages
from headrace.bridge.service import Rpc
from headrace.controller.services.reader_groups import ReaderGroupService
from headrace.controller.services.retention import SubscriberService
from headrace.model.errors import IllegalStateError, NotFoundError
from headrace.model.limits import PAGE_ITEMS_MAX


class SubscriberRpcs:
    """Each method gets the request message and returns the reply; they block and are called in threads."""

    def __init__(self, subscribers: SubscriberService, groups: ReaderGroupService) -> None:
        self._subscribers = subscribers
        self._groups = groups

    def rpcs(self) -> dict[str, Rpc]:
        """The rpcs by their names on the wire."""
        return {"listSubscribers": self.list_subscribers, "updateSubscriberStreamCut": self.update_stream_cut}

    def list_subscribers(self, request: pb.StreamInfo) -> pb.SubscribersResponse:
        """One list of all subscribers, because the message has no pages."""
        scope, stream = messages.known_stream(request)
        page = self._subscribers.list_subscribers(scope, stream, PAGE_ITEMS_MAX)
        names = [one.name for one in page.items]
        while page.next_after is not None:
            page = self._subscribers.list_subscribers(scope, stream, PAGE_ITEMS_MAX, page.next_after)
            names += [one.name for one in page.items]
        return pb.SubscribersResponse(subscribers=names)

    def update_stream_cut(self, request: pb.SubscriberStreamCut) -> pb.UpdateSubscriberStatus:
        """Publish a position of the group with the id of the request.

        A group that was created again since has another id, and its generations start at 0 again. So it is refused.
        """
        scope, stream = messages.known_stream(request.streamCut.streamInfo)
        self._check_group(request.subscriber, request.readerGroupId)
        self._subscribers.update_stream_cut(
            scope, stream, request.subscriber, request.generation, dict(request.streamCut.cut)
        )
        return pb.UpdateSubscriberStatus(status=pb.UpdateSubscriberStatus.SUCCESS)

    def _check_group(self, subscriber: str, group_id: str) -> None:
        scope, _, name = subscriber.rpartition("/")
        if not (scope and group_id):
            return
        try:
            group = self._groups.get_reader_group(scope, name)
        except NotFoundError:
            return  # There is no reader group of this name: the subscriber was registered without one.
        if group.group_id != group_id.lower():
            raise IllegalStateError(
                f"reader group {subscriber} was created again: its id is {group.group_id}, not {group_id[:100]}",
                code="generation_mismatch",
            )
