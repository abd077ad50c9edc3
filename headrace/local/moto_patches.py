"""Patches moto so that many clients can use it concurrently.

moto answers each request on its own thread without a lock. With concurrent clients it loses DynamoDB updates and
transactions, and a message that is sent while another one is deleted. After a visibility time-out it breaks the order
of FIFO queues. While a long poll waits for a blocked message group it uses a whole core. A third of the time of each
request is spent on finding its service, two thirds of a read of many items on converting them to what they are already,
four fifths of a PUT on the object's MD5, and two fifths of the rest on copies of the body. Each query of one partition
sorts all items of the table. A listing of versions copies the bodies of all objects into new files, which stay open.
`apply()` fixes these in the running process, and each patch has a test. Other differences
from AWS remain, because this project does not depend on them.
"""

from __future__ import annotations

import copy
import functools
import inspect
import io
import math
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import moto.dynamodb.models as dynamodb_models
from moto.core.serialize import BaseJSONSerializer
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType, Item
from moto.dynamodb.models.table import Table
from moto.dynamodb.responses import DynamoHandler
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler
from moto.s3.models import FakeKey
from moto.sqs.exceptions import ReceiptHandleIsInvalid
from moto.sqs.models import Message, Queue, SQSBackend
from werkzeug import serving
from werkzeug.wsgi import LimitedStream

_TOGETHER_S = 0.05
"""A receiver searches this long after a message's time-out: messages received with it are then visible again, too."""

_HOSTS_REMEMBERED_MAX = 1000

_PLAIN_TYPES = {"S", "N"}
"""Types of DynamoDB's attributes whose values are the same texts inside moto and in its answers."""

_applied = threading.Event()


def apply() -> None:
    """Patch moto in this process; a second call has no effect."""
    if _applied.is_set():
        return
    _applied.set()
    _serialize_dynamodb()
    _make_transactions_cheap()
    _make_queries_cheap()
    _make_attributes_cheap()
    _keep_queues_in_order()
    _make_messages_cheap()
    _remember_backends()
    _make_entity_tags_cheap()
    _read_bodies_at_once()
    _list_versions_without_bodies()


def _replace(owner: Any, name: str, patched: Any) -> None:
    """Replace an attribute of moto. All patches go through this function, so that a search finds them."""
    setattr(owner, name, patched)


def _serialize_dynamodb() -> None:
    """A lock around DynamoDB calls only: with one around all calls an SQS long poll would block every other request."""
    lock = threading.RLock()
    call_action = DynamoHandler.call_action

    @functools.wraps(call_action)
    def locked(handler: DynamoHandler) -> Any:
        with lock:
            return call_action(handler)

    _replace(DynamoHandler, "call_action", locked)


class _CopyWithoutTables:
    """Replaces the module `copy` inside moto's DynamoDB models, so that tables are never copied.

    The original copies every table of a transaction and restores the copies if the transaction fails. The cost grows
    with the table, and restoring a copy undoes the concurrent writes of other clients.
    """

    copy = staticmethod(copy.copy)

    @staticmethod
    def deepcopy(value: Any, memo: dict[int, Any] | None = None) -> Any:
        return value if isinstance(value, Table) else copy.deepcopy(value, memo)


class _ItemBefore:
    """An item as it was before a transaction; `restore` writes it back."""

    def __init__(self, table: Table, key: dict[str, Any]) -> None:
        self._table = table
        self._hash = DynamoType(key[table.hash_key_attr])
        self._range = DynamoType(key[table.range_key_attr]) if table.range_key_attr else None
        self._item: Item | None = copy.deepcopy(self._current())

    def _siblings(self) -> dict[DynamoType, Any]:
        """The dictionary that has the item: moto nests the items of a table with a sort key by partition."""
        items: dict[DynamoType, Any] = self._table.items
        return items if self._range is None else items[self._hash]

    def _current(self) -> Item | None:
        if self._range is None:
            return self._siblings().get(self._hash)
        return self._siblings().get(self._range) if self._hash in self._table.items else None

    def restore(self) -> None:
        siblings = self._siblings()
        place = self._hash if self._range is None else self._range
        if self._item is None:
            siblings.pop(place, None)
        else:
            siblings[place] = self._item


def _make_transactions_cheap() -> None:
    """Roll back the items that a failed transaction names instead of whole tables."""
    transact = DynamoDBBackend.transact_write_items

    @functools.wraps(transact)
    def transact_on_items(backend: DynamoDBBackend, transact_items: list[dict[str, Any]]) -> None:
        before = _items_before(backend, transact_items)
        try:
            transact(backend, transact_items)
        except Exception:
            for item in before:
                item.restore()
            raise

    _replace(dynamodb_models, "copy", _CopyWithoutTables)
    _replace(DynamoDBBackend, "transact_write_items", transact_on_items)


def _items_before(backend: DynamoDBBackend, transact_items: list[dict[str, Any]]) -> list[_ItemBefore]:
    before: list[_ItemBefore] = []
    for entry in transact_items:
        operation = next(iter(entry.values()))
        table: Table | None = backend.tables.get(operation.get("TableName"))
        if table is None:
            continue
        key = operation.get("Key") or operation.get("Item") or {}
        if all(name in key for name in (table.hash_key_attr, table.range_key_attr) if name):
            before.append(_ItemBefore(table, key))
    return before


def _make_queries_cheap() -> None:
    """Search the queried partition. The original sorts all items of the table first, and then sorts what it found."""
    query, all_items = Table.query, Table.all_items
    parameters = inspect.signature(query)
    queried = threading.local()

    def query_partition(table: Table, *arguments: Any, **named: Any) -> Any:
        given = parameters.bind(table, *arguments, **named).arguments
        by_key = table.range_key_attr and not given.get("index_name")
        if by_key:
            queried.items = list(table.items.get(given["hash_key"], {}).values())
        elif table.range_key_attr:
            queried.items = [item for partition in table.items.values() for item in partition.values()]
        try:
            return query(table, *arguments, **named)
        finally:
            queried.items = None

    def items_of_query(table: Table) -> list[Item]:
        items: list[Item] | None = getattr(queried, "items", None)
        return all_items(table) if items is None else items

    _replace(Table, "query", query_partition)
    _replace(Table, "all_items", items_of_query)


def _make_attributes_cheap() -> None:
    """Answer with texts and numbers of items as moto keeps them. The original tries ten types for each attribute."""
    serialize = BaseJSONSerializer._serialize_type_structure

    def serialize_attribute(
        serializer: BaseJSONSerializer, serialized: dict[str, Any], value: Any, shape: Any, key: str
    ) -> None:
        if shape.name == "AttributeValue" and type(value) is dict and len(value) == 1 and value.keys() <= _PLAIN_TYPES:
            serialized[key] = value
        else:
            serialize(serializer, serialized, value, shape, key)

    _replace(BaseJSONSerializer, "_serialize_type_structure", serialize_attribute)


def _keep_queues_in_order() -> None:
    """One lock per queue around each change, and a message whose time-out has passed no longer blocks its group."""
    send, receive, change_visibility = (
        Queue.add_message,
        SQSBackend.receive_message,
        SQSBackend.change_message_visibility,
    )
    pending_groups: Callable[[Queue], set[str]] = vars(Queue)["pending_message_groups"].fget

    def lock_of(queue: Queue) -> Any:
        return queue._messages_lock  # a Condition over an RLock: a thread that has it may enter it again

    def groups_in_flight(queue: Queue) -> set[str]:
        for message in [message for message in queue._pending_messages if message.visible]:
            queue._pending_messages.discard(message)
        return pending_groups(queue)

    def send_locked(queue: Queue, message: Message) -> None:
        with lock_of(queue):
            send(queue, message)

    def until_change_s(queue: Queue) -> float:
        """Seconds until the next delay or time-out of a message ends; infinity if there is none."""
        now_ms = time.time() * 1000
        due_ms = (max(message.visible_at, message.delayed_until) for message in queue._messages)
        return (min((due for due in due_ms if due >= now_ms), default=math.inf) - now_ms) / 1000 + _TOGETHER_S

    def delete_in_place(queue: Queue, receipt_handle: str) -> None:
        """Delete from the list itself. The original builds a second list and loses a message that is sent meanwhile."""
        with lock_of(queue):
            if receipt_handle in queue.deleted_messages:
                return
            deleted = [message for message in queue._messages if message.had_receipt_handle(receipt_handle)]
            if not deleted:
                raise ReceiptHandleIsInvalid
            for message in deleted:
                queue._messages.remove(message)
                queue._pending_messages.discard(message)
                queue.deleted_messages.update(handle for handle in message.all_receipt_handles if handle)
            lock_of(queue).notify_all()  # the next message of the group can be received now

    def change_visibility_locked(backend: SQSBackend, queue_name: str, *arguments: Any, **named: Any) -> None:
        queue = backend.get_queue(queue_name)
        with lock_of(queue):
            change_visibility(backend, queue_name, *arguments, **named)
            lock_of(queue).notify_all()

    def receive_locked(
        backend: SQSBackend,
        queue_name: str,
        count: int,
        wait_seconds_timeout: int,
        visibility_timeout: int,
        message_attribute_names: list[str] | None = None,
    ) -> list[Message]:
        """Search under the lock and wait without it, so that two receivers never get the same message group.

        It searches again only after a change, because a search is slow: a stack polls two dozen queues, one of which
        has a hundred delayed messages.
        """
        queue = backend.get_queue(queue_name)
        deadline_s = time.monotonic() + wait_seconds_timeout
        with lock_of(queue):
            while True:
                received = receive(backend, queue_name, count, 0, visibility_timeout, message_attribute_names)
                left_s = deadline_s - time.monotonic()
                if received or left_s <= 0:
                    return received
                lock_of(queue).wait(min(until_change_s(queue), left_s))

    _replace(Queue, "pending_message_groups", property(groups_in_flight))
    _replace(Queue, "add_message", send_locked)
    _replace(Queue, "delete_message", delete_in_place)
    _replace(SQSBackend, "change_message_visibility", change_visibility_locked)
    _replace(SQSBackend, "receive_message", receive_locked)


def _make_messages_cheap() -> None:
    """Compare numbers. The original creates two dates per message, and counts the queue for each received message."""

    def is_retained(backend: SQSBackend, queue_name: str, message: Message) -> bool:
        period_s: int = vars(backend.get_queue(queue_name))["message_retention_period"]
        return (message.sent_timestamp or 0) / 1000 + period_s > time.time()

    _replace(Message, "visible", property(lambda message: time.time() * 1000 > message.visible_at))
    _replace(Message, "delayed", property(lambda message: time.time() * 1000 < message.delayed_until))
    _replace(SQSBackend, "is_message_valid_based_on_retention_period", is_retained)


def _remember_backends() -> None:
    """Cache the service of each host. The original lists its directory and tries a hundred patterns per request."""
    _replace(
        DomainDispatcherApplication,
        "get_backend_for_host",
        functools.lru_cache(_HOSTS_REMEMBERED_MAX)(DomainDispatcherApplication.get_backend_for_host),
    )


def _make_entity_tags_cheap() -> None:
    """Use random entity tags instead of MD5 digests. On S3 the tag of an encrypted object is not a digest either."""

    def entity_tag(key: FakeKey) -> str:
        if key._etag is None:
            key._etag = secrets.token_hex(16)
        return f'"{key._etag}"'

    _replace(FakeKey, "etag", property(entity_tag))


def _read_bodies_at_once() -> None:
    """Read the whole body in one call. The original reads 64 KiB at a time and copies each piece four times."""
    read_piece_by_piece = LimitedStream.readall

    def read_at_once(stream: LimitedStream) -> bytes:
        if stream._limit_is_max or stream.is_exhausted:
            return read_piece_by_piece(stream)
        data = stream._stream.read(stream.limit - stream._pos)
        stream._pos += len(data)
        # After a short read the original method waits for the rest, or finds that the client sends no more.
        return data if stream.is_exhausted else data + read_piece_by_piece(stream)

    _replace(LimitedStream, "readall", read_at_once)


class _ListedKey(FakeKey):
    """A copy of an object in a listing, which shares the body with the object and does not close it."""

    def dispose(self, garbage: bool = False) -> None:
        """Nothing: the object keeps the body."""


def _list_versions_without_bodies() -> None:
    """Let the copies in a listing of versions share the bodies. The listing marks in them which one is the latest."""

    def listed(key: FakeKey, _memo: dict[int, Any]) -> Any:
        shared = _ListedKey.__new__(_ListedKey)
        shared.__dict__.update(key.__dict__)
        return shared

    _replace(FakeKey, "__deepcopy__", listed)


class CountedBody(io.RawIOBase):
    """The body of a request with a length; `unread` is what its reader has left of it."""

    def __init__(self, connection: io.BufferedIOBase, length: int) -> None:
        self._connection = connection
        self.unread = length

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        wanted = self.unread if size is None or size < 0 else min(size, self.unread)
        data = self._connection.read(wanted)
        self.unread -= len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class RequestHandler(MotoRequestHandler):
    """Keeps a connection open after an answer, unless the client closes it or a part of the body was not read.

    werkzeug's server closes each connection after one answer, because it cannot tell whether the body of the request
    was read. Each call of the stack would open a connection and start a thread, which takes two fifths of the
    emulator's processor time for a small call (3.8 instead of 2.3 ms for a PutItem).
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _body: CountedBody | None = None

    def make_environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().make_environ()
        length = self.headers.get("Content-Length")
        chunked = "Transfer-Encoding" in self.headers
        # A body without a length is not counted, and its connection is closed as before.
        self._body = None if chunked else CountedBody(self.rfile, int(length) if length and length.isdecimal() else 0)
        if self._body is not None:
            environ["wsgi.input"] = self._body
        return environ

    def send_header(self, keyword: str, value: str) -> None:
        """Leave out the header with which werkzeug closes every connection."""
        if keyword == "Connection" and self._body is not None and not self._body.unread and not self.close_connection:
            return
        super().send_header(keyword, value)


class _NoMoreBytes:
    """Replaces the module `selectors` in werkzeug's server, which takes the next request for the rest of a body."""

    EVENT_READ = 1

    class DefaultSelector:
        def register(self, *_: Any) -> None: ...

        def select(self, timeout: float | None = None) -> list[Any]:
            return []

        def close(self) -> None: ...


def keep_connections_open() -> type[RequestHandler]:
    """Patch werkzeug in this process, and return the handler to use."""
    vars(serving)["selectors"] = _NoMoreBytes
    return RequestHandler
