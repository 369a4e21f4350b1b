"""A real mail server in a thread, and what it was sent."""

from __future__ import annotations

import contextlib
import gc
import logging
import ssl
import warnings
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from keyfence.findings.news.plan import Smtp
from tests.servers import free_port

logging.getLogger("mail.log").disabled = True  # what it logs would keep connections alive


class Mailbox:
    """Takes mail, or refuses it."""

    def __init__(self) -> None:
        self.got: list[tuple[str, list[str], EmailMessage]] = []
        self.logins: list[tuple[str, str]] = []
        self.was_encrypted: list[bool] = []
        self.refuses: set[str] = set()
        self.answer = "250 OK"

    async def handle_RCPT(
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if address in self.refuses:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: SMTP, session: Session, envelope: Envelope) -> str:
        if self.answer.startswith("250"):
            content = envelope.content
            assert isinstance(content, bytes)
            message = message_from_bytes(content, policy=policy.default)
            assert isinstance(message, EmailMessage)
            self.got.append((envelope.mail_from or "", list(envelope.rcpt_tos), message))
            self.was_encrypted.append(session.ssl is not None)
        return self.answer

    def authenticate(
        self, _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"right", handled=False)


@contextlib.contextmanager
def running_mailbox(
    starttls: ssl.SSLContext | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[Mailbox, int]]:
    """A mailbox, and its port on 127.0.0.1. If TLS fails, its library leaves the connection open."""
    mailbox = Mailbox()
    controller = Controller(
        mailbox,
        hostname="127.0.0.1",
        port=free_port(),
        ssl_context=tls,
        tls_context=starttls,
        require_starttls=starttls is not None,
        authenticator=mailbox.authenticate,
        auth_required=False,
    )
    controller.start()
    try:
        yield mailbox, controller.port
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            controller.stop()
            gc.collect()


def smtp(port: int, tls: str = "none", ca: str = "", **login: str) -> Smtp:
    return Smtp(
        "127.0.0.1",
        port,
        tls,
        ca,
        login.get("username", ""),
        login.get("password", ""),
        "keyfence@host.example",
    )
