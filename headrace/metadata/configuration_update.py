"""The running update of a stream's configuration."""

from __future__ import annotations

from typing import Any

from headrace.metadata.record_layout import decoded, stream_partition, versioned
from headrace.metadata.stream import configuration_fields, decode_configuration
from headrace.model.stream_configuration import ConfigurationUpdate
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore

UPDATE_SORT = "updating"


def configuration_update_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), UPDATE_SORT)


def configuration_update_body(update: ConfigurationUpdate) -> dict[str, Any]:
    return versioned(
        before=configuration_fields(update.before),
        after=configuration_fields(update.after),
        version=update.version,
    )


def decode_configuration_update(body: Body) -> ConfigurationUpdate:
    return decoded("configuration update", body, _update)


def find_configuration_update(store: MetadataStore, stream: Stream) -> ConfigurationUpdate | None:
    """The running update; one read."""
    record = store.get(configuration_update_key(stream.scope, stream.name))
    return decode_configuration_update(record.body) if record else None


def create_configuration_update(stream: Stream, update: ConfigurationUpdate) -> Create:
    return Create(configuration_update_key(stream.scope, stream.name), configuration_update_body(update))


def delete_configuration_update(stream: Stream) -> Delete:
    """Unconditional: its transaction also writes the current record, whose version is checked."""
    return Delete(configuration_update_key(stream.scope, stream.name), None)


def _update(body: Body) -> ConfigurationUpdate:
    return ConfigurationUpdate(
        decode_configuration(body["before"]), decode_configuration(body["after"]), int(body["version"])
    )
