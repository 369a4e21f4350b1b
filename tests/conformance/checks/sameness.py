"""Whole sessions: the same commands directly and through the proxy, and every byte compared.

Rule: the sessions are those of tests/differential, and so is the list of what may differ.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.check import Failed, Need, check, holds, supported
from tests.conformance.trial import Trial
from tests.conformance.wire import OK, Address
from tests.differential.random_sessions import NAMES, PLAIN, Command, Sessions, pieces, pipelines
from tests.differential.sides import Step
from tests.differential.ways import Ways

GROUP = "same bytes as Redis"
_SECONDS = 20.0
_NEEDS = (Need.DIRECT, Need.ONE_REDIS)
_Pipeline = tuple[str, list[Command], list[int]]


def _like(examples: int) -> settings:
    """The same sessions in each run. They are not shortened: each attempt waits for missing replies."""
    return settings(
        max_examples=examples,
        stateful_step_count=15,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
        print_blob=False,
        report_multiple_bugs=False,
    )


def _connect(trial: Trial, address: Address) -> socket.socket:
    sock = socket.create_connection(address[:2], timeout=5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    trial.adopt(sock)
    if address.login:
        sock.sendall(address.login)
        holds((came := sock.recv(4096)) == OK, "OK for the login", came)
    return sock


def _player(trial: Trial) -> Callable[[list[Step], int], None]:
    """Plays a session on both ways. Raises Failed at the first difference."""
    direct, target = trial.place.direct, trial.place.target
    assert direct is not None
    login = {"username": direct.user or None, "password": direct.password or None}
    admin = partial(redis.Redis, direct.host, direct.port, socket_timeout=5, **login)

    def play(steps: list[Step], resp: int) -> None:
        ways = Ways(partial(_connect, trial, direct), partial(_connect, trial, target), admin, resp)
        try:
            ways.same(*steps, digest=False)
        except AssertionError as error:
            lines = str(error).splitlines()
            found = {
                line.split(":")[0].strip(): line.split(":", 1)[1].strip() for line in lines if ":" in line
            }
            raise Failed(
                f"as directly: {found.get('direct', 'a session without a difference')}",
                f"{found.get('through', lines[0] if lines else 'another')} ({' '.join(lines[1:2])[:200]})",
            ) from None

    return play


@check(GROUP, *_NEEDS, seconds=_SECONDS)
def _(trial: Trial) -> None:
    """Random sessions of plain commands get the bytes that Redis sends."""
    play = _player(trial)

    @_like(8)
    @given(st.lists(st.tuples(st.sampled_from(NAMES), pipelines(PLAIN), pieces()), min_size=1, max_size=8))
    def sessions(pipelines: list[_Pipeline]) -> None:
        play(
            [
                Step(on, tuple(commands), silent=True, pieces=tuple(sizes))
                for on, commands, sizes in pipelines
            ],
            2,
        )

    sessions()


@check(GROUP, *_NEEDS, seconds=_SECONDS)
def _(trial: Trial) -> None:
    """So do those with transactions, blocking, messages, settings."""
    supported(trial.connect().ask("CLIENT", "ID"))  # the sessions name connections by it
    machine = type("TheseSessions", (Sessions,), {"play": staticmethod(_player(trial))})
    run_state_machine_as_test(machine, settings=_like(4))
