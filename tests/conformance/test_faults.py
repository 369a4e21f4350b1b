"""The checks find faults, end when nothing answers, and say what is wrong with an address."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance import checks, trial  # noqa: F401  # `checks` fills CHECKS
from tests.conformance.__main__ import main
from tests.conformance.check import CHECKS, Outcome, Result
from tests.conformance.faulty import Faulty
from tests.conformance.report import lines_of, read, summary
from tests.conformance.run import run
from tests.conformance.table import PAGE, RESULTS, tables, with_tables
from tests.conformance.trial import Place
from tests.conformance.wire import Address
from tests.servers import RedisServer, free_port, running_redis


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis(tcp=True) as one:
        yield one


def address(port: int | None) -> Address:
    assert port is not None
    return Address("127.0.0.1", port)


def checked(server: RedisServer, proxy: Faulty, words: str, scale: float = 1) -> dict[str, Result]:
    """Runs the checks whose group or sentence has these words."""
    some = [check for check in CHECKS if words in f"{check.group}: {check.sentence}"]
    assert some
    try:
        results = run(Place(address(proxy.port), address(server.port)), some, scale=scale)
    finally:
        proxy.close()
    return {result.sentence: result for result in results}


def failed(results: dict[str, Result]) -> set[str]:
    return {sentence for sentence, result in results.items() if result.outcome is Outcome.FAILED}


def test_a_proxy_without_a_fault_passes(server: RedisServer) -> None:
    assert failed(checked(server, Faulty(server.port or 0), "transactions:")) == set()


def test_clients_that_share_a_connection_without_care_are_found(server: RedisServer) -> None:
    found = failed(checked(server, Faulty(server.port or 0, shares=True), "isolation of clients: "))
    assert {
        "MULTI of one client does not queue the commands of others",
        "The name of one client is not another's",
        "SELECT of one client does not move others",
    } <= found


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("No value, the empty value", lambda _, reply: reply.replace(b"$-1\r\n", b"$0\r\n\r\n")),
        ("An error of Redis comes word", lambda _, reply: reply.replace(b"WRONGTYPE", b"ERR")),
        ("aborts the transaction: EXECABORT", lambda _, reply: b"*0\r\n" if b"EXECABORT" in reply else reply),
        ("A write between MULTI and EXEC", lambda _, reply: reply.replace(b"*-1\r\n", b"*1\r\n+OK\r\n")),
        ("BLPOP gets nil", lambda _, reply: reply.replace(b"*-1\r\n", b"$-1\r\n")),
        ("MSET of many hash slots", lambda _, reply: b"-ERR no\r\n" if reply == b"+OK\r\n" else reply),
        ("A whole cycle finds each key", lambda _, reply: reply.replace(b":k7\r\n", b":k8\r\n")),
        ("EVALSHA of a script", lambda _, reply: b"-ERR no\r\n" if reply.startswith(b"-NOSCRIPT") else reply),
    ],
)
def test_a_reply_that_is_changed_is_found(
    server: RedisServer, words: str, change: Callable[[bytes, bytes], bytes]
) -> None:
    results = checked(server, Faulty(server.port or 0, change=change), words)
    assert failed(results) == set(results)
    for result in results.values():
        lines = list(lines_of(result))
        assert lines[0].startswith("  FAIL")
        assert any("expected: " in line for line in lines)
        assert max(map(len, lines)) <= 80


def test_a_clear_refusal_is_no_failure(server: RedisServer) -> None:
    proxy = Faulty(server.port or 0, change=lambda *_: b"-ERR unknown command\r\n")
    (result,) = checked(server, proxy, "RANDOMKEY").values()
    assert result.outcome is Outcome.NOT_SUPPORTED
    assert result.came == "ERR unknown command"


def test_a_check_that_hangs_ends_and_the_next_one_runs(server: RedisServer) -> None:
    proxy = Faulty(server.port or 0, change=lambda request, reply: b"" if b"DBSIZE" in request else reply)
    results = checked(server, proxy, "server commands: ", scale=0.2)
    assert results["DBSIZE counts the keys of all nodes"].expected == "an end within 1 s"
    assert failed(results) == {"DBSIZE counts the keys of all nodes"}


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The error, on one line."""
    return " ".join(capsys.readouterr().err.split())


def test_an_address_without_a_server_gets_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    assert main([f"127.0.0.1:{port}"]) == 2
    assert f"nothing answers at 127.0.0.1:{port} (connection refused)" in said(capsys)


def test_an_address_that_answers_nothing_gets_a_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_CLEANING_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert main([f"127.0.0.1:{listener.getsockname()[1]}"]) == 2
    assert "is TARGET a port with TLS?" in said(capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "lacks a host or a port; write HOST:PORT"),
        (["localhost:http"], "has no port such as 6379"),
        (["rediss://localhost:6379"], "a port without TLS"),
        (["--direct", "localhost:6379"], "give the proxy's address first"),
        (["localhost:1", "--disturb"], "needs one node of the cluster"),
    ],
)
def test_wrong_arguments_get_a_remedy(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_password_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["redis://me:secret@host"])
    assert "secret" not in capsys.readouterr().err


def test_keys_are_not_removed_unasked(server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    with server.client() as client:
        client.set("precious", 1)
        target = str(address(server.port))
        assert main([target, "--only", "RANDOMKEY"]) == 2
        assert "holds 1 keys" in said(capsys)
        assert main([target, "--direct", target, "--only", "RANDOMKEY", "--flush"]) == 0
        assert client.dbsize() == 0


def test_a_redis_with_a_login_is_checked_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    with running_redis(tcp=True, password="secret") as one:
        url = f"redis://default:secret@127.0.0.1:{one.port}"
        for words in ("Random sessions of plain", "No reply goes astray"):
            assert main([url, "--direct", url, "--only", words]) == 0
        assert main([f"127.0.0.1:{one.port}"]) == 2
        assert "write the login into it" in said(capsys)


def test_results_are_written_and_read_again(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(address(server.port))
    arguments = [
        target,
        "--direct",
        target,
        "--only",
        "transactions:",
        "--name",
        "a b",
        "--json",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    assert json.loads((tmp_path / "a-b.json").read_text())["server"] == f"redis {server.version}"
    one = read(tmp_path / "a-b.json")
    assert {result.outcome for result in one.results} == {Outcome.PASSED}
    assert "| EXEC gets the replies of all queued commands | ✓ |" in tables([one])
    assert max(map(len, capsys.readouterr().out.splitlines()[:-1])) <= 80
    assert max(map(len, summary(one.results))) <= 80


def test_the_page_has_the_tables_of_its_results() -> None:
    runs = [read(path) for path in sorted(RESULTS.glob("*.json"))]
    assert len(runs) > 1
    assert PAGE.read_text() == with_tables(PAGE.read_text(), runs), "python -m tests.conformance.table --page"
