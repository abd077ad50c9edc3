"""Refuses stream cuts at which a reader would skip events or wait for ever."""

from __future__ import annotations

from typing import Final

from headrace.client.administration.admin import AsyncAdmin
from headrace.model.errors import InvalidRequestError, TruncatedError, UnauthorizedError, UnavailableError
from headrace.model.stream_cuts import StreamCut

_REFUSED: Final = ("invalid_stream_cut", "stream_recreated")
"""Codes of errors for cuts that no reader can use, however long it waits."""


async def refuse_invalid_cut(admin: AsyncAdmin, cut: StreamCut) -> None:
    """Asks the controller: a reader beyond the tail would wait there, and skip what is written up to it.

    Truncated bytes are for the reads to skip or to report. While a store is away the cut cannot be checked, and
    callers whose policy does not have this route may not ask.

    Raises:
        InvalidRequestError: code "invalid_stream_cut" or "stream_recreated".
    """
    try:
        await admin.check_stream_cut(cut.scope, cut.stream, cut, retry_s=0.0)
    except InvalidRequestError as problem:
        if problem.specific_code in _REFUSED:
            raise
    except (TruncatedError, UnauthorizedError, UnavailableError):
        pass
