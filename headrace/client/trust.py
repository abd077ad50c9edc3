"""Whom this client trusts: the authorities of the deployment, which the controller publishes.

A segment store that wants TLS has a name in the answer that says where it is. Then the client fetches the authorities,
once, and verifies the store's certificate and its name. If a certificate is refused, the authorities are fetched again,
since they may have been replaced.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.api.trust import TrustView
from headrace.client.http_api import HttpApi, parsed
from headrace.codec.certificates import BUNDLE_TEXT_BYTES_MAX, TrustBundle, bundle_of_pem
from headrace.model.arguments import checked_calls
from headrace.model.errors import (
    CorruptError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from headrace.model.log_limits import LogLimit
from headrace.wire.tls import client_context

_log = logging.getLogger("headrace.client")

REFETCH_AFTER_S: Final = 30.0
"""A store that stays untrusted does not have the authorities fetched at each attempt."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Which authorities a client trusts, if not those that the controller publishes.

    `ca_file`: path of a PEM file with one or more certificates.
    """

    ca_file: str | os.PathLike[str] | None = None


@checked_calls()
class AsyncTrust:
    """The authorities that one client trusts. Programs need not use it: connections to the stores do."""

    def __init__(
        self, api: HttpApi, options: TlsOptions | None = None, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._ca_file = None if options is None else options.ca_file
        self._monotonic_s = monotonic_s
        self._lock = asyncio.Lock()
        self._bundle: TrustBundle | None = None
        self._context: ssl.SSLContext | None = None
        self._fetched_s = float("-inf")
        self._refusals_logged = LogLimit()

    async def authorities(self) -> TrustBundle:
        """Fetches the certificates of the authorities that the deployment publishes.

        Raises:
            IllegalStateError: it publishes none.
            CorruptError: what it publishes is not a list of certificates, or too many.
            UnauthorizedError: the credentials of this client may not ask for them.
        """
        try:
            view = parsed(TrustView.from_json, await self._api.request("GET", "/v1/trust"))
        except UnauthorizedError as error:
            raise UnauthorizedError(
                "the credentials of this client may not call GET /v1/trust, which it needs in order to verify the "
                f"segment stores: allow that in their IAM policy. The controller answered: {error.message}"
            ) from error
        except NotFoundError as error:
            raise IllegalStateError(f"the controller at {self._api.url} publishes no authorities: update it") from error
        if not view.certificates:
            raise IllegalStateError(
                f"the deployment at {self._api.url} publishes no authority: its stores cannot use TLS yet"
            )
        return view.bundle

    async def context(self) -> ssl.SSLContext:
        """Returns a context that trusts the authorities. Fetches them at the first call.

        Raises:
            InvalidRequestError: the file of `TlsOptions` cannot be used.
            HeadraceError: as `authorities`.
        """
        if self._context is None:
            async with self._lock:
                if self._context is None:
                    await self._load()
        assert self._context is not None, "loaded just now"
        return self._context

    async def renewed(self, used: ssl.SSLContext, problem: UnavailableError) -> ssl.SSLContext | None:
        """Returns another context than the one with which a certificate was refused; None if there is none now."""
        self._log_refusal(problem)
        async with self._lock:
            if self._context is used and self._monotonic_s() - self._fetched_s >= REFETCH_AFTER_S:
                await self._load()
        return None if self._context is used else self._context

    async def shipped(self) -> TrustBundle:
        """Returns the authorities for a client in another process, which passes them to `offer`."""
        await self.context()
        assert self._bundle is not None, "loaded with the context"
        return self._bundle

    async def offer(self, bundle: TrustBundle) -> None:
        """Takes the authorities that `shipped` returned in another process, unless this client has some."""
        if self._context is None:
            self._use(bundle)

    def _log_refusal(self, problem: UnavailableError) -> None:
        """Callers try for some time, so they must not be silent, nor log each attempt."""
        if self._refusals_logged.allows(self._monotonic_s()):
            _log.warning("event=store_not_trusted error=%r", problem.message)

    async def _load(self) -> None:
        self._fetched_s = self._monotonic_s()
        bundle = await self.authorities() if self._ca_file is None else _read_file(self._ca_file)
        if bundle != self._bundle:
            self._use(bundle)

    def _use(self, bundle: TrustBundle) -> None:
        self._context = client_context(bundle.pem)
        self._bundle = bundle


def _read_file(path: str | os.PathLike[str]) -> TrustBundle:
    try:
        with Path(path).open("rb") as file:
            bundle = bundle_of_pem(file.read(BUNDLE_TEXT_BYTES_MAX + 1).decode("utf-8"))
        client_context(bundle.pem)
    except OSError as error:
        raise InvalidRequestError(f"the CA file {path} cannot be read: {error.strerror}") from error
    except (InvalidRequestError, CorruptError, UnicodeDecodeError) as error:
        reason = error.message if isinstance(error, HeadraceError) else "it is not text"
        raise InvalidRequestError(f"the CA file {path} cannot be used: {reason}") from None
    return bundle
