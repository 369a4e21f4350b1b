"""The demo through a running keyfence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import redis
from click.testing import CliRunner

from keyfence.cli.demo import running
from keyfence.cli.demo.running import addresses_of, difference, host_port
from keyfence.cli.demo.traffic import EVENTS, META, SERVICES, Minute
from keyfence.cli.main import cli
from tests.policy.cases import POLICIES
from tests.servers import Keyfence, RedisServer, running_redis, server_binaries

POLICY = POLICIES / "cubesandbox.yaml"
MISTAKES = {step.mistake for step in Minute("t").steps() if step.mistake}


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module", autouse=True)
def _a_redis() -> None:
    if not server_binaries():
        pytest.fail("the demo needs a redis-server")


def test_a_sentinel_listener_is_not_a_services_address(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [{"service": one, "address": f"10.0.0.9:{port}"} for port, one in enumerate(SERVICES, 7000)]
    others = [{**one, "address": "10.0.0.9:26379", "sentinel": "main"} for one in own]
    served = {"/modes": {}, "/listeners": [*others, *own, *others]}
    monkeypatch.setattr(running, "asked", lambda _admin, path: served[path])
    assert addresses_of("http://10.0.0.9:9464")[SERVICES[0]] == ("10.0.0.9", 7000)


def connect(*arguments: str) -> Result:
    """Runs `keyfence demo --connect …` in this process."""
    run = CliRunner().invoke(cli, ["demo", "--connect", *arguments], prog_name="keyfence")
    assert run.exception is None or isinstance(run.exception, SystemExit), run.exc_info
    return Result(run.exit_code, run.stdout, run.stderr)


@pytest.fixture(scope="module")
def redis_behind() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def direct(redis_behind: RedisServer) -> Iterator[redis.Redis]:
    redis_behind.clear()
    with redis_behind.client() as client:
        yield client


@pytest.fixture(scope="module")
def configure(
    redis_behind: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[str, str]]:
    """Returns a function: services → arguments of a keyfence with a listener for each of them."""

    def write(*services: str) -> tuple[str, str]:
        config = tmp_path_factory.mktemp("config") / "keyfence.yaml"
        lines = "".join(f"  - {{listen: '127.0.0.1:0', service: {service}}}\n" for service in services)
        config.write_text(
            f"policy: {POLICY}\nupstream: {redis_behind.url}\nadmin: 127.0.0.1:0\nlisteners:\n{lines}"
        )
        return "--config", str(config)

    return write


@pytest.fixture(scope="module")
def admin(configure: Callable[..., tuple[str, str]]) -> Iterator[str]:
    """The admin URL of a keyfence in observe mode."""
    with Keyfence(*configure(*SERVICES)) as keyfence:
        yield keyfence.ready.admin


def test_the_demo_plays_through_a_running_keyfence_and_leaves_no_key(admin: str, direct: redis.Redis) -> None:
    first, second = connect(admin), connect(admin)
    assert (first.code, first.err) == (0, "")
    assert first.out.splitlines()[0] == f"The page is at {admin}/"
    assert "The demo has deleted the keys that it wrote" in first.out
    assert set(first.out.splitlines()) >= MISTAKES
    assert "NOPERM" not in first.out
    assert direct.dbsize() == 0
    # The second run shows only its own violations.
    count = re.compile(r"^CubeProxy +scope\.write +HSET +sandbox-route +(\d+) ", re.MULTILINE)
    assert count.findall(first.out) == count.findall(second.out) == ["6"]


def test_the_demo_changes_no_mode(configure: Callable[..., tuple[str, str]], direct: redis.Redis) -> None:
    with Keyfence(*configure(*SERVICES), "--mode", "enforce") as keyfence:
        code, out, err = connect(keyfence.ready.admin)
    assert (code, err) == (0, "")
    assert "NOPERM [scope.write] CubeProxy may not HSET" in out
    assert "were refused and never reached Redis" in out
    assert direct.dbsize() == 0


def test_the_demo_spares_keys_in_use_and_a_large_redis(admin: str, direct: redis.Redis) -> None:
    direct.hset(META, "theirs", "{}")
    direct.xadd(EVENTS, {"op": "create"})
    direct.mset({f"k{number}": "" for number in range(10_001)})
    before = direct.dump(META), direct.dump(EVENTS), direct.dbsize()
    code, out, err = connect(admin)
    assert (code, err) == (0, "")
    assert f"Left out: commands on {META}: the key is in use." in out
    assert f"Left out: commands on {EVENTS}: the key is in use." in out
    assert "Left out: KEYS: it would block other clients." in out
    assert "> KEYS" not in out
    assert (direct.dump(META), direct.dump(EVENTS), direct.dbsize()) == before


def test_a_keyfence_without_the_demo_services_is_an_error(configure: Callable[..., tuple[str, str]]) -> None:
    with Keyfence(*configure("CubeMaster", "CubeProxy")) as keyfence:
        message = connect(admin := keyfence.ready.admin)
    assert message == (
        1,
        "",
        f"keyfence: {admin}: no listener for CubeAPI, cube-proxy-sidecar (it has: CubeProxy, CubeMaster); "
        "the demo needs a listener for each of CubeSandbox' services\n",
    )


def test_a_keyfence_with_splice_is_an_error(configure: Callable[..., tuple[str, str]]) -> None:
    with Keyfence(*configure(*SERVICES), "--splice") as keyfence:
        message = connect(admin := keyfence.ready.admin)
    assert message == (1, "", f"keyfence: {admin}: this keyfence runs with --splice and applies no policy\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://127.0.0.1:1",), "http://127.0.0.1:1/modes: no keyfence answers there"),
        (("127.0.0.1:1",), "http://127.0.0.1:1/modes: no keyfence answers there"),
        (
            ("http://127.0.0.1:1", "--policy", "x.yaml"),
            "a running keyfence uses its own policy; give either --admin or --policy, not both",
        ),
    ],
)
def test_a_demo_that_cannot_start_gives_one_line(arguments: tuple[str, ...], message: str) -> None:
    code, out, err = connect(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith(f"keyfence: {message}")
    assert err.count("\n") == 1


def test_a_wildcard_address_is_reached_at_the_admin_host() -> None:
    assert host_port("0.0.0.0:7101", "10.0.0.1") == ("10.0.0.1", 7101)
    assert host_port(":7101", "10.0.0.1") == ("10.0.0.1", 7101)
    assert host_port("[::1]:7101", "10.0.0.1") == ("::1", 7101)


def test_thedifference_of_two_reports_counts_the_violations_between() -> None:
    row = {"service": "a", "rule": "r", "command": "GET", "entry": "e", "shape": "", "count": 2}
    assert difference([row | {"count": 5}], [row])[0]["count"] == 3  # type: ignore[list-item]
    assert difference([row], [row]) == []  # type: ignore[list-item]
