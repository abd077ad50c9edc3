"""`ReaderGroupsAdmin` for programs without an event loop; thread-safe.

Generated from `reader_groups_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from headrace.api.reader_groups import ReaderGroupView
from headrace.client.loop_thread import LoopThread
from headrace.client.reader_groups_admin import AsyncReaderGroupsAdmin
from headrace.model.reader_groups import ReaderGroupConfiguration


class ReaderGroupsAdmin:
    """Creates, changes and deletes reader groups. What runs in the background is waited for unless `wait=False`."""

    def __init__(self, thread: LoopThread, core: AsyncReaderGroupsAdmin) -> None:
        self._thread = thread
        self._core = core

    def create(
        self,
        scope: str,
        group: str,
        configuration: ReaderGroupConfiguration,
        *,
        group_id: str | None = None,
        wait: bool = True,
    ) -> ReaderGroupView:
        """A group under the id that the caller has chosen, or a new one; a group that exists is returned as it is.

        Whether it is the one asked for can be told from its id.

        Raises:
            NotFoundError: there is no such scope; or code "stream_not_found".
        """
        return self._thread.run(self._core.create(scope, group, configuration, group_id=group_id, wait=wait))

    def get(self, scope: str, group: str) -> ReaderGroupView:
        """Raises NotFoundError if there is no such group."""
        return self._thread.run(self._core.get(scope, group))

    def list(self, scope: str) -> list[str]:
        """The names of the scope's groups, in order. Raises NotFoundError if there is no such scope."""
        return self._thread.run(self._core.list(scope))

    def update(
        self, known: ReaderGroupView, configuration: ReaderGroupConfiguration, *, wait: bool = True
    ) -> ReaderGroupView:
        """The group `known` under another configuration; its generation grows by one.

        Raises:
            IllegalStateError: code "reader_group_mismatch": the group has changed since; get it again.
            NotFoundError: the group is gone; or code "stream_not_found".
        """
        return self._thread.run(self._core.update(known, configuration, wait=wait))

    def reset(self, known: ReaderGroupView, *, wait: bool = True) -> ReaderGroupView:
        """The readers of the group `known` begin again at its starting stream cuts. Raises as `update`."""
        return self._thread.run(self._core.reset(known, wait=wait))

    def delete(self, known: ReaderGroupView, *, wait: bool = True) -> None:
        """Raises IllegalStateError, code "reader_group_mismatch", if the name belongs to another group by now."""
        self._thread.run(self._core.delete(known, wait=wait))
