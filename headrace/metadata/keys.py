"""Where each record of stream metadata is stored.

Each function imports the module of its record itself, because that module also imports the record's model. A cold
start that only reads scopes then does not load the classes of retention, reader groups, tables and watermarks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace import topology
from headrace.codec.records import history_record, leftovers_record, listing_record, scope_record
from headrace.model.buckets import bucket_of_stream
from headrace.model.names import check_known_name, scoped_stream_name
from headrace.model.requests import ResourceKind, scoped_resource_name
from headrace.model.writer_marks import check_writer_name
from headrace.ports.metadata_store import Key

if TYPE_CHECKING:
    from headrace.codec.records import creation_record, retention_record, sealed_segments_record


def scope_guard_key(scope: str) -> Key:
    """Raises InvalidRequestError, code "invalid_name", for an invalid name, as every function of this module does."""
    return Key(scope_record.guard_partition(check_known_name("scope", scope)), scope_record.GUARD_SORT)


def scope_door_key(scope: str, name: str) -> Key:
    """The door record that a creation of a stream, reader group or table of this name checks.

    A scope has several doors, so that concurrent creations in one scope rarely check the same record.
    """
    return scope_door_keys(scope)[bucket_of_stream(f"{scope}/{name}", scope_record.DOORS)]


def scope_door_keys(scope: str) -> list[Key]:
    partition = scope_record.guard_partition(check_known_name("scope", scope))
    return [Key(partition, scope_record.door_sort(door)) for door in range(scope_record.DOORS)]


def scope_entry_key(scope: str) -> Key:
    return Key(scope_record.SCOPES_PARTITION, check_known_name("scope", scope))


def listing_partition(scope: str) -> str:
    return listing_record.listing_partition(check_known_name("scope", scope))


def listing_key(scope: str, stream: str) -> Key:
    return Key(listing_partition(scope), check_known_name("stream", stream))


def tag_partition(scope: str, tag: str) -> str:
    return listing_record.tag_partition(check_known_name("scope", scope), tag)


def tag_key(scope: str, stream: str, tag: str) -> Key:
    return Key(tag_partition(scope, tag), check_known_name("stream", stream))


def stream_partition(scope: str, stream: str) -> str:
    from headrace.codec.records import stream_record

    return stream_record.stream_partition(check_known_name("scope", scope), check_known_name("stream", stream))


def current_key(scope: str, stream: str) -> Key:
    from headrace.codec.records import stream_record

    return Key(stream_partition(scope, stream), stream_record.CURRENT_SORT)


def truncation_key(scope: str, stream: str) -> Key:
    from headrace.codec.records import truncation_record

    return Key(stream_partition(scope, stream), truncation_record.TRUNCATION_SORT)


def running_truncation_key(scope: str, stream: str) -> Key:
    from headrace.codec.records import truncation_record

    return Key(stream_partition(scope, stream), truncation_record.RUNNING_TRUNCATION_SORT)


def configuration_update_key(scope: str, stream: str) -> Key:
    from headrace.codec.records import configuration_update_record

    return Key(stream_partition(scope, stream), configuration_update_record.UPDATE_SORT)


def transition_key(scope: str, stream: str) -> Key:
    from headrace.codec.records import epoch_record

    return Key(stream_partition(scope, stream), epoch_record.TRANSITION_SORT)


def epoch_key(scope: str, stream: str, number: int) -> Key:
    from headrace.codec.records import epoch_record

    return Key(stream_partition(scope, stream), epoch_record.epoch_sort(number))


def stream_tags_key(scope: str, stream: str, first_segment_number: int, version: int) -> Key:
    from headrace.codec.records import stream_tags_record

    return Key(stream_partition(scope, stream), stream_tags_record.stream_tags_sort(first_segment_number, version))


def history_key(scope: str, stream: str, time_ms: int) -> Key:
    return Key(stream_partition(scope, stream), history_record.history_sort(time_ms))


def sealed_segments_key(scope: str, stream: str, shard: sealed_segments_record.Shard) -> Key:
    from headrace.codec.records import sealed_segments_record

    return Key(stream_partition(scope, stream), sealed_segments_record.sealed_segments_sort(shard))


def leftovers_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), leftovers_record.LEFTOVERS_SORT)


def cold_mark_key(scope: str, stream: str, identifier: int) -> Key:
    from headrace.codec.records import cold_mark_record

    return Key(stream_partition(scope, stream), cold_mark_record.cold_mark_sort(identifier))


def reader_group_key(scope: str, group: str) -> Key:
    from headrace.codec.records import reader_group_record

    scope, group = check_known_name("scope", scope), check_known_name("reader group", group)
    return Key(reader_group_record.group_partition(scope, group), reader_group_record.GROUP_SORT)


def reader_groups_partition(scope: str) -> str:
    """The list of a scope's reader groups."""
    from headrace.codec.records import reader_group_record

    return reader_group_record.groups_listing_partition(check_known_name("scope", scope))


def reader_group_listing_key(scope: str, group: str) -> Key:
    return Key(reader_groups_partition(scope), check_known_name("reader group", group))


def table_key(scope: str, table: str) -> Key:
    from headrace.codec.records import key_value_table_record

    scope, table = check_known_name("scope", scope), check_known_name("key-value table", table)
    return Key(key_value_table_record.table_partition(scope, table), key_value_table_record.TABLE_SORT)


def tables_partition(scope: str) -> str:
    """The list of a scope's key-value tables."""
    from headrace.codec.records import key_value_table_record

    return key_value_table_record.tables_listing_partition(check_known_name("scope", scope))


def table_listing_key(scope: str, table: str) -> Key:
    return Key(tables_partition(scope), check_known_name("key-value table", table))


def writer_mark_key(scope: str, stream: str, writer: str) -> Key:
    from headrace.codec.records import writer_mark_record

    return Key(stream_partition(scope, stream), writer_mark_record.writer_mark_sort(check_writer_name(writer)))


def watermark_key(scope: str, stream: str) -> Key:
    from headrace.codec.records import watermark_record

    return Key(stream_partition(scope, stream), watermark_record.WATERMARK_SORT)


def watermark_schedule_key(scope: str, stream: str) -> Key:
    from headrace.codec.records import watermark_schedule_record

    scoped_name = scoped_stream_name(scope, stream)
    bucket = bucket_of_stream(scoped_name, topology.BUCKET_COUNT)
    return Key(watermark_schedule_record.watermark_schedule_partition(bucket), scoped_name)


def intent_key(scope: str, name: str, resource: ResourceKind = ResourceKind.STREAM) -> Key:
    """Each resource has one key, and so at most one intent: at most one operation runs on it."""
    from headrace.codec.records import intent_record

    scoped_name = scoped_resource_name(resource, scope, name)
    bucket = bucket_of_stream(scoped_name, topology.BUCKET_COUNT)
    return Key(intent_record.intents_partition(bucket), intent_record.intent_sort(resource, scoped_name))


def creation_key(creation: creation_record.Creation, due_ms: int) -> Key:
    from headrace.codec.records import creation_record

    bucket = bucket_of_stream(scoped_stream_name(creation.scope, creation.stream), topology.BUCKET_COUNT)
    return Key(creation_record.creations_partition(bucket), creation_record.creation_sort(creation, due_ms))


def bucket_lease_key(kind: str, bucket: int) -> Key:
    from headrace.codec.records import bucket_lease_record

    return Key(bucket_lease_record.BUCKET_LEASES_PARTITION, bucket_lease_record.bucket_lease_sort(kind, bucket))


def retention_key(scope: str, stream: str, first_segment_number: int) -> Key:
    from headrace.codec.records import retention_record

    return Key(stream_partition(scope, stream), retention_record.retention_sort(first_segment_number))


def retention_cut_key(scope: str, stream: str, first_segment_number: int, time_ms: int) -> Key:
    from headrace.codec.records import retention_record

    return Key(stream_partition(scope, stream), retention_record.retention_cut_sort(first_segment_number, time_ms))


def retention_due_key(due: retention_record.DueStream) -> Key:
    from headrace.codec.records import retention_record

    bucket = bucket_of_stream(scoped_stream_name(due.scope, due.stream), topology.BUCKET_COUNT)
    return Key(retention_record.retention_due_partition(bucket), retention_record.retention_due_sort(due))


def subscriber_key(scope: str, stream: str, first_segment_number: int, name: str) -> Key:
    from headrace.codec.records import subscriber_record

    return Key(stream_partition(scope, stream), subscriber_record.subscriber_sort(first_segment_number, name))
