"""`keyfence healthcheck` tells a container engine whether keyfence lives, and costs little."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.cli.test_main import keyfence
from tests.servers import Keyfence

OTHERS = (
    "--listen",
    "127.0.0.1:0",
    "--admin",
    "127.0.0.1:0",
    "--metrics",
    "127.0.0.1:0",
    "--findings",
    "none",
)
HEAVY = (
    "aiohttp",
    "keyfence.config.models",
    "keyfence.downstream",
    "keyfence.policy.compiled",
    "rich",
    "sqlalchemy",
)


@pytest.fixture
def another_server() -> Iterator[str]:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status": "ok"}')

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_living_keyfence_is_alive_at_both_of_its_addresses(start_keyfence: Callable[..., Keyfence]) -> None:
    running = start_keyfence("--policy", "general", *OTHERS)
    for address in (running.ready.admin, running.ready.metrics):
        assert keyfence("healthcheck", "--admin", address) == (0, "alive\n", "")
        code, out, _ = keyfence("healthcheck", "--admin", address, "--format", "json")
        assert (code, json.loads(out)) == (0, {"status": "alive"})


def test_no_keyfence_is_not_alive() -> None:
    code, out, err = keyfence("healthcheck", "--admin", "127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err.startswith("keyfence: http://127.0.0.1:1/healthz: no keyfence answers there")


def test_another_server_is_not_a_keyfence(another_server: str) -> None:
    assert keyfence("healthcheck", "--admin", another_server) == (
        1,
        "",
        f"keyfence: {another_server}: this answer is not from keyfence\n",
    )


def test_it_imports_nothing_heavy() -> None:
    code = "import sys, keyfence.cli.main, keyfence.cli.healthcheck; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not [name for name in loaded.split() if name.startswith(HEAVY)]
