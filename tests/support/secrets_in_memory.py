"""Secrets Manager's versions and stages in memory, as its documentation has them; each call is atomic."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

SECRET = "headrace-token-keys"


class ResourceNotFoundException(ClientError):
    """As botocore names it on a client."""


class Exceptions:
    ResourceNotFoundException = ResourceNotFoundException


class SecretsInMemory:
    """One secret. `before` is called with the name of each call before it has an effect, and may call others."""

    exceptions = Exceptions

    def __init__(self, text: str | None) -> None:
        self.texts: dict[str, str | None] = {}
        self.stages: dict[str, str] = {}
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda _: None
        self._lock = threading.RLock()
        if text is not None:
            first = str(uuid.uuid4())
            self.texts[first] = text
            self.stages["AWSCURRENT"] = first

    @property
    def current(self) -> str:
        found = self.texts[self.stages["AWSCURRENT"]]
        assert found is not None
        return found

    def begin_rotation(self) -> str:
        """What RotateSecret does before it calls the function: it makes an empty version. Returns its id."""
        pending = self.stages.get("AWSPENDING")
        if pending is not None and pending != self.stages["AWSCURRENT"]:
            return pending  # the rotation before has not ended, and is repeated
        version = str(uuid.uuid4())
        self.texts[version], self.stages["AWSPENDING"] = None, version
        return version

    def get_secret_value(
        self, *, SecretId: str, VersionId: str | None = None, VersionStage: str = "AWSCURRENT"
    ) -> dict[str, Any]:
        self._enter("get_secret_value", SecretId)
        with self._lock:
            version = VersionId or self.stages.get(VersionStage)
            if VersionId is not None and self.stages.get(VersionStage) != VersionId:
                raise self._not_found("GetSecretValue")
            if version is None or self.texts.get(version) is None:
                raise self._not_found("GetSecretValue")
            return {"VersionId": version, "SecretString": self.texts[version]}

    def describe_secret(self, *, SecretId: str) -> dict[str, Any]:
        self._enter("describe_secret", SecretId)
        with self._lock:
            found: dict[str, list[str]] = {}
            for stage, version in self.stages.items():
                found.setdefault(version, []).append(stage)
            return {"VersionIdsToStages": found}

    def put_secret_value(
        self, *, SecretId: str, ClientRequestToken: str, SecretString: str, VersionStages: list[str]
    ) -> dict[str, Any]:
        self._enter("put_secret_value", SecretId)
        with self._lock:
            if self.texts.get(ClientRequestToken) not in (None, SecretString):
                raise _error("ResourceExistsException", "PutSecretValue")
            self.texts[ClientRequestToken] = SecretString
            self.stages |= dict.fromkeys(VersionStages, ClientRequestToken)
            return {"VersionId": ClientRequestToken}

    def create_secret(self, *, Name: str, ClientRequestToken: str, SecretString: str) -> dict[str, Any]:
        self.before("create_secret")
        with self._lock:
            if "AWSCURRENT" in self.stages:
                raise _error("ResourceExistsException", "CreateSecret")
            self.texts[ClientRequestToken], self.stages["AWSCURRENT"] = SecretString, ClientRequestToken
            return {"VersionId": ClientRequestToken}

    def update_secret_version_stage(
        self,
        *,
        SecretId: str,
        VersionStage: str,
        MoveToVersionId: str | None = None,
        RemoveFromVersionId: str | None = None,
    ) -> dict[str, Any]:
        self._enter("update_secret_version_stage", SecretId)
        with self._lock:
            if self.stages.get(VersionStage) != RemoveFromVersionId:
                raise _error("InvalidParameterException", "UpdateSecretVersionStage")
            if MoveToVersionId is None:
                del self.stages[VersionStage]
                return {}
            if VersionStage == "AWSCURRENT":
                self.stages["AWSPREVIOUS"] = self.stages["AWSCURRENT"]
            self.stages[VersionStage] = MoveToVersionId
            return {}

    def _enter(self, name: str, secret: str) -> None:
        self.calls.append(name)
        self.before(name)
        if secret != SECRET or "AWSCURRENT" not in self.stages:
            raise self._not_found(name)

    def _not_found(self, call: str) -> ResourceNotFoundException:
        return ResourceNotFoundException({"Error": {"Code": "ResourceNotFoundException", "Message": ""}}, call)


def _error(code: str, call: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "refused"}}, call)
