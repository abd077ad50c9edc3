"""The rotation of the keys for delegation tokens: Secrets Manager calls it every 30 days, and once for the first key.

A rotation adds a key, which signs only after every process has read it, and sets the end of the older ones. Secrets
Manager calls the function for each of four steps with the id of the version to be made, and repeats a rotation that
failed. `headrace token-key` may change the secret between two steps. So the last one makes the new version current only
if it holds all keys that the secret has now, and none that was revoked, and if the new key does not sign soon.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any, Final

from functions import wiring
from functions.observability import count, logger
from headrace.codec.delegation_tokens import (
    KEY_BYTES,
    TokenKeys,
    follows,
    new_key_id,
    stored_keys,
    token_keys_text,
    with_new_key,
)
from headrace.model.errors import ConflictError, IllegalStateError, InvalidRequestError

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

CREATE, SET, TEST, FINISH = "createSecret", "setSecret", "testSecret", "finishSecret"
_CURRENT: Final = "AWSCURRENT"
_PENDING: Final = "AWSPENDING"


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, str]:
    """Take one step of a rotation; each may be repeated.

    Raises:
        InvalidRequestError: this is not an event of a rotation.
        IllegalStateError: Secrets Manager has not asked for this version, or there are too many keys.
        ConflictError: the secret was changed meanwhile, or the new key is too old; the next rotation begins with the
            keys of now.
    """
    named = [event.get(name) for name in ("SecretId", "ClientRequestToken", "Step")]
    if not all(isinstance(name, str) for name in named) or named[2] not in (CREATE, SET, TEST, FINISH):
        raise InvalidRequestError("an event of a rotation has SecretId, ClientRequestToken and Step")
    secret_id, version, step = map(str, named)
    rotation = Rotation(secrets_client(), secret_id, version)
    is_done = rotation.is_done()  # then Secrets Manager has not heard of the end, and repeats all steps
    if step == CREATE and not is_done:
        rotation.create()
    elif step == TEST and not is_done:
        rotation.test()
    elif step == FINISH:
        rotation.finish()
        count("TokenKeysRotated")
    logger.info("step %s of the rotation is done", step)
    return {"step": step}


def secrets_client() -> Any:
    from headrace.adapters.token_keys import secrets_client

    return secrets_client()


class Rotation:
    """One rotation of a secret, to the version `version`."""

    def __init__(self, client: Any, secret_id: str, version: str) -> None:
        self._client = client
        self._secret_id = secret_id
        self._version = version

    def is_done(self) -> bool:
        """Whether the version is current. Raises IllegalStateError unless Secrets Manager made it for a rotation."""
        stages = self._stages().get(self._version, ())
        if not {_CURRENT, _PENDING} & set(stages):
            raise IllegalStateError(f"version {self._version} of the secret is not one that a rotation makes")
        return _CURRENT in stages

    def create(self) -> None:
        """Store the keys of now with a new one as the pending version, unless that was done before."""
        if self._pending() is not None:
            return
        from headrace.adapters.token_keys import token_life_s

        now_s = wiring.clock().now_ms() / 1_000
        key_id = new_key_id(now_s, secrets.token_hex(3))
        keys = with_new_key(self._current()[1], key_id, secrets.token_bytes(KEY_BYTES), now_s, token_life_s(os.environ))
        self._client.put_secret_value(
            SecretId=self._secret_id,
            ClientRequestToken=self._version,
            SecretString=token_keys_text(keys),
            VersionStages=[_PENDING],
        )
        logger.info("the new key is %s", key_id)

    def test(self) -> None:
        """Raises IllegalStateError if the pending version has no key that ever signs."""
        pending = self._pending()
        if pending is None or all(key.verifies_until_s is not None for key in pending.keys):
            raise IllegalStateError("the pending version of the secret has no key without an end")

    def finish(self) -> None:
        """Make the pending version current. Raises ConflictError as the handler."""
        from headrace.adapters.token_key_editors import move_current

        version, current = self._current()
        is_done = version == self._version
        if not is_done:
            pending, now_s = self._pending(), wiring.clock().now_ms() / 1_000
            if pending is not None and follows(pending, current, now_s):
                is_done = move_current(self._client, self._secret_id, version, self._version)
        # As long as another version than the current one is pending, Secrets Manager begins no rotation. So it must not
        # stay pending when it fails, nor when `headrace token-key` makes another one current.
        if _PENDING in self._stages().get(self._version, ()):
            self._client.update_secret_version_stage(
                SecretId=self._secret_id, VersionStage=_PENDING, RemoveFromVersionId=self._version
            )
        if not is_done:
            raise ConflictError(
                "the token keys were changed during the rotation, or it took too long: the next one begins with those "
                "of now"
            )

    def _stages(self) -> dict[str, list[str]]:
        stages: dict[str, list[str]] = self._client.describe_secret(SecretId=self._secret_id)["VersionIdsToStages"]
        return stages

    def _current(self) -> tuple[str, TokenKeys | None]:
        secret = self._client.get_secret_value(SecretId=self._secret_id, VersionStage=_CURRENT)
        return str(secret["VersionId"]), stored_keys(str(secret.get("SecretString")))

    def _pending(self) -> TokenKeys | None:
        """The keys of the version to be made; None before `create`."""
        try:
            secret = self._client.get_secret_value(
                SecretId=self._secret_id, VersionId=self._version, VersionStage=_PENDING
            )
        except self._client.exceptions.ResourceNotFoundException:
            return None
        return stored_keys(str(secret.get("SecretString")))
