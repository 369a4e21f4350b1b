"""What `make dist` builds works without a clone: sdist and wheel, installed into an empty folder."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

import pytest

from keyfence import __version__
from keyfence.authoring.export.languages import LANGUAGES
from tests.servers import PROJECT, Keyfence, RedisServer

PAGE = PROJECT / "proxy" / "keyfence" / "web"
ROUTE = ("--service", "CubeProxy", "--", "HGET", "cube:v1:shared:sandbox:proxy:7c8f", "HostIP")


def run(*words: str | Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make dist` fills, without the compiled wheel."""
    into = tmp_path_factory.mktemp("dist")
    done = run("-m", "tools.dist", "--only", "pure", "--into", into, folder=PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr
    return into


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the pure wheel is installed."""
    target = tmp_path_factory.mktemp("installed")
    [wheel] = dist.glob("*-py3-none-any.whl")
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps", "--no-index")
    done = run(*pip, "--target", target, wheel, folder=target)
    assert done.returncode == 0, done.stderr
    return target


def keyfence(installed: Path, folder: Path, *words: str | Path) -> str:
    """Returns the output of the installed keyfence, run in a folder that does not see the checkout."""
    done = run("-m", "keyfence", *words, folder=folder, PYTHONPATH=str(installed))
    assert (done.returncode, done.stderr) == (0, ""), words
    return done.stdout


def test_the_checksums_fit_the_files(dist: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    files = {path.name: path for path in dist.iterdir() if path.name != "SHA256SUMS"}
    assert sums == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def test_an_sdist_has_what_a_build_needs_and_no_tests(dist: Path) -> None:
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    needed = {"setup.py", "pyproject.toml", "README.md", "LICENSE", "COMMIT", "policies/general.yaml"}
    declarations = {path.relative_to(PROJECT).as_posix() for path in PROJECT.glob("proxy/**/*.pxd")}
    assert needed | declarations <= names
    assert not {name for name in names if name.startswith(("tests", "fuzz")) or name.endswith((".so", ".c"))}


def test_the_version_says_from_which_commit_keyfence_was_built(installed: Path, tmp_path: Path) -> None:
    commit = (installed / "keyfence" / "COMMIT").read_text()
    assert re.fullmatch(r"[0-9a-f]{8,}(-dirty)?" if (PROJECT / ".git").exists() else "", commit)
    shown = (
        f"keyfence {__version__} ({commit}), interpreted"
        if commit
        else f"keyfence {__version__}, interpreted"
    )
    assert keyfence(installed, tmp_path, "--version").startswith(shown)


def test_every_command_can_be_imported(installed: Path, tmp_path: Path) -> None:
    ask = """
import keyfence.cli.demo.play
from click.testing import CliRunner
from keyfence.cli.main import PLACES, cli
for command in PLACES:
    assert CliRunner().invoke(cli, [command, "--help"]).exit_code == 0, command
print(keyfence.__file__)
"""
    done = run("-c", ask, folder=tmp_path, PYTHONPATH=str(installed))
    assert (done.returncode, done.stdout) == (0, f"{installed / 'keyfence' / '__init__.py'}\n"), done.stderr


def test_shipped_policies_are_there_by_name(installed: Path, tmp_path: Path) -> None:
    listed = [line.split(maxsplit=1) for line in keyfence(installed, tmp_path, "policies").splitlines()]
    assert "cubesandbox" in dict(listed)
    assert all(Path(path).is_relative_to(installed) for _, path in listed)
    tests = (path for path in (installed / "keyfence" / "policies").glob("*.test.yaml"))
    assert {path.name for path in tests} == {path.name for path in (PROJECT / "policies").glob("*.test.yaml")}
    keyfence(installed, tmp_path, "explain", "--policy", "cubesandbox", *ROUTE)


def test_what_templates_and_tables_make_is_there(installed: Path, tmp_path: Path) -> None:
    def prints(*words: str) -> str:
        return keyfence(installed, tmp_path, *words)

    schema = prints("schema", "config")
    assert schema == (PROJECT / "docs" / "schemas" / "config.json").read_text()
    assert prints("commands", "--format", "markdown") == (PROJECT / "docs" / "commands.md").read_text()
    ask = f"""
from click.testing import CliRunner
from keyfence.cli.main import cli
for language in {sorted(LANGUAGES)}:
    made = CliRunner().invoke(cli, ["export", "builders", "cubesandbox", "--lang", language])
    assert "cube:v1:shared:sandbox:proxy:" in made.stdout, language
"""
    made = run("-c", ask, folder=tmp_path, PYTHONPATH=str(installed))
    assert (made.returncode, made.stderr) == (0, "")
    assert "ACL SETUSER CubeProxy" in prints("export", "acl", "cubesandbox")


def test_an_installed_keyfence_runs_and_serves_its_page(installed: Path) -> None:
    words = ("--policy", "cubesandbox", "--service", "CubeMaster", "--listen", "127.0.0.1:0")
    with Keyfence(
        *words, "--admin", "127.0.0.1:0", "--findings", "none", env={"PYTHONPATH": str(installed)}
    ) as running:
        for path in ("/", "/readyz", "/policy"):
            with urllib.request.urlopen(running.ready.admin + path) as answer:
                assert answer.status == 200


def test_an_installed_keyfence_leads_to_the_first_finding(
    installed: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    command = tmp_path / "keyfence"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={installed} exec {sys.executable} -m keyfence "$@"\n')
    command.chmod(0o755)
    done = run("-m", "tools.first_finding", command, redis_server.url, folder=PROJECT, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unknown writes shop:cart:<int>" in done.stdout


def test_an_installed_wheel_has_every_file_of_the_page(installed: Path) -> None:
    def of(folder: Path) -> set[str]:
        files = (path.relative_to(folder) for path in folder.rglob("*.*"))
        return {path.as_posix() for path in files if path.suffix not in (".py", ".pyc")}

    assert "assets/page.css" in of(PAGE)
    assert of(installed / "keyfence" / "web") == of(PAGE)
