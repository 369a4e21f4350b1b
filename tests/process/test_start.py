"""The start of keyfence imports only what it needs. Times depend on the machine; modules do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.running import POLICY, configure
from tests.servers import PATIENCE_SECONDS, PROJECT, RedisServer, free_port

# What operators, other commands or a findings store need. Each takes a tenth of the start, or more.
NOT_AT_THE_START = {
    *("aiohttp", "jinja2", "prometheus_client", "rich", "sqlalchemy", "redis"),
    *("http.client", "urllib.request", "keyfence.admin.server", "keyfence.web.site"),
    *("keyfence.findings.database", "keyfence.authoring", "keyfence.audit"),
    *("keyfence.cli.policy_tools", "keyfence.cli.rollout", "keyfence.telemetry.reports.by_command"),
}
# Prints the modules that are loaded when keyfence is about to print its ready line, and ends.
UNTIL_READY = """
import os, sys
import keyfence.process.run
def announce(*_, **__):
    print(*sys.modules, flush=True)
    os._exit(0)
keyfence.process.run._announce = announce
from keyfence.cli.main import main
main()
"""


def loaded(code: str, *arguments: str | Path) -> set[str]:
    """Returns the modules that a new Python prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return set(done.stdout.split())


def test_the_start_imports_nothing_that_only_others_need(redis_server: RedisServer, tmp_path: Path) -> None:
    config = configure(tmp_path, redis_server.url)  # with the default findings store
    found = loaded(UNTIL_READY, "run", "--config", config)
    assert "keyfence.session.fastpath" in found
    assert found & NOT_AT_THE_START == set()


def test_a_worker_imports_nothing_that_only_its_parent_needs() -> None:
    found = loaded("import sys, keyfence.process.workers.worker; print(*sys.modules)")
    assert "keyfence.session.fastpath" in found
    assert found & (NOT_AT_THE_START | {"keyfence.process.control"}) == set()


def test_the_version_needs_neither_policy_nor_configuration() -> None:
    found = loaded("import sys, keyfence.cli.main; print(*sys.modules)")
    assert found & (NOT_AT_THE_START | {"pydantic", "yaml", "keyfence.config.models"}) == set()


@pytest.mark.parametrize("workers", ["", "workers: 1"])
def test_an_address_that_the_admin_listener_has_taken_is_named(workers: str, tmp_path: Path) -> None:
    """The kernel binds both, and lets only one listen."""
    port = free_port()
    lines = [
        f"policy: {POLICY}",
        "findings: none",
        f"admin: 127.0.0.1:{port}",
        "upstream: redis://127.0.0.1:1",
    ]
    config = tmp_path / "keyfence.yaml"
    config.write_text("\n".join([*lines, f'listeners: [{{listen: "0.0.0.0:{port}"}}]', workers]))
    start = [sys.executable, "-m", "keyfence", "run", "--config", config]
    done = subprocess.run(start, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 2
    assert f"cannot listen on 0.0.0.0:{port}: the address is already in use" in done.stderr
