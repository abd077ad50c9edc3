"""The error of methods that need pyarrow where it is not installed."""

from __future__ import annotations

from headrace.model.errors import InvalidRequestError


def arrow_missing(method: str) -> InvalidRequestError:
    return InvalidRequestError(f"{method} needs pyarrow and numpy: install headrace[arrow]", code="arrow_missing")
