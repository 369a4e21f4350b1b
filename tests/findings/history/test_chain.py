from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from keyfence.findings.history.chain import Head, Row, after, chains_of, faults, parse_heads

AT = 1_780_000_000_000


def chain(name: str = "one:1:aa", length: int = 5) -> list[Row]:
    """A chain that is as it was written."""
    rows: list[Row] = []
    head = Head(name)
    for number in range(length):
        row = after(head, AT + number, "modes", "ann", {"enforce": {"scope.write": [f"s{number}"]}})
        rows.append(row)
        head = row.head
    return rows


def texts(rows: list[Row], *heads: Head, known: tuple[Head, ...] = ()) -> list[str]:
    return [f"{one.number}: {one.text}" for one in faults(chains_of(rows), heads, known)]


def test_a_chain_as_it_was_written_has_no_fault() -> None:
    rows = chain()
    assert texts(rows, rows[-1].head) == []
    assert texts(list(reversed(rows)), rows[-1].head, known=(rows[0].head, rows[2].head)) == []


def test_the_form_that_is_hashed_stays_the_same_after_a_release() -> None:
    row = after(Head("one:1:aa"), AT, "modes", "änn", {"b": 1, "a": "ü"})
    assert row.detail == '{"a":"\\u00fc","b":1}'
    assert row.hash == "6d2d973595f130ce90d0d002b9beae9c042cbde6aba892e89b9bafb879f49f9c"


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row._replace(detail=row.detail.replace("s2", "s9")),
        lambda row: row._replace(at=row.at + 1),
        lambda row: row._replace(who="bob"),
        lambda row: row._replace(kind="policy"),
        lambda row: row._replace(instance="one:1:aa", previous="1" * 64),
    ],
)
def test_a_changed_row_shows(change: Callable[[Row], Row]) -> None:
    rows = chain()
    rows[2] = change(rows[2])
    assert "3: its content is not what was written" in texts(rows, rows[-1].head)


def test_a_changed_row_with_a_new_hash_shows_in_the_row_after_it() -> None:
    rows = chain()
    forged = rows[2]._replace(detail="{}")
    rows[2] = forged._replace(hash=forged.right_hash)
    assert texts(rows, rows[-1].head) == ["4: it does not follow row 3 as that is now"]


def test_a_changed_last_row_with_a_new_hash_shows_in_the_head() -> None:
    rows = chain()
    head = rows[-1].head
    forged = rows[-1]._replace(who="bob")
    rows[-1] = forged._replace(hash=forged.right_hash)
    assert texts(rows, head) == ["5: it is not the last row that was written"]


def test_a_deleted_row_shows() -> None:
    rows = chain()
    head = rows[-1].head
    assert texts(rows[:2] + rows[3:], head) == ["3: missing before row 4: 3"]
    assert texts(rows[:1] + rows[3:], head) == ["2: missing before row 4: 2 to 3"]
    assert texts(rows[2:], head) == ["1: missing before row 3: 1 to 2"]


def test_deleted_last_rows_show() -> None:
    rows = chain()
    assert texts(rows[:3], rows[-1].head) == ["4: missing at the end: there were 5 rows"]
    assert texts([], rows[-1].head) == ["0: missing, all of it: there were 5 rows"]


def test_deleted_last_rows_with_a_forged_head_show_in_a_head_that_was_kept() -> None:
    rows = chain()
    kept = rows[-1].head
    assert texts(rows[:3], rows[2].head) == []
    assert texts(rows[:3], rows[2].head, known=(kept,)) == [
        "5: this row is missing; a head that was kept names it"
    ]
    assert texts([], known=(kept,)) == ["5: this row is missing; a head that was kept names it"]


def test_swapped_rows_show() -> None:
    rows = chain()
    head = rows[-1].head
    rows[1], rows[3] = rows[1]._replace(number=4), rows[3]._replace(number=2)
    found = texts(rows, head)
    assert "2: its content is not what was written" in found
    assert "4: its content is not what was written" in found


def test_an_inserted_row_shows() -> None:
    rows = chain()
    head = rows[-1].head
    between = after(rows[2].head, AT, "modes", "eve", {})
    assert texts([*rows, between], head) == ["4: this row is there twice"]
    moved = [row._replace(number=row.number + 1) for row in rows[3:]]
    assert "5: its content is not what was written" in texts([*rows[:3], between, *moved], head)
    end = after(head, AT, "modes", "eve", {})
    assert texts([*rows, end], head) == ["6: it was added later: there were 5 rows"]


def test_a_missing_head_shows() -> None:
    assert texts(chain()) == ["0: its head is missing; there were 5 rows"]


def test_a_whole_chain_that_was_removed_shows_in_one_that_began_later() -> None:
    first = chain()
    last = first[-1].head
    second = [after(Head("two:1:bb"), AT, "chains", "keyfence", {"heads": {last.instance: [5, last.hash]}})]
    assert texts(first + second, last, second[-1].head) == []
    assert texts(second, second[-1].head) == ["5: this row is missing; row 1 of two:1:bb names it"]
    rewritten = chain(length=4)
    rewritten.append(after(rewritten[-1].head, AT, "modes", "eve", {}))
    assert texts(rewritten + second, rewritten[-1].head, second[-1].head) == [
        "5: it has another hash than once; row 1 of two:1:bb names it"
    ]


def test_heads_are_read_from_lines_and_from_an_audit_log() -> None:
    head = chain()[-1].head
    log = json.dumps({"who": "ann", "history": head.text})
    assert parse_heads(f"{head.text}\n\n{log}\n" + json.dumps({"who": "bob"})) == [head, head]


@pytest.mark.parametrize("text", ["a b", "a b " + "0" * 64, "a 1 00", "{", "[1]"])
def test_what_is_not_a_head_is_one_sentence_with_its_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"line 2 is not a head: .*; keyfence history --head prints them"):
        parse_heads(f"\n{text}")


def test_a_detail_that_is_not_an_object_says_nothing() -> None:
    row = chain()[0]
    assert [row._replace(detail=text).data() for text in ("", "[]", "[" * 100_000, "null")] == [{}] * 4
