"""`DelegationTokens` for programs without an event loop; thread-safe.

Generated from `delegation_tokens.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from headrace import wire
from headrace.api.delegation_tokens import IssuedToken
from headrace.client.delegation_tokens import AsyncDelegationTokens
from headrace.client.loop_thread import LoopCaller


class DelegationTokens:
    """The tokens of one client. Programs need not use it: connections to the stores do."""

    def __init__(self, thread: LoopCaller, core: AsyncDelegationTokens) -> None:
        self._thread = thread
        self._core = core

    @property
    def demanded(self) -> bool:
        """Whether the deployment wants tokens, as far as this client knows."""
        return self._core.demanded

    def attached(self, command: wire.WireCommand) -> wire.WireCommand:
        """Returns the command with a token if it needs one.

        Raises:
            UnauthorizedError: the credentials of this client do not allow what the command does.
            UnavailableError: the controller did not answer in time.
        """
        return self._thread.run(self._core.attached(command))

    def after_refusal(
        self, command: wire.WireCommand, reply: wire.AuthTokenCheckFailed, refusals: int
    ) -> wire.WireCommand:
        """Returns the command with another token than the one that a store refused.

        `refusals` says how many were refused before, of the same command.

        Raises:
            UnauthorizedError: another token would be refused too; or as `attached`.
            UnavailableError: as `attached`.
        """
        return self._thread.run(self._core.after_refusal(command, reply, refusals))

    def to_read(self, scope: str, stream: str) -> IssuedToken | None:
        """Returns a token for reading a stream in another process; None if the deployment wants no tokens.

        Raises the same errors as `attached`.
        """
        return self._thread.run(self._core.to_read(scope, stream))

    def offer(self, scope: str, stream: str, issued: IssuedToken) -> None:
        """Takes a token for reading a stream that `to_read` returned in another process, unless it ends soon."""
        self._thread.run(self._core.offer(scope, stream, issued))
