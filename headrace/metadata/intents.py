"""The writes that make an accepted request durable work, and that end it, whatever resource it is on."""

from __future__ import annotations

from headrace.codec.records.intent_record import Intent, intent_body
from headrace.metadata import keys
from headrace.model.requests import ResourceKind
from headrace.ports.metadata_store import Create, Delete


def create_intent_write(intent: Intent) -> Create:
    """Fails if a request already runs on the subject."""
    return Create(keys.intent_key(intent.scope, intent.name, intent.resource), intent_body(intent))


def delete_intent_write(resource: ResourceKind, scope: str, name: str) -> Delete:
    """Unconditional: it is written together with the subject's record, whose version decides."""
    return Delete(keys.intent_key(scope, name, resource), None)
