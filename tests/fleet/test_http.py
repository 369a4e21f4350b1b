"""An answer of the policy's server is whole, and right for the request, or it is no answer."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyfence.fleet import http
from keyfence.fleet.http import NotFetched, fetch
from keyfence.fleet.model import Answer, PolicyServer
from tests.fleet.policy_server import PolicyServer as Server
from tests.fleet.policy_server import Respond, properly, reply
from tests.fleet.publishing import Publisher
from tests.servers import Certificates

POLICY = "policy: shop\nservices: [web]\n"
SECRETS = ("SECRET", "Bearer", "Basic", "sig=")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_SECONDS", 5.0)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(POLICY) as one:
        yield one


def ask(server: Server, etag: str = "", wait: float = 0.0, **settings: object) -> Answer:
    settings.setdefault("url", f"{server.url}?sig=SECRET")
    return asyncio.run(fetch(PolicyServer(**settings), etag, wait))  # type: ignore[arg-type]


def why_not(server: Server, respond: Respond | None = None, etag: str = "", **settings: object) -> str:
    """Returns why there is no answer. It never holds a secret."""
    server.respond = respond or server.respond
    with pytest.raises(NotFetched) as caught:
        ask(server, etag, **settings)
    text = str(caught.value)
    assert not any(secret in text for secret in SECRETS), text
    assert caught.value.__cause__ is None
    return text


def test_the_policy_comes_with_its_etag_and_is_asked_for_by_it(server: Server) -> None:
    answer = ask(server)
    assert answer == Answer(POLICY.encode(), server.etag, False)
    assert ask(server, answer.etag) == Answer(None, server.etag, False)
    server.put(POLICY + "# more\n")
    assert ask(server, answer.etag).content == POLICY.encode() + b"# more\n"
    assert [one.get("if-none-match") for one in server.requests] == [None, answer.etag, answer.etag]
    assert {one[":path"] for one in server.requests} == {"/shop.yaml?sig=SECRET"}
    assert not any("prefer" in one for one in server.requests), "nothing asks it to wait"


def test_a_server_that_waits_says_so(server: Server) -> None:
    server.waits = True
    assert ask(server, server.etag, wait=1.0) == Answer(None, server.etag, True)
    assert server.requests[-1]["prefer"] == "wait=1"


@pytest.mark.parametrize(
    ("respond", "why"),
    [
        (lambda *_: reply(b"policy: sh", length=500), "sends an answer that ends early"),
        (lambda *_: reply(b"a\r\npolicy: sh\r\n", length=-1, Transfer_Encoding="chunked"), "ends early"),
        (lambda *_: reply(b"policy: sh", length=-1), "does not say how long its answer is"),
        (lambda *_: reply(b"", length=http.MAX_BYTES + 1), f"sends more than {http.MAX_BYTES} bytes"),
        (lambda *_: reply(b""), "sends an empty answer"),
        (lambda *_: reply(b"x", Content_Encoding="gzip"), "compresses its answer"),
        (lambda *_: reply(b"", "304 Not Modified", length=-1), "although it was not asked whether"),
        (lambda *_: reply(b"SECRET", "401 Unauthorized"), "answers with status 401; check credentials"),
        (lambda *_: reply(b"SECRET", "404 Not Found"), "answers with status 404; check the url"),
        (lambda *_: reply(b"SECRET", "503 Service Unavailable"), "answers with status 503"),
        (lambda *_: b"SSH-2.0-OpenSSH_9.6\r\n", "sends an answer that is not HTTP"),
        (lambda *_: b"", "sends an answer that is not HTTP"),
        (lambda *_: reply(b"", "302 Found", Location="/shop.yaml?sig=SECRET"), "redirects more than 3 times"),
        (lambda *_: reply(b"", "302 Found"), "redirects to nowhere"),
        (
            lambda *_: reply(b"", "302 Found", Location="http://policies.example/a?sig=SECRET"),
            "redirects to http://policies.example/a, which is not https",
        ),
    ],
)
def test_an_answer_that_is_not_whole_or_not_right_is_none(respond: Respond, why: str, server: Server) -> None:
    assert why in why_not(server, respond)


def test_a_chunked_answer_without_a_bound_is_cut_off(server: Server) -> None:
    piece = b"%x\r\n%s\r\n" % (1 << 20, b"#" * (1 << 20))
    endless = reply(piece * 6, length=-1, Transfer_Encoding="chunked")
    assert "sends more than" in why_not(server, lambda *_: endless)


def test_a_server_that_stalls_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.2)
    assert why_not(server, lambda *_: None) == "does not answer within 0.2 s"


def test_a_server_that_is_not_there_cannot_be_reached(server: Server) -> None:
    server.close()
    assert "cannot be reached" in why_not(server)


def test_a_login_goes_to_its_own_server_and_to_no_other(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("SECRET-1\n")
    with Server(POLICY) as other:
        server.respond = lambda *_: reply(b"", "307 Temporary Redirect", Location=other.url)
        assert ask(server, token_file=str(token)).content == POLICY.encode()
        assert server.requests[-1]["authorization"] == "Bearer SECRET-1"
        assert "authorization" not in other.requests[-1]
    server.respond = properly
    token.write_text("SECRET-2\n")
    ask(server, token_file=str(token))
    assert server.requests[-1]["authorization"] == "Bearer SECRET-2", "it is read for each request"
    ask(server, username="me", password="SECRET")
    assert server.requests[-1]["authorization"] == f"Basic {base64.b64encode(b'me:SECRET').decode()}"
    token.unlink()
    assert f"no token can be read from {token}" in why_not(server, token_file=str(token))
    assert "has characters that no header may have" in why_not(server, token="SECRET\r\nX: y")


def test_only_a_server_with_a_trusted_certificate_is_asked(
    certificates: Certificates, tmp_path: Path
) -> None:
    with Server(POLICY, certificates) as server:
        assert ask(server, ca=str(certificates.ca)).content == POLICY.encode()
        assert "shows a certificate that is not trusted" in why_not(server)
        broken = tmp_path / "ca.pem"
        broken.write_text("nothing")
        assert f"ca {broken} cannot be used" in why_not(server, ca=str(broken))
        assert f"ca {tmp_path} cannot be used" in why_not(server, ca=str(tmp_path))
    with Server(POLICY) as plain:
        url = plain.url.replace("http:", "https:")
        assert "does not speak TLS" in why_not(plain, url=url, ca=str(certificates.ca))


# -- a signed policy


def signed(server: Server, policy: str, signature: bytes | None) -> Respond:
    """Serves a policy, and its signature beside it; None: there is no signature."""

    def respond(_server: Server, headers: dict[str, str]) -> bytes:
        server.put(policy)
        if not headers[":path"].startswith("/shop.yaml.sig"):
            return properly(server, headers)
        if signature is None:
            return reply(b"", "404 Not Found")
        server.policy = signature
        return properly(server, headers)

    return respond


def test_of_a_signed_policy_the_signature_is_asked_for_first(server: Server) -> None:
    signature = Publisher().sign(1, {"shop.yaml": POLICY}).text()
    server.respond = signed(server, POLICY, signature)
    answer = ask(server, signed_as="shop")
    assert (answer.content, answer.signature) == (POLICY.encode(), signature)
    assert answer.etag, "the ETag of the signature"
    assert ask(server, answer.etag, signed_as="shop") == Answer(None, answer.etag, False)
    paths = [one[":path"] for one in server.requests]
    assert paths == ["/shop.yaml.sig?sig=SECRET", "/shop.yaml?sig=SECRET", "/shop.yaml.sig?sig=SECRET"]


def test_a_signature_that_does_not_fit_is_asked_for_again(server: Server) -> None:
    server.respond = signed(server, POLICY, Publisher().sign(1, {"shop.yaml": "other"}).text())
    assert ask(server, signed_as="shop").etag == "", "the server may be between two versions"
    server.respond = signed(server, POLICY, None)
    assert ask(server, signed_as="shop") == Answer(POLICY.encode(), "", False)
