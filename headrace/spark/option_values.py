"""Checks that the options for reading and for writing share: each returns the value, or says what is wrong with it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping
from typing import Any, get_args

from headrace.model.errors import InvalidRequestError
from headrace.model.external_access import NETWORK_VARIABLE, NetworkName

DIGITS_MAX = 20
"""Of a number; those of 64 bits have no more."""


def invalid_option(name: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"option {name!r}: {problem}", details={"option": name}, code="invalid_option")


def check_known(options: Mapping[str, str], known: Collection[str], shown: Collection[str]) -> None:
    """Refuses an option that is not `known`, with the nearest one, or else with all that are `shown`."""
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(sorted(shown))}"
            raise invalid_option(name, f"there is no such option; {hint}")


def required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise invalid_option(name, "it is required")
    return value


def controller_url(options: Mapping[str, str]) -> str:
    url = required(options, "controller")
    if not url.startswith(("http://", "https://")):
        raise invalid_option("controller", f"{url!r} is not the URL of a controller, like http://127.0.0.1:10080")
    return url.rstrip("/")


def whole_number(options: Mapping[str, str], name: str, least: int = 1, most: int | None = None) -> int | None:
    """The number; None if the option is not given."""
    value = options.get(name)
    if value is None:
        return None
    if len(value) > DIGITS_MAX or not value.isascii() or not value.isdecimal() or int(value) < least:
        raise invalid_option(
            name, f"{value[:100]!r} is not a whole number of at least {least} with at most {DIGITS_MAX} digits"
        )
    if most is not None and int(value) > most:
        raise invalid_option(name, f"{value} is more than {most}")
    return int(value)


def one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...], default: Any) -> Any:
    value = options.get(name)
    if value is None:
        return default
    if value.lower() not in allowed:
        raise invalid_option(name, f"{value!r} is none of {', '.join(allowed)}")
    return value.lower()


def network_name(options: Mapping[str, str]) -> NetworkName | None:
    """The network of driver and executors. Without the option that of the driver's environment; None: neither says."""
    of_driver = {"network": value} if (value := os.environ.get(NETWORK_VARIABLE)) else {}
    network: NetworkName | None = one_of({**of_driver, **options}, "network", get_args(NetworkName), None)
    return network


def yes_or_no(options: Mapping[str, str], name: str, default: bool) -> bool:
    return bool(one_of(options, name, ("true", "false"), "true" if default else "false") == "true")
