from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.findings.finding import finding_id
from keyfence.findings.gate.baseline import Known, baseline_text, read_baseline, write_baseline
from keyfence.findings.gate.judgement import blocking
from keyfence.policy.diagnostics import FileError
from tests.findings.gate.findings import finding

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def known(*key: str) -> Known:
    service, rule, command, entry, shape = key
    values = {"service": service, "rule": rule, "command": command, "entry": entry, "shape": shape}
    return Known(id=finding_id((service, rule, command, entry, shape)), **values)


@given(st.lists(st.tuples(NAMES, NAMES, NAMES, NAMES, NAMES).map(lambda key: known(*key)), max_size=4))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, listed: list[Known]) -> None:
    path = str(tmp_path_factory.mktemp("baseline") / "baseline.yaml")
    write_baseline(path, listed)
    assert set(read_baseline(path)) == set(listed)


def test_a_finding_is_one_line_in_the_order_of_its_names() -> None:
    text = baseline_text(
        blocking([finding(service="shop"), finding(service="cart", entry="", shape="a:<int>")])
    )
    assert text.splitlines()[1:] == [
        "findings:",
        '- {service: cart, rule: scope.write, command: SET, shape: "a:<int>", id: f-7ce2bf56ee3c}',
        "- {service: shop, rule: scope.write, command: SET, entry: order, id: f-9842600af79e}",
    ]


def test_the_same_findings_give_the_same_file() -> None:
    listed = blocking([finding(), finding(command="DEL")])
    assert baseline_text(listed) == baseline_text([*reversed(listed), *listed])


def test_a_baseline_without_findings_can_be_read(tmp_path: Path) -> None:
    write_baseline(str(tmp_path / "b.yaml"), [])
    assert read_baseline(str(tmp_path / "b.yaml")) == ()


def test_a_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b.yaml"
    path.write_text("findings: []\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_baseline(str(path), blocking([finding()]))
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("b.yaml", "findings: []\n")]


def test_a_file_keeps_its_permissions_and_its_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_text("findings: []\n")
    real.chmod(0o640)
    link.symlink_to(real)
    write_baseline(str(link), blocking([finding()]))
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert len(read_baseline(str(real))) == 1


RIGHT = "- {service: shop, rule: scope.write, command: SET, entry: order, id: f-9842600af79e}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("findings:\n- f-9842600af79e\n", "2:3: error: "),
        (
            f"findings:\n{RIGHT.replace('SET', 'DEL')}\n",
            "2:70: error: 'f-9842600af79e' is not the id of this finding; write f-",
        ),
        (f"findings:\n{RIGHT}\n{RIGHT}\n", "3:3: error: line 2 has the same finding already; remove one"),
        (
            f"findings:\n{RIGHT.replace('service: shop, ', '')}\n",
            "2:3: error: 'service' is missing",
        ),
        (
            "policy: shop\nclaims: []\n",
            "1:1: error: this is a policy, which --policy names; expected a baseline",
        ),
        ("findings: [\n", "error: "),
    ],
)
def test_a_faulty_baseline_is_told_with_its_line(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(text)
    with pytest.raises(FileError) as caught:
        read_baseline(str(path))
    assert fault in str(caught.value.diagnostics[0])
