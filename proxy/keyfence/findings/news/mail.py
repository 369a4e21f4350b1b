"""Sends a document by e-mail: text and HTML, over aiosmtplib.

Rule: nothing that a client, a policy or a file may have shaped stands in a header but escaped, and no header
can be added. The server's certificate is checked, unless the configuration says that there is no TLS.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime
from typing import Any

from keyfence.net.trust import client_context

from .document import Document, as_html, as_text
from .plan import Smtp

TIMEOUT = 30.0  # seconds of one message
MAX_SUBJECT = 200  # characters


class NotMailed(Exception):
    """The mail server has not taken the message; the text may be shown."""


def message_of(document: Document, smtp: Smtp, to: Sequence[str], name: str) -> EmailMessage:
    """The message. With the same name it is the same message, so that a mail program shows it once if it was
    sent twice."""
    message = EmailMessage(policy=SMTP)
    sender = Address(addr_spec=smtp.sender)
    message["Subject"] = "".join(char for char in document.title if char.isprintable())[:MAX_SUBJECT]
    message["From"] = Address("keyfence", addr_spec=smtp.sender)
    message["To"] = [Address(addr_spec=one) for one in to]
    message["Date"] = format_datetime(localtime())
    message["Message-ID"] = f"<{name}@{sender.domain}>"
    message["Auto-Submitted"] = "auto-generated"  # so that no one on holiday answers
    message.set_content(as_text(document))
    message.add_alternative(as_html(document), subtype="html")
    return message


async def send(document: Document, smtp: Smtp, to: Sequence[str], name: str) -> str:
    """Send it to all addresses. Returns which were refused, if others were not: a second try would send it to
    those again. Raises NotMailed."""
    try:
        import aiosmtplib
    except ImportError:
        raise NotMailed("e-mail needs the package aiosmtplib; pip install keyfence[email]") from None
    try:
        context = await asyncio.to_thread(_context, smtp)
        async with asyncio.timeout(TIMEOUT):
            refused, _ = await aiosmtplib.send(
                message_of(document, smtp, to, name),
                hostname=smtp.host,
                port=smtp.port,
                use_tls=smtp.tls == "tls",
                start_tls=smtp.tls == "starttls",
                tls_context=context,
                timeout=TIMEOUT,
                **_login(smtp),
            )
    except aiosmtplib.SMTPResponseException as exc:
        raise NotMailed(f"{type(exc).__name__} {exc.code}") from None
    except (aiosmtplib.SMTPException, OSError, TimeoutError, ssl.SSLError, ValueError) as exc:
        raise NotMailed(type(exc).__name__) from None
    return f"it has refused {', '.join(sorted(refused))}" if refused else ""


def _context(smtp: Smtp) -> ssl.SSLContext | None:
    return None if smtp.tls == "none" else client_context(smtp.ca)


def _login(smtp: Smtp) -> dict[str, Any]:
    return {"username": smtp.username, "password": smtp.password} if smtp.username else {}
