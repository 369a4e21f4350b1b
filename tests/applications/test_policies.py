"""The shipped policies for applications: each is sound, alone and together with the others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from keyfence.authoring.lint import check_policy
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy
from tests.applications.application import APPLICATIONS
from tests.servers import PROJECT

FILES = sorted(path for path in APPLICATIONS.glob("*.yaml") if ".test." not in path.name)
EACH = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


@EACH
def test_an_application_policy_has_no_warning(path: Path) -> None:
    errors, warnings, _ = check_policy(path)
    assert [str(one) for one in (*errors, *warnings)] == []


@EACH
def test_an_application_policy_refuses_foreign_keys(path: Path) -> None:
    policy = load_policy(path)
    assert policy.name == path.stem
    evaluator = Evaluator(policy)
    for service, command in (
        ("app", [b"SET", b"somebody:elses", b"1"]),
        ("app", [b"SCAN", b"0"]),
        ("app", [b"FLUSHALL"]),
        ("app", [b"EVAL", b"return 1", b"0"]),
        ("unknown", [b"SCAN", b"0"]),
    ):
        assert evaluator.decide(policy.number(service), command).violations, command


@EACH
def test_an_application_s_script_is_limited_to_its_keys(path: Path) -> None:
    policy = load_policy(path)
    evaluator = Evaluator(policy)
    for sha1, script in policy.scripts.items():
        number = 1 if script.keys is None else script.keys
        foreign = [b"somebody:elses"] * number
        command = [b"EVALSHA", sha1, b"%d" % number, *foreign, *[b"somebody:elses"] * 20]
        verdict = evaluator.decide(policy.number("app"), command)
        assert verdict.violations or not (number or script.writes), script.name


@EACH
def test_the_documentation_has_a_row_for_each_application(path: Path) -> None:
    text = (PROJECT / "docs" / "applications.md").read_text()
    linked = re.findall(r"\]\(\.\./policies/applications/([a-z0-9-]+)\.yaml\)", text)
    assert linked.count(path.stem) == 1
    assert sorted(linked) == [one.stem for one in FILES]


def test_all_application_policies_work_together(tmp_path: Path) -> None:
    """A Redis that several applications share needs a folder of policies."""
    for path in FILES:
        if path.stem == "bull":
            continue  # BullMQ's predecessor, with the same keys
        shutil.copy(path, tmp_path)
    errors, warnings, _ = check_policy(tmp_path)
    # BullMQ's file alone cannot let unknown scripts run, which may touch the keys of all files.
    found = [(Path(one.place.file).name, one.code) for one in (*errors, *warnings)]
    assert found == [("bullmq.yaml", "stricter-file")]
