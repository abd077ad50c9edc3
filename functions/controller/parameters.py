"""Parameters of paths and queries: how they are decoded and checked, and their descriptions in the API document."""

from __future__ import annotations

import re
from typing import Annotated, Any, Protocol, Self
from urllib.parse import quote, unquote

from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from headrace.model.names import check_known_name

SEGMENT_ID_MAX = (1 << 63) - 1
OFFSET_MAX = (1 << 63) - 1
_DIGITS_MAX = 19

_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")


def path_value(text: str) -> str:
    """The value of a path parameter, which API Gateway may or may not have decoded: it decodes paths of HTTP APIs.

    IAM has checked the path as it came. If it were decoded twice, `%2565` would become an `e` that a Deny has not seen.
    So an escape is accepted only where a name needs it, and `/` is the only character that does.

    Raises:
        InvalidRequestError: the text has an escape of another character (code "invalid_name").
    """
    if "%" not in text:
        return text
    value = unquote(text, errors="replace")
    if "%" in value or quote(value, safe="") != _ESCAPE.sub(lambda escape: escape[0].upper(), text):
        raise InvalidRequestError(
            f"{text[:100]!a} has escapes that no name needs: write all characters but '/' as they are",
            code="invalid_name",
        )
    return value


def _scope_name(text: str) -> str:
    return check_known_name("scope", path_value(text))


def _stream_name(text: str) -> str:
    return check_known_name("stream", path_value(text))


def _reader_group_name(text: str) -> str:
    return check_known_name("reader group", path_value(text))


def _table_name(text: str) -> str:
    return check_known_name("key-value table", path_value(text))


def decimal(text: str, what: str, most: int) -> int:
    """The number in `text`, which must be decimal digits from 0 to `most`; raises InvalidRequestError otherwise.

    This is stricter than Python's `int`, which accepts signs, blanks, underscores and the digits of other scripts.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX and int(text) <= most):
        raise InvalidRequestError(f"{text[:100]!a} is not a valid {what}: expected decimal digits, at most {most}")
    return int(text)


def _segment_id(text: str) -> str:
    return str(decimal(path_value(text), "segment id", SEGMENT_ID_MAX))


def _epoch(text: str) -> str:
    return str(decimal(path_value(text), "epoch", (1 << 31) - 1))


ScopeName = Annotated[str, AfterValidator(_scope_name), Path(description="Name of a scope")]
StreamName = Annotated[str, AfterValidator(_stream_name), Path(description="Name of a stream")]
ReaderGroupName = Annotated[str, AfterValidator(_reader_group_name), Path(description="Name of a reader group")]
TableName = Annotated[str, AfterValidator(_table_name), Path(description="Name of a key-value table")]
SegmentId = Annotated[str, AfterValidator(_segment_id), Path(description="Id of a segment: epoch << 32 | number")]
EpochNumber = Annotated[str, AfterValidator(_epoch), Path(description="Number of an epoch")]

PageLimit = Annotated[int, Query(ge=1, le=PAGE_ITEMS_MAX, description="Most items on this page")]
PAGE_LIMIT_DEFAULT = PAGE_ITEMS_DEFAULT
ContinuationToken = Annotated[str | None, Query(max_length=512, description="From the page before")]


def continue_after(token: str | None) -> str | None:
    """The name after which the page starts; raises InvalidRequestError for a token that cannot be a name."""
    return check_known_name("continuationToken", token) if token else None


class ApiValue(Protocol):
    """A value of `headrace.api`."""

    def to_json(self) -> dict[str, Any]: ...


class WireModel(BaseModel):
    """A JSON object of the API: unknown fields are refused, types are taken as they are and never converted."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True, allow_inf_nan=False)

    @classmethod
    def from_value(cls, value: ApiValue) -> Self:
        """The answer that says what the value says; its JSON must have exactly this shape."""
        return cls.model_validate(value.to_json())
