"""`keyfence look`: shows what is on a Redis, and which clients use it for what.

Rule: nothing is refused, and nothing changes on the Redis. What is kept holds no values and no passwords.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from keyfence.audit.judge import Judge
from keyfence.audit.servers.links import Endpoint, LinkError
from keyfence.audit.servers.nodes import Server
from keyfence.cli.rollout.served import CannotServe, serving
from keyfence.cli.terminal.options import checked, is_given, parsed, value_option
from keyfence.cli.terminal.output import fail
from keyfence.config.loading import load_settings
from keyfence.config.models import ListenerTlsModel
from keyfence.config.references import BadReference, is_plain_password, resolved
from keyfence.config.settings import Overrides, Settings
from keyfence.config.upstream import upstream_of
from keyfence.downstream.tls import listener_context, upstream_context
from keyfence.net.addresses import parse_address, parse_listen
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.units import milliseconds
from keyfence.process.looking import Looking
from keyfence.process.serving.packing import Packed, pack
from keyfence.process.serving.reload import Origin, load
from keyfence.telemetry.operator_log import warn

from .naming import Identify, Naming
from .session import RECORD, SEEN, Session
from .there import primary_at

_POLICY = "policy: look\nservices: [nobody]\n"  # it must name one; every client is unknown to it
_FREE = "127.0.0.1:0"
_DRAIN = "1s"
_DATABASE = re.compile(r"(?<=[^/])/\d+$|[?]db=\d+$")  # in a URL
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What to do, by a part of Redis' or the system's words.
_REMEDIES = {
    "invalid username-password": "check the user in the URL, and the password",
    "uthentication required": "give its password with --password-file FILE",
    "without any password": "it has no password; omit --password-file",
    "no permissions": "give it a user that may INFO, SCAN, TYPE, PTTL and MEMORY USAGE",
    "refused": "is it there? Name another HOST:PORT",
    "CERTIFICATE_VERIFY_FAILED": "name the authority's certificate with --ca FILE",
    "certificate": "name the authority's certificate with --ca FILE",
    "Timeout": "is it there, and does it speak TLS (rediss://) or not (redis://)",
    "closed by server": "if it speaks TLS, write rediss://",
    "reset by peer": "if it speaks TLS, write rediss://",
    "WRONG_VERSION_NUMBER": "it does not speak TLS; write redis://",
    "handshake": "it does not speak TLS; write redis://",
}


class Asked(NamedTuple):
    """The options of the command."""

    url: str
    listen: str
    admin: str
    seconds: float | None = None
    password_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    client_ca: str = ""

    @property
    def for_others(self) -> str:
        """The URL, if other commands can use it as it is; else ""."""
        is_whole = not (self.password_file or self.ca or is_plain_password(self.url))
        return self.url if is_whole else ""


def _seconds(text: str) -> float | None:
    """A duration in seconds; None for no text. Raises ValueError."""
    return milliseconds(text) / 1000 if text else None


@click.command()
@click.argument("url", metavar="URL", envvar="KEYFENCE_UPSTREAM", callback=parsed(checked(upstream_of)))
@value_option(
    "--listen",
    "ADDRESS",
    "Where clients connect: HOST:PORT or unix:PATH.  [default: a free port of this machine]",
    checked(parse_listen),
    default=_FREE,
)
@value_option(
    "--admin",
    "HOST:PORT",
    "Where the page is.  [default: a free port of this machine]",
    checked(parse_address),
    default=_FREE,
)
@value_option("--for seconds", "DURATION", "End after this time, such as 10m, as by Ctrl-C.", _seconds)
@value_option("--password-file", "FILE", "File with the password of the Redis, as its only line.")
@value_option("--ca", "FILE", "PEM file of the authorities of a rediss:// server's certificate.")
@value_option("--cert", "FILE", "PEM file of the certificate that clients get: they connect with TLS then.")
@value_option("--key", "FILE", "PEM file of its key.")
@value_option(
    "--client-ca", "FILE", "PEM file of the authorities of clients' certificates, if they have one."
)
def look(**options: Any) -> None:
    """Show what is on a Redis, and which clients use it for what. No policy is needed.

    URL is redis://HOST:PORT/DATABASE, rediss:// or unix://, with ${NAME} or file:PATH for what is secret.
    keyfence reads up to 10,000 of its keys, at most 5,000 a second, and lists their kinds. It also stands
    before the Redis, at an address of its own: each client that connects there is told from others by its
    certificate, its user, its name (CLIENT SETNAME), or its library and network. Nothing is refused.

    Ctrl-C ends it. What was seen is kept for keyfence draft, without values and passwords.

    Exit code 0: ended by a signal or --for; 1: keyfence did not last; 2: wrong usage, or the Redis cannot be
    used.
    """
    asked = Asked(**options)
    if is_given(click.get_current_context(), "url") and is_plain_password(asked.url):
        warn("the URL holds a password, and process listings show it; use --password-file or '${NAME}'")
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="keyfence-look-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        origin = origin_of(asked, folder)
        settings = _settings(origin, asked)
        policy, server = load(settings), _reached(settings)
        ending = _Ending()
        try:
            with (
                ending.by_signals(),
                serving(
                    *in_front(origin, settings, policy), folder, ending.is_new, looking_in(folder)
                ) as running,
            ):
                session = Session(asked.for_others, server, running, folder, tls=bool(asked.cert))
                session.begin(server, Judge(policy), ending.come)
                session.follow(ending.come, asked.seconds)
        except CannotServe as exc:
            sys.exit(exc.code) if not str(exc) else fail(str(exc), exc.code)
        if session.end():
            stack.pop_all()  # the folder stays
        if running.process.returncode:
            fail(f"keyfence ended by itself, with {running.process.returncode}", 1)


def looking_in(folder: Path) -> Looking:
    """How the keyfence before the Redis tells services apart, and where its page finds what was seen."""
    return Looking(Naming(), str(folder / SEEN))


def origin_of(asked: Asked, folder: Path) -> Origin:
    """The configuration, with a policy that describes no key and knows no client."""
    policy = folder / "policy.yaml"
    policy.write_text(_POLICY, encoding="utf-8")
    kept = {"findings": f"sqlite:///{folder}/findings.db", "record": str(folder / RECORD)}
    overrides = Overrides(
        str(policy), asked.url, asked.listen, "", "observe", asked.admin, drain=_DRAIN, **kept
    )
    return Origin("", overrides)


def _settings(origin: Origin, asked: Asked) -> Settings:
    settings = load_settings(origin.config, origin.overrides)
    assert settings.upstream is not None
    upstream = settings.upstream
    if asked.password_file:
        if upstream.password:
            fail("the URL and --password-file both give a password; give one")
        try:
            password = resolved(f"file:{asked.password_file}", Path(), may_be_file=True)
        except BadReference as exc:
            fail(f"--password-file: {exc}")
        upstream = dataclasses.replace(upstream, password=password)
    settings = dataclasses.replace(settings, upstream=upstream, upstream_ca=asked.ca)
    return _with_certificates(settings, asked) if asked.cert or asked.key or asked.client_ca else settings


def _with_certificates(settings: Settings, asked: Asked) -> Settings:
    """Clients connect with TLS, and a certificate of theirs names the service."""
    if not (asked.cert and asked.key):
        fail("for clients with TLS, give --cert and --key; with --client-ca, they may show certificates")
    tls = ListenerTlsModel.model_validate(
        {"cert": asked.cert, "key": asked.key, "client_ca": asked.client_ca, "require_client_cert": "no"}
    )
    (listener,) = settings.listeners
    listeners = (listener.model_copy(update={"tls": tls}),)
    settings = dataclasses.replace(settings, listeners=listeners, identify=Identify())
    try:
        listener_context(settings, 0)
    except FileError as exc:
        fail(exc.diagnostics[0].message)
    return settings


def in_front(origin: Origin, settings: Settings, policy: CompiledPolicy) -> tuple[Origin, Packed]:
    """What the keyfence before the Redis gets. Clients begin in database 0 there as they do without it. A
    reload keeps the Redis as it is."""
    assert settings.upstream is not None
    shown = _DATABASE.sub("", settings.upstream.shown)
    upstream = dataclasses.replace(settings.upstream, database=0, shown=shown)
    reloaded = dataclasses.replace(origin, overrides=dataclasses.replace(origin.overrides, upstream=""))
    return reloaded, pack(dataclasses.replace(settings, upstream=upstream), policy)


def _reached(settings: Settings) -> Server:
    """The Redis. One that cannot be used ends the command."""
    assert settings.upstream is not None
    try:
        return primary_at(Endpoint(settings.upstream, upstream_context(settings), settings.connect_timeout))
    except LinkError as exc:
        remedy = next((one for part, one in _REMEDIES.items() if part in str(exc)), "")
        fail(f"{exc}{f'; {remedy}' if remedy else ''}")


class _Ending:
    """Whether the user wants to end."""

    def __init__(self) -> None:
        self.come = threading.Event()
        self._news = 0

    def is_new(self) -> bool:
        """Whether a signal has come since the last call."""
        news, self._news = self._news, 0
        return bool(news)

    def _told(self, *_: Any) -> None:
        self._news += 1
        self.come.set()

    @contextlib.contextmanager
    def by_signals(self) -> Iterator[None]:
        """While the body runs, the signals that end programs only set `come`."""
        before = {number: signal.signal(number, self._told) for number in _ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
