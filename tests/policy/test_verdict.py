from __future__ import annotations

from keyfence.policy.verdict import LISTED, MOST_LISTED, Found, Gathering


def gathered(*found: tuple[str, str]) -> tuple[list[tuple[str, str, int]], int]:
    """Returns rule, entry and number of unlisted violations of all that are listed for violations of these
    rules and entries, and how many were put in words."""
    worded = 0

    def words() -> tuple[str, str, str]:
        nonlocal worded
        worded += 1
        return "", "", ""

    gathering: Gathering[str] = Gathering()
    for number, (rule, entry) in enumerate(found):
        gathering.take(Found(rule, "must", number, b"k", entry, "", "", words), "refused")
    return [(one.rule, one.entry, one.more) for one, _ in gathering.listed()], worded


def test_a_few_violations_of_one_rule_are_listed_and_the_others_counted() -> None:
    listed, worded = gathered(*[("scope.write", "")] * 1000)
    assert (len(listed), worded) == (LISTED, LISTED)
    assert listed[-1] == ("scope.write", "", 1000 - LISTED)


def test_the_first_violation_of_each_entry_is_listed() -> None:
    listed, _ = gathered(*[("scope.write", "")] * 100, ("scope.write", "cart"))
    assert listed[-1] == ("scope.write", "cart", 0)


def test_the_listed_violations_are_bounded_however_many_entries_are_touched() -> None:
    listed, worded = gathered(*[("scope.write", f"entry-{number}") for number in range(5000)])
    assert (len(listed), worded) == (MOST_LISTED, MOST_LISTED)
    assert sum(1 + more for _, _, more in listed) == 5000


def test_the_first_violation_of_each_rule_is_listed_beyond_that() -> None:
    listed, _ = gathered(*[("scope.write", f"e-{number}") for number in range(5000)], ("type.mismatch", "x"))
    assert listed[-1] == ("type.mismatch", "x", 0)
