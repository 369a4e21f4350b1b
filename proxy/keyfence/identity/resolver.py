"""Decides which service a client is.

Rule: the best evidence wins. A user whose password was right comes first; without a login, the sources decide
in the order of `make_resolver`. A client that no source knows is `unknown`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from keyfence.policy.services import UNKNOWN

from .certificates import Certificates
from .client_facts import Evidence
from .listener import Listener
from .networks import Network, Networks
from .passwords import Login, Password, check
from .source import Source
from .unix_users import UnixUsers


@dataclasses.dataclass(slots=True, eq=False)
class Resolver:
    """The configuration's mapping of clients to services. All clients of a process share one, so that a
    reload also holds for those that are connected and log in again."""

    services: frozenset[str]  # of the policy: a user of such a name needs no mapping
    users: Mapping[str, str]  # Redis user → service
    passwords: Mapping[str, Password]  # by user
    sources: tuple[Source, ...]  # for clients without a login, best first

    def take(self, other: Resolver) -> None:
        """Map as this other one from now on."""
        self.services, self.users = other.services, other.users
        self.passwords, self.sources = other.passwords, other.sources

    def identify(self, evidence: Evidence) -> tuple[str, str]:
        """The service of a client that has not authenticated, and what showed it (`Source.evidence`)."""
        for source in self.sources:
            if service := source.service_of(evidence):
                return service, source.evidence
        return UNKNOWN, ""

    def of_user(self, user: bytes, at_connect: str) -> str:
        """The service of a client that Redis accepted as `user`; `at_connect` if the user names none."""
        name = user.decode("utf-8", "replace")
        if name in self.users:
            return self.users[name]
        return name if name in self.services else at_connect

    def names_service(self, user: bytes) -> bool:
        """Whether a user's name decides which service its clients are."""
        name = user.decode("utf-8", "replace")
        return name in self.users or name in self.services or name in self.passwords

    def check(self, user: bytes, password: bytes) -> str | Login:
        """The service that `AUTH user password` leads to, if keyfence itself checks that user."""
        return check(self.passwords, user, password)


def make_resolver(
    services: frozenset[str],
    *,
    users: Mapping[str, str] | None = None,
    passwords: Mapping[str, Password] | None = None,
    certificates: Mapping[str, str] | None = None,
    uids: Mapping[int, str] | None = None,
    networks: Sequence[tuple[Network, str]] = (),
) -> Resolver:
    """A resolver with all sources. Each mapping leads to services: `certificates` from names in certificates,
    `uids` from Unix user ids."""
    sources = (  # best first; tests/identity/test_resolver.py compares this order with the documentation
        Certificates(services, certificates or {}),
        UnixUsers(uids or {}),
        Networks(networks),
        Listener(),
    )
    return Resolver(services, users or {}, passwords or {}, sources)
