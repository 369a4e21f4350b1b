"""The shop in examples/shop: its services check every reply. test_pages.py runs them through keyfence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import PATIENCE_SECONDS, PROJECT, RedisServer

SHOP = PROJECT / "examples" / "shop"
MODULES = PROJECT / "tests" / "node" / "node_modules"
KINDS = 27

pytestmark = [
    pytest.mark.skipif(not shutil.which("node"), reason="no node here"),
    pytest.mark.skipif(not (MODULES / "ioredis").is_dir(), reason="`npm ci` was not run in tests/node"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    return start_redis(tcp=True)


def played(server: RedisServer, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the shop directly on a Redis."""
    addresses = tmp_path / "direct.env"
    direct = (SHOP / "direct.env").read_text()
    addresses.write_text(direct.replace("redis://127.0.0.1:6379", server.url))
    return subprocess.run(
        [sys.executable, SHOP / "shop.py", addresses, "--orders", "10", *arguments],
        env=os.environ | {"NODE_PATH": str(MODULES)},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("release", ["1", "2"])
def test_orders_are_placed_paid_and_confirmed(release: str, server: RedisServer, tmp_path: Path) -> None:
    done = played(server, tmp_path, "--payments", release)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "shop: 10 orders were placed, paid and confirmed\n"
    with server.client(decode_responses=True) as client:
        assert client.hget("shop:order:10", "state") == "paid"
        assert client.zcard("shop:unpaid") == 0


def test_a_service_says_which_reply_is_wrong(server: RedisServer, tmp_path: Path) -> None:
    played(server, tmp_path)
    again = played(server, tmp_path)  # the shop takes each order once
    assert again.returncode == 1
    assert (
        "orders: SET NX of the request (was this seed played before?) answered None, not True" in again.stderr
    )
    assert "shop: orders failed" in again.stderr


def test_its_document_lists_all_kinds_of_keys() -> None:
    kinds = re.findall(r"^\| `(shop:[^`]*)`", (SHOP / "README.md").read_text(), re.MULTILINE)
    assert len(set(kinds)) == KINDS
