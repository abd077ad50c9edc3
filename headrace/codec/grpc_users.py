"""The users of the gRPC bridge: their password hashes, their grants, and the JSON text that holds both.

A grant names a resource as Pravega's access control lists do: `prn::/scope:shop/stream:orders` is this stream only, and
`*` at the end matches any rest. So `prn::/scope:shop` is the scope without what is in it, `prn::/scope:shop/*` is
what is in it, and `prn::/*` is everything.
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
from typing import Any, Final

from headrace.model.access import Access
from headrace.model.errors import AlreadyExistsError, CorruptError, InvalidRequestError, NotFoundError

USERS_MAX: Final = 1_000
GRANTS_MAX: Final = 100
"""For one user."""
TEXT_BYTES_MAX: Final = 65_536
"""What a secret of AWS Secrets Manager holds."""
NAME_CHARACTERS_MAX: Final = 128
PASSWORD_BYTES_MIN: Final = 8
PASSWORD_BYTES_MAX: Final = 1_024
SALT_BYTES: Final = 16

USER_EXISTS: Final = "user_exists"
USER_NOT_FOUND: Final = "user_not_found"

LEVELS: Final[Mapping[str, Access]] = {"READ": Access.READ, "READ_UPDATE": Access.READ_UPDATE}
"""What can be granted. A user without a grant has no access, so there is no word for none."""

_SCHEME: Final = "scrypt"
_COST: Final = 1 << 14
_BLOCK_SIZE: Final = 8
_PARALLELISM: Final = 1
_HASH_BYTES: Final = 32
_MEMORY_BYTES_MAX: Final = 2 * 128 * _COST * _BLOCK_SIZE
"""Twice what scrypt needs: 32 MiB."""

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{NAME_CHARACTERS_MAX - 1}}}")
_PATTERN: Final = re.compile(
    r"prn::/(\*|scope:([\w.-]*\*|[\w.-]+(/(\*|(stream|reader-group|key-value-table):([\w.-]*\*|[\w.-]+)))?))?", re.ASCII
)
_PATTERN_CHARACTERS_MAX: Final = 600
_ADVICE: Final = "the users are not the JSON text that `headrace grpc-user` writes"


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A salted scrypt hash. It takes some 30 ms to compute, which is what makes guessing slow."""

    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, password: bytes, salt: bytes) -> PasswordHash:
        """Releases the interpreter's lock while it computes."""
        digest = hashlib.scrypt(
            password,
            salt=salt,
            n=_COST,
            r=_BLOCK_SIZE,
            p=_PARALLELISM,
            maxmem=_MEMORY_BYTES_MAX,
            dklen=_HASH_BYTES,
        )
        return cls(salt, digest)

    def is_of(self, password: bytes) -> bool:
        return hmac.compare_digest(PasswordHash.of(password, self.salt).digest, self.digest)


@dataclass(frozen=True, slots=True)
class Grant:
    """A level of access to all resources that a pattern matches."""

    resource: str
    access: Access

    def matches(self, resource: str) -> bool:
        if self.resource.endswith("*"):
            return resource.startswith(self.resource[:-1])
        return resource == self.resource


@dataclass(frozen=True, slots=True)
class User:
    """A user. Of several grants that match, the highest counts, in any order."""

    name: str
    password: PasswordHash
    grants: tuple[Grant, ...] = ()

    def access(self, resource: str) -> Access:
        return max((grant.access for grant in self.grants if grant.matches(resource)), default=Access.NONE)

    def with_grant(self, grant: Grant) -> User:
        """In place of one for the same resource. Raises InvalidRequestError: the user has too many grants."""
        others = tuple(each for each in self.grants if each.resource != grant.resource)
        if len(others) == GRANTS_MAX:
            raise InvalidRequestError(f"user {self.name} has {GRANTS_MAX} grants, which is the maximum")
        return replace(self, grants=(*others, grant))

    def without_grant(self, resource: str) -> User:
        """Raises NotFoundError: the user has no grant for exactly this resource."""
        others = tuple(grant for grant in self.grants if grant.resource != resource)
        if len(others) == len(self.grants):
            raise NotFoundError(f"user {self.name} has no grant for {resource}", code=USER_NOT_FOUND)
        return replace(self, grants=others)


@dataclass(frozen=True, slots=True)
class Users:
    """All users of a deployment by name."""

    by_name: Mapping[str, User]

    def named(self, name: str) -> User:
        """Raises NotFoundError."""
        try:
            return self.by_name[name]
        except KeyError:
            raise NotFoundError(f"there is no user {name[:NAME_CHARACTERS_MAX]!r}", code=USER_NOT_FOUND) from None

    def added(self, user: User) -> Users:
        """Raises AlreadyExistsError; and InvalidRequestError if there are too many users."""
        if user.name in self.by_name:
            raise AlreadyExistsError(f"there is a user {user.name} already", code=USER_EXISTS)
        if len(self.by_name) == USERS_MAX:
            raise InvalidRequestError(f"there are {USERS_MAX} users, which is the maximum")
        return self.replaced(user)

    def replaced(self, user: User) -> Users:
        return Users({**self.by_name, user.name: user})

    def without(self, name: str) -> Users:
        """Raises NotFoundError."""
        self.named(name)
        return Users({other: user for other, user in self.by_name.items() if other != name})


def check_user_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"a user name has 1 to {NAME_CHARACTERS_MAX} of the letters A-Z and a-z, the digits, '.', '_', '@' and "
            "'-', and begins with a letter or a digit"
        )
    return name


def check_password(password: bytes) -> bytes:
    """Raises InvalidRequestError; its message does not have the password."""
    if not PASSWORD_BYTES_MIN <= len(password) <= PASSWORD_BYTES_MAX or b"\n" in password:
        raise InvalidRequestError(f"a password is one line of {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes")
    return password


def check_pattern(resource: str) -> str:
    """Raises InvalidRequestError for what is not a resource in Pravega's notation, with at most one `*`, at the end."""
    if len(resource) > _PATTERN_CHARACTERS_MAX or not _PATTERN.fullmatch(resource):
        raise InvalidRequestError(
            f"{resource[:100]!a} is not a resource: expected prn::/ for the list of scopes, prn::/scope:SCOPE, "
            "prn::/scope:SCOPE/stream:STREAM, .../reader-group:GROUP or .../key-value-table:TABLE; only the last name "
            "may end with *, and prn::/scope:SCOPE/* is everything in a scope, prn::/* everything"
        )
    return resource


def parse_users(text: str) -> Users:
    """The users as `users_text` writes them.

    Raises:
        CorruptError: the text is something else. The message names the user at fault, and has no hash.
    """
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise CorruptError(f"the text of the users has more than {TEXT_BYTES_MAX} bytes")
    try:
        users = json.loads(text)["users"]
    except (ValueError, KeyError, TypeError, RecursionError):
        # The cause is not shown: it could show the text.
        raise CorruptError(_ADVICE) from None
    if not isinstance(users, dict) or len(users) > USERS_MAX:
        raise CorruptError(f"{_ADVICE}: expected an object with at most {USERS_MAX} users")
    return Users({name: _user(name, fields) for name, fields in users.items()})


def users_text(users: Users) -> str:
    """Raises InvalidRequestError if the text would be too long to be kept in a secret."""
    text = json.dumps({"users": {user.name: _user_fields(user) for user in users.by_name.values()}}, indent=1) + "\n"
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise InvalidRequestError(
            f"the users with their grants have {len(text.encode())} bytes of text; at most {TEXT_BYTES_MAX} are "
            "allowed: grant patterns with * instead of single resources"
        )
    return text


def _user(name: str, fields: Any) -> User:
    try:
        check_user_name(name)
    except InvalidRequestError as error:
        raise CorruptError(f"{_ADVICE}: {error.message}") from None
    try:
        return User(name, _password_hash(fields["hash"]), tuple(_grants(fields.get("grants", []))))
    except (KeyError, TypeError, AttributeError, ValueError):
        raise CorruptError(f"{_ADVICE}: user {name} needs a `hash` and a list of `grants`") from None
    except InvalidRequestError as error:
        raise CorruptError(f"{_ADVICE}: user {name}: {error.message}") from None


def _password_hash(text: str) -> PasswordHash:
    scheme, cost, block_size, parallelism, salt, digest = text.split("$")
    if (scheme, cost, block_size, parallelism) != _parameters():
        # With one set of parameters, the hash of a user who does not exist takes as long as any other.
        raise InvalidRequestError(f"its hash is not of the form {'$'.join(_parameters())}$salt$hash")
    parsed = PasswordHash(_from_base64(salt), _from_base64(digest))
    if len(parsed.salt) != SALT_BYTES or len(parsed.digest) != _HASH_BYTES:
        raise InvalidRequestError(f"its hash needs {SALT_BYTES} bytes of salt and {_HASH_BYTES} of hash")
    return parsed


def _grants(fields: Any) -> Iterable[Grant]:
    if not isinstance(fields, list) or len(fields) > GRANTS_MAX:
        raise InvalidRequestError(f"expected a list of at most {GRANTS_MAX} grants")
    for each in fields:
        level = LEVELS.get(str(each["permission"]))
        if level is None:
            raise InvalidRequestError(f"the permission of a grant is one of {', '.join(LEVELS)}")
        yield Grant(check_pattern(str(each["resource"])), level)


def _user_fields(user: User) -> dict[str, Any]:
    salt, digest = (base64.b64encode(each).decode("ascii") for each in (user.password.salt, user.password.digest))
    return {
        "hash": "$".join((*_parameters(), salt, digest)),
        "grants": [{"resource": grant.resource, "permission": grant.access.name} for grant in user.grants],
    }


def _parameters() -> tuple[str, str, str, str]:
    return _SCHEME, str(_COST), str(_BLOCK_SIZE), str(_PARALLELISM)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError("its hash is not base64") from None
