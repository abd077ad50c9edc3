"""A scripted cluster that wants delegation tokens: a controller that issues them, and a store that looks at them."""

from __future__ import annotations

import time
from typing import Any

import httpx
from scripted_cluster import Cluster

from headrace import wire
from headrace.api.response_headers import TOKENS, TOKENS_REQUIRED
from headrace.model.access import Access, segment_resource
from headrace.wire.required_access import REQUIRED_ACCESS, required_access

DROPPED = wire.KeepAlive()
"""A reply that no client waits for."""


class ScriptedTokens:
    """`issued` has the method and the path of each request for a token, `refused` the code of each refusal.

    The controller does not issue tokens for the methods in `denied`. `announces` is whether its answers say that tokens
    are wanted. `set_ups` counts the set-ups of writers that the store has accepted.
    """

    def __init__(self, cluster: Cluster, *, announces: bool = True, life_s: float = 600.0) -> None:
        self.issued: list[tuple[str, str]] = []
        self.refused: list[int] = []
        self.denied: set[str] = set()
        self.always_expired = False
        self.set_ups = 0
        self._announces = announces
        self._life_s = life_s
        self._cluster = cluster
        self._controller = cluster.handle
        self._valid: dict[str, tuple[str, Access]] = {}
        self._known: set[str] = set()
        self._writers: dict[int, int] = {}
        self._ended: set[int] = set()
        cluster.handle = self._handle  # type: ignore[method-assign]
        cluster.refuse = self._refuse

    @property
    def tokens(self) -> set[str]:
        """All tokens that were issued."""
        return set(self._known)

    def revoke_all(self) -> None:
        """Makes all tokens invalid that were issued until now, as far as requests carry them."""
        with self._cluster.lock:
            self._valid.clear()

    def end_writers(self) -> None:
        """Makes all tokens invalid, and tells each writer so."""
        with self._cluster.lock:
            self._valid.clear()
            ended, self._writers = self._writers, {}
            self._ended |= ended.keys()
        for set_up in ended.values():
            self._cluster.send_to_all(wire.AuthTokenCheckFailed(set_up, "", wire.TOKEN_EXPIRED))

    def _handle(self, request: httpx.Request) -> httpx.Response:
        response = self._issue(request) if request.url.path.endswith("/delegation-token") else self._controller(request)
        if self._announces:
            response.headers[TOKENS] = TOKENS_REQUIRED
        return response

    def _issue(self, request: httpx.Request) -> httpx.Response:
        with self._cluster.lock:
            self.issued.append((request.method, request.url.path))
            if request.method in self.denied:
                return httpx.Response(403, json={"Message": "User is not authorized to access this resource"})
            kind, name = request.url.path.split("/")[4:6]
            token = f"token-{len(self.issued)}"
            access = Access.READ if request.method == "GET" else Access.READ_UPDATE
            scope = request.url.path.split("/")[3]
            self._valid[token] = (f"prn::/scope:{scope}/{kind[:-1]}:{name}", access)
            self._known.add(token)
            return httpx.Response(200, json={"token": token, "expiresMs": int((time.time() + self._life_s) * 1000)})

    def _refuse(self, command: Any) -> wire.WireCommand | None:
        if isinstance(command, wire.AppendBlockEnd):
            return DROPPED if command.writer_id in self._ended else None
        if type(command) not in REQUIRED_ACCESS:
            return None
        with self._cluster.lock:
            code = self._code_of(command)
            if code is not None:
                self.refused.append(code)
                return wire.AuthTokenCheckFailed(command.request_id, "", code)
            if isinstance(command, wire.SetupAppend):
                self.set_ups += 1
                self._writers[command.writer_id] = command.request_id
                self._ended.discard(command.writer_id)
            return None

    def _code_of(self, command: Any) -> int | None:
        """What is wrong with the command's token; None if nothing is."""
        access, segments = required_access(command)
        token = command.delegation_token
        if token not in self._known:
            return wire.TOKEN_CHECK_FAILED
        if token not in self._valid or self.always_expired:
            return wire.TOKEN_EXPIRED
        resource, granted = self._valid[token]
        allowed = granted >= access and all(resource == segment_resource(segment) for segment in segments)
        return None if allowed else wire.TOKEN_CHECK_FAILED
