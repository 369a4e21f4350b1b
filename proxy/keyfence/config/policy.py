"""The setting `policy`: a path, or a URL with how to ask for it and how old the policy may be.

Rule: a setting that has no effect is a fault. No message shows a login or a URL's query.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from keyfence.fleet.model import PolicyServer, Then, parse_policy_url
from keyfence.policy.source.model import Duration, mapping_or

from .fields import STRICT, TimeLimit


class PolicyLoginModel(BaseModel):
    """How keyfence says to the policy's server who it is: a bearer token, or a user and a password."""

    model_config = STRICT

    token: str = Field("", repr=False)
    username: str = ""
    password: str = Field("", repr=False)


class PolicySourceModel(BaseModel):
    """Where the policy is."""

    model_config = STRICT

    path: str = ""  # a file, or a folder of files
    url: Annotated[str, AfterValidator(lambda text: text and parse_policy_url(text))] = Field("", repr=False)
    poll: Annotated[Duration, Field(ge=1000, le=86_400_000)] = 30_000  # ms between two requests, on average
    credentials: Annotated[PolicyLoginModel, mapping_or("token")] | None = None
    ca: str = ""  # authorities that may have signed the server's certificate, PEM
    stale_after: TimeLimit = 0  # ms since the server has confirmed the policy
    then: Then = "keep"

    def server(self, ca: str, token_file: str) -> PolicyServer | None:
        """The server; None: the policy is a file."""
        if not self.url:
            return None
        login = self.credentials or PolicyLoginModel()
        return PolicyServer(
            self.url,
            self.poll / 1000,
            ca,
            login.username,
            login.password,
            login.token,
            token_file,
            self.stale_after / 1000,
            self.then,
        )

    def faults(self) -> list[tuple[str, str]]:
        """Each setting that contradicts another one, and why."""
        found = []
        if self.path and self.url:
            found.append(("url", "the policy has a path too; give one of them"))
        if not self.url:
            said = self.model_fields_set - {"path", "url"}
            found += [(name, f"{name} is for a policy with a url; remove it") for name in sorted(said)]
            return found
        login = self.credentials
        if login is not None and bool(login.token) == bool(login.username and login.password):
            text = "write either a token, or username and password; give each as file:PATH or ${NAME}"
            found.append(("credentials", text))
        if self.then != "keep" and not self.stale_after:
            found.append(("then", "then says what happens after stale_after; add stale_after"))
        if 0 < self.stale_after < 3 * self.poll:
            text = f"stale_after must be at least three times as long as poll ({self.poll / 1000:g} s)"
            found.append(("stale_after", f"{text}, so that one lost answer does not count"))
        return found
