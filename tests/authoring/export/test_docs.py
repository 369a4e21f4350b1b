"""The exported tables say what the policy says; CubeSandbox's are those of its own document."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from keyfence.authoring.export.docs import code, document, text
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.loading.load import load_policy
from keyfence.policy.show import anchor
from keyfence.policy.units import milliseconds
from keyfence.policy.wording.tables import tables
from tests.policy.cases import POLICIES

HERE = Path(__file__).parent
CONVENTIONS = ["cubesandbox", "cosky", "card-relay", "container-registry", "general"]
Rows = list[list[str]]


@cache
def policy_of(name: str) -> CompiledPolicy:
    path = HERE / f"{name}.yaml"
    return load_policy(path if path.exists() else POLICIES / f"{name}.yaml")


def cells(line: str) -> list[str]:
    found = [one.strip() for one in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
    return [re.sub(r"<a id=[^>]*></a>|`|\\(?=[^\\])", "", one) for one in found]


def sections(markdown: str) -> dict[str, Rows]:
    """Returns the rows of the tables in a document, without their heads, by the heading above them."""
    found: dict[str, Rows] = {}
    heading = ""
    for line in markdown.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|") and not set(line) <= set("|- "):
            found.setdefault(heading, []).append(cells(line))
    return {name: rows[1:] for name, rows in found.items()}


@pytest.fixture(scope="module")
def written() -> dict[str, Rows]:
    """The tables of CubeSandbox's document."""
    return sections((HERE / "cubesandbox_document.md").read_text())


@pytest.fixture(scope="module")
def exported() -> dict[str, Rows]:
    return sections(document(policy_of("cubesandbox")))


def key_of(key: str) -> str:
    """A key as the document or the policy writes it, in one form: an id by its place, not by its name."""
    return re.sub(r"[<{][^<>{}]*[>}]", "<>", key.split(" ", maxsplit=1)[0])


def entry_of(key_type: str, exported: dict[str, Rows]) -> str:
    """The entry that the document means by `node:metric`."""
    return next(row[1] for row in exported["Keys"] if f":{key_type}:" in f"{row[2]}:")


def test_the_catalogue_is_the_document_s(written: dict[str, Rows], exported: dict[str, Rows]) -> None:
    ours = {key_of(row[2]): row for row in exported["Keys"]}
    for meaning, key, kind, scope, writer, reader, ttl in written["5. Registered key catalog"]:
        row = ours[key_of(key)]
        assert row[3] == kind.lower(), meaning
        assert row[4] == scope, meaning
        assert row[5] == writer, meaning
        also = {name for cell in row[6:8] for name in cell.split(", ") if name != "–"}
        assert {writer, *also} == {writer, *reader.split(" / ")}, meaning  # writers may also read
        assert lifetime(row[8]) == lifetime(ttl), meaning


def lifetime(words: str) -> object:
    """What the words of either document say about a time to live."""
    length = re.search(r"~ ?(\d+)", words)
    if length:
        return "length", int(length[1])
    if words.startswith("none"):
        return None
    time = re.search(r"(?:usually|default|^) ?(\d+[smhd])", words)
    assert time, words
    return milliseconds(time[1])


def test_the_fields_are_the_document_s(written: dict[str, Rows], exported: dict[str, Rows]) -> None:
    told = {name.removeprefix("5.1 "): rows for name, rows in written.items() if name.startswith("5.1 ")}
    assert len(told) == 5
    for key_type, rows in told.items():
        ours = exported[entry_of(key_type, exported)]
        names = [name for row in rows for name in row[0].split(" / ")]
        if key_type == "sandbox:lifecycle:state":
            assert ours == [["value", f"one of {', '.join(names)}"]]
            continue
        fixed = {name for name in names if not name.startswith("{")}
        assert {row[0] for row in ours if " " not in row[0]} - {"never"} == fixed
        assert len([row for row in ours if row[0].startswith("a ")]) == len(names) - len(fixed)


def test_the_times_to_live_are_the_document_s(written: dict[str, Rows], exported: dict[str, Rows]) -> None:
    ours = {re.sub(r"\[(.*)\]\(.*", r"\1", row[0]): row for row in exported["Time to live"]}
    for key_types, how, notes in written["6. TTL policy"]:
        for key_type in key_types.split(" / "):
            entry = entry_of(key_type, exported)
            _, policy, usual, *_ = ours[entry]
            assert (
                policy
                == {
                    "Refresh-style TTL": "set by a write or after it",
                    "Fixed TTL": "set by a write or after it",
                    "SET TTL": "set by each write",
                    "No TTL": "none",
                    "MAXLEN ~": "none",  # the trimming takes its place
                }[how]
            )
            assert (usual == "–") == (policy == "none")
            if usual != "–":
                assert milliseconds(usual) == lifetime(notes)


def test_the_deprecated_keys_are_the_document_s(written: dict[str, Rows], exported: dict[str, Rows]) -> None:
    def simple(rows: Rows) -> list[list[str]]:
        return [[key_of(row[1]), key_of(row[2]), row[3].lower(), row[4]] for row in rows]

    assert simple(exported["Deprecated keys"]) == simple(written["Appendix: Legacy key crosswalk"])


@pytest.mark.parametrize("name", [*CONVENTIONS, "hard", "odd"])
def test_every_entry_has_one_row_and_one_anchor(name: str) -> None:
    policy = policy_of(name)
    markdown = document(policy)
    entries = [one["name"] for one in tables(policy)["entries"]]
    anchors = re.findall(r'<a id="([^"]*)"></a>', markdown)
    assert sorted(anchors) == sorted(anchor(one) for one in entries)
    forms = [form["key"] for one in tables(policy)["entries"] for form in one["forms"]]
    assert len(sections(markdown).get("Keys", [])) <= len(forms)
    links = re.findall(r"\]\(#([^)]*)\)", markdown)
    assert set(links) <= {anchor(one) for one in entries}


@pytest.mark.parametrize("name", [*CONVENTIONS, "hard", "odd"])
def test_every_line_of_a_table_has_as_many_cells_as_its_head(name: str) -> None:
    width = 0
    for line in document(policy_of(name)).splitlines():
        count = len(cells(line)) if line.startswith("|") else 0
        assert count == width or not width or not count, line
        width = count


def test_the_rows_are_in_the_policy_s_order() -> None:
    rows = sections(document(policy_of("cubesandbox")))["Keys"]
    assert [row[1] for row in rows if row[1]][:3] == ["node-metric", "sandbox-route", "instance-info"]


def test_text_of_the_policy_cannot_leave_its_cell() -> None:
    assert text("a | <b> `c`\n*d*") == r"a \| &lt;b&gt; \`c\`" + "\ufffd" + r"\*d\*"
    assert code("a|b") == r"`a\|b`"
    assert code("a`b") == "`` a`b ``"
