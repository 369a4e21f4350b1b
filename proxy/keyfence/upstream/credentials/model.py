"""What a source of credentials gives, and how it fails.

Rule: no message holds a secret. A message names the setting's file and line, what is wrong, and the remedy.
"""

from __future__ import annotations

import dataclasses
import math

MAX_DETAIL = 200  # characters


@dataclasses.dataclass(frozen=True, slots=True)
class Credentials:
    """A login, and how long it holds."""

    username: str  # empty: the user `default`
    password: str = dataclasses.field(repr=False)
    expires_at: float | None = None  # Unix seconds until which Redis takes them; None: it is not known
    # Seconds for which a connection stays logged in after AUTH; None: until the credentials expire.
    holds_for: float | None = None

    def same_login(self, other: Credentials | None) -> bool:
        return other is not None and (self.username, self.password) == (other.username, other.password)

    def ends_at(self, logged_in_at: float) -> float:
        """When a connection loses its login that has logged in with them at this time; infinity: never."""
        if self.expires_at is None:
            return math.inf
        return self.expires_at if self.holds_for is None else logged_in_at + self.holds_for


class NoCredentials(Exception):
    """A source gives no credentials now. `detail` is for operators only: what a command or a library says
    about it, as one bounded line."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = "".join(one if one.isprintable() else "?" for one in detail[:MAX_DETAIL])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where credentials come from. It is a setting: two that are equal give the same login."""

    username: str = ""  # of the login, if the source gives none itself
    where: str = dataclasses.field(default="", compare=False)  # the setting's place, for messages

    @property
    def shown(self) -> str:
        """The source in a few words."""
        raise NotImplementedError

    async def fetch(self, seconds: float) -> Credentials:
        """The credentials of now, within this time. Raises NoCredentials, whose message continues after the
        setting's place, or TimeoutError."""
        raise NotImplementedError

    def mark(self) -> object:
        """Something that changes when the source has other credentials, if it can be told cheaply."""
        return None


async def fetched(source: Source, seconds: float) -> Credentials:
    """The credentials of now. Raises NoCredentials, whose message begins with the setting's place."""
    try:
        return await source.fetch(seconds)
    except NoCredentials as exc:
        raise NoCredentials(f"{source.where}: {exc}", exc.detail) from None
    except TimeoutError:
        message = f"{source.where}: {source.shown} has not answered within {seconds:g} s"
        raise NoCredentials(message) from None
