from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("aiosmtplib")
pytest.importorskip("aiosmtpd")

from keyfence.findings.news import mail
from keyfence.findings.news.document import Document, Section, line, name
from keyfence.findings.news.mail import NotMailed, message_of, send
from keyfence.findings.news.plan import Smtp
from tests.findings.news.mailbox import Mailbox, running_mailbox, smtp
from tests.servers import Certificates, free_port

HOSTILE = "x\r\nBcc: evil@host.example\r\n\r\n<b>order</b>"
DOCUMENT = Document("keyfence: 1 new finding", (Section("New findings", (line("on ", name(HOSTILE)),)),))
ANN, BOB = "ann@host.example", "bob@host.example"


def sent(server: Smtp, *to: str, document: Document = DOCUMENT) -> str:
    return asyncio.run(send(document, server, to or (ANN,), "news.day-1.abc"))


@pytest.fixture
def plain() -> Iterator[tuple[Mailbox, int]]:
    with running_mailbox() as found:
        yield found


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.certificate, certificates.key)
    return context


def test_a_message_is_text_and_html(plain: tuple[Mailbox, int]) -> None:
    mailbox, port = plain
    assert sent(smtp(port), ANN, BOB) == ""
    ((sender, to, message),) = mailbox.got
    assert (sender, to) == ("keyfence@host.example", [ANN, BOB])
    assert message["Subject"] == "keyfence: 1 new finding"
    assert message["Message-ID"] == "<news.day-1.abc@host.example>"
    assert message["Auto-Submitted"] == "auto-generated"
    text, page = message.iter_parts()
    assert (text.get_content_type(), page.get_content_type()) == ("text/plain", "text/html")
    assert "on x\ufffd\ufffdBcc: evil@host.example" in text.get_content().replace("\n    ", " ")
    assert "&lt;b&gt;order&lt;/b&gt;" in page.get_content()


def test_no_name_adds_a_header() -> None:
    hostile = DOCUMENT._replace(title=f"keyfence {HOSTILE}")
    message = message_of(hostile, smtp(25), [ANN], "news.day-1.abc")
    head = message.as_bytes().split(b"\r\n\r\n", 1)[0].decode()
    assert not [one for one in head.split("\r\n") if one.lower().startswith("bcc")]
    assert message["Subject"] == "keyfence xBcc: evil@host.example<b>order</b>"


def test_with_starttls_the_login_travels_encrypted(certificates: Certificates) -> None:
    with running_mailbox(starttls=server_context(certificates)) as (mailbox, port):
        server = smtp(port, "starttls", str(certificates.ca), username="keyfence", password="right")
        assert sent(server) == ""
        assert mailbox.logins == [("keyfence", "right")]
        assert mailbox.was_encrypted == [True]


def test_a_server_may_speak_tls_from_the_beginning(certificates: Certificates) -> None:
    with running_mailbox(tls=server_context(certificates)) as (mailbox, port):
        assert sent(smtp(port, "tls", str(certificates.ca))) == ""
        assert len(mailbox.got) == 1


def test_a_server_without_the_right_certificate_gets_nothing(certificates: Certificates) -> None:
    with running_mailbox(starttls=server_context(certificates)) as (mailbox, port):
        with pytest.raises(NotMailed):
            sent(smtp(port, "starttls", username="keyfence", password="right"))
        assert (mailbox.logins, mailbox.got) == ([], [])


def test_a_server_without_starttls_gets_no_login(plain: tuple[Mailbox, int]) -> None:
    mailbox, port = plain
    with pytest.raises(NotMailed):
        sent(smtp(port, "starttls", username="keyfence", password="right"))
    assert (mailbox.logins, mailbox.got) == ([], [])


def test_a_wrong_password_is_told_without_it(certificates: Certificates) -> None:
    with running_mailbox(starttls=server_context(certificates)) as (_, port):
        server = smtp(port, "starttls", str(certificates.ca), username="keyfence", password="wrong-secret")
        with pytest.raises(NotMailed, match=r"^SMTPAuthenticationError 535$"):
            sent(server)


@pytest.mark.parametrize("answer", ["451 try later", "554 refused because of keyfence"])
def test_a_message_that_is_refused_is_told_with_its_code(answer: str, plain: tuple[Mailbox, int]) -> None:
    mailbox, port = plain
    mailbox.answer = answer
    with pytest.raises(NotMailed, match=f"^SMTPDataError {answer[:3]}$"):
        sent(smtp(port))


def test_one_address_of_several_may_be_refused(plain: tuple[Mailbox, int]) -> None:
    mailbox, port = plain
    mailbox.refuses = {ANN}
    assert sent(smtp(port), ANN, BOB) == f"it has refused {ANN}"
    assert [to for _, to, _ in mailbox.got] == [[BOB]]
    with pytest.raises(NotMailed, match="SMTPRecipientsRefused"):
        sent(smtp(port), ANN)


def test_no_server_is_told() -> None:
    with pytest.raises(NotMailed, match="SMTPConnectError"):
        sent(smtp(free_port()))


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        held: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                held.append(silent.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        with pytest.raises(NotMailed, match="Timeout"):
            sent(smtp(port))
        thread.join()
        for one in held:
            one.close()
