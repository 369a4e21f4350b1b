"""The section `identify`: what tells one service from another, beyond the listener.

Rule: a source of identity (`keyfence.identity`) has its settings here, and `IdentifyModel.resolver` hands
them to it. Every setting but `passwords` maps what identifies a client to a service.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from keyfence.identity.passwords import Password
from keyfence.identity.resolver import Resolver, make_resolver
from keyfence.policy.source.model import one_as_list
from keyfence.policy.source.yaml import PathKey

from .fields import STRICT, Sha256


class _Model(BaseModel):
    model_config = STRICT


def _at_least_one(value: list[str]) -> list[str]:
    if not value:
        raise ValueError("no hash, so nobody could log in; printf %s PASSWORD | sha256sum makes one")
    return value


def _hidden_mapping(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("write {sha256: [HASH]}, the password's SHA-256 hash and not the password")
    return value


def _as_written(value: Any) -> Any:
    """Refuse other ways to write a number, so that none is given twice."""
    try:
        number = str(int(value))
    except (TypeError, ValueError):
        return value  # its type says what is wrong
    if number != str(value):
        raise ValueError(f"{value!r} stands for {number}; write {number}")
    return value


_Uid = Annotated[int, BeforeValidator(_as_written), Field(ge=0, le=2**32 - 2)]


class PasswordModel(_Model):
    """A user whose password keyfence checks itself; Redis never sees it."""

    # More than one while a password is being changed.
    sha256: Annotated[
        list[Sha256],
        BeforeValidator(one_as_list),
        AfterValidator(_at_least_one),
    ] = []
    # The password itself, as file:PATH or ${NAME} only.
    password: Annotated[list[str], BeforeValidator(one_as_list)] = Field([], repr=False)
    service: str = ""  # default: what `users` says, else the service of the user's name

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if not self.sha256 and not self.password:
            raise ValueError("nobody could log in; write sha256: [HASH], or password: file:PATH")
        return self

    @property
    def digests(self) -> tuple[bytes, ...]:
        """The SHA-256 digest of each password that is taken."""
        hashed = (hashlib.sha256(one.encode()).digest() for one in self.password)
        return (*map(bytes.fromhex, self.sha256), *hashed)


class IdentifyModel(_Model):
    """The settings of the sources of identity."""

    users: dict[str, str] = {}  # Redis user name → service
    passwords: dict[str, Annotated[PasswordModel, BeforeValidator(_hidden_mapping)]] = {}  # by user name
    certificates: dict[str, str] = {}  # URI, DNS name or CN of a client's certificate → service
    uids: dict[_Uid, str] = {}  # Unix user id → service
    networks: dict[str, str] = {}  # network in CIDR → service

    def service_of(self, user: str) -> str:
        """The service of a user of `passwords`."""
        return self.passwords[user].service or self.users.get(user, "") or user

    def resolver(self, services: tuple[str, ...]) -> Resolver:
        """The resolver with these settings, for a policy with these services."""
        return make_resolver(
            frozenset(services),
            users=self.users,
            passwords={
                user: Password(one.digests, self.service_of(user)) for user, one in self.passwords.items()
            },
            certificates=self.certificates,
            uids=self.uids,
            networks=tuple((ipaddress.ip_network(text), service) for text, service in self.networks.items()),
        )

    def named_services(self) -> Iterator[tuple[PathKey, str]]:
        """Each service that the section names, and the setting that names it."""
        mappings = [kind for kind in IdentifyModel.model_fields if kind != "passwords"]
        for kind in mappings:
            for key, service in getattr(self, kind).items():
                yield (kind, str(key)), service
        for user, one in self.passwords.items():
            yield ("passwords", user, *(["service"] if one.service else [])), self.service_of(user)
