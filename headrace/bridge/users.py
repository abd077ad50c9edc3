"""The users of the bridge, which are read again every minute, or every five seconds from a file.

The text that holds them is described in `codec/grpc_users.py`; `headrace grpc-user` writes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from headrace.codec.grpc_users import Users, parse_users
from headrace.model.errors import HeadraceError, NotFoundError
from headrace.ports.grpc_user_storage import GrpcUserStorage

REFRESH_S: Final = 60.0
"""A user who was removed is refused after this time."""
FILE_REFRESH_S: Final = 5.0
"""Files cost nothing to read."""

_log = logging.getLogger(__name__)


class UserSource:
    """The users as they were read last. `refresh` blocks; all else is for the event loop."""

    def __init__(
        self,
        storage: GrpcUserStorage,
        refresh_s: float = REFRESH_S,
        run: Callable[..., Awaitable[None]] = asyncio.to_thread,
    ) -> None:
        """`run` calls a blocking function in a thread."""
        self._storage = storage
        self._refresh_s = refresh_s
        self._run = run
        self._users = Users({})
        self._task: asyncio.Task[None] | None = None

    def users(self) -> Users:
        return self._users

    def refresh(self) -> None:
        """Read the users. Raises HeadraceError if they cannot be read; those of before stay."""
        self._users = parse_users(self._storage.read())

    async def start(self) -> None:
        """Read the users, and begin to read them again and again.

        If nothing is stored yet, there are no users, and every call is refused. Raises the other errors of `refresh`.
        """
        try:
            await self._run(self.refresh)
        except NotFoundError as error:
            _log.warning("event=users_not_read error=%r", error.message)
        self._task = asyncio.create_task(self._refresh_repeatedly())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _refresh_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                await self._run(self.refresh)
            except HeadraceError as error:
                _log.error("event=users_not_read error=%r", error.message)
            except Exception:  # noqa: BLE001 - a defect in one attempt must not end the later ones
                _log.exception("event=users_not_read")
