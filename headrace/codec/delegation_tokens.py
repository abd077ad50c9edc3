"""Delegation tokens: what the controller signs and a segment store verifies, and the keys that both share.

A token is a JSON Web Token (RFC 7519) with HMAC-SHA-256 and Pravega's claims. Pravega's clients read only `exp`, and
both of them decode the body with the standard base64 alphabet. So the body has only characters whose encodings are the
same in both alphabets, and its length is a multiple of three bytes: neither the alphabet nor padding matters.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from headrace.model.access import EVERYTHING, Access
from headrace.model.errors import CorruptError, IllegalStateError, NotFoundError, UnauthorizedError

TOKEN_BYTES_MAX: Final = 2_048
"""Longer tokens are refused unread."""
CLOCK_SKEW_S: Final = 60
"""A token is accepted for this long after its end. Clients renew theirs before it."""
TOKEN_INVALID: Final = "token_invalid"
TOKEN_EXPIRED: Final = "token_expired"
"""The codes of the UnauthorizedError that a refused token raises."""

KEY_BYTES: Final = 32
KEYS_MAX: Final = 16
SIGNS_AFTER_S: Final = 30 * 60
"""A new key signs only after every reader of the keys has it."""
_VERIFIES_ALSO_S: Final = 15 * 60

KEY_ID_CHARACTERS_MAX: Final = 64

_KEY_ID: Final = re.compile(rf"[!-~]{{1,{KEY_ID_CHARACTERS_MAX}}}")
_ALGORITHM: Final = "HS256"
_AUDIENCE: Final = "segmentstore"
_RESOURCE_PREFIX: Final = "prn::"
_MANAGES: Final = "manages"
"""True: each READ_UPDATE of the token is a MANAGE, a level that Pravega's tokens do not have."""
# Three bytes become four characters. Only these characters bring '-' or '_' into the encoding of ASCII text.
_ESCAPES: Final = {ord(character): f"\\u{ord(character):04x}" for character in ">?~\x7f"}


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A secret, and the times between which it signs and verifies, in seconds since 1970.

    `key_id` is printable ASCII without spaces. It is not secret.
    """

    key_id: str
    secret: bytes = field(repr=False)
    signs_from_s: int = 0
    verifies_until_s: int | None = None

    def verifies(self, now_s: float) -> bool:
        return self.verifies_until_s is None or now_s < self.verifies_until_s


@dataclass(frozen=True, slots=True)
class TokenKeys:
    """All keys of a deployment."""

    keys: tuple[TokenKey, ...]

    def signing_key(self, now_s: float) -> TokenKey:
        """The newest key that signs already: of two that sign from the same second on, the one that is listed later.

        If there is none, since it was revoked, the next one signs early.
        Until all readers of the keys have that one, some refuse its tokens.

        Raises:
            IllegalStateError: all keys are at their end.
        """
        usable = [key for key in self.keys if key.verifies(now_s)]
        if not usable:
            raise IllegalStateError("all keys of delegation tokens are at their end; make a new one")
        signing = [key for key in usable if key.signs_from_s <= now_s]
        if signing:
            return max(reversed(signing), key=lambda key: key.signs_from_s)
        return min(usable, key=lambda key: key.signs_from_s)

    def verifying_key(self, key_id: str, now_s: float) -> TokenKey | None:
        return next((key for key in self.keys if key.key_id == key_id and key.verifies(now_s)), None)

    def rotated(self, key_id: str, secret: bytes, now_s: float, token_life_s: int) -> TokenKeys:
        """With a new key, which signs from 30 minutes later on. Expired keys are left out.

        The other keys verify until the tokens that they have signed until then are at their end.

        Raises:
            IllegalStateError: there is such a key, or there are KEYS_MAX that verify.
        """
        if any(key.key_id == key_id for key in self.keys):
            raise IllegalStateError(f"there is a token key {key_id!r} already", details={"keyId": key_id})
        signs_from_s = int(now_s) + (SIGNS_AFTER_S if any(key.verifies(now_s) for key in self.keys) else 0)
        until_s = signs_from_s + token_life_s + _VERIFIES_ALSO_S
        older = tuple(
            TokenKey(key.key_id, key.secret, key.signs_from_s, min(key.verifies_until_s or until_s, until_s))
            for key in self.keys
            if key.verifies(now_s)
        )
        if len(older) >= KEYS_MAX:
            raise IllegalStateError(f"{len(older)} token keys verify: wait until some are at their end")
        return TokenKeys((*older, TokenKey(key_id, secret, signs_from_s)))

    def without(self, key_id: str) -> TokenKeys:
        """The other keys: all tokens of this one end at once.

        Raises:
            IllegalStateError: there is no such key, or no other one: readers would keep the keys that they have.
        """
        others = tuple(key for key in self.keys if key.key_id != key_id)
        if len(others) == len(self.keys):
            raise IllegalStateError(f"there is no token key {key_id!r}", details={"keyId": key_id})
        if not others:
            raise IllegalStateError(
                f"{key_id!r} is the only token key: add another one first", details={"keyId": key_id}
            )
        return TokenKeys(others)


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """What a token says: who asked for it, and what it allows until when, in seconds since 1970.

    `key_id` is the key that signed it; empty in claims that are not signed yet. It is not compared.
    """

    subject: str
    issued_at_s: int
    expires_at_s: int
    grants: Mapping[str, Access]
    key_id: str = field(default="", compare=False)

    def has_expired(self, now_s: float) -> bool:
        return now_s >= self.expires_at_s + CLOCK_SKEW_S


def encode_token(claims: TokenClaims, key: TokenKey) -> str:
    """The token with these claims, whose `key_id` is not used.

    Raises:
        IllegalStateError: it would be longer than TOKEN_BYTES_MAX, a grant is not for a resource, or the grants have
            both READ_UPDATE and MANAGE.
    """
    for resource in claims.grants:
        if resource != EVERYTHING and not resource.startswith(_RESOURCE_PREFIX):
            raise IllegalStateError(f"{resource!r} is not a resource that a delegation token can be for")
    body: dict[str, Any] = {
        "sub": claims.subject,
        "aud": _AUDIENCE,
        "iat": claims.issued_at_s,
        "exp": claims.expires_at_s,
    }
    levels = set(claims.grants.values())
    if Access.MANAGE in levels:
        if Access.READ_UPDATE in levels:
            raise IllegalStateError("a delegation token does not tell READ_UPDATE and MANAGE of two resources apart")
        body[_MANAGES] = True
    body |= {
        resource: (Access.READ_UPDATE if access is Access.MANAGE else access).name
        for resource, access in claims.grants.items()
    }
    header = {"alg": _ALGORITHM, "typ": "JWT", "kid": key.key_id}
    signed = f"{_encode_part(header)}.{_encode_part(body)}"
    token = f"{signed}.{_base64(_signature(signed, key))}"
    if len(token) > TOKEN_BYTES_MAX:
        raise IllegalStateError(
            f"a delegation token for {len(claims.grants)} resources has {len(token)} bytes; "
            f"at most {TOKEN_BYTES_MAX} are allowed",
            details={"bytes": len(token), "bytesMax": TOKEN_BYTES_MAX},
        )
    return token


def verify_token(token: str, keys: TokenKeys, now_s: float) -> TokenClaims:
    """The claims of a token whose signature is right; whether it has expired is for the caller to ask.

    Raises:
        UnauthorizedError: it is not a token of this deployment (code `token_invalid`), or its key is not valid any
            more (`token_expired`).
    """
    if not token:
        raise _invalid("the request has no delegation token")
    if len(token) > TOKEN_BYTES_MAX or not token.isascii():
        raise _invalid(f"a delegation token is ASCII text of at most {TOKEN_BYTES_MAX} bytes")
    parts = token.split(".")
    if len(parts) != 3:
        raise _invalid("it does not have three parts")
    header = _decode_part(parts[0])
    if header.get("alg") != _ALGORITHM:
        raise _invalid(f"it is not signed with {_ALGORITHM}")
    key_id = header.get("kid")
    key = keys.verifying_key(key_id, now_s) if isinstance(key_id, str) else None
    if key is None:
        # The key was revoked or is at its end, and another token helps: clients fetch one as for an expired token.
        # Operators compare the id with those that the store has loaded. It is text of a caller that proved nothing.
        shown = str(key_id)[:KEY_ID_CHARACTERS_MAX]
        raise _refused(f"the key that signed it, {shown!r}, is not known or no longer valid", TOKEN_EXPIRED)
    # The text is compared, since several texts are read as the same bytes.
    if not hmac.compare_digest(_base64(_signature(f"{parts[0]}.{parts[1]}", key)), parts[2]):
        raise _invalid("its signature is wrong")
    return _claims(_decode_part(parts[1]), key.key_id)


def parse_token_keys(text: str) -> TokenKeys:
    """The keys as `token_keys_text` writes them. Raises CorruptError; its message has nothing of the text."""
    try:
        keys = tuple(map(_parse_key, json.loads(text)["keys"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # The cause is not shown: it could show the secrets.
        raise CorruptError("the token keys are not the JSON text of token keys") from None
    if not 1 <= len(keys) <= KEYS_MAX or any(len(key.secret) < KEY_BYTES for key in keys):
        raise CorruptError(f"there must be 1 to {KEYS_MAX} token keys of at least {KEY_BYTES} bytes each")
    if len({key.key_id for key in keys}) < len(keys):
        raise CorruptError("two token keys have the same id")
    return TokenKeys(keys)


def _parse_key(fields: Mapping[str, Any]) -> TokenKey:
    """Raises ValueError, KeyError, TypeError or AttributeError, which may show the secret."""
    key_id, signs_from_s, verifies_until_s = fields["kid"], fields["signFrom"], fields.get("verifyUntil")
    if not _KEY_ID.fullmatch(key_id) or type(signs_from_s) is not int:
        raise ValueError
    if verifies_until_s is not None and type(verifies_until_s) is not int:
        raise ValueError
    return TokenKey(key_id, bytes.fromhex(fields["secret"]), signs_from_s, verifies_until_s)


def token_keys_text(keys: TokenKeys) -> str:
    return json.dumps({"keys": list(map(_key_fields, keys.keys))})


def _key_fields(key: TokenKey) -> dict[str, Any]:
    return {
        "kid": key.key_id,
        "secret": key.secret.hex(),
        "signFrom": key.signs_from_s,
        "verifyUntil": key.verifies_until_s,
    }


def _claims(body: Mapping[str, Any], key_id: str) -> TokenClaims:
    times = [body.get(name) for name in ("iat", "exp")]
    if body.get("aud") != _AUDIENCE or not all(type(time) is int for time in times):
        raise _invalid("its claims are not those of a delegation token")
    return TokenClaims(str(body.get("sub", "")), body["iat"], body["exp"], dict(_grants(body)), key_id)


def _grants(body: Mapping[str, Any]) -> Iterable[tuple[str, Access]]:
    for resource, name in body.items():
        if resource == EVERYTHING or resource.startswith(_RESOURCE_PREFIX):
            if not isinstance(name, str) or name not in Access.__members__:
                raise _invalid("it has an unknown level of access")
            level = Access[name]
            yield resource, Access.MANAGE if level is Access.READ_UPDATE and body.get(_MANAGES) is True else level


def _encode_part(part: Mapping[str, Any]) -> str:
    text = json.dumps(part, separators=(",", ":")).translate(_ESCAPES)
    return _base64((text + " " * (-len(text) % 3)).encode("ascii"))


def _decode_part(text: str) -> dict[str, Any]:
    try:
        part = json.loads(_decode_base64(text), object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError):
        raise _invalid("a part of it is not JSON") from None
    if not isinstance(part, dict):
        raise _invalid("a part of it is not a JSON object")
    return part


def _without_repetition(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError if two members have one name, since readers of JSON do not agree which one counts."""
    document = dict(members)
    if len(document) < len(members):
        raise ValueError
    return document


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode_base64(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise _invalid("a part of it is not base64") from None


def _signature(signed: str, key: TokenKey) -> bytes:
    return hmac.new(key.secret, signed.encode("ascii"), hashlib.sha256).digest()


def _invalid(reason: str) -> UnauthorizedError:
    return _refused(reason, TOKEN_INVALID)


def _refused(reason: str, code: str) -> UnauthorizedError:
    return UnauthorizedError(f"the delegation token is refused: {reason}", code=code)


# Changes of the keys for delegation tokens: add one, revoke one. At each time after a change some key signs.

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
    stored = () if keys is None else keys.keys
    signing = TokenKeys(stored).signing_key(now_s) if any(key.verifies(now_s) for key in stored) else None
    return [
        KeyState(key.key_id, _state(key, signing, now_s), key.signs_from_s, key.verifies_until_s)
        for key in sorted(stored, key=_signs_from)
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
