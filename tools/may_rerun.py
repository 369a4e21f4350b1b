"""Decides whether it suffices to run only the failed tests of the last test run again.

Rule: it suffices only if that run completed and every failure belongs to a test. After a run that was killed,
was interrupted or could not collect a file, all tests must run. Exit code 0: it suffices; 1: it does not.

`tests/conftest.py` stores pytest's exit status next to pytest's list of failures (`--last-failed`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "v"
STATUS = "keyfence/status"


def why_not(cache: Path) -> str:
    """The reason against it; empty where there is none."""
    try:
        status = json.loads((cache / STATUS).read_text())
        failed = json.loads((cache / "cache" / "lastfailed").read_text())
    except (OSError, ValueError):
        return "nothing is known of a run that has failed"
    if status != pytest.ExitCode.TESTS_FAILED:
        return f"it ended with status {status}, not with tests that have failed"
    files = [name for name in failed if "::" not in name]
    if files:
        return f"it couldn't read {', '.join(files)}"
    return "" if failed else "no test has failed in it"


def main() -> None:
    reason = why_not(CACHE)
    if reason:
        sys.exit(f"the last run of the tests can't be made good by a part of it: {reason}")


if __name__ == "__main__":
    main()
