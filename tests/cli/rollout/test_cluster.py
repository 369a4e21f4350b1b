"""`keyfence ready --for cluster` and `keyfence draft --hash-tags` against a running keyfence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from keyfence.cli.main import cli
from tests.servers import Keyfence

POLICY = """policy: shop
claims: ["shop:"]
services: [web, idle]
placeholders: {id: "[a-z0-9]{1,9}", user: "[a-z]+"}
scopes: {cart: {prefix: "shop:", writers: [web]}}  # a scope may have the name of an entry
keys:
  cart: {key: "shop:cart:<user>", type: string}
  order: {key: "shop:order:<user>:<id>", type: string}
"""
SHOWN = """\
service  standing    commands  breaks  partial  unknown  costs
idle     no traffic         0       –        –        –      –
web      not ready          N       3        1        –      –

web: 2 commands and transactions with several keys share a hash slot
  breaks   MGET has keys in different hash slots: order and cart
           3 times; 2 others would work
           → write shop:order:{<user>}:<id> and shop:cart:{<user>}
  partial  DBSIZE reaches the keys of one node
           1 time
           → send it to every primary

The rehearsal began """


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("shop") / "policy.yaml"
    file.write_text(POLICY)
    return file


@pytest.fixture(scope="module")
def keyfence(policy: Path) -> Iterator[Keyfence]:
    with Keyfence(
        "--policy", policy, "--service", "web", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"
    ) as one:
        yield one


def run(keyfence: Keyfence, *words: str | Path) -> Result:
    return CliRunner().invoke(cli, [*map(str, words), "--admin", str(keyfence.ready.admin)])


def test_from_the_beginning_of_a_rehearsal_to_the_patch(keyfence: Keyfence, policy: Path) -> None:
    run(keyfence, "candidate", "drop")  # an earlier test may have begun a rehearsal
    ran = run(keyfence, "ready", "--for", "cluster")
    assert (ran.exit_code, ran.stdout) == (
        1,
        "No cluster is rehearsed. Begin with: keyfence candidate load --for cluster\n",
    )
    ran = run(keyfence, "draft", "--hash-tags", policy)
    assert (ran.exit_code, "begin with: keyfence candidate load --for cluster" in ran.stderr) == (2, True)

    ran = run(keyfence, "candidate", "load", "--for", "cluster")
    assert (ran.exit_code, ran.stdout.startswith("a cluster is rehearsed with the policy shop")) == (0, True)
    with keyfence.client() as client:
        for number in range(3):
            client.mget(f"shop:order:ann:{number}", "shop:cart:ann")
        for _ in range(2):
            client.mget("shop:cart:ann", "shop:cart:ann")
        client.dbsize()
    ran = run(keyfence, "ready", "--for", "cluster")
    answer = json.loads(run(keyfence, "ready", "--for", "cluster", "--json").stdout)
    (web,) = [one for one in answer["services"] if one["service"] == "web"]
    assert ran.exit_code == 1
    shown = SHOWN.replace("       N ", f"{web['commands']:8} ")
    assert ran.stdout.startswith(shown), ran.stdout
    assert all(len(line) <= 80 for line in ran.stdout.splitlines())

    ran = run(keyfence, "draft", "--hash-tags", policy)
    assert ran.exit_code == 0
    assert '+  cart: {key: "shop:cart:{<user>}", type: string}' in ran.stdout
    assert '+    "shop:cart:<user>": {entry: cart, allow: [read, write, delete]}' in ran.stdout
    assert "keyfence: cart: shop:cart:<user> becomes shop:cart:{<user>}, for 3 uses" in ran.stderr
    assert policy.read_text() == POLICY


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("ready", "--for", "cluster", "--rule", "slot.cross"), 2, "--rule is about rules; omit it"),
        (("ready", "--for", "cluster", "--quiet", "7d"), 2, "--quiet is about rules; omit it"),
        (("ready", "--for", "cluster", "--service", "nobody"), 2, "'nobody' is not a service of the policy"),
        (("candidate", "load"), 2, "name the FILE of a candidate, or --for cluster"),
        (("candidate", "load", "--for", "sentinel"), 2, "'sentinel' is not 'cluster'"),
    ],
)
def test_a_mistake_is_one_line(keyfence: Keyfence, words: tuple[str, ...], code: int, told: str) -> None:
    if "nobody" in words:
        run(keyfence, "candidate", "load", "--for", "cluster")
    ran = run(keyfence, *words)
    assert (ran.exit_code, told in ran.stderr) == (code, True), ran.stderr


def test_a_service_without_traffic_is_not_ready(keyfence: Keyfence) -> None:
    run(keyfence, "candidate", "load", "--for", "cluster")
    assert run(keyfence, "ready", "--for", "cluster", "--service", "idle").exit_code == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--extend", "{policy}"), "--hash-tags prints a patch; omit --extend, --output and --interactive"),
        (("redis://127.0.0.1:1",), "does not show which keys are used together"),
        ((), "line 1 is skipped"),
    ],
)
def test_a_draft_of_hash_tags_says_what_is_wrong(
    policy: Path, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    log = tmp_path / "commands.jsonl"
    log.write_text("no line\n")
    more = [word.format(policy=policy) for word in words]
    ran = CliRunner().invoke(cli, ["draft", "--hash-tags", str(policy), *more, str(log)])
    assert told in ran.stderr
