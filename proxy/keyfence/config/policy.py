"""The setting `policy`: a path, or a server with how to ask it and how old the policy may be; who signs it.

Rule: a setting that has no effect is a fault. No message shows a login or a URL's query.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from keyfence.fleet.keys import NEEDS, PREFIX, PublicKey, Trust, is_available, parse_public, read_public
from keyfence.fleet.manifest import check_name
from keyfence.fleet.model import PolicyServer, Then, parse_policy_url
from keyfence.fleet.redis_url import parse_redis_url
from keyfence.policy.source.model import Duration, mapping_or, one_as_list

from .fields import STRICT, TimeLimit


class PolicyLoginModel(BaseModel):
    """How keyfence says to the policy's server who it is: a bearer token, or a user and a password."""

    model_config = STRICT

    token: str = Field("", repr=False)
    username: str = ""
    password: str = Field("", repr=False)


def _redis_url(text: str) -> str:
    if text:
        parse_redis_url(text)
    return text


class PolicySourceModel(BaseModel):
    """Where the policy is."""

    model_config = STRICT

    path: str = ""  # a file, or a folder of files
    url: Annotated[str, AfterValidator(lambda text: text and parse_policy_url(text))] = Field("", repr=False)
    redis: Annotated[str, AfterValidator(_redis_url)] = Field("", repr=False)
    poll: Annotated[Duration, Field(ge=1000, le=86_400_000)] = 30_000  # ms between two requests, on average
    credentials: Annotated[PolicyLoginModel, mapping_or("token")] | None = None
    ca: str = ""  # authorities that may have signed the server's certificate, PEM
    stale_after: TimeLimit = 0  # ms since the server has confirmed the policy
    then: Then = "keep"
    name: Annotated[str, AfterValidator(lambda text: text and check_name(text))] = ""  # as it is published
    # The keys that may sign the policy: ed25519:BASE64, or files of them.
    trust: Annotated[list[str], BeforeValidator(one_as_list)] = []

    def trusted(self, folder: Path) -> Trust | None:
        """Who may sign the policy; None: nobody has to. Raises ValueError at a key that is none."""
        if not self.trust:
            return None
        keys: list[PublicKey] = []
        for text in self.trust:
            keys += [parse_public(text)] if text.startswith(PREFIX) else read_public(str(folder / text))
        return Trust(self.name, tuple(dict.fromkeys(keys)))

    @property
    def is_asked(self) -> bool:
        """Whether a server has the policy."""
        return bool(self.url or self.redis)

    def server(self, ca: str, token_file: str) -> PolicyServer | None:
        """The server; None: the policy is a file."""
        if not self.is_asked:
            return None
        login = self.credentials or PolicyLoginModel()
        return PolicyServer(
            self.url or self.redis,
            self.poll / 1000,
            ca,
            login.username,
            login.password,
            login.token,
            token_file,
            self.stale_after / 1000,
            self.then,
            self.name if self.trust else "",
        )

    def faults(self) -> list[tuple[str, str]]:
        """Each setting that contradicts another one, and why."""
        found = []
        named = [name for name in ("path", "url", "redis") if getattr(self, name)]
        found += [(name, f"the policy has a {named[0]} too; give one of them") for name in named[1:]]
        if self.redis and not self.trust:
            text = "a policy in Redis must be signed, because its clients may write there; add name and trust"
            found.append(("redis", text))
        if self.trust and not self.name:
            found.append(("trust", "trust needs name: the name under which the policy is published; add it"))
        if self.name and not self.trust:
            found.append(("name", "name is for a signed policy; add trust: the keys that may sign it"))
        if self.trust and not is_available():
            found.append(("trust", NEEDS))
        if not self.is_asked:
            said = self.model_fields_set - {"path", "url", "redis", "name", "trust"}
            found += [(name, f"{name} is for a policy with a url; remove it") for name in sorted(said)]
            return found
        found += self._login_faults()
        if self.then != "keep" and not self.stale_after:
            found.append(("then", "then says what happens after stale_after; add stale_after"))
        if 0 < self.stale_after < 3 * self.poll:
            text = f"stale_after must be at least three times as long as poll ({self.poll / 1000:g} s)"
            found.append(("stale_after", f"{text}, so that one lost answer does not count"))
        return found

    def _login_faults(self) -> list[tuple[str, str]]:
        login, found = self.credentials, []
        if login is None:
            return []
        if self.redis:
            if login.token or not login.password:
                text = "a login at Redis has a password, as file:PATH or ${NAME}, and maybe a username"
                found.append(("credentials", text))
            if parse_redis_url(self.redis).password:
                found.append(("credentials", "the URL has a password too; give it in one place"))
        elif bool(login.token) == bool(login.username and login.password):
            text = "write either a token, or username and password; give each as file:PATH or ${NAME}"
            found.append(("credentials", text))
        return found
