from __future__ import annotations

import json
import threading
from typing import Any

from keyfence.findings.history.book import LOOKED_SECONDS, SAME_SPAN, Book
from keyfence.findings.history.chain import Head, chains_of, faults

NOW = 1_780_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def opened() -> tuple[Book, Clock]:
    clock = Clock()
    return Book("here:1", clock), clock


def shown(book: Book) -> list[tuple[str, str, Any]]:
    return [(row.kind, row.who, row.data()) for row in book.waiting()[0]]


def test_changes_of_one_moment_are_rows_of_one_time() -> None:
    book, _ = opened()
    book.note("ann", ("policy", {"revision": "r1"}), ("modes", {"services": []}))
    rows, head, _ = book.waiting()
    assert [(row.number, row.at) for row in rows] == [(1, int(NOW * 1000)), (2, int(NOW * 1000))]
    assert head == rows[-1].head == book.head
    assert faults(chains_of(rows), [head]) == []


def test_two_runs_with_the_same_name_have_chains_of_their_own() -> None:
    assert Book("here:1").head.instance != Book("here:1").head.instance
    assert len(Book("a b\n:1").head.text.split(" ")) == 3


def test_a_row_waits_until_it_is_written() -> None:
    book, _ = opened()
    book.note("ann", ("modes", {"services": ["a"]}))
    first, _, _ = book.waiting()
    book.note("ann", ("modes", {"services": ["b"]}))
    book.written(first)
    assert shown(book) == [("modes", "ann", {"services": ["b"]})]
    assert book.has_waiting


def test_looking_is_a_row_each_hour_and_at_the_end() -> None:
    book, clock = opened()
    for _ in range(int(LOOKED_SECONDS) + 10):
        clock.now += 1
        book.look("looking", "", clock.now - 1, clock.now)
    begin = int(NOW * 1000)
    assert shown(book) == [("looked", "keyfence", {"spans": [["looking", "", begin, begin + 3_600_000]]})]
    assert json.loads(book.waiting()[2]) == [["looking", "", begin + 3_600_000, begin + 3_610_000]]
    book.stop("SIGTERM")
    assert [row.kind for row in book.waiting()[0]] == ["looked", "looked", "stop"]
    assert json.loads(book.waiting()[2]) == []


def test_a_pause_in_looking_is_kept() -> None:
    book, _ = opened()
    book.look("looking", "", NOW, NOW + 10)
    book.look("looking", "", NOW + 10 + SAME_SPAN / 1000, NOW + 20)
    book.look("looking", "", NOW + 30, NOW + 40)
    begin = int(NOW * 1000)
    assert json.loads(book.waiting()[2]) == [
        ["looking", "", begin, begin + 20_000],
        ["looking", "", begin + 30_000, begin + 40_000],
    ]


def test_a_new_chain_after_a_lost_store_has_what_is_in_force_and_names_the_lost_one() -> None:
    book, _ = opened()
    book.note("ann", ("policy", {"revision": "r1"}), ("modes", {"services": ["a"]}))
    book.written(book.waiting()[0])
    lost = book.head
    book.note("bob", ("modes", {"services": ["b"]}))
    book.begin_again()
    kinds = [(kind, who) for kind, who, _ in shown(book)]
    assert kinds == [(kind, "keyfence") for kind in ("start", "chains", "policy", "modes")]
    assert shown(book)[-1][2] == {"services": ["b"]}
    assert shown(book)[1][2]["heads"][lost.instance][0] == lost.rows + 1
    rows, head, _ = book.waiting()
    assert [one.text for one in faults(chains_of(rows), [head])] == [
        f"this row is missing; row 2 of {head.instance} names it"
    ]


def test_only_the_newest_of_other_chains_are_named() -> None:
    book, _ = opened()
    book.name_others([Head(f"other:{number}", 1, "a" * 64) for number in range(200)])
    assert len(shown(book)[0][2]["heads"]) == 50
    assert book.has_named_others


def test_many_threads_make_one_chain() -> None:
    book, _ = opened()

    def change(name: str) -> None:
        for number in range(50):
            book.note(name, ("modes", {"services": [str(number)]}))

    threads = [threading.Thread(target=change, args=(str(number),)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    rows, head, _ = book.waiting()
    assert (len(rows), faults(chains_of(rows), [head])) == (200, [])
