"""News: how often a digest is sent, and to whom.

Rule: a target is a webhook or a list of addresses, never both. No message shows what may be a secret.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from keyfence.policy.source.model import Flag, Page, one_as_list
from keyfence.policy.source.yaml import PathKey

from .fields import STRICT, WebUrl

Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
DAYS: tuple[Weekday, ...] = get_args(Weekday)
PORTS = {"starttls": 587, "tls": 465, "none": 25}
_CLOCK = re.compile("([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
# Nothing in it ends a header, an address in a list, or a command of SMTP.
_MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,253}", re.ASCII)


def _clock(value: str) -> str:
    if not _CLOCK.fullmatch(value):
        raise ValueError(f"{value!r} is not a time of day; write HH:MM, as 08:00")
    return value


def _zone(value: str) -> str:
    import zoneinfo  # only for who sends news

    try:
        zoneinfo.ZoneInfo(value)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"{value!r} is not a time zone that this machine knows; write UTC, or a name as Europe/Berlin "
            "(Debian's package tzdata has them)"
        ) from None
    return value


def _mail(value: str) -> str:
    if not _MAIL.fullmatch(value):
        raise ValueError(f"{value!r} is not an address of e-mail; write NAME@HOST")
    return value


def _host(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.:_-]{1,253}", value, re.ASCII):
        raise ValueError(f"{value!r} is not a host; write its name or address, and port: beside it")
    return value


def _several(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


Mail = Annotated[str, AfterValidator(_mail)]


class _Model(BaseModel):
    model_config = STRICT


class TargetModel(_Model):
    """Where a digest goes: a webhook, or addresses of e-mail."""

    webhook: WebUrl = ""
    as_: Literal["json", "slack", "teams"] | None = Field(None, alias="as")  # default: json
    email: Annotated[list[Mail], BeforeValidator(one_as_list)] = []

    @model_validator(mode="after")
    def _one_way(self) -> TargetModel:
        if bool(self.webhook) == bool(self.email):
            raise ValueError("a target is either webhook: URL or email: ADDRESS; write one of the two")
        if self.email and self.as_ is not None:
            raise ValueError("as is for a webhook, and e-mail has one form; remove it")
        return self


Targets = Annotated[list[TargetModel], Field(min_length=1), BeforeValidator(_several)]


class SmtpModel(_Model):
    """The mail server that takes digests."""

    host: Annotated[str, AfterValidator(_host)]
    port: Annotated[int, Field(ge=1, le=65535)] | None = None  # default: as `tls` has it
    tls: Literal["starttls", "tls", "none"] = "starttls"
    ca: str = ""  # authorities that may have signed its certificate, PEM; default: the system's
    username: str = ""  # keyfence's login there
    password: str = ""
    from_: Mail = Field(alias="from")  # the sender

    @property
    def its_port(self) -> int:
        return self.port or PORTS[self.tls]


class NewsModel(_Model):
    """A digest of findings, by day or week."""

    every: Literal["day", "week"]
    at: Annotated[str, AfterValidator(_clock)] = "08:00"
    weekday: Weekday | None = None  # of a week; default: monday
    zone: Annotated[str, AfterValidator(_zone)] = "UTC"  # of `at` and `weekday`
    to: Targets  # what has no owner of `owners`, and which rules can be enforced
    owners: dict[str, Targets] = {}  # what is theirs
    smtp: SmtpModel | None = None
    page: Page = ""  # where people reach the page of this keyfence
    even_if_quiet: Flag = False  # send a digest with nothing in it, too

    @property
    def its_weekday(self) -> int | None:
        """The day of the week on which it is due, Monday is 0; None: each day."""
        return None if self.every == "day" else DAYS.index(self.weekday or DAYS[0])

    def targets(self) -> Iterator[tuple[PathKey, TargetModel]]:
        """All targets, with their places in the file."""
        yield from ((("news", "to", index), one) for index, one in enumerate(self.to))
        for owner, several in self.owners.items():
            yield from ((("news", "owners", owner, index), one) for index, one in enumerate(several))

    def faults(self) -> list[tuple[PathKey, str]]:
        """Settings that contradict each other, or lack their counterpart, each with its place."""
        found: list[tuple[PathKey, str]] = []
        if "" in self.owners:
            text = "an owner needs a name; what has no owner goes to the targets of to"
            found.append((("news", "owners"), text))
        if self.every == "day" and self.weekday is not None:
            text = "a digest of each day has no weekday; write every: week, or remove it"
            found.append((("news", "weekday"), text))
        mails = [path for path, one in self.targets() if one.email]
        if mails and self.smtp is None:
            text = "no mail server is named that sends this; add smtp: {host: HOST, from: ADDRESS} to news"
            found.append((mails[0], text))
        if mails and importlib.util.find_spec("aiosmtplib") is None:
            text = "e-mail needs the package aiosmtplib; pip install keyfence[email]"
            found.append((mails[0], text))
        if self.smtp is not None:
            found += [(("news", "smtp", name), text) for name, text in _of_smtp(self.smtp, bool(mails))]
        return found


def _of_smtp(said: SmtpModel, is_used: bool) -> Iterator[tuple[str, str]]:
    if not is_used:
        yield "host", "no target is an address of e-mail; add one, or remove smtp"
    if bool(said.username) != bool(said.password):
        lacks = "password" if said.username else "username"
        yield ("username" if said.username else "password"), f"a login needs both; add {lacks}: beside it"
    if said.tls == "none" and said.password:
        yield "tls", "the password would travel unencrypted; write tls: starttls, or remove the login"
    if said.tls == "none" and said.ca:
        yield "ca", "ca is for TLS only; write tls: starttls, or remove it"
