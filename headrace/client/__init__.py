"""The Python client: administration, event writers and readers, key-value tables. The names in `__all__` are public.

```python
from headrace.client import ScalingPolicy, connect

with connect() as headrace:
    headrace.admin.create_scope("shop", exist_ok=True)
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2), exist_ok=True)
    with headrace.writer("shop/orders") as writer:
        writer.write(b"an order", routing_key="customer-7")
```

All errors are subclasses of `HeadraceError`; `error.retry` tells whether a retry can succeed. The package imports
neither boto3 nor Spark.
"""

from typing import TYPE_CHECKING

from headrace.client.lazy_imports import lazy_names as _lazy_names
from headrace.model import errors as _errors
from headrace.model.errors import *  # noqa: F403 - its `__all__` are the classes, and a new one is exported at once

if TYPE_CHECKING:
    from headrace.client.groups.group_positions import GroupLag, GroupStatus, ReaderStatus, SegmentLag
    from headrace.client.groups.group_reader import AsyncGroupReader, GroupBatch, GroupEvent, GroupReaderOptions
    from headrace.client.groups.reader_group import AsyncReaderGroup, Checkpoint
    from headrace.client.headrace import AsyncHeadrace, Headrace, connect
    from headrace.client.key_value_table import AsyncKeyValueTable, TableEntry, TableKey
    from headrace.client.ranges.range_reader import AsyncRangeReader
    from headrace.client.ranges.segment_ranges import SegmentRange
    from headrace.client.reading.event_reader import AsyncEventReader, EventRead, ReaderOptions, ReadOrder
    from headrace.client.reading.segment_stream import EventBatch
    from headrace.client.reading.time_windows import TimeWindow
    from headrace.client.single_segment.byte_stream import AsyncByteReader, AsyncByteStream, AsyncByteWriter
    from headrace.client.single_segment.revisioned_stream import AsyncRevisionedStream, RevisionedEntry
    from headrace.client.single_segment.state_synchronizer import AsyncStateSynchronizer, StateForm
    from headrace.client.synchronous.synchronous_bases import EventReader, EventWriter
    from headrace.client.synchronous.synchronous_byte_stream import ByteReader, ByteStream, ByteWriter
    from headrace.client.synchronous.synchronous_group_reader import GroupReader
    from headrace.client.synchronous.synchronous_range_reader import RangeReader
    from headrace.client.synchronous.synchronous_reader_group import ReaderGroup
    from headrace.client.synchronous.synchronous_revisioned_stream import RevisionedStream
    from headrace.client.synchronous.synchronous_state_synchronizer import StateSynchronizer
    from headrace.client.synchronous.synchronous_table import KeyValueTable
    from headrace.client.synchronous.synchronous_transactions import Transaction, TransactionalWriter
    from headrace.client.transforms import Transformed, TransformOptions
    from headrace.client.trust import TlsOptions
    from headrace.client.writing.awaited_changes import Ack
    from headrace.client.writing.event_writer import AsyncEventWriter, WriterOptions
    from headrace.client.writing.transactional_writer import AsyncTransaction, AsyncTransactionalWriter
    from headrace.model.key_value_tables import TableConfiguration
    from headrace.model.log_classes import LogClass
    from headrace.model.names import StreamSegmentName
    from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, RetentionMode
    from headrace.model.segments import KeyRange
    from headrace.model.stream_configuration import RetentionPolicy, RetentionType, ScalingPolicy, ScalingType
    from headrace.model.stream_cuts import StreamCut

_NAMES = {
    "headrace.client.groups.group_positions": ("GroupLag", "GroupStatus", "ReaderStatus", "SegmentLag"),
    "headrace.client.groups.group_reader": ("AsyncGroupReader", "GroupBatch", "GroupEvent", "GroupReaderOptions"),
    "headrace.client.groups.reader_group": ("AsyncReaderGroup", "Checkpoint"),
    "headrace.client.headrace": ("AsyncHeadrace", "Headrace", "connect"),
    "headrace.client.key_value_table": ("AsyncKeyValueTable", "TableEntry", "TableKey"),
    "headrace.client.ranges.range_reader": ("AsyncRangeReader",),
    "headrace.client.ranges.segment_ranges": ("SegmentRange",),
    "headrace.client.reading.event_reader": ("AsyncEventReader", "EventRead", "ReaderOptions", "ReadOrder"),
    "headrace.client.reading.segment_stream": ("EventBatch",),
    "headrace.client.reading.time_windows": ("TimeWindow",),
    "headrace.client.single_segment.byte_stream": ("AsyncByteReader", "AsyncByteStream", "AsyncByteWriter"),
    "headrace.client.single_segment.revisioned_stream": ("AsyncRevisionedStream", "RevisionedEntry"),
    "headrace.client.single_segment.state_synchronizer": ("AsyncStateSynchronizer", "StateForm"),
    "headrace.client.synchronous.synchronous_bases": ("EventReader", "EventWriter"),
    "headrace.client.synchronous.synchronous_byte_stream": ("ByteReader", "ByteStream", "ByteWriter"),
    "headrace.client.synchronous.synchronous_group_reader": ("GroupReader",),
    "headrace.client.synchronous.synchronous_range_reader": ("RangeReader",),
    "headrace.client.synchronous.synchronous_reader_group": ("ReaderGroup",),
    "headrace.client.synchronous.synchronous_revisioned_stream": ("RevisionedStream",),
    "headrace.client.synchronous.synchronous_state_synchronizer": ("StateSynchronizer",),
    "headrace.client.synchronous.synchronous_table": ("KeyValueTable",),
    "headrace.client.synchronous.synchronous_transactions": ("Transaction", "TransactionalWriter"),
    "headrace.client.transforms": ("Transformed", "TransformOptions"),
    "headrace.client.trust": ("TlsOptions",),
    "headrace.client.writing.awaited_changes": ("Ack",),
    "headrace.client.writing.event_writer": ("AsyncEventWriter", "WriterOptions"),
    "headrace.client.writing.transactional_writer": ("AsyncTransaction", "AsyncTransactionalWriter"),
    "headrace.model.key_value_tables": ("TableConfiguration",),
    "headrace.model.log_classes": ("LogClass",),
    "headrace.model.names": ("StreamSegmentName",),
    "headrace.model.reader_groups": ("GroupStream", "ReaderGroupConfiguration", "RetentionMode"),
    "headrace.model.segments": ("KeyRange",),
    "headrace.model.stream_configuration": ("RetentionPolicy", "RetentionType", "ScalingPolicy", "ScalingType"),
    "headrace.model.stream_cuts": ("StreamCut",),
}
"""The same names by module. They are imported at their first use."""

if not TYPE_CHECKING:  # else every name would pass the checks of types
    __getattr__ = _lazy_names(__name__, {name: module for module, names in _NAMES.items() for name in names})

__all__ = [
    "Ack",
    "AsyncByteReader",
    "AsyncByteStream",
    "AsyncByteWriter",
    "AsyncEventReader",
    "AsyncEventWriter",
    "AsyncGroupReader",
    "AsyncHeadrace",
    "AsyncKeyValueTable",
    "AsyncRangeReader",
    "AsyncReaderGroup",
    "AsyncRevisionedStream",
    "AsyncStateSynchronizer",
    "AsyncTransaction",
    "AsyncTransactionalWriter",
    "ByteReader",
    "ByteStream",
    "ByteWriter",
    "Checkpoint",
    "EventBatch",
    "EventRead",
    "EventReader",
    "EventWriter",
    "GroupBatch",
    "GroupEvent",
    "GroupLag",
    "GroupReader",
    "GroupReaderOptions",
    "GroupStatus",
    "GroupStream",
    "Headrace",
    "KeyRange",
    "KeyValueTable",
    "LogClass",
    "RangeReader",
    "ReadOrder",
    "ReaderGroup",
    "ReaderGroupConfiguration",
    "ReaderOptions",
    "ReaderStatus",
    "RetentionMode",
    "RetentionPolicy",
    "RetentionType",
    "RevisionedEntry",
    "RevisionedStream",
    "ScalingPolicy",
    "ScalingType",
    "SegmentLag",
    "SegmentRange",
    "StateForm",
    "StateSynchronizer",
    "StreamCut",
    "StreamSegmentName",
    "TableConfiguration",
    "TableEntry",
    "TableKey",
    "TimeWindow",
    "TlsOptions",
    "Transaction",
    "TransactionalWriter",
    "TransformOptions",
    "Transformed",
    "WriterOptions",
    "connect",
]
__all__ += _errors.__all__


def __dir__() -> list[str]:
    """The public names only."""
    return sorted(__all__)
