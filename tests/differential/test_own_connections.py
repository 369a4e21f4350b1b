"""MONITOR and CLIENT LIST show of keyfence itself only what docs/differences.md lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from keyfence.upstream.own_commands import OWN_COMMANDS
from tests.clients.running import eventually
from tests.differential.pairs import configuration
from tests.servers import Keyfence, RedisServer

SHARED = 2  # connections of a kind, by default
BARRIER = re.compile(r"(ECHO|HELLO 2|PING) [0-9a-f]{32}")


@pytest.fixture
def keyfence(fresh_redis: RedisServer, start_keyfence: Callable[..., Keyfence], tmp_path: Path) -> Keyfence:
    return start_keyfence("--config", configuration(tmp_path, fresh_redis.url, "shared", "everything"))


@pytest.fixture
def clients(keyfence: Keyfence) -> Iterator[Callable[..., redis.Redis]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(keyfence.client(**options))


def seen_until(monitor: redis.client.Monitor, last: str) -> list[str]:
    """Returns the commands that MONITOR shows, up to a given one."""
    seen = [""]
    while seen[-1] != last:
        seen.append(monitor.next_command()["command"])
    return seen[1:]


def test_monitor_shows_the_setup_of_shared_connections_and_keyfence_s_own_commands(
    clients: Callable[..., redis.Redis],
) -> None:
    sent = ["SET k 1", "GET k", "INCR n"]
    with clients().monitor() as monitor:
        three = clients(protocol=3, db=3, client_name="me", username="default", password="any")
        for _ in range(20):
            for command in sent:
                three.execute_command(*command.split())
        clients().execute_command("SET end 1")
        seen = seen_until(monitor, "SET end 1")
    own = {one.name.decode() for one in OWN_COMMANDS}
    others = [
        one
        for one in seen
        if one not in (*sent, "SET end 1") and not BARRIER.fullmatch(one) and one.split()[0] not in own
    ]
    opening = re.compile(
        "HELLO 3( AUTH .*)?|AUTH .*|SELECT 3|CLIENT SETNAME me|CLIENT SETINFO .*", re.IGNORECASE
    )
    assert [one for one in others if not opening.fullmatch(one)] == []
    assert [seen.count(one) for one in sent] == [20, 20, 20], "each of the client's commands is one line"
    # HELLO and SELECT of the client itself, and of the shared connection that it moves to. Not every server's
    # MONITOR shows HELLO.
    assert sum(one.upper() == "SELECT 3" for one in seen) >= 2


def test_client_list_shows_shared_connections_unchanged(
    keyfence: Keyfence, clients: Callable[..., redis.Redis]
) -> None:
    with ExitStack() as stack:
        for number in range(6):
            sharing = stack.enter_context(keyfence.connect())
            for command in (f"CLIENT SETNAME sharing-{number}", "SET k 1"):
                sharing.sendall(f"{command}\r\n".encode())
                assert sharing.recv(100) == b"+OK\r\n"
        watching = clients(client_name="own").pipeline()
        watching.watch("k")  # this takes a connection of its own
        asking = clients(client_name="asking")

        def names() -> list[str]:
            return [line["name"] for line in asking.client_list()]

        # The dedicated connections on which the clients began end once they share.
        eventually(lambda: not [name for name in names() if name.startswith("sharing")], "all share")
        shown = names()
        assert sorted(filter(None, shown)) == ["asking", "own"]
        # The shared connections, and at most two of keyfence itself.
        assert SHARED <= shown.count("") <= SHARED + 2
        watching.reset()  # type: ignore[no-untyped-call]
