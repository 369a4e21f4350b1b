"""`keyfence policies`: lists and prints the shipped policies, in a checkout and in an installed wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from keyfence.authoring.export.languages import LANGUAGES
from keyfence.cli.main import cli
from keyfence.policy.loading.load import load_policy
from tests.servers import PROJECT

SHIPPED = sorted(
    path.relative_to(PROJECT / "policies").with_suffix("").as_posix()
    for path in (PROJECT / "policies").rglob("*.yaml")
    if not path.name.endswith(".test.yaml")
)


def keyfence(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="keyfence")


def listed(out: str) -> dict[str, Path]:
    """Policy name → file, from the output of `keyfence policies`."""
    return {name: Path(path) for name, path in (line.split(maxsplit=1) for line in out.splitlines())}


def test_without_a_name_every_shipped_policy_is_listed_with_its_file() -> None:
    result = keyfence("policies")
    assert result.exit_code == 0
    policies = listed(result.output)
    assert sorted(policies) == SHIPPED
    assert {"general", "cubesandbox", "applications/celery"} <= policies.keys()
    assert all(path.is_file() for path in policies.values())


def test_with_a_name_the_policy_is_printed_unchanged(tmp_path: Path) -> None:
    result = keyfence("policies", "cubesandbox")
    assert result.exit_code == 0
    assert result.output == (PROJECT / "policies" / "cubesandbox.yaml").read_text()
    copy = tmp_path / "copy.yaml"
    copy.write_text(result.output)
    assert load_policy(copy).name == "cubesandbox"


@pytest.mark.parametrize("name", ["nothing", "cubesandbox.yaml", "../policies/general", "cubesandbox.test"])
def test_an_unknown_name_gives_one_line_and_exit_code_2(name: str) -> None:
    result = keyfence("policies", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"keyfence: there is no shipped policy {name}; `keyfence policies` lists them\n"


# -- from a wheel, outside the checkout


def test_a_command_takes_a_shipped_policy_by_its_name_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    route = ("--service", "CubeProxy", "--", "GET", "cube:v1:shared:x")
    for words in (
        ("check", "cubesandbox", "applications/celery"),
        ("diff", "cubesandbox", "cubesandbox"),
        ("modes", "--policy", "cubesandbox"),
        ("export", "docs", "cubesandbox"),
    ):
        assert keyfence(*words).exit_code == 0, words
    assert keyfence("explain", "--policy", "cubesandbox", *route).exit_code == 1


def test_a_file_of_the_name_goes_before_a_shipped_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cubesandbox").write_text("policy: mine\nservices: [a]\n")
    assert "policy mine, 1 service" in keyfence("check", "cubesandbox").output


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--policy", "cubesandbx"),
        ("run", "--policy", "cubesandbox", "--candidate", "cubesandbx"),
        ("check", "cubesandbx"),
        ("explain", "--policy", "cubesandbx", "--service", "a", "GET", "k"),
        ("diff", "cubesandbox", "cubesandbx"),
        ("export", "docs", "cubesandbx"),
        ("export", "acl", "cubesandbx"),
        ("modes", "--policy", "cubesandbx"),
        ("waivers", "--policy", "cubesandbx"),
        ("exec", "--policy", "cubesandbx", "--", "true"),
        ("audit", "redis://h", "--policy", "cubesandbx"),
        ("draft", "--extend", "cubesandbx"),
        ("demo", "--policy", "cubesandbx"),
        ("scripts", "log", "--policy", "cubesandbx"),
    ],
    ids=lambda words: words[0],
)
def test_a_name_that_is_no_policy_is_an_error_that_lists_the_names(words: tuple[str, ...]) -> None:
    ran = keyfence(*words)
    assert ran.exit_code == 2
    assert "there is no file, folder or shipped policy 'cubesandbx'" in ran.output
    assert "applications/celery" in ran.output


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel of this checkout is installed, without compiled modules."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source")  # a copy: a build writes beside the sources
    leave_out = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for name in ("proxy", "policies"):
        shutil.copytree(PROJECT / name, source / name, ignore=leave_out)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    environment = os.environ | {"KEYFENCE_PURE": "1"}
    for arguments in (
        ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(wheels), str(source)],
        [
            "install",
            "--no-deps",
            "--no-index",
            "--target",
            str(target),
            "--find-links",
            str(wheels),
            "keyfence",
        ],
    ):
        done = subprocess.run(
            [*pip, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return target


def run_installed(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the installed keyfence in another folder, so that it cannot find the checkout."""
    environment = os.environ | {"PYTHONPATH": str(installed), "KEYFENCE_PURE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_an_installed_wheel_has_the_shipped_policies(installed: Path, tmp_path: Path) -> None:
    policies = run_installed(installed, tmp_path, "-m", "keyfence", "policies")
    assert (policies.returncode, policies.stderr) == (0, "")
    files = listed(policies.stdout)
    assert sorted(files) == SHIPPED
    assert all(path.is_relative_to(installed) for path in files.values())
    check = run_installed(installed, tmp_path, "-m", "keyfence", "check", str(files["cubesandbox"]))
    assert (check.returncode, check.stderr) == (0, "")


def test_an_installed_wheel_has_every_file_of_the_page(installed: Path) -> None:
    def of(package: Path) -> set[str]:
        files = (package / "web").rglob("*.*")
        return {str(one.relative_to(package)) for one in files if one.suffix not in (".py", ".pyc")}

    assert "web/assets/page.css" in of(PROJECT / "proxy" / "keyfence")
    assert of(installed / "keyfence") == of(PROJECT / "proxy" / "keyfence")


def test_an_installed_wheel_writes_builders_in_every_language(installed: Path, tmp_path: Path) -> None:
    policy = str(installed / "keyfence" / "policies" / "cubesandbox.yaml")
    for language in LANGUAGES:
        made = run_installed(
            *(installed, tmp_path, "-m", "keyfence", "export", "builders", policy, "--lang", language)
        )
        assert (made.returncode, made.stderr) == (0, "")
        assert "cube:v1:shared:sandbox:proxy:" in made.stdout


def test_an_installed_wheel_can_play_the_demo(installed: Path, tmp_path: Path) -> None:
    usage = run_installed(installed, tmp_path, "-m", "keyfence", "demo", "--help")
    assert usage.returncode == 0
    assert usage.stdout.startswith("Usage: keyfence demo")
    find = (
        "import keyfence.cli.demo.play; from keyfence.cli.terminal.policies import shipped_policies; "
        "print(shipped_policies()['cubesandbox'])"
    )
    found = run_installed(installed, tmp_path, "-c", find)
    assert Path(found.stdout.strip()) == installed / "keyfence" / "policies" / "cubesandbox.yaml", (
        found.stderr
    )
