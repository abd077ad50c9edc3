"""The keys of delegation tokens in a store process, and the end of what the tokens allowed."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from headrace.ports.token_keys import TokenKeySource
from headrace.segmentstore.connections.token_checks import TokenChecks
from headrace.segmentstore.periodic_task import PeriodicTask, Rest

_log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 3.0
"""How often the source is asked, which decides itself how often it reads."""
END_EVERY_S: Final = 1.0


class TokenUpkeep:
    """Loads the keys, refreshes them, and ends the holds of tokens that are at their end."""

    def __init__(self, source: TokenKeySource, checks: TokenChecks) -> None:
        self._source = source
        self._checks = checks
        self._looks = PeriodicTask(self._look, retry_first_s=LOOK_EVERY_S)
        # A task of its own: a look may take seconds.
        self._ends = PeriodicTask(self._end, retry_first_s=END_EVERY_S)

    async def start(self) -> None:
        """Load the keys, without which every token is refused, and keep them fresh until `stop`.

        Raises:
            CorruptError, IllegalStateError, UnavailableError: they cannot be read.
        """
        keys = await asyncio.to_thread(self._source.keys)
        self._checks.use(keys)
        _log.info("event=token_keys_loaded keys=%s", ",".join(key.key_id for key in keys.keys))
        self._looks.start(Rest.fixed(LOOK_EVERY_S))
        self._ends.start()

    async def stop(self) -> None:
        await self._looks.stop()
        await self._ends.stop()

    async def _look(self) -> Rest:
        self._checks.use(await asyncio.to_thread(self._source.keys))
        return Rest.fixed(LOOK_EVERY_S)

    async def _end(self) -> Rest:
        self._checks.end_holds()
        return Rest.fixed(END_EVERY_S)
