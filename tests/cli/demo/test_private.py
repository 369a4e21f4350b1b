from __future__ import annotations

import asyncio
import socket
import tempfile
from pathlib import Path

import pytest

from keyfence.cli.demo import private
from keyfence.cli.demo.private import private_keyfence
from keyfence.cli.demo.running import asked
from tests.policy.cases import POLICIES
from tests.servers import server_binaries

POLICY = POLICIES / "cubesandbox.yaml"


async def files_of(policy: Path, *, copied: bool) -> tuple[str, list[str], str]:
    """The URL of a private keyfence, the files in its folder, and its policy's file."""
    async with private_keyfence(policy, copied=copied) as own:
        folder = next(Path(tempfile.gettempdir()).glob("keyfence-demo-*"))
        own.compare()
        return (
            own.admin,
            sorted(path.name for path in folder.iterdir()),
            asked(own.admin, "/status")["policy"]["file"],
        )


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not server_binaries():
        pytest.fail("the demo needs a redis-server")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_everything_that_it_writes_is_in_its_folder_and_gone_afterwards(tmp_path: Path) -> None:
    _, files, policy = asyncio.run(files_of(POLICY, copied=True))
    assert {"policy.yaml", "candidate.yaml", "waivers.yaml", "keyfence.yaml", "findings.db"} <= {*files}
    assert policy.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_is_not_copied_stays_in_its_place() -> None:
    _, files, policy = asyncio.run(files_of(POLICY, copied=False))
    assert "policy.yaml" not in files
    assert policy == str(POLICY)


def test_it_takes_another_port_if_its_own_is_taken_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_is_free", lambda _: True)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setattr(private, "PORT", taken)
        admin, _, _ = asyncio.run(files_of(POLICY, copied=True))
    assert not admin.endswith(f":{taken}")
