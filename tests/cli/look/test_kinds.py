from __future__ import annotations

from keyfence.cli.look.kinds import Seen


def test_codes_and_names_become_one_kind() -> None:
    seen = Seen()
    for code in ("BAG", "PEN", "MUG", "HAT"):
        seen.add_keys(f"page:{code}-<int>", {"string": 3})
    assert set(seen.kinds().values()) == {"page:<*>"}


def test_words_that_are_used_in_different_ways_stay() -> None:
    seen = Seen()
    seen.add_keys("shop:cart:<int>", {"hash": 3})
    seen.add_keys("shop:order:<int>", {"hash": 3})
    assert seen.kinds() == {one: one for one in ("shop:cart:<int>", "shop:order:<int>")}


def test_a_joined_kind_keeps_the_placeholders_that_are_equal() -> None:
    seen = Seen()
    for number in range(12):
        seen.add_keys(f"user:{chr(97 + number) * 3}:visit:<uuid>", {"string": 3})
    assert set(seen.kinds().values()) == {"user:<*>:visit:<uuid>"}


def test_a_command_says_whether_it_writes() -> None:
    seen = Seen()
    assert seen.add_command("a:<int>", "web", "SET", 2)
    assert seen.add_command("a:<int>", "web", "GETDEL", 2)
    assert not seen.add_command("a:<int>", "web", "GET", 2)
    assert not seen.add_command("a:<int>", "web", "other", 2)
    assert seen.kinds() == {"a:<int>": "a:<int>"}
