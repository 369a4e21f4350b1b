"""The pipelines in examples/ci are red on a new violation, green on a known one, and 3 on silence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.cli.rollout.test_gate import POLICY
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer

pytestmark = pytest.mark.slow
CI = PROJECT / "examples" / "ci"
WORKFLOW: dict[str, Any] = yaml.safe_load((CI / "github.yml").read_text())
# As GitHub runs a step without `shell`, on Linux.
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")


class Ended(NamedTuple):
    code: int
    out: str
    summary: str = ""


class Checkout:
    """A service's checkout: a policy, and a test suite that sends commands to Redis."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "policy.yaml").write_text(POLICY)
        bin_ = folder / "bin"
        bin_.mkdir()
        self._script(bin_ / "keyfence", f'exec "{sys.executable}" -m keyfence "$@"')
        self._script(bin_ / "pip", "exit 0")
        self._script(bin_ / "pytest", f'exec "{sys.executable}" suite.py')
        self.sends()
        self.environment = {
            name: text for name, text in os.environ.items() if not name.startswith("KEYFENCE")
        }
        self.environment |= {
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT / "proxy"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        }

    def _script(self, path: Path, line: str) -> None:
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def sends(self, *commands: str, fails: bool = False) -> None:
        """Makes the test suite send these commands."""
        begin = "import os, redis\nclient = redis.from_url(os.environ['REDIS_URL'])\n" if commands else ""
        sent = "".join(f"client.execute_command({command!r})\n" for command in commands)
        (self.folder / "suite.py").write_text(f"{begin}{sent}raise SystemExit({9 if fails else 0})\n")

    def run(self, *line: str, **environment: str) -> Ended:
        run = subprocess.run(
            line,
            cwd=self.folder,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS * 3,
            check=False,
        )
        return Ended(run.returncode, run.stdout)

    def knows(self, store: str) -> None:
        """Writes the baseline, with the command that the examples name."""
        line = f'keyfence gate "{store}" --write-baseline keyfence-baseline.yaml'
        assert line.replace(store, "sqlite:///keyfence-reports/findings.db") in (CI / "gate.sh").read_text()
        assert self.run("sh", "-c", line).code == 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


# -- the plain script


def gate_sh(checkout: Checkout) -> Ended:
    return checkout.run(str(CI / "gate.sh"), "pytest", POLICY="policy.yaml", SERVICE="shop")


def test_the_script_is_red_on_a_new_violation_and_green_on_a_known_one(checkout: Checkout) -> None:
    checkout.sends("SET order:7 x")
    red = gate_sh(checkout)
    assert (red.code, "keyfence gate: 1 new finding;" in red.out) == (1, True)
    junit = checkout.folder / "keyfence-reports" / "keyfence.xml"
    assert '<failure message="1 new finding"' in junit.read_text()
    checkout.knows("sqlite:///keyfence-reports/findings.db")
    green = gate_sh(checkout)
    assert (green.code, "not counted: 1 known" in green.out) == (0, True)
    assert "<failure" not in junit.read_text()
    checkout.sends("SET order:7 x", "DEL order:7")
    assert gate_sh(checkout).code == 1


def test_the_script_ends_with_3_on_silence(checkout: Checkout) -> None:
    assert gate_sh(checkout).code == 3


def test_the_script_ends_with_the_code_of_failing_tests(checkout: Checkout) -> None:
    checkout.sends("SET order:7 x", fails=True)
    assert gate_sh(checkout).code == 9


def test_the_script_says_what_it_needs(checkout: Checkout) -> None:
    found = checkout.run(str(CI / "gate.sh"), "pytest", POLICY="policy.yaml")
    assert found.code != 0
    assert "SERVICE: name the service that the command is" in found.out


@pytest.mark.skipif(not shutil.which("dash"), reason="dash is not installed")
def test_the_script_is_plain_shell() -> None:
    subprocess.run(["dash", "-n", str(CI / "gate.sh")], check=True)


# -- GitHub


def github(checkout: Checkout, job: str, **variables: str) -> Ended:
    """Runs the steps of a job as GitHub does: after a failure, only those with `if: always()`."""
    spec = WORKFLOW["jobs"][job]
    environment = {name: filled(text, variables) for name, text in spec["env"].items()}
    summary = checkout.folder / "summary.md"
    summary.write_text("")
    code, out = 0, ""
    for step in spec["steps"]:
        if "run" in step and (code == 0 or step.get("if") == "always()"):
            found = checkout.run(*BASH, step["run"], **environment)
            code, out = code or found.code, out + found.out
    return Ended(code, out, summary.read_text())


def filled(text: str, variables: dict[str, str]) -> str:
    """A value with GitHub's variables in it."""
    return re.sub(r"\$\{\{ vars\.(\w+) \}\}", lambda found: variables[found[1]], text)


def test_the_workflow_is_red_on_a_new_violation_and_green_on_a_known_one(checkout: Checkout) -> None:
    (checkout.folder / "keyfence-baseline.yaml").write_text("findings: []\n")
    checkout.sends("SET order:7 x")
    red = github(checkout, "tests")
    assert red.code == 1
    assert re.search(r"^::error title=keyfence%3A scope\.write::shop SET on order, once: ", red.out, re.M)
    assert red.summary.startswith("### keyfence: 1 new finding;")
    assert re.search(
        r"^\| scope\.write \| shop \| SET \| order \| `#billing` \| order:7 \| ", red.summary, re.M
    )
    checkout.knows(WORKFLOW["jobs"]["tests"]["env"]["FINDINGS"])
    green = github(checkout, "tests")
    assert (green.code, "::error" in green.out) == (0, False)
    assert green.summary.startswith("### keyfence: no new findings;")


def test_the_workflow_ends_with_3_on_silence(checkout: Checkout) -> None:
    (checkout.folder / "keyfence-baseline.yaml").write_text("findings: []\n")
    found = github(checkout, "tests")
    assert (found.code, found.summary) == (
        3,
        "### keyfence: no traffic was judged: this run proves nothing\n\n",
    )
    assert "::error title=keyfence%3A no traffic::" in found.out


def test_the_workflow_asks_staging_what_is_new(checkout: Checkout, redis_server: RedisServer) -> None:
    folder = checkout.folder
    arguments = ["--policy", folder / "policy.yaml", "--upstream", redis_server.url, "--service", "shop"]
    arguments += [
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--findings",
        f"sqlite:///{folder}/s.db",
    ]
    with Keyfence(*arguments) as proxy, proxy.client() as client:
        admin = {"KEYFENCE_ADMIN": proxy.ready.admin}
        assert github(checkout, "staging", **admin).code == 3
        client.set("cart:7", "x")
        assert github(checkout, "staging", **admin).code == 0
        client.set("order:7", "x")
        red = github(checkout, "staging", **admin)
    assert (red.code, red.summary.startswith("### keyfence: 1 new finding since ")) == (1, True)


def test_every_line_of_the_workflow_uses_real_options() -> None:
    """The steps that the tests above run are all steps that run anything."""
    steps = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    assert {key for step in steps for key in step} <= {"uses", "with", "name", "run", "if"}
    assert set(WORKFLOW["jobs"]) == {"tests", "staging"}
