"""The writes that create and delete the intent of an accepted request, for every kind of resource.

An intent makes the request durable: it exists until the request is complete.
"""

from __future__ import annotations

from headrace.codec.records.intent_record import Intent, intent_body
from headrace.metadata import keys
from headrace.model.requests import ResourceKind
from headrace.ports.metadata_store import Create, Delete


def create_intent_write(intent: Intent) -> Create:
    """The write of the intent. It fails if a request already runs on the resource."""
    return Create(keys.intent_key(intent.scope, intent.name, intent.resource), intent_body(intent))


def delete_intent_write(resource: ResourceKind, scope: str, name: str) -> Delete:
    """Unconditional: its transaction also writes the resource's record, whose version is checked."""
    return Delete(keys.intent_key(scope, name, resource), None)
