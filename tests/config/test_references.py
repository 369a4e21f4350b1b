"""Secrets from the environment and from files, and the places where they never appear."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import make_url

from keyfence.admin.token import token_warnings
from keyfence.config.loading import load_settings
from keyfence.config.references import BadReference, resolved
from keyfence.config.settings import Overrides, Settings
from keyfence.policy.diagnostics import FileError
from keyfence.process.serving.reload import admit
from tests.clients.running import ask, configure, eventually
from tests.servers import Keyfence, RedisServer, running_redis

SECRET = "p@ss/w:rd?#%20"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KF_PASSWORD", SECRET)
    monkeypatch.setenv("KF_HOST", "redis.example")
    monkeypatch.setenv("KF_EMPTY", "")
    monkeypatch.delenv("KF_MISSING", raising=False)


def load(folder: Path, text: str) -> Settings:
    file = folder / "keyfence.yaml"
    file.write_text(f"policy: p\n{text}\n")
    return load_settings(str(file), Overrides())


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(FileError) as caught:
        load(folder, text)
    return [str(one).removeprefix(f"{folder}/") for one in caught.value.diagnostics]


def login(settings: Settings) -> tuple[str, str, str]:
    assert settings.upstream is not None
    return settings.upstream.host, settings.upstream.username, settings.upstream.password


UPSTREAMS = {
    "a variable in the URL": 'upstream: "redis://kf:${KF_PASSWORD}@${KF_HOST}:6379"',
    "a variable beside the URL": "upstream: {url: 'redis://${KF_HOST}', username: kf, "
    "password: '${KF_PASSWORD}'}",
    "a file beside the URL": "upstream: {url: 'redis://${KF_HOST}', username: kf, password: file:secrets/pw}",
    "a user in the URL": "upstream: {url: 'redis://kf@${KF_HOST}', password: 'file:secrets/pw'}",
    "the whole URL from a file": "upstream: file:secrets/url",
    "the whole URL from a variable": "upstream: {url: '${KF_URL}'}",
}


@pytest.mark.parametrize("text", UPSTREAMS.values(), ids=UPSTREAMS)
def test_a_login_can_come_from_references(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "redis://kf:p%40ss%2Fw%3Ard%3F%23%2520@redis.example"
    monkeypatch.setenv("KF_URL", url)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "pw").write_text(f"{SECRET}\n")
    (tmp_path / "secrets" / "url").write_text(f"{url}\n")
    settings = load(tmp_path, text)
    assert login(settings) == ("redis.example", "kf", SECRET)
    assert SECRET not in repr(settings.upstream)


def test_the_password_of_a_findings_store_may_hold_any_character(tmp_path: Path) -> None:
    settings = load(tmp_path, 'findings: "postgresql://kf:${KF_PASSWORD}@${KF_HOST}/db"')
    url = make_url(settings.findings)
    assert (url.host, url.password) == ("redis.example", SECRET)


@pytest.mark.parametrize("url", ["postgresql:///db", "postgresql://kf@/db?host=/run/postgresql"])
def test_a_findings_store_may_be_reached_by_its_socket(url: str, tmp_path: Path) -> None:
    assert load(tmp_path, f'findings: "{url}"').findings == url


def test_the_path_of_a_sqlite_file_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KF_FOLDER", "/a b/c")
    assert load(tmp_path, "findings: 'sqlite:///${KF_FOLDER}/x@y.db'").findings == "sqlite:////a b/c/x@y.db"


def test_a_file_below_the_credentials_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "redis-password").write_text(SECRET)
    settings = load(
        tmp_path,
        'upstream: {url: "redis://h", password: "file:${CREDENTIALS_DIRECTORY}/redis-password"}\n'
        'admin: {token_file: "${CREDENTIALS_DIRECTORY}/admin-token"}',
    )
    assert login(settings) == ("h", "", SECRET)
    assert settings.admin_token_file == str(tmp_path / "credentials" / "admin-token")
    assert settings.secret_files == (str(tmp_path / "credentials" / "redis-password"),)


def test_the_command_line_accepts_references_too(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://kf:x@h\n")
    for url, password in [("redis://kf:${KF_PASSWORD}@h", SECRET), (f"file:{tmp_path}/url", "x")]:
        assert login(load_settings("", Overrides(policy="p", upstream=url))) == ("h", "kf", password)


def test_a_password_that_keyfence_checks_is_hashed(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old\n")
    (tmp_path / "hash").write_text(hashlib.sha256(b"hashed").hexdigest() + "\n")
    settings = load(
        tmp_path,
        "identify: {passwords: {a: {sha256: 'file:hash', password: ['${KF_PASSWORD}', 'file:old']}}}",
    )
    digests = settings.identify.passwords["a"].digests
    assert set(digests) == {hashlib.sha256(one.encode()).digest() for one in ("hashed", SECRET, "old")}


def test_a_dollar_sign_stands_for_itself() -> None:
    assert resolved("a$b $${KF_HOST} $$", Path()) == "a$b ${KF_HOST} $$"
    assert resolved("file:x", Path()) == "file:x"  # of a setting that names files itself


@pytest.mark.parametrize(
    "text", ["${KF_MISSING}", "${}", "${a b}", "${KF_HOST", "file:none", "file:empty", "file:two"]
)
def test_an_unresolvable_reference_is_reported(text: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "two").write_text("a\nb\n")
    with pytest.raises(BadReference):
        resolved(text, tmp_path, may_be_file=True)


WRONG = {
    "upstream: 'redis://${KF_MISSING}@h'": "error: the environment has no KF_MISSING; set it, or write "
    "$${KF_MISSING} for a literal one",
    "upstream: {url: 'redis://h', password: file:none}": "error: {folder}/none cannot be read: No such file",
    "upstream: {url: 'redis://a:b@h', password: '${KF_PASSWORD}'}": "the URL names a password too; "
    "give it in one place",
    "upstream: {password: '${KF_PASSWORD}'}": "a login needs a url; name the Redis that it is for",
    "upstream: {url: 'redis://h', username: a}": "a username needs its password; write password: file:PATH",
    "identify: {passwords: {a: {password: plain}}}": "a password cannot be written here; write file:PATH or "
    "${NAME}, or its hash under sha256",
    "identify: {passwords: {a: {service: p}}}": "nobody could log in; write sha256: [HASH], or "
    "password: file:PATH",
}  # fmt: skip


@pytest.mark.parametrize(("text", "told"), WRONG.items(), ids=WRONG)
def test_a_fault_of_a_secret_is_reported_with_its_place(text: str, told: str, tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, text)
    assert fault.startswith("keyfence.yaml:2:")
    assert told.replace("{folder}", str(tmp_path)) in fault


@pytest.mark.parametrize(
    "text",
    [
        "upstream: '${KF_PASSWORD}'",
        "upstream: 'redis://a@b@${KF_PASSWORD}'",
        "upstream: {url: 'redis://h', mode: '${KF_PASSWORD}'}",
        "upstream: {url: 'redis://h', connect_timeout: '${KF_PASSWORD}'}",
        "listeners: [{listen: '${KF_PASSWORD}'}]",
        "identify: {networks: {x: '${KF_PASSWORD}'}}",
        "identify: {passwords: {a: {sha256: '${KF_PASSWORD}'}}}",
        "identify: {passwords: {a: '${KF_PASSWORD}'}}",
        "limits: {connections: '${KF_PASSWORD}'}",
        "drain: '${KF_PASSWORD}'",
        "workers: '${KF_PASSWORD}'",
        "admin: '${KF_PASSWORD}'",
        "modes: [{mode: '${KF_PASSWORD}'}]",
    ],
)
def test_no_fault_shows_a_secret(text: str, tmp_path: Path) -> None:
    for fault in faults(tmp_path, text):
        assert SECRET not in fault
        assert "ss/w" not in fault


def test_an_empty_variable_garbles_no_message(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, "listeners: [{listen: '${KF_EMPTY}'}]")
    assert "is not an address" in fault


def test_a_secret_that_any_user_may_read_causes_a_warning(tmp_path: Path) -> None:
    secret = tmp_path / "pw"
    secret.write_text("x\n")
    secret.chmod(0o644)
    settings = load(tmp_path, "upstream: {url: 'redis://h', password: file:pw}\nadmin: none")
    assert token_warnings(settings) == [
        f"any user of this machine may read or change the secret in {secret}: chmod o= it"
    ]
    secret.chmod(0o600)
    assert token_warnings(settings) == []


@pytest.mark.parametrize(
    ("before", "new", "waiting"),
    [
        ("redis://a:1@h", "redis://b:2@h", []),
        ("redis://h", "redis://b:2@h", ["upstream"]),
        ("redis://a:1@h", "redis://h", ["upstream"]),
        ("redis://a:1@h", "redis://a:2@g", ["upstream"]),
    ],
)
def test_a_new_login_needs_no_restart_where_there_was_one(
    before: str, new: str, waiting: list[str], tmp_path: Path
) -> None:
    old, now = load(tmp_path, f"upstream: {before}"), load(tmp_path, f"upstream: {new}")
    in_force, told = admit(old, now)
    assert told == waiting
    assert in_force.upstream == (old if waiting else now).upstream


# -- in a running keyfence


@pytest.mark.parametrize("more", [(), ("workers: 1",)], ids=["one process", "workers"])
def test_a_reload_reads_secrets_again_and_shows_none(
    more: tuple[str, ...], start_keyfence: Callable[..., Keyfence], tmp_path: Path
) -> None:
    with running_redis(acl=["kf on >first-secret ~* &* +@all"], password="admin") as server:
        password = tmp_path / "pw"
        password.touch(0o600)
        password.write_text("first-secret\n")
        upstream = f"upstream: {{url: '{server.url}', username: kf, password: file:pw, mode: dedicated}}"
        keyfence = start_keyfence("--config", configure(tmp_path, "", upstream, *more, mode="observe"))
        with keyfence.client("CubeMaster") as client:
            assert client.acl_whoami() == "kf"
        replace_password(server)
        password.write_text("second-secret\n")
        status, body = ask(keyfence, "/-/reload", {})
        assert (status, json.loads(body)["needs_restart"]) == (200, [])
        eventually(lambda: ask(keyfence, "/readyz")[0] == 200, "the new password is taken")
        with keyfence.client("CubeMaster") as client:
            assert client.acl_whoami() == "kf"
        shown = "\n".join([*keyfence.lines, keyfence.stderr(), arguments_of(keyfence.process.pid)])
        shown += "".join(ask(keyfence, path)[1] for path in ("/metrics", "/report", "/modes", "/workers"))
        assert "-secret" not in shown
        keyfence.expect_stderr = r"\A(keyfence: upstream \S+ is (unreachable: |up again).*\n)*\Z"


def replace_password(server: RedisServer) -> None:
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "kf", "resetpass", ">second-secret")


def arguments_of(pid: int) -> str:
    """The command lines of a process and its children, as `ps` shows them."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return "\n".join(Path(f"/proc/{one}/cmdline").read_text() for one in (pid, *children))


def test_a_password_in_the_arguments_causes_a_warning(
    start_keyfence: Callable[..., Keyfence], redis_server: RedisServer
) -> None:
    url = redis_server.url.replace("unix://", "unix://default:x@")
    flags = ("--splice", "--listen", "127.0.0.1:0", "--admin", "none")
    keyfence = start_keyfence("--upstream", url, *flags, expect_stderr="--upstream holds a password")
    assert ":x@" not in keyfence.stderr()


def test_a_url_in_a_file_is_not_in_the_arguments(
    start_keyfence: Callable[..., Keyfence], redis_server: RedisServer, tmp_path: Path
) -> None:
    file = tmp_path / "url"
    file.touch(0o600)
    file.write_text(redis_server.url + "\n")
    keyfence = start_keyfence(
        *("--splice", "--listen", "127.0.0.1:0", "--admin", "none", "--upstream", f"file:{file}")
    )
    with keyfence.client() as client:
        assert client.ping()
    assert os.fspath(redis_server.socket_path) in keyfence.ready.upstream
