"""Which failed test runs `tools.may_rerun` allows to repeat."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import PROJECT
from tools.may_rerun import STATUS, why_not


def keep(caches: Path, status: object, failed: object) -> None:
    for name, value in ((STATUS, status), ("cache/lastfailed", failed)):
        (caches / "v" / name).parent.mkdir(parents=True, exist_ok=True)
        (caches / "v" / name).write_text(json.dumps(value))


def test_a_run_that_ended_with_failed_tests_may_rerun(tmp_path: Path) -> None:
    keep(tmp_path, 1, {"tests/test_a.py::test_b": True})
    assert why_not(tmp_path) == ""


@pytest.mark.parametrize(
    ("status", "failed", "reason"),
    [
        (-1, {"tests/test_a.py::test_b": True}, "status -1"),  # it was killed
        (3, {"tests/test_a.py::test_b": True}, "status 3"),  # an error of pytest's own, or no Redis
        (1, {"tests/test_a.py::test_b": True, "tests/test_c.py": True}, "could not collect tests/test_c.py"),
        (1, {}, "no test failed"),
    ],
)
def test_any_other_run_may_not_rerun(
    tmp_path: Path, status: int, failed: dict[str, bool], reason: str
) -> None:
    keep(tmp_path, status, failed)
    assert reason in why_not(tmp_path)


@pytest.mark.parametrize("status", [0, 5])  # 5: `make test-failed` found nothing to run again
def test_after_a_passed_run_the_interpreted_one_decides(tmp_path: Path, status: int) -> None:
    keep(tmp_path, status, {})
    assert "no record of a failed run" in why_not(tmp_path)
    keep(tmp_path / "interpreted", 1, {"tests/test_a.py::test_b": True})
    assert why_not(tmp_path) == ""


def test_a_failed_run_decides_whatever_an_interpreted_one_left(tmp_path: Path) -> None:
    keep(tmp_path, -1, {})
    keep(tmp_path / "interpreted", 1, {"tests/test_a.py::test_b": True})
    assert "status -1" in why_not(tmp_path)


def test_a_run_without_a_result_may_not_rerun(tmp_path: Path) -> None:
    assert "no record of a failed run" in why_not(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [[], ["--numprocesses", "1"]])
@pytest.mark.parametrize(("wanted", "status"), [("test", 0), ("nothing_is_called_so", 5)])
def test_the_result_of_a_run_is_kept(tmp_path: Path, spread: list[str], wanted: str, status: int) -> None:
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={tmp_path}", *spread, "-k", wanted]
    command.append("tests/resp/test_encode.py")
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, timeout=60, check=False)
    assert done.returncode == status
    assert json.loads((tmp_path / "v" / STATUS).read_text()) == status
