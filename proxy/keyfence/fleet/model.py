"""A policy that an HTTPS server or a Redis has, as it is configured.

Rule: it is a value. What is shown of it holds no secret: neither a login nor the URL's query.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from keyfence.net.addresses import is_this_machine

from .manifest import SIGNED_END
from .redis_url import SCHEMES, parse_redis_url

Then = Literal["keep", "observe", "refuse"]
MAX_URL = 2000  # characters


def parse_policy_url(text: str) -> str:
    """The URL of a policy, unchanged. Raises ValueError, which does not show it: it may hold a secret."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("this is not a URL; write https://HOST/PATH") from None
    if len(text) > MAX_URL or any(not "!" <= one <= "~" for one in text):
        raise ValueError(
            f"a URL has at most {MAX_URL} characters, and neither blanks nor letters beyond ASCII"
        )
    if parts.scheme not in ("https", "http") or not host:
        raise ValueError("this is not the URL of a policy; write https://HOST/PATH")
    if parts.scheme == "http" and not is_this_machine(host):
        raise ValueError(
            "a policy can be changed on its way over plain HTTP; write https://, or name this machine"
        )
    if parts.username is not None or parts.fragment:
        raise ValueError(
            "write https://HOST/PATH without a login or #; a login goes under credentials beside the url"
        )
    return text


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyServer:
    """Where the policy is, how to ask for it, and how old it may be. Times are in seconds."""

    url: str = dataclasses.field(repr=False)
    poll: float = 30.0
    ca: str = ""  # authorities that may have signed the server's certificate; "": the system's
    username: str = dataclasses.field(default="", repr=False)
    password: str = dataclasses.field(default="", repr=False)
    token: str = dataclasses.field(default="", repr=False)
    token_file: str = ""  # that holds the token, and is read for each request
    stale_after: float = 0.0  # 0: it may be of any age
    then: Then = "keep"
    signed_as: str = ""  # the name under which its policy is signed; "": it is not signed

    @property
    def is_redis(self) -> bool:
        return self.url.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))

    @property
    def shown(self) -> str:
        if self.is_redis:
            return f"{parse_redis_url(self.url).shown}/{self.signed_as}"
        return shown_url(self.url)

    @property
    def id(self) -> str:
        """Tells it from other servers. The login at a Redis may change."""
        place = self.shown if self.is_redis else self.url
        return hashlib.sha256("\n".join(filter(None, (place, self.signed_as))).encode()).hexdigest()

    @property
    def signature_url(self) -> str:
        """Where the signature is."""
        parts = urlsplit(self.url)
        return parts._replace(path=parts.path + SIGNED_END).geturl()


class NotFetched(Exception):
    """There is no answer that can be used. The message continues after the server's name."""


class Offer(NamedTuple):
    """A candidate as a store has it, not checked yet; without content: it has none."""

    content: bytes = b""
    signature: bytes = b""


class Answer(NamedTuple):
    """What the server has said."""

    content: bytes | None  # None: the policy with the ETag that was sent is still the right one
    etag: str
    waits: bool  # it waits for a change, as it was asked to
    signature: bytes = b""  # the signature file; "": there is none, or none is asked for
    candidate: Offer | None = None  # None: it is still the one that is known, or the server can have none


def shown_url(url: str) -> str:
    """A URL without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
