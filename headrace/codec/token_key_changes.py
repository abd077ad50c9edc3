"""Changes of the keys for delegation tokens: add one, revoke one. At each time after a change some key signs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from headrace.codec.delegation_tokens import KEY_BYTES, SIGNS_AFTER_S, TokenKey, TokenKeys, parse_token_keys
from headrace.model.errors import NotFoundError

NO_KEYS_TEXT: Final = json.dumps({"keys": []})
"""The text of a secret before its first key. CloudFormation adds a field to it, since it makes no empty secret."""


def stored_keys(text: str) -> TokenKeys | None:
    """The keys in a text; None if it is the one from before the first key.

    Raises:
        CorruptError: it is neither.
    """
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict) and document.get("keys") == []:
        return None
    return parse_token_keys(text)


def new_key_id(now_s: float, suffix: str) -> str:
    """The id of a key that is made now: the day in UTC, and a suffix that tells keys of one day apart."""
    return f"{datetime.fromtimestamp(now_s, UTC):%Y-%m-%d}-{suffix}"


def with_new_key(keys: TokenKeys | None, key_id: str, secret: bytes, now_s: float, token_life_s: int) -> TokenKeys:
    """The keys with one more, as `TokenKeys.rotated` has it. The first key signs at once.

    Raises:
        IllegalStateError: there are too many keys that still verify.
    """
    if keys is None:
        return TokenKeys((TokenKey(key_id, _checked(secret), int(now_s)),))
    # Not before a key that waits, which would sign after its end otherwise.
    later_s = max(key.signs_from_s for key in keys.keys) - SIGNS_AFTER_S
    return keys.rotated(key_id, _checked(secret), max(now_s, later_s), token_life_s)


def without_key(keys: TokenKeys | None, key_id: str, new_id: str, secret: bytes, now_s: float) -> TokenKeys:
    """The keys without one of them.

    Some key must sign at each time to come. If no other one does, the next key without an end signs at once. If there
    is none, a new key with this id and secret does.

    Raises:
        NotFoundError: there is no such key.
    """
    if keys is None or key_id not in {key.key_id for key in keys.keys}:
        raise NotFoundError(f"there is no token key {key_id!r}", details={"keyId": key_id}, code="no_such_token_key")
    others = tuple(key for key in keys.keys if key.key_id != key_id)
    endless = min((key for key in others if key.verifies_until_s is None), key=_signs_from, default=None)
    if endless is None:
        # At the end, since the last of two keys that sign from the same second on is the one that signs.
        return TokenKeys((*others, TokenKey(new_id, _checked(secret), int(now_s))))
    if any(_signs_until(key, endless.signs_from_s, now_s) for key in others):
        return TokenKeys(others)
    early = replace(endless, signs_from_s=int(now_s))
    return TokenKeys((*(key for key in others if key is not endless), early))


def follows(later: TokenKeys, earlier: TokenKeys | None, now_s: float) -> bool:
    """Whether the later keys are the earlier ones and one new key, apart from keys that have ended.

    If not, a key was added to the earlier ones or revoked after the later ones were made of them; or that was so long
    ago that the new key would sign before every process has read it.
    """
    before = () if earlier is None else earlier.keys
    known, used = {key.key_id for key in before}, {key.key_id for key in before if key.verifies(now_s)}
    new = [key for key in later.keys if key.key_id not in known]
    in_time = not used or all(key.signs_from_s >= now_s + SIGNS_AFTER_S / 2 for key in new)
    return len(new) == 1 and in_time and used <= {key.key_id for key in later.keys}


@dataclass(frozen=True, slots=True)
class KeyState:
    """What may be shown of a key. `state` is `signs`, `waits` (signs later), `verifies` (only) or `ended`."""

    key_id: str
    state: str
    signs_from_s: int
    verifies_until_s: int | None

    def to_json(self) -> dict[str, Any]:
        return {
            "kid": self.key_id,
            "state": self.state,
            "signFrom": self.signs_from_s,
            "verifyUntil": self.verifies_until_s,
        }


def key_states(keys: TokenKeys | None, now_s: float) -> list[KeyState]:
    """The states of all keys, in the order of the times from which they sign."""
    found = () if keys is None else keys.keys
    signing = TokenKeys(found).signing_key(now_s) if any(key.verifies(now_s) for key in found) else None
    return [
        KeyState(key.key_id, _state(key, signing, now_s), key.signs_from_s, key.verifies_until_s)
        for key in sorted(found, key=_signs_from)
    ]


def _state(key: TokenKey, signing: TokenKey | None, now_s: float) -> str:
    if not key.verifies(now_s):
        return "ended"
    if key is signing:
        return "signs"
    return "waits" if key.signs_from_s > now_s else "verifies"


def _signs_from(key: TokenKey) -> int:
    return key.signs_from_s


def _signs_until(key: TokenKey, end_s: int, now_s: float) -> bool:
    """Whether the key signs from now on until that time, unless a newer one does."""
    return key.signs_from_s <= now_s and (key.verifies_until_s is None or key.verifies_until_s > end_s)


def _checked(secret: bytes) -> bytes:
    if len(secret) < KEY_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes is too short: a token key has {KEY_BYTES}")
    return secret
