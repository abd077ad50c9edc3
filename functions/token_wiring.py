"""Builds what signs delegation tokens: for callers of the API, and for the functions that call segment stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from functions.built_once import once
from functions.environment import EnvironmentVariableError
from headrace.model.errors import IllegalStateError, InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    from headrace.controller.services.token_issue import DelegationTokens
    from headrace.ports.clock import Clock
    from headrace.ports.token_keys import TokenKeySource

TokenOfCall = Callable[[], str]
"""Returns the token of a request that is sent now; raises UnavailableError if there is none."""


@once
def delegation_tokens() -> DelegationTokens:
    from headrace.controller.services.token_issue import DelegationTokens

    return DelegationTokens(_keys(), _clock(), _life_s())


@once
def internal_token() -> TokenOfCall:
    """The token with which this process calls segment stores; the empty one in a deployment without tokens."""
    keys = _keys()
    if keys is None:
        from headrace.adapters.tcp.store_calls import no_token

        return no_token
    from headrace.adapters.token_keys import InternalToken

    caller = f"headrace-function/{os.environ.get('POWERTOOLS_SERVICE_NAME', '')}"
    minted = InternalToken(keys, _clock(), _life_s(), caller)

    def token() -> str:
        try:
            return minted.token()
        except IllegalStateError as error:  # the keys are at fault, not the request that needs a store
            raise UnavailableError(error.message) from error

    return token


@once
def _keys() -> TokenKeySource | None:
    from headrace.adapters.token_keys import token_key_source

    with _deployment_is_at_fault():
        return token_key_source(os.environ, _clock())


def _clock() -> Clock:
    from functions import wiring  # not at the start: on Lambda its import builds what this module makes

    return wiring.clock()


def _life_s() -> int:
    from headrace.adapters.token_keys import token_life_s

    with _deployment_is_at_fault():
        return token_life_s(os.environ)


@contextmanager
def _deployment_is_at_fault() -> Iterator[None]:
    """For the API a setting that is wrong is not a mistake of the caller."""
    try:
        yield
    except InvalidRequestError as error:
        raise EnvironmentVariableError(error.message) from error
