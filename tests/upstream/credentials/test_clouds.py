"""Credentials of clouds, against the form that each documents and stand-ins that answer as they do."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import http.server
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.policy.diagnostics import FileError
from keyfence.upstream.credentials import clouds
from keyfence.upstream.credentials.clouds import FromAws, FromEntra, FromGoogle, missing
from keyfence.upstream.credentials.model import Credentials, NoCredentials, Source

SECONDS = 5.0
Answer = Callable[[str, dict[str, str], bytes], tuple[int, dict[str, str], Any]]


def fetched(source: Source) -> Credentials:
    return asyncio.run(source.fetch(SECONDS))


def fault(source: Source) -> NoCredentials:
    with pytest.raises(NoCredentials) as caught:
        fetched(source)
    return caught.value


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """An HTTP server; `answer` gets path, headers and body, and gives status, headers and JSON."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, found = answer(self.path, dict(self.headers), body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(found.encode() if isinstance(found, str) else json.dumps(found).encode())

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Tests print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


# -- AWS


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("botocore", reason="pip install keyfence[aws]")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("session_token", ["", "of a role"])
@pytest.mark.parametrize(
    ("source", "query"),
    [
        (FromAws("main", "eu-west-1", username="keyfence"), {}),
        (FromAws("main", "eu-west-1", "memorydb", username="keyfence"), {}),
        (
            FromAws("main", "eu-west-1", is_serverless=True, username="keyfence"),
            {"ResourceType": "ServerlessCache"},
        ),
    ],
)
def test_the_token_of_aws_is_a_signed_url_as_documented(
    monkeypatch: pytest.MonkeyPatch, source: FromAws, query: dict[str, str], session_token: str
) -> None:
    """The documented form, and the signature that botocore's other signer makes at the same time."""
    if session_token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", session_token)
    before = time.time()
    found = fetched(source)
    assert found.username == "keyfence"
    assert before + 900 <= (found.expires_at or 0) <= time.time() + 900
    assert found.ends_at(1000.0) == 1000.0 + 12 * 3600
    url = urlsplit(f"//{found.password}")
    assert (url.netloc, url.path) == ("main", "/")
    fields = dict(parse_qsl(url.query))
    signed_at = fields["X-Amz-Date"]
    assert fields.pop("X-Amz-Security-Token", "") == session_token
    assert {**fields, "X-Amz-Signature": ""} == {
        "Action": "connect",
        "User": "keyfence",
        **query,
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"AKIDEXAMPLE/{signed_at[:8]}/eu-west-1/{source.service}/aws4_request",
        "X-Amz-Date": signed_at,
        "X-Amz-Expires": "900",
        "X-Amz-SignedHeaders": "host",
        "X-Amz-Signature": "",
    }
    assert fields["X-Amz-Signature"] == _signature(source, query, session_token, signed_at)


def _signature(source: FromAws, query: dict[str, str], session_token: str, signed_at: str) -> str:
    """What SigV4's query form signs at this time."""
    from botocore import auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials as Keys

    at = datetime.datetime.strptime(signed_at, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)

    class Fixed(datetime.datetime):
        @classmethod
        def utcnow(cls) -> datetime.datetime:
            return at.replace(tzinfo=None)

        @classmethod
        def now(cls, _tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return at

    parts = "&".join(
        f"{name}={value}" for name, value in {"Action": "connect", "User": "keyfence", **query}.items()
    )
    request = AWSRequest("GET", f"https://main/?{parts}")
    keys = Keys("AKIDEXAMPLE", "hidden", session_token or None)
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(auth, "get_current_datetime"):
            patch.setattr(auth, "get_current_datetime", lambda *_, **__: at.replace(tzinfo=None))
        else:
            patch.setattr(auth.datetime, "datetime", Fixed)
        auth.SigV4QueryAuth(keys, source.service, "eu-west-1", expires=900).add_auth(request)
    return dict(parse_qsl(urlsplit(request.url).query))["X-Amz-Signature"]


@pytest.mark.usefixtures("aws")
def test_what_this_machines_aws_configuration_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has no region" in str(fault(FromAws("main", username="keyfence")))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert "/eu-west-1/" in fetched(FromAws("main", username="keyfence")).password.replace("%2F", "/")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert "has no credentials" in str(fault(FromAws("main", username="keyfence")))


# -- Azure


def jwt(**claims: object) -> str:
    def part(fields: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")

    return f"{part({'alg': 'RS256', 'typ': 'JWT'})}.{part(claims)}.{part('signature')}"


@pytest.fixture
def azure() -> None:
    pytest.importorskip("redis_entraid", reason="pip install keyfence[azure]")


@pytest.mark.usefixtures("azure")
@pytest.mark.parametrize("client_id", ["", "11111111-0000-0000-0000-000000000000"])
def test_a_machines_identity_gives_a_token_of_azure(monkeypatch: pytest.MonkeyPatch, client_id: str) -> None:
    ends = int(time.time()) + 3600
    asked: list[dict[str, list[str]]] = []

    def answer(path: str, headers: dict[str, str], _body: bytes) -> tuple[int, dict[str, str], Any]:
        assert headers.get("Metadata") == "true"
        asked.append(parse_qs(urlsplit(path).query))
        token = jwt(oid="of the identity", exp=ends)
        found = {"access_token": token, "expires_in": "3600", "resource": "r", "token_type": "Bearer"}
        return 200, {"Content-Type": "application/json"}, found

    with answering(answer) as host:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", f"http://{host}")
        found = fetched(FromEntra(client_id=client_id))
        fetched(FromEntra(client_id=client_id))
    assert (found.username, found.expires_at) == ("of the identity", ends)
    assert found.ends_at(1000.0) == ends  # Azure closes connections whose token has ended
    assert len(asked) == 2  # nothing is kept that is about to end
    assert asked[0]["resource"] == ["https://redis.azure.com/"]
    assert asked[0].get("client_id", [""]) == [client_id]


@pytest.mark.usefixtures("azure")
def test_a_service_principal_gives_a_token_of_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    import requests

    ends = int(time.time()) + 3600
    secrets: list[str] = []

    def answer(path: str, _headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], Any]:
        if "openid-configuration" in path or "discovery" in path:
            base = "https://login.microsoftonline.com/the-tenant"
            return (
                200,
                {},
                {
                    "authorization_endpoint": f"{base}/authorize",
                    "token_endpoint": f"{base}/oauth2/v2.0/token",
                    "issuer": f"{base}/v2.0",
                    "tenant_discovery_endpoint": f"{base}/v2.0/.well-known/openid-configuration",
                    "metadata": [],
                },
            )
        fields = parse_qs(body.decode())
        secrets.extend(fields["client_secret"])
        if fields["client_secret"] != ["hidden"]:
            return (
                401,
                {},
                {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid\r\nsecret"},
            )
        assert fields["scope"] == ["https://redis.azure.com/.default"]
        return (
            200,
            {},
            {"access_token": jwt(oid="principal", exp=ends), "expires_in": 3600, "token_type": "Bearer"},
        )

    with answering(answer) as host:
        send = requests.adapters.HTTPAdapter.send

        def to_stand_in(_self: Any, request: Any, **options: Any) -> Any:
            request.url = request.url.replace("https://login.microsoftonline.com", f"http://{host}")
            return send(requests.adapters.HTTPAdapter(), request, **options)

        monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", to_stand_in)
        found = fetched(FromEntra("the-tenant", "the-client", "hidden", username="given"))
        failed = fault(FromEntra("the-tenant", "the-client", "wrong", username="given"))
    assert (found.username, found.expires_at) == ("given", ends)
    assert secrets == ["hidden", "wrong"]
    assert str(failed) == "the library of Azure has failed (RequestTokenErr)"
    assert failed.detail == "AADSTS7000215: Invalid secret"
    assert "hidden" not in repr(FromEntra("the-tenant", "the-client", "hidden", username="given"))


# -- Google Cloud


def test_the_metadata_server_gives_a_token_of_google_cloud(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("google.auth", reason="pip install keyfence[gcp]")
    pytest.importorskip("requests", reason="pip install keyfence[gcp]")
    from google.auth.compute_engine import _metadata

    def answer(path: str, _headers: dict[str, str], _body: bytes) -> tuple[int, dict[str, str], Any]:
        google = {"Metadata-Flavor": "Google"}
        where = urlsplit(path).path
        if where.endswith("/token"):
            found = {"access_token": "a token", "expires_in": 3599, "token_type": "Bearer"}
            return 200, google | {"Content-Type": "application/json"}, found
        if "service-accounts" in where:
            found = {"email": "keyfence@p.iam", "scopes": [], "aliases": ["default"]}
            return 200, google | {"Content-Type": "application/json"}, found
        return 200, google | {"Content-Type": "text/plain"}, "project"

    with answering(answer) as host:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setenv("GCE_METADATA_IP", host)
        monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)
        before = time.time()
        found = fetched(FromGoogle())
    assert (found.username, found.password) == ("", "a token")
    assert before + 3590 < (found.expires_at or 0) <= time.time() + 3600
    assert found.ends_at(1000.0) == math.inf  # it lets connections stay


# -- without libraries and clouds


def test_a_library_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    monkeypatch.setattr(clouds, "_library", lambda _name: ends.wait(30))
    with pytest.raises(TimeoutError):
        asyncio.run(FromGoogle().fetch(0.05))
    ends.set()


def test_a_library_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    assert str(fault(FromAws("main", username="u"))).startswith("a library cannot be used: ")


CONFIG = "policy: p\nupstream: {{url: '{url}', username: '{user}', credentials: {{{source}}}}}\n"


@pytest.mark.parametrize(
    ("source", "extra"),
    [("aws_iam: {cache: main}", "aws"), ("entra: {}", "azure"), ("gcp_iam: {}", "gcp")],
)
def test_a_missing_library_is_a_fault_of_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, extra: str
) -> None:
    monkeypatch.setattr(clouds.importlib.util, "find_spec", lambda _name: None)
    path = tmp_path / "keyfence.yaml"
    path.write_text(CONFIG.format(url="rediss://h", user="u", source=source))
    with pytest.raises(FileError, match=rf"keyfence.yaml:2:\d+: .*pip install keyfence\[{extra}\]"):
        load_settings(str(path), Overrides())


@pytest.mark.parametrize(
    ("url", "user", "source", "message"),
    [
        ("redis://h", "u", "aws_iam: {cache: main}", "TLS only; write the URL as rediss://HOST:PORT"),
        ("rediss://h", "", "aws_iam: {cache: main}", "AWS IAM needs the user; write username:"),
        ("rediss://h", "u", "aws_iam: {}", "'cache' is missing"),
        ("rediss://h", "", "entra: {client_secret: s}", "a client_secret needs its tenant and client_id"),
        ("rediss://h", "", "entra: {tenant: t}", "which needs its client_secret"),
        ("rediss://h", "", "gcp_iam: {}, file: f", "name one source of credentials"),
    ],
)
def test_what_a_clouds_settings_lack_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, user: str, source: str, message: str
) -> None:
    monkeypatch.setattr(clouds.importlib.util, "find_spec", lambda name: name)
    path = tmp_path / "keyfence.yaml"
    path.write_text(CONFIG.format(url=url, user=user, source=source))
    with pytest.raises(FileError) as caught:
        load_settings(str(path), Overrides())
    assert message in str(caught.value)


def test_the_settings_of_clouds_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("SECRET", "hidden")
    expected: dict[str, Source] = {
        "aws_iam: {cache: c, region: r, service: memorydb, serverless: yes}": FromAws(
            "c", "r", "memorydb", True, username="u"
        ),
        "entra: {tenant: t, client_id: i, client_secret: '${SECRET}'}": FromEntra(
            "t", "i", "hidden", username="u"
        ),
        "gcp_iam: {}": FromGoogle(username="u"),
    }
    for source, found in expected.items():
        path = tmp_path / "keyfence.yaml"
        path.write_text(CONFIG.format(url="rediss://h", user="u", source=source))
        settings = load_settings(str(path), Overrides())
        assert settings.upstream is not None
        assert settings.upstream.credentials == found
        assert "hidden" not in repr(settings)


def test_a_package_inside_another_that_is_missing_is_missing_too() -> None:
    class Needs:
        needs = ("no_such_package.part", "extra")

    assert missing(Needs()) == "this needs the package no-such-package-part; pip install keyfence[extra]"
    assert missing(object()) == ""
