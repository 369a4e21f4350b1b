"""Decides whether only the failed tests of the last test run need to run again.

Rule: this is enough only if that run completed and every failure belongs to a test. After a run that was
killed, was interrupted or could not collect a file, all tests must run. Exit code 0: enough; 1: not enough.
`make test` runs tests compiled and then interpreted. If none failed compiled, the interpreted run decides.

`tests/conftest.py` stores pytest's exit status next to pytest's list of failures (`--last-failed`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

CACHES = Path(__file__).resolve().parent.parent / ".pytest_cache"
STATUS = "keyfence/status"


def why_not(caches: Path) -> str:
    """Returns why all tests must run, or "" if the failed ones are enough."""
    return _why_not(caches / "interpreted" / "v" if _has_passed(caches / "v") else caches / "v")


def _has_passed(cache: Path) -> bool:
    """Whether no test failed, or `make test-failed` then found none to run again."""
    passed = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    try:
        return int(json.loads((cache / STATUS).read_text())) in passed
    except (OSError, ValueError):
        return False


def _why_not(cache: Path) -> str:
    try:
        status = json.loads((cache / STATUS).read_text())
        failed = json.loads((cache / "cache" / "lastfailed").read_text())
    except (OSError, ValueError):
        return "there is no record of a failed run"
    if status != pytest.ExitCode.TESTS_FAILED:
        return f"it ended with status {status}, not with failed tests"
    files = [name for name in failed if "::" not in name]
    if files:
        return f"it could not collect {', '.join(files)}"
    return "" if failed else "no test failed in it"


def main() -> None:
    reason = why_not(CACHES)
    if reason:
        sys.exit(f"rerunning only the failed tests of the last run is not enough: {reason}")


if __name__ == "__main__":
    main()
