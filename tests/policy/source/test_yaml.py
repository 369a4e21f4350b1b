from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from keyfence.policy.diagnostics import Diagnostic, FileError, Place
from keyfence.policy.source import yaml as yaml_source
from keyfence.policy.source.yaml import Source, read_source

POLICIES = Path(__file__).resolve().parents[3] / "policies"


def faults(text: str) -> list[str]:
    with pytest.raises(FileError) as caught:
        Source("f", text)
    return [str(one) for one in caught.value.diagnostics]


def test_every_scalar_is_the_text_in_the_file() -> None:
    text = """
a: off
b: 12:34
c: NO
d: 007
e: 1e3
f: ~
g: 2027-06-30
h: "\\u0041"
i: |
  two
  lines
j:
k: 0x1F
l: [yes, null, 1.0]
"""
    assert Source("f", text).data == {
        "a": "off", "b": "12:34", "c": "NO", "d": "007", "e": "1e3", "f": "~", "g": "2027-06-30", "h": "A",
        "i": "two\nlines\n", "j": "", "k": "0x1F", "l": ["yes", "null", "1.0"],
    }  # fmt: skip


def test_a_key_is_text_too() -> None:
    assert Source("f", "{1: a, no: b, ~: c}").data == {"1": "a", "no": "b", "~": "c"}


def test_each_value_and_key_knows_its_place() -> None:
    source = Source("f", "a:\n  b: [x,\n      y]\n")
    assert source.place(("a", "b", 1)) == Place("f", 3, 7)
    assert source.place(("a", "b")) == Place("f", 2, 6)
    assert source.place(("a", "b"), of_key=True) == Place("f", 2, 3)
    assert source.place(()) == Place("f", 1, 1)


def test_a_missing_path_has_the_place_of_its_parent() -> None:
    source = Source("f", "a:\n  b: x\n")
    assert source.place(("a", "c", "d")) == source.place(("a",)) == Place("f", 2, 3)
    assert source.place(("a", "c"), of_key=True) == Place("f", 2, 3)
    assert source.place(("z",)) == Place("f", 1, 1)


def test_an_error_and_a_warning_carry_the_place() -> None:
    source = Source("f", "a: b\n")
    assert source.error(("a",), "bad") == Diagnostic(Place("f", 1, 4), "error", "bad", "a: b", 1, "", ("a",))
    assert str(source.warning("colon", ("a",), "odd", of_key=True)) == "f:1:1: warning: odd"


def test_an_alias_is_its_anchor_s_value() -> None:
    source = Source("f", "a: &x [1]\nb: *x\n")
    assert source.data == {"a": ["1"], "b": ["1"]}


CASES = {
    "a: 1\nb: 2\na: 3\na: 4": [
        "f:3:1: error: duplicate key 'a'; the first one is in line 1",
        "f:4:1: error: duplicate key 'a'; the first one is in line 1",
    ],
    "a: {b: 1, b: 2}": ["f:1:11: error: duplicate key 'b'; the first one is in line 1"],
    "1: a\n'1': b": ["f:2:1: error: duplicate key '1'; the first one is in line 1"],
    "a: !!binary x": [
        "f:1:4: error: the tag tag:yaml.org,2002:binary is not allowed; write the value as plain text"
    ],
    "a: *x": ["f:1:4: error: not YAML: found undefined alias 'x'"],
    "a: &x b\nc: &x d": [
        "f:2:4: error: not YAML: found duplicate anchor 'x'; first occurrence second occurrence"
    ],
    "a: !x b": ["f:1:4: error: the tag !x is not allowed; write the value as plain text"],
    "<<: {a: b}": ["f:1:1: error: merge keys (<<) are not allowed; write the values out"],
    "{[a]: b}": ["f:1:2: error: a key must be plain text; quote it if it has [ ] { } or , in it"],
    "": ["f:1:1: error: the file is empty"],
    "# nothing\n": ["f:1:1: error: the file is empty"],
    "[a]": ["f:1:1: error: expected a mapping (name: value) at the top"],
    "a": ["f:1:1: error: expected a mapping (name: value) at the top"],
    "a: b\n---\nc: d": [
        "f:2:1: error: not YAML: expected a single document in the stream but found another document"
    ],
    'a: "b': ["f:1:6: error: not YAML: while scanning a quoted scalar found unexpected end of stream"],
    "a: b\nc: \x07": ["f:2:4: error: not YAML: the character U+0007"],
    "a: &a [*a]": ["f:1:4: error: the file is too large or too deep"],
}


@pytest.mark.parametrize("text", CASES)
def test_a_fault_has_its_place(text: str) -> None:
    assert faults(text) == CASES[text]


def test_an_object_s_tag_makes_no_object() -> None:
    assert (
        "the tag tag:yaml.org,2002:python/object/apply:os.system is not allowed"
        in (faults("a: !!python/object/apply:os.system x")[0])
    )


def test_a_deep_file_is_an_error() -> None:
    assert faults("a: " + "[" * 100_000) != []
    assert "too large or too deep" in faults("a: " + "[" * 100 + "]" * 100)[0]


def test_a_file_deeper_than_the_stack_is_an_error() -> None:
    assert faults("a: " + "{a: " * 1_000_000)[0].endswith("the file is too large or too deep")


@pytest.mark.parametrize("fast", [True, False])
def test_both_parsers_read_the_same(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml, "__with_libyaml__", fast and yaml.__with_libyaml__)
    for file in sorted(POLICIES.glob("*.yaml")):
        text = file.read_text()
        root = yaml.SafeLoader(text).get_single_node()
        assert list(Source("f", text).data) == [key.value for key, _ in root.value]
        for key, value in root.value:
            mark = value.start_mark
            assert Source("f", text).place((key.value,)) == Place("f", mark.line + 1, mark.column + 1)
    for text, told in CASES.items():
        assert faults(text) == told


def test_aliases_that_multiply_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_source, "MAX_NODES", 5_000)
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "too large or too deep" in faults("\n".join(lines))[0]


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"\xef\xbb\xbfa: b\r\nc: d\r\n")
    source = read_source(file)
    assert source.data == {"a": "b", "c": "d"}
    assert source.place(("c",)) == Place(str(file), 2, 4)


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes("\ufeffa: é\r\nb: é ".encode() + b"\xff")
    with pytest.raises(FileError, match=r"2:6: error: not UTF-8 text \(byte 16\); save the file as UTF-8"):
        read_source(file)


def test_all_faults_come_in_the_file_s_order() -> None:
    error = FileError([Diagnostic(Place("f", line, 1), "error", "x") for line in (3, 1, 2)])
    assert [one.place.line for one in error.diagnostics] == [1, 2, 3]
    assert str(error) == "f:1:1: error: x\nf:2:1: error: x\nf:3:1: error: x"


def test_an_emoji_may_be_written_as_json_writes_it() -> None:
    assert Source("f", 'a: "\\ud83d\\ude00 caf\\u00e9"').data == {"a": "\U0001f600 caf\u00e9"}


@pytest.mark.parametrize("text", ['a: "x\\ud83d"', '"\\ude00": b', 'a: "\\ude00\\ud83d"'])
def test_half_a_character_is_a_fault_with_its_place(text: str) -> None:
    (fault,) = faults(text)
    assert fault.startswith("f:1:")
    assert "an escape is one half of a character" in fault
