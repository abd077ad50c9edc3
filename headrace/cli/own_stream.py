"""A stream that a command makes for itself, and deletes at its end."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.cli.parameters import ScopedName
from headrace.cli.session import Session
from headrace.model.errors import AlreadyExistsError, HeadraceError


@contextmanager
def own_stream(
    session: Session, scope: str, prefix: str, segments: int, *, must_be_deleted: bool = True
) -> Iterator[ScopedName]:
    """A stream of a random name in `scope`. Both are deleted at the end, also after Ctrl-C; the scope if this made it.

    If the stream cannot be deleted, a message names it. Without an error of the block the error is raised, too, unless
    `must_be_deleted` is false.
    """
    from headrace.client import ScalingPolicy

    admin = session.client.admin
    stream = ScopedName(scope, f"{prefix}-{secrets.token_hex(4)}")
    made_scope = _create_scope(session, scope)
    try:
        admin.create_stream(*stream, scaling=ScalingPolicy.fixed(segments))
        yield stream
    except BaseException as error:
        _remove(session, stream, with_scope=made_scope, may_raise=isinstance(error, KeyboardInterrupt))
        raise
    _remove(session, stream, with_scope=made_scope, may_raise=must_be_deleted)


def _create_scope(session: Session, scope: str) -> bool:
    try:
        session.client.admin.create_scope(scope)
    except AlreadyExistsError:
        return False
    return True


def _remove(session: Session, stream: ScopedName, *, with_scope: bool, may_raise: bool) -> None:
    admin = session.client.admin
    try:
        if any(each.stream == stream.name for each in admin.list_streams(stream.scope)):
            admin.seal_stream(*stream)
            admin.delete_stream(*stream)
        if with_scope:
            admin.delete_scope(stream.scope)
    except HeadraceError as error:
        if error.specific_code == "scope_not_empty":
            return  # another run has a stream there
        session.complain(f"{stream} was not deleted: {error.message}")
        if may_raise:
            raise
