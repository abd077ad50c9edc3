"""Signs HTTP requests for an API that requires IAM authorization (extra `headrace[aws-auth]`).

This module needs botocore, which is optional. The client therefore imports it only for `auth="aws-iam"`.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import httpx

from headrace.model.errors import InvalidRequestError, UnauthorizedError

_SERVICE = "execute-api"


class AwsIamAuth(httpx.Auth):
    """Signature version 4 with the AWS credentials of the process, from its environment, profile or role."""

    requires_request_body = True

    def __init__(self, region: str | None = None) -> None:
        """Without `region`, that of the environment is used (AWS_REGION, then AWS_DEFAULT_REGION), then the profile's.

        Raises:
            InvalidRequestError: botocore is not installed, or no region is configured.
            UnauthorizedError: no credentials were found.
        """
        try:
            from botocore.session import Session
        except ImportError as error:
            raise InvalidRequestError('auth="aws-iam" needs botocore: install headrace[aws-auth]') from error
        session = Session()
        # botocore reads AWS_DEFAULT_REGION only; Lambda, ECS and Glue set AWS_REGION.
        name = region or os.environ.get("AWS_REGION") or session.get_config_variable("region")
        credentials = session.get_credentials()
        if not name:
            raise InvalidRequestError("no AWS region is configured: set AWS_REGION or pass `region`")
        if credentials is None:
            raise UnauthorizedError("no AWS credentials were found: set a profile, a role or AWS_ACCESS_KEY_ID")
        self._region: str = name
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
