"""The routes of the HTTP API, each with the function that serves it: one function per resource."""

from __future__ import annotations

from headrace.topology.kinds import Access, Route

_STREAM = "/v1/scopes/{scope}/streams/{stream}"
_GROUPS = "/v1/scopes/{scope}/reader-groups"
_GROUP = f"{_GROUPS}/{{group}}"
_TABLES = "/v1/scopes/{scope}/key-value-tables"
_TABLE = f"{_TABLES}/{{table}}"


def _token_routes(resource: str) -> tuple[Route, Route]:
    """GET gives a token that reads, POST one that also writes: no policy for questions matches a POST.

    For streams PUT gives one that also truncates and seals, which no policy for writers matches.
    """
    path = f"{resource}/delegation-token"
    return Route("GET", path, "delegation-tokens"), Route("POST", path, "delegation-tokens", Access.WRITE)


ROUTES = (
    Route("GET", "/v1/cluster", "cluster"),
    Route("GET", "/v1/cluster/containers", "cluster"),
    Route("GET", "/v1/cluster/logs", "cluster"),
    Route("POST", "/v1/cluster/logs/{container}/accept-loss", "cluster"),
    Route("PUT", "/v1/cluster/copies", "cluster"),
    Route("POST", "/v1/cluster/raise-epochs", "cluster"),
    Route("GET", "/v1/scopes", "scopes"),
    Route("POST", "/v1/scopes", "scopes"),
    Route("GET", "/v1/scopes/{scope}", "scopes"),
    Route("DELETE", "/v1/scopes/{scope}", "scopes"),
    Route("GET", "/v1/scopes/{scope}/streams", "streams"),
    Route("POST", "/v1/scopes/{scope}/streams", "streams"),
    Route("GET", _STREAM, "streams"),
    Route("PUT", _STREAM, "streams"),
    Route("DELETE", _STREAM, "streams"),
    Route("PUT", f"{_STREAM}/state", "streams"),
    Route("POST", f"{_STREAM}/scale", "streams"),
    Route("GET", f"{_STREAM}/scale/{{epoch}}", "streams"),
    Route("GET", f"{_STREAM}/scaling-events", "streams"),
    Route("GET", f"{_STREAM}/transactions", "transactions"),
    Route("POST", f"{_STREAM}/transactions", "transactions", Access.WRITE),
    Route("GET", f"{_STREAM}/transactions/{{transaction}}", "transactions"),
    Route("PUT", f"{_STREAM}/transactions/{{transaction}}/lease", "transactions", Access.WRITE),
    Route("PUT", f"{_STREAM}/transactions/{{transaction}}/state", "transactions", Access.WRITE),
    Route("POST", f"{_STREAM}/transactions/{{transaction}}/segments", "transactions", Access.WRITE),
    Route("POST", f"{_STREAM}/transaction-aborts", "transactions", Access.WRITE),
    Route("POST", f"{_STREAM}/transaction-leases", "transactions", Access.WRITE),
    Route("POST", f"{_STREAM}/commit-sets", "transactions", Access.WRITE),
    Route("GET", f"{_STREAM}/commit-sets/{{writer}}", "transactions"),
    Route("GET", f"{_STREAM}/segments", "segments"),
    Route("POST", f"{_STREAM}/segments/between", "segments", Access.READ),
    Route("GET", f"{_STREAM}/segments/{{segment}}/successors", "segments"),
    Route("GET", f"{_STREAM}/segments/{{segment}}/predecessors", "segments"),
    Route("GET", f"{_STREAM}/segments/{{segment}}/endpoint", "segments"),
    Route("GET", f"{_STREAM}/stream-cut", "segments"),
    Route("POST", f"{_STREAM}/truncate", "stream-cuts"),
    Route("POST", f"{_STREAM}/stream-cuts/check", "stream-cuts", Access.READ),
    Route("POST", f"{_STREAM}/stream-cuts/distance", "stream-cuts", Access.READ),
    Route("GET", f"{_STREAM}/segments/{{segment}}/chunks", "history"),
    Route("POST", f"{_STREAM}/next-cut", "plans", Access.READ),
    Route("POST", f"{_STREAM}/range-plans", "plans", Access.READ),
    Route("PUT", f"{_STREAM}/writers/{{writer}}/position", "watermarks", Access.WRITE),
    Route("DELETE", f"{_STREAM}/writers/{{writer}}", "watermarks", Access.WRITE),
    Route("GET", f"{_STREAM}/watermark", "watermarks"),
    Route("GET", f"{_STREAM}/retention", "retention"),
    Route("GET", f"{_STREAM}/subscribers", "subscribers"),
    Route("GET", f"{_STREAM}/subscribers/{{subscriber}}", "subscribers"),
    Route("PUT", f"{_STREAM}/subscribers/{{subscriber}}", "subscribers", Access.WRITE),
    Route("DELETE", f"{_STREAM}/subscribers/{{subscriber}}", "subscribers", Access.WRITE),
    Route("PUT", f"{_STREAM}/subscribers/{{subscriber}}/position", "subscribers", Access.WRITE),
    *_token_routes(_STREAM),
    Route("PUT", f"{_STREAM}/delegation-token", "delegation-tokens"),
    *_token_routes(_TABLE),
    *_token_routes(_GROUP),
    Route("GET", "/v1/dead-letters", "dead-letters"),
    Route("GET", "/v1/dead-letters/{letter}", "dead-letters"),
    Route("POST", "/v1/dead-letters/{letter}/replay", "dead-letters"),
    Route("DELETE", "/v1/dead-letters/{letter}", "dead-letters"),
    Route("GET", _GROUPS, "reader-groups"),
    Route("POST", _GROUPS, "reader-groups"),
    Route("GET", _GROUP, "reader-groups"),
    Route("PUT", _GROUP, "reader-groups"),
    Route("DELETE", _GROUP, "reader-groups"),
    Route("POST", f"{_GROUP}/reset", "reader-groups"),
    Route("GET", _TABLES, "key-value-tables"),
    Route("POST", _TABLES, "key-value-tables"),
    Route("GET", _TABLE, "key-value-tables"),
    Route("DELETE", _TABLE, "key-value-tables"),
    Route("GET", f"{_TABLE}/segments", "key-value-tables"),
    Route("GET", f"{_TABLE}/segments/{{segment}}/endpoint", "key-value-tables"),
)
