"""Names of scopes, streams, reader groups and tables for the shell's completion, if the controller answers quickly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.session import SharedOptions, lean_imports
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.headrace import AsyncHeadrace

ANSWER_WITHIN_S = 1.0
"""How long the controller may take for the names. After that the shell completes nothing."""

Names = Callable[["AsyncHeadrace", str], Awaitable[list[str]]]


def scopes(context: typer.Context, incomplete: str) -> list[str]:
    """The scopes that start with `incomplete`."""
    return _ask(context, incomplete, _scopes)


def streams(context: typer.Context, incomplete: str) -> list[str]:
    """`SCOPE/` for each scope; behind the slash the streams of the scope."""
    return _ask(context, incomplete, _scoped(lambda client, scope: _stream_names(client, scope)))


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """`SCOPE/` for each scope; behind the slash the reader groups of the scope."""
    return _ask(context, incomplete, _scoped(lambda client, scope: client.admin.reader_groups.list(scope)))


def tables(context: typer.Context, incomplete: str) -> list[str]:
    """`SCOPE/` for each scope; behind the slash the tables of the scope."""
    return _ask(context, incomplete, _scoped(lambda client, scope: client.admin.tables.list(scope)))


def open_async_client(shared: SharedOptions) -> AsyncHeadrace:
    """A client that asks once and does not retry."""
    with lean_imports():
        from headrace.client.headrace import AsyncHeadrace

    return AsyncHeadrace(shared.controller_url, auth=shared.auth, retry_s=0.0)


def _ask(context: typer.Context, incomplete: str, names: Names) -> list[str]:
    """Completion shows no errors: without an answer there are no names."""
    try:
        completions = asyncio.run(_answer(_shared(context), incomplete, names))
    except (HeadraceError, OSError, TimeoutError):
        return []
    return [name for name in completions if name.startswith(incomplete)]


async def _answer(shared: SharedOptions, incomplete: str, names: Names) -> list[str]:
    async with open_async_client(shared) as client:  # imports the client, which may take longer than the answer
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await names(client, incomplete)


def _shared(context: typer.Context) -> SharedOptions:
    """The shared options anywhere on the line. Completion parses the line but calls no callback of a group."""
    shared = SharedOptions()
    at: Any = context
    while at is not None:
        shared = shared.over(SharedOptions(at.params.get("url"), at.params.get("auth")))
        at = at.parent
    return shared


async def _scopes(client: AsyncHeadrace, incomplete: str) -> list[str]:
    return await client.admin.list_scopes()


async def _stream_names(client: AsyncHeadrace, scope: str) -> list[str]:
    return [stream.stream for stream in await client.admin.list_streams(scope)]


def _scoped(of_scope: Callable[[AsyncHeadrace, str], Awaitable[list[str]]]) -> Names:
    async def names(client: AsyncHeadrace, incomplete: str) -> list[str]:
        scope, slash, _ = incomplete.partition("/")
        if not slash:
            return [f"{scope}/" for scope in await client.admin.list_scopes()]
        return [f"{scope}/{name}" for name in await of_scope(client, scope)]

    return names
