"""The GitHub action, the hooks for pre-commit and GitLab's template judge a sample repository as they should.

Rule: their own steps run, as GitHub, pre-commit and GitLab run them. Only the installation is the tests' own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.cli.test_main import keyfence
from tests.servers import PATIENCE_SECONDS, PROJECT

POLICY = """policy: shop
owner: {team: billing, contact: "#billing"}
claims: ["order:", "cart:"]
services: [shop, billing]
keys:
  order: {key: "order:<id>", writers: [billing], readers: [shop]}
  cart: {key: "cart:<id>", writers: [shop]}
placeholders: {id: "[0-9]+"}
"""
TESTS = """policy: shop.yaml
tests:
  - {service: shop, command: "SET cart:7 x"}
  - {service: shop, command: "SET order:7 x", rule: scope.write}
"""
KNOWN = """findings:
- {service: shop, rule: scope.write, command: SET, entry: order, id: f-9842600af79e}
"""
# As GitHub runs a step of a composite action with `shell: bash`.
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
ACTION: dict[str, Any] = yaml.safe_load((PROJECT / "action.yml").read_text())
HOOKS: dict[str, dict[str, Any]] = {
    one["id"]: one for one in yaml.safe_load((PROJECT / ".pre-commit-hooks.yaml").read_text())
}
GITLAB: dict[str, dict[str, Any]] = yaml.safe_load((PROJECT / "examples" / "ci" / "gitlab.yml").read_text())


class Ended(NamedTuple):
    code: int
    out: str


class Sample:
    """A repository with a policy, its tests, and a test suite that sends commands to Redis."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policy = folder / "policies" / "shop.yaml"
        self.policy.parent.mkdir()
        self.policy.write_text(POLICY)
        (self.policy.parent / "shop.test.yaml").write_text(TESTS)
        self.temporary = folder / "runner"
        self.summary = folder / "summary.md"
        programs = folder / "programs"
        programs.mkdir()
        self.temporary.mkdir()
        # `python3 -m venv DIR` makes a folder with this keyfence, and a pip that notes what it is asked for.
        installed = folder / "installed"
        self._script(
            programs / "python3",
            f'[ "$1 $2" = "-m venv" ] || exec "{sys.executable}" "$@"\n'
            f'mkdir -p "$3/bin" && cp {programs}/keyfence "$3/bin/keyfence"\n'
            f'printf \'#!/bin/sh\\necho "$@" >{installed}\\n\' >"$3/bin/pip" && chmod +x "$3/bin/pip"',
        )
        self._script(programs / "keyfence", f'exec "{sys.executable}" -m keyfence "$@"')
        self._script(programs / "suite", f'exec "{sys.executable}" {folder}/suite.py "$@"')
        self.installed = installed
        self.sends("SET cart:7 x")
        self.environment = {name: text for name, text in os.environ.items() if name != "KEYFENCE_ADMIN"} | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT / "proxy"),
            "RUNNER_TEMP": str(self.temporary),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_ACTION_PATH": "/action",
        }

    @staticmethod
    def _script(path: Path, text: str) -> None:
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def sends(self, *commands: str) -> None:
        lines = [f"client.execute_command({command!r})" for command in commands]
        begin = "import os, redis\nclient = redis.from_url(os.environ['REDIS_URL'])\n"
        (self.folder / "suite.py").write_text(begin + "\n".join(lines))

    def run(self, *line: str, **environment: str) -> Ended:
        done = subprocess.run(
            line,
            cwd=self.folder,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS * 3,
            check=False,
        )
        return Ended(done.returncode, done.stdout)


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return Sample(tmp_path)


# -- GitHub


def action(sample: Sample, **given: str) -> Ended:
    """Runs the action's steps with these inputs, up to the first that fails."""
    assert given.keys() <= ACTION["inputs"].keys()
    inputs = {name: given.get(name, one["default"]) for name, one in ACTION["inputs"].items()}
    out = ""
    for step in ACTION["runs"]["steps"]:
        if condition := step.get("if"):
            [name] = re.findall(r"^inputs\.(\w+) != ''$", condition)
            if not inputs[name]:
                continue
        environment = {
            name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: inputs[found[1]], text)
            for name, text in step["env"].items()
        }
        done = sample.run(*BASH, step["run"], **environment)
        out += done.out
        if done.code:
            return Ended(done.code, out)
    return Ended(0, out)


def test_the_action_checks_tests_and_runs_and_is_green_on_a_known_violation(sample: Sample) -> None:
    sample.sends("SET cart:7 x", "SET order:7 x")
    (sample.folder / "known.yaml").write_text(KNOWN)
    done = action(
        sample,
        check="policies/shop.yaml",
        tests="policies",
        policy="policies/shop.yaml",
        service="shop",
        baseline="known.yaml",
        run="suite && echo behind $REDIS_URL",
    )
    assert done.code == 0, done.out
    assert "behind redis://127.0.0.1:" in done.out
    assert sample.summary.read_text().startswith("### keyfence: no new findings;")
    assert sample.installed.read_text().endswith(" /action[embedded]\n")


def test_the_action_is_red_on_a_fault_of_a_policy(sample: Sample) -> None:
    sample.policy.write_text(POLICY.replace("writers: [shop]", "writers: [shopp]"))
    done = action(sample, check="policies/shop.yaml", tests="policies")
    assert done.code == 1
    assert re.search(r"^::error file=policies/shop\.yaml,line=7,", done.out, re.MULTILINE)


def test_the_action_is_red_on_a_new_violation(sample: Sample) -> None:
    sample.sends("SET order:7 x")
    done = action(sample, policy="policies/shop.yaml", service="shop", run="suite", package="keyfence==0.1.0")
    assert done.code == 1, done.out
    assert "::error title=keyfence%3A scope.write::shop SET on order" in done.out
    assert sample.summary.read_text().startswith("### keyfence: 1 new finding;")
    assert sample.installed.read_text().endswith(" keyfence==0.1.0\n")


def test_no_input_of_the_action_becomes_part_of_a_script(sample: Sample) -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
    mark = sample.folder / "mark"
    assert action(sample, check=f"$(touch {mark}) ;touch {mark}").code != 0
    assert not mark.exists()


def test_the_action_says_that_a_policy_is_missing(sample: Sample) -> None:
    done = action(sample, run="suite")
    assert done.code != 0
    assert "POLICY: name the policy" in done.out


# -- pre-commit


def hook(sample: Sample, name: str, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Runs a hook on all files of the sample, with the rules of pre-commit for which files it gets."""
    its = HOOKS[name]
    assert its["language"] == "python"
    paths = sorted(str(one.relative_to(sample.folder)) for one in sample.folder.rglob("*.yaml"))
    chosen = [
        one for one in paths if re.search(its["files"], one) and not re.search(its.get("exclude", "^$"), one)
    ]
    assert chosen
    files = chosen if its.get("pass_filenames", True) else []
    program, *words = its["entry"].split()
    assert program == "keyfence"
    monkeypatch.chdir(sample.folder)
    done = keyfence(*words, *its.get("args", ()), *files)
    return Ended(done.code, done.out)


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_passes_a_good_policy(name: str, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    done = hook(sample, name, monkeypatch)
    assert done.code == 0, done.out


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_fails_on_a_fault(name: str, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = "[shopp]" if name.startswith("keyfence-check") else "[billing]"
    sample.policy.write_text(POLICY.replace("writers: [shop]", f"writers: {writers}"))
    done = hook(sample, name, monkeypatch)
    assert done.code == 1
    assert "shop" in done.out


# -- GitLab


def gitlab(sample: Sample, job: str, **variables: str) -> Ended:
    """Runs a job as GitLab does: all lines in one shell, which ends at the first that fails."""
    its = GITLAB[job]
    base = GITLAB[its["extends"]]
    environment = base["variables"] | its["variables"] | variables
    return sample.run(
        "bash", "-eo", "pipefail", "-c", "\n".join([*base["before_script"], *its["script"]]), **environment
    )


def test_gitlab_checks_policies_and_shows_their_tests(sample: Sample) -> None:
    done = gitlab(sample, ".keyfence-check")
    assert done.code == 0, done.out
    assert 'tests="2"' in (sample.folder / "keyfence-tests.xml").read_text()


def test_gitlab_is_red_on_a_new_violation(sample: Sample) -> None:
    sample.sends("SET order:7 x")
    given = {"POLICY": "policies/shop.yaml", "SERVICE": "shop", "RUN": "suite"}
    red = gitlab(sample, ".keyfence-exec", **given)
    assert red.code == 1, red.out
    assert '<failure message="1 new finding"' in (sample.folder / "keyfence.xml").read_text()
    assert sample.installed.read_text().endswith(" keyfence[embedded]\n")


def test_every_report_of_gitlab_is_a_file_that_a_job_writes() -> None:
    for job in (GITLAB[".keyfence-check"], GITLAB[".keyfence-exec"]):
        assert f">{job['artifacts']['reports']['junit']}" in "\n".join(job["script"])
