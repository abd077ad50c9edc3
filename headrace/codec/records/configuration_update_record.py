"""The update of a stream's configuration that runs, while one does."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.codec.records.stream_record import configuration_fields, configuration_of_fields
from headrace.model.configuration_updates import ConfigurationUpdate

UPDATE_SORT = "updating"


def configuration_update_body(update: ConfigurationUpdate) -> dict[str, Any]:
    return versioned(
        before=configuration_fields(update.before),
        after=configuration_fields(update.after),
        version=update.version,
    )


def configuration_update_of_body(body: Body) -> ConfigurationUpdate:
    return decoded("configuration update", body, _update)


def _update(body: Body) -> ConfigurationUpdate:
    return ConfigurationUpdate(
        configuration_of_fields(body["before"]), configuration_of_fields(body["after"]), int(body["version"])
    )
