"""The users of the bridge, which are read again every minute.

The text that holds them is described in `codec/grpc_users.py`; `headrace grpc-user` writes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from headrace.codec.grpc_users import Users, parse_users
from headrace.model.errors import HeadraceError
from headrace.ports.grpc_user_storage import GrpcUserStorage

REFRESH_S: Final = 60
"""A user who was removed is refused after this time."""

_log = logging.getLogger(__name__)


class UserSource:
    """The users as they were read last. `refresh` blocks; all else is for the event loop."""

    def __init__(self, storage: GrpcUserStorage, run: Callable[..., Awaitable[None]] = asyncio.to_thread) -> None:
        self._storage = storage
        self._run = run
        self._users = Users({})
        self._task: asyncio.Task[None] | None = None

    def users(self) -> Users:
        return self._users

    def refresh(self) -> None:
        """Read the users. Raises HeadraceError if they cannot be read; those of before stay."""
        self._users = parse_users(self._storage.read())

    async def start(self) -> None:
        """Read the users, and begin to read them every minute. Raises the errors of `refresh`."""
        await self._run(self.refresh)
        self._task = asyncio.create_task(self._refresh_repeatedly())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _refresh_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self._run(self.refresh)
            except HeadraceError as error:
                _log.error("event=users_not_read error=%r", error.message)
            except Exception:  # noqa: BLE001 - a defect in one attempt must not end the later ones
                _log.exception("event=users_not_read")
