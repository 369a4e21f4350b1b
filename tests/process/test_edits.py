from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.enforcement.baseline import yaml_item
from keyfence.policy.source.yaml_edits import EditError, with_first_item
from keyfence.process.edits import CannotEdit, Edit

NEW = "{rule: scope.write, mode: enforce}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # a block list
        ("modes:\n  - {mode: observe}\n", f"modes:\n  - {NEW}\n  - {{mode: observe}}\n"),
        ("modes:\n- mode: observe\n  rule: a\n", f"modes:\n- {NEW}\n- mode: observe\n  rule: a\n"),
        ("modes:\n    -   {mode: observe}\n", f"modes:\n    - {NEW}\n    -   {{mode: observe}}\n"),
        ("modes:\n  -\n    mode: observe\n", f"modes:\n  - {NEW}\n  -\n    mode: observe\n"),
        ("modes: &m\n  - &first {mode: observe}\n", f"modes: &m\n  - {NEW}\n  - &first {{mode: observe}}\n"),
        # comments and order
        (
            "# mine\na: 1  # one\nmodes:  # of staging\n\n  # the first\n  - {mode: observe}  # why\nb: 2\n",
            "# mine\na: 1  # one\nmodes:  # of staging\n\n  # the first\n"
            f"  - {NEW}\n  - {{mode: observe}}  # why\nb: 2\n",
        ),
        # a flow list
        ("modes: []\n", f"modes: [{NEW}]\n"),
        ("modes: [{mode: observe}]\n", f"modes: [{NEW}, {{mode: observe}}]\n"),
        ("modes: [ # none\n ]\n", f"modes: [{NEW} # none\n ]\n"),
        ("modes: &m [ {mode: observe},\n ]\nb: 1", f"modes: &m [{NEW},  {{mode: observe}},\n ]\nb: 1"),
        ("{modes: [], b: 1}\n", f"{{modes: [{NEW}], b: 1}}\n"),
        ('"modes": []  #\tnone\n', f'"modes": [{NEW}]  #\tnone\n'),
        # no list yet
        ("", f"modes:\n  - {NEW}\n"),
        ("# nothing\n", f"# nothing\nmodes:\n  - {NEW}\n"),
        ("b: 1\n", f"b: 1\nmodes:\n  - {NEW}\n"),
        ("b:\n  modes: [1]\n", f"b:\n  modes: [1]\nmodes:\n  - {NEW}\n"),
        # line ends
        ("b: 1", f"b: 1\nmodes:\n  - {NEW}\n"),
        ("modes:\n  - {mode: observe}", f"modes:\n  - {NEW}\n  - {{mode: observe}}"),
        ("b: 1\r\n", f"b: 1\r\nmodes:\r\n  - {NEW}\r\n"),
        ("modes:\r\n  - 1\r\nb: 1\r\n", f"modes:\r\n  - {NEW}\r\n  - 1\r\nb: 1\r\n"),
        ("b: 1\r\nc: 2", f"b: 1\r\nc: 2\r\nmodes:\r\n  - {NEW}\r\n"),
        # beyond ASCII
        ("\ufeffb: ключ 🔑\nmodes: [1]\n", f"\ufeffb: ключ 🔑\nmodes: [{NEW}, 1]\n"),
    ],
)
def test_only_the_new_line_changes(before: str, after: str) -> None:
    assert with_first_item(before, "modes", NEW) == after
    assert yaml.safe_load(after)["modes"][0] == {"rule": "scope.write", "mode": "enforce"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("modes: 7\n", "modes is not a list"),
        ("modes:\n", "modes is not a list"),
        ("modes: {a: 1}\n", "modes is not a list"),
        ("[1, 2]\n", "its top level is not a mapping"),
        ("just text\n", "its top level is not a mapping"),
        ("modes: [1]\nmodes: [2]\n", "only changed by hand"),
        ("other: &m [1]\nmodes: *m\n", "only changed by hand"),
        ("modes: &m [1]\nother: *m\n", "only changed by hand"),
        ("? modes\n: - 1\n", "only changed by hand"),
        ("modes:\n  - # a-b\n    mode: observe\n", "only changed by hand"),
        ("{b: 1}\n", "only changed by hand"),
        ("b: 1\n...\n", "only changed by hand"),
        ("base: &base {modes: [1]}\n<<: *base\n", "only changed by hand"),
        ("modes:\t[]\n", "cannot start any token"),
        ("modes:\r- 1\r", "only changed by hand"),
    ],
)
def test_what_one_line_cannot_extend_is_left_to_a_person(text: str, why: str) -> None:
    with pytest.raises((EditError, yaml.YAMLError), match=why):
        with_first_item(text, "modes", NEW)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
documents = st.fixed_dictionaries(
    {}, optional={"a": values, "modes": st.lists(values, max_size=3), "z": values}
)


@given(documents, st.booleans(), st.sampled_from([None, True, False]), st.integers(1, 9))
def test_any_list_gets_its_item_or_stays_as_it_is(
    document: dict[str, Any], sort: bool, flow: bool | None, indent: int
) -> None:
    text = yaml.safe_dump(document, sort_keys=sort, default_flow_style=flow, indent=indent)
    try:
        edited = with_first_item(text, "modes", NEW)
    except EditError:
        return
    item = yaml.safe_load(NEW)
    assert yaml.safe_load(edited) == {**document, "modes": [item, *document.get("modes", [])]}


@given(st.dictionaries(st.sampled_from(["rule", "service", "owner", "reason"]), st.text(min_size=1)))
def test_any_text_survives_as_a_field_of_the_item(fields: dict[str, str]) -> None:
    edited = with_first_item("waivers: []\n", "waivers", yaml_item({"mode": "x", **fields}))
    assert edited.count("\n") == 1
    assert yaml.safe_load(edited)["waivers"] == [{"mode": "x", **fields}]


# -- files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keyfence.yaml"
    path.write_bytes(b"# mine\r\nmodes: []\r\n")
    return path


def test_a_file_is_changed_and_put_back_byte_for_byte(file: Path) -> None:
    before = file.read_bytes()
    edit = Edit(str(file), "modes", NEW)
    assert file.read_bytes() == before
    edit.write()
    assert file.read_bytes() == f"# mine\r\nmodes: [{NEW}]\r\n".encode()
    edit.undo()
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_mode_and_link_of_a_file_stay(file: Path, tmp_path: Path) -> None:
    file.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(file.name)
    Edit(str(link), "modes", NEW).write()
    assert link.is_symlink()
    assert NEW in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_file_that_someone_changes_meanwhile_is_not_overwritten(file: Path) -> None:
    edit = Edit(str(file), "modes", NEW)
    file.write_text("modes: [{mode: disabled}]\n")
    with pytest.raises(CannotEdit, match="someone else has changed it"):
        edit.write()
    assert file.read_text() == "modes: [{mode: disabled}]\n"


def test_a_change_of_someone_else_after_the_edit_is_not_undone(file: Path) -> None:
    edit = Edit(str(file), "modes", NEW)
    edit.write()
    file.write_text("modes: [{mode: disabled}]\n")
    with pytest.raises(CannotEdit, match="someone else has changed it"):
        edit.undo()
    assert file.read_text() == "modes: [{mode: disabled}]\n"
    assert os.listdir(file.parent) == [file.name]


def test_two_edits_of_one_file_leave_both_lines_or_refuse_the_second(file: Path) -> None:
    first, second = (Edit(str(file), "modes", f"{{mode: {mode}}}") for mode in ("enforce", "observe"))
    first.write()
    with pytest.raises(CannotEdit):
        second.write()
    Edit(str(file), "modes", "{mode: observe}").write()
    assert file.read_bytes() == b"# mine\r\nmodes: [{mode: observe}, {mode: enforce}]\r\n"


def test_a_folder_that_may_not_be_written_leaves_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied")

    edit = Edit(str(file), "modes", NEW)
    before = file.read_bytes()
    monkeypatch.setattr(tempfile, "mkstemp", refuse)  # tests may run as root, who may write everywhere
    with pytest.raises(CannotEdit, match=r"^permission denied$"):
        edit.write()
    assert file.read_bytes() == before


def test_a_file_that_may_not_be_written_is_not_replaced(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda path, _mode: path != file)  # as for everyone but root
    with pytest.raises(CannotEdit, match=r"^permission denied$"):
        Edit(str(file), "modes", NEW)


def test_a_full_disk_leaves_the_file_and_nothing_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    before = file.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotEdit, match="no space left on device"):
        Edit(str(file), "modes", NEW).write()
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe", "it is not a YAML file that can be read"),
        (b"a: [", "it is not a YAML file that can be read"),
        (b"a: 1\n---\nb: 2\n", "it is not a YAML file that can be read"),
        (b"- 1\n", "its top level is not a mapping"),
        (b"modes: 7\n", "modes is not a list"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_reason(content: bytes, why: str, file: Path) -> None:
    file.write_bytes(content)
    with pytest.raises(CannotEdit, match=f"^{why}$"):
        Edit(str(file), "modes", NEW)


def test_a_missing_file_is_one_reason(tmp_path: Path) -> None:
    with pytest.raises(CannotEdit, match=r"^no such file or directory$"):
        Edit(str(tmp_path / "none.yaml"), "modes", NEW)
