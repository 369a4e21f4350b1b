"""`keyfence ready --beside` shows what each environment's own keyfence says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.test_main import keyfence
from tests.clients.running import eventually
from tests.servers import Keyfence

POLICY = """
policy: shop
claims: ["shop:"]
services: [orders, {more}]
placeholders: {{id: "[a-z0-9-]+"}}
scopes: {{shop: {{prefix: "shop:", writers: [orders]}}}}
keys: {{order: {{key: "shop:order:<id>", type: string}}}}
"""


def start(folder: Path, environment: str, more: str, *lines: str) -> Keyfence:
    folder.mkdir()
    (folder / "policy.yaml").write_text(POLICY.format(more=more))
    config = folder / "keyfence.yaml"
    settings = ["policy: policy.yaml", "admin: 127.0.0.1:0", f"findings: sqlite:///{folder}/findings.db"]
    settings += [f"environment: {environment}"] if environment else []
    config.write_text(
        "\n".join([*settings, "listeners: [{listen: '127.0.0.1:0', service: orders}]", *lines]) + "\n"
    )
    return Keyfence("--config", config, expect_stderr="^")


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The admin addresses of production, which observes and sees a violation, and of staging, which enforces
    and sees none."""
    with ExitStack() as stack:
        prod = stack.enter_context(start(tmp_path / "prod", "prod", "billing"))
        enforce = "modes: [{rule: key.unregistered, mode: enforce}]"
        staging = stack.enter_context(start(tmp_path / "staging", "staging", "mail", enforce))
        for one, keys in ((prod, (b"shop:order:1", b"shop:stray")), (staging, (b"shop:order:1",))):
            with one.connect("orders") as client:
                for key in keys:
                    client.sendall(b"SET %s x\r\n" % key)
                    assert client.recv(100).startswith(b"+OK")
        assert prod.ready.admin
        assert staging.ready.admin
        yield prod.ready.admin, staging.ready.admin


def test_standings_stand_side_by_side(both: tuple[str, str]) -> None:
    prod, staging = both
    ready = ("ready", "--admin", prod, "--beside", staging, "--quiet", "1h")
    row = ["orders", "key.unregistered", "not ready", "enforced"]

    def rows() -> list[list[str]]:
        lines = keyfence(*ready).out.splitlines()
        return [[cell for cell in line.split("  ") if cell] for line in lines]

    eventually(lambda: row in [[cell.strip() for cell in one] for one in rows()], "both have counted")
    code, out, _ = keyfence(*ready)
    assert code == 1
    assert out.splitlines()[0].split() == ["service", "rule", "prod", "staging"]
    assert out.splitlines()[-1] == "waivers: prod 0, staging 0"
    assert "billing" not in out
    every = keyfence(*ready, "--all").out
    assert next(one.split() for one in every.splitlines() if "mail" in one)[2] == "–"
    found = json.loads(keyfence(*ready, "--rule", "key.unregistered", "--format", "json").out)
    assert [one["environment"] for one in found["environments"]] == ["prod", "staging"]
    assert {row["rule"] for one in found["environments"] for row in one["standings"]} == {"key.unregistered"}


def test_the_exit_code_is_that_of_the_keyfence_at_admin(both: tuple[str, str]) -> None:
    prod, staging = both
    of_one = ("--rule", "key.unregistered", "--service", "orders", "--quiet", "1h")
    ready = ("ready", *of_one, "--admin", staging, "--beside", prod)
    eventually(lambda: keyfence(*ready).code == 0, "staging has counted")
    eventually(lambda: "not ready" in keyfence(*ready).out, "production has counted")
    assert keyfence(*ready).code == 0


def test_two_of_one_environment_are_told_apart_by_their_addresses(both: tuple[str, str]) -> None:
    prod, _ = both
    out = keyfence("ready", "--admin", prod, "--beside", prod, "--all").out
    assert out.count(f"prod ({prod.removeprefix('http://')})") == 4  # the head, and the waivers


@pytest.mark.parametrize("more", [("--write-modes",), ("--for", "cluster"), ("--unused", "1d")])
def test_what_is_about_one_keyfence_is_an_error_with_beside(more: tuple[str, ...]) -> None:
    code, _, err = keyfence("ready", "--beside", "127.0.0.1:1", *more)
    assert code == 2
    assert "omit" in err


def test_a_service_that_no_environment_knows_is_an_error(both: tuple[str, str]) -> None:
    prod, staging = both
    code, _, err = keyfence("ready", "--admin", prod, "--beside", staging, "--service", "nobody")
    assert code == 2
    assert "'nobody' is not a service of these policies" in err


def test_an_address_that_is_none_is_an_error() -> None:
    code, _, err = keyfence("ready", "--beside", "nonsense")
    assert code == 2
    assert "nonsense" in err
