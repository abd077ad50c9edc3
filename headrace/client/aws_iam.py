"""Signs HTTP requests for an API that demands IAM authorization (extra `headrace[aws-auth]`).

Imports botocore, so nothing imports this module unless the caller asks for `auth="aws-iam"`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import httpx

from headrace.model.errors import InvalidRequestError, UnauthorizedError

_SERVICE = "execute-api"


class AwsIamAuth(httpx.Auth):
    """Signature version 4 with the credentials that every AWS tool finds (environment, profile, role)."""

    requires_request_body = True

    def __init__(self, region: str | None = None) -> None:
        """`region` defaults to the one that AWS tools would use.

        Raises:
            InvalidRequestError: botocore is not installed, or no region is known.
            UnauthorizedError: no credentials were found.
        """
        try:
            from botocore.session import Session
        except ImportError as error:
            raise InvalidRequestError('auth="aws-iam" needs botocore: install headrace[aws-auth]') from error
        session = Session()
        found = region or session.get_config_variable("region")
        credentials = session.get_credentials()
        if not found:
            raise InvalidRequestError("no AWS region is known: set AWS_REGION or give one")
        if credentials is None:
            raise UnauthorizedError("no AWS credentials were found: set a profile, a role or AWS_ACCESS_KEY_ID")
        self._region: str = found
        self._credentials: Any = credentials

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        signed = AWSRequest(request.method, str(request.url), data=request.content or None)
        for name in ("host", "content-type"):
            if name in request.headers:
                signed.headers[name] = request.headers[name]
        SigV4Auth(self._credentials.get_frozen_credentials(), _SERVICE, self._region).add_auth(signed)
        request.headers.update(dict(signed.headers.items()))
        yield request
