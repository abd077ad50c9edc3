"""Presigned GETs whose Range header is part of the signature.

A packed object holds the bytes of many streams. What S3 enforces here is that a link serves the range it was made for
and no other: a client that changes or drops the Range header gets 403. Nothing in this module makes a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from headrace.model.errors import InvalidRequestError, UnauthorizedError
from headrace.ports.chunk_storage import ChunkLink

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from headrace.ports.clock import Clock

EXPIRES_S_DEFAULT = 900
EXPIRES_S_MAX = 7 * 24 * 3600
"""SigV4's limit. A link also expires with the credentials that signed it, even if its own time is longer."""


class S3ChunkLinks:
    """`ports.chunk_links.ChunkLinks` over one bucket; `client` must sign with version 4 (`client.s3_client` does)."""

    def __init__(self, bucket: str, client: S3Client, expires_s: int, clock: Clock) -> None:
        if not 1 <= expires_s <= EXPIRES_S_MAX:
            raise InvalidRequestError(f"a link is valid for 1 to {EXPIRES_S_MAX} seconds, not {expires_s}")
        self._bucket = bucket
        self._client = client
        self._expires_s = expires_s
        self._clock = clock

    def link(self, object_name: str, position: int, length: int) -> ChunkLink:
        """Sign a GET of `length` bytes at `position`.

        Raises:
            InvalidRequestError: the range is empty or negative.
            UnauthorizedError: the client's signatures leave the Range header out; such a link would open the object.
        """
        if position < 0 or length < 1:
            raise InvalidRequestError(f"a link needs a range of at least one byte, not {length} at {position}")
        expires_at_ms = self._clock.now_ms() + self._expires_s * 1000
        header = f"bytes={position}-{position + length - 1}"
        url = self._client.generate_presigned_url(
            "get_object",
            Params={"Bucket": self._bucket, "Key": object_name, "Range": header},
            ExpiresIn=self._expires_s,
        )
        if "range" not in signed_headers(url):
            raise UnauthorizedError("this S3 client does not sign the Range header: configure signature_version=s3v4")
        return ChunkLink(url, {"Range": header}, expires_at_ms)


def signed_headers(url: str) -> frozenset[str]:
    """The names of the headers, in lower case, that the signature of a presigned URL covers."""
    values = parse_qs(urlsplit(url).query).get("X-Amz-SignedHeaders", [""])
    return frozenset(values[0].split(";"))
