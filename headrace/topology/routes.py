"""The routes of the HTTP API: the function that serves each, its class, and what it changes or grants.

Policies for callers and audit lines follow from this table. Nothing else lists routes by what they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headrace.topology.kinds import Access, Route

READ, CONSUME, WRITE, MANAGE, OPERATE = Access.READ, Access.CONSUME, Access.WRITE, Access.MANAGE, Access.OPERATE

_SCOPE = "/v1/scopes/{scope}"
_STREAM = f"{_SCOPE}/streams/{{stream}}"
_GROUPS = f"{_SCOPE}/reader-groups"
_GROUP = f"{_GROUPS}/{{group}}"
_TABLES = f"{_SCOPE}/key-value-tables"
_TABLE = f"{_TABLES}/{{table}}"

TRUST_PATH = "/v1/trust"
"""It is about no scope."""

RESOURCE_PATHS: Mapping[str, str] = MappingProxyType(
    {"scope": _SCOPE, "stream": _STREAM, "group": _GROUP, "table": _TABLE}
)
"""The path of a resource by the name of its path parameter. What is in the resource has a path below it."""


def _token_routes(resource: str, name: str, update: Access) -> tuple[Route, Route]:
    """GET gives a token that reads, POST one that also writes: no policy for questions matches a POST.

    For streams PUT gives one that also truncates and seals, which no policy for writers matches.
    """
    path = f"{resource}/delegation-token"
    return (
        Route("GET", path, "delegation-tokens", READ, f"{name}.read-token"),
        Route("POST", path, "delegation-tokens", update, f"{name}.write-token"),
    )


ROUTES = (
    Route("GET", "/v1/cluster", "cluster", OPERATE),
    Route("GET", "/v1/cluster/containers", "cluster", OPERATE),
    Route("GET", "/v1/cluster/logs", "cluster", OPERATE),
    Route("POST", "/v1/cluster/logs/{container}/accept-loss", "cluster", OPERATE, "cluster.accept-loss"),
    Route("PUT", "/v1/cluster/copies", "cluster", OPERATE, "cluster.set-copies"),
    Route("POST", "/v1/cluster/raise-epochs", "cluster", OPERATE, "cluster.raise-epochs"),
    Route("GET", "/v1/cluster/upgrade", "cluster", OPERATE),
    Route("POST", "/v1/cluster/upgrade", "cluster", OPERATE, "cluster.finalize-upgrade"),
    Route("GET", TRUST_PATH, "segments", READ),
    Route("GET", "/v1/scopes", "scopes", READ),
    Route("POST", "/v1/scopes", "scopes", MANAGE, "scope.create", created="scopeName"),
    Route("GET", _SCOPE, "scopes", READ),
    Route("DELETE", _SCOPE, "scopes", MANAGE, "scope.delete"),
    Route("GET", f"{_SCOPE}/streams", "streams", READ),
    Route("POST", f"{_SCOPE}/streams", "streams", MANAGE, "stream.create", created="streamName"),
    Route("GET", _STREAM, "streams", READ),
    Route("PUT", _STREAM, "streams", MANAGE, "stream.update"),
    Route("DELETE", _STREAM, "streams", MANAGE, "stream.delete"),
    Route("PUT", f"{_STREAM}/state", "streams", MANAGE, "stream.set-state"),
    Route("POST", f"{_STREAM}/scale", "streams", MANAGE, "stream.scale"),
    Route("GET", f"{_STREAM}/scale/{{epoch}}", "streams", READ),
    Route("GET", f"{_STREAM}/scaling-events", "streams", READ),
    Route("GET", f"{_STREAM}/epochs", "streams", READ),
    Route("GET", f"{_STREAM}/transactions", "transactions", READ),
    Route("POST", f"{_STREAM}/transactions", "transactions", WRITE, "transaction.create"),
    Route("GET", f"{_STREAM}/transactions/{{transaction}}", "transactions", READ),
    Route("PUT", f"{_STREAM}/transactions/{{transaction}}/lease", "transactions", WRITE, "transaction.renew"),
    Route("PUT", f"{_STREAM}/transactions/{{transaction}}/state", "transactions", WRITE, "transaction.set-state"),
    Route(
        *("POST", f"{_STREAM}/transactions/{{transaction}}/segments", "transactions", WRITE),
        "transaction.create-segments",
    ),
    Route("POST", f"{_STREAM}/transaction-aborts", "transactions", WRITE, "transaction.abort-labelled"),
    Route("POST", f"{_STREAM}/transaction-leases", "transactions", WRITE, "transaction.renew-several"),
    Route("POST", f"{_STREAM}/commit-sets", "transactions", WRITE, "transaction.commit-set"),
    Route("GET", f"{_STREAM}/commit-sets/{{writer}}", "transactions", READ),
    Route("GET", f"{_STREAM}/segments", "segments", READ),
    Route("POST", f"{_STREAM}/segments/between", "segments", READ),
    Route("GET", f"{_STREAM}/segments/{{segment}}/successors", "segments", READ),
    Route("GET", f"{_STREAM}/segments/{{segment}}/predecessors", "segments", READ),
    Route("GET", f"{_STREAM}/segments/{{segment}}/endpoint", "segments", READ),
    Route("GET", f"{_STREAM}/stream-cut", "segments", READ),
    Route("POST", f"{_STREAM}/truncate", "stream-cuts", MANAGE, "stream.truncate"),
    Route("POST", f"{_STREAM}/stream-cuts/check", "stream-cuts", READ),
    Route("POST", f"{_STREAM}/stream-cuts/distance", "stream-cuts", READ),
    # Links grant to read from the bucket, as tokens grant to read from the stores.
    Route("GET", f"{_STREAM}/segments/{{segment}}/chunks", "history", READ, "stream.read-links"),
    Route("POST", f"{_STREAM}/next-cut", "plans", READ),
    Route("POST", f"{_STREAM}/range-plans", "plans", READ, "stream.read-links"),
    Route("PUT", f"{_STREAM}/writers/{{writer}}/position", "watermarks", WRITE, "writer.note-position"),
    Route("DELETE", f"{_STREAM}/writers/{{writer}}", "watermarks", WRITE, "writer.remove"),
    Route("GET", f"{_STREAM}/watermark", "watermarks", READ),
    Route("GET", f"{_STREAM}/retention", "retention", READ),
    Route("GET", f"{_STREAM}/subscribers", "subscribers", READ),
    Route("GET", f"{_STREAM}/subscribers/{{subscriber}}", "subscribers", READ),
    Route("PUT", f"{_STREAM}/subscribers/{{subscriber}}", "subscribers", CONSUME, "subscriber.register"),
    Route("DELETE", f"{_STREAM}/subscribers/{{subscriber}}", "subscribers", CONSUME, "subscriber.unregister"),
    Route("PUT", f"{_STREAM}/subscribers/{{subscriber}}/position", "subscribers", CONSUME, "subscriber.publish"),
    *_token_routes(_STREAM, "stream", WRITE),
    Route("PUT", f"{_STREAM}/delegation-token", "delegation-tokens", MANAGE, "stream.manage-token"),
    *_token_routes(_TABLE, "table", WRITE),
    *_token_routes(_GROUP, "reader-group", CONSUME),
    Route("GET", "/v1/dead-letters", "dead-letters", OPERATE),
    Route("GET", "/v1/dead-letters/{letter}", "dead-letters", OPERATE),
    Route("POST", "/v1/dead-letters/{letter}/replay", "dead-letters", OPERATE, "dead-letter.replay"),
    Route("DELETE", "/v1/dead-letters/{letter}", "dead-letters", OPERATE, "dead-letter.drop"),
    Route("GET", _GROUPS, "reader-groups", READ),
    Route("POST", _GROUPS, "reader-groups", CONSUME, "reader-group.create", created="readerGroupName"),
    Route("GET", _GROUP, "reader-groups", READ),
    Route("PUT", _GROUP, "reader-groups", MANAGE, "reader-group.update"),
    Route("DELETE", _GROUP, "reader-groups", MANAGE, "reader-group.delete"),
    Route("POST", f"{_GROUP}/reset", "reader-groups", CONSUME, "reader-group.reset"),
    Route("GET", _TABLES, "key-value-tables", READ),
    Route("POST", _TABLES, "key-value-tables", MANAGE, "table.create", created="tableName"),
    Route("GET", _TABLE, "key-value-tables", READ),
    Route("DELETE", _TABLE, "key-value-tables", MANAGE, "table.delete"),
    Route("GET", f"{_TABLE}/segments", "key-value-tables", READ),
    Route("GET", f"{_TABLE}/segments/{{segment}}/endpoint", "key-value-tables", READ),
)

ROUTE_BY_KEY: Mapping[str, Route] = MappingProxyType({route.key: route for route in ROUTES})
"""The routes by API Gateway's names for them."""
