"""Names of streams, groups and tables with their scopes, as the callers of the client write them."""

from __future__ import annotations

from headrace.model.errors import InvalidRequestError


def scope_and_name(scope: str, name: str | None) -> tuple[str, str]:
    """The scope and the name of a stream, group or table, which are given as two texts or as `scope/name`.

    Raises:
        InvalidRequestError: there is no name, or two.
    """
    before, slash, after = scope.partition("/")
    if bool(slash) == (name is not None):
        raise InvalidRequestError(f"{scope[:300]!r} with {name!r} is not a name: expected 'SCOPE/NAME' or both apart")
    return (before, after) if name is None else (scope, name)
