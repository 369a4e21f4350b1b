"""Lists what an installed keyfence consists of, as a CycloneDX SBOM in JSON.

Usage: python -m tools.sbom PYTHON FILE, in the checkout. PYTHON is the interpreter of the environment into
which keyfence is installed.

Rule: the list is of what is installed there, with exact versions, not of what pyproject.toml permits.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


def is_possible() -> bool:
    """Returns whether cyclonedx-bom is installed beside this interpreter."""
    return importlib.util.find_spec("cyclonedx_py") is not None


def write(python: Path, into: Path) -> int:
    """Writes the list, and returns how many packages are in it, keyfence not counted."""
    if not is_possible():
        raise SystemExit("sbom: no cyclonedx-bom here; `make sbom` installs it")
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", PROJECT / "pyproject.toml"]
    options = ["--mc-type", "application", "--output-reproducible", "--output-format", "JSON"]
    done = subprocess.run(
        [*map(str, command), *options, "--output-file", str(into), str(python)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}sbom: failed with {done.returncode}")
    return len(json.loads(into.read_text())["components"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.sbom")
    parser.add_argument("python", type=Path, help="the environment's interpreter")
    parser.add_argument("into", type=Path, help="the file to write")
    options = parser.parse_args()
    print(f"sbom: {options.into}: {write(options.python, options.into)} packages")


if __name__ == "__main__":
    main()
