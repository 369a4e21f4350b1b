"""The text of a refusal."""

from __future__ import annotations

from keyfence.policy.verdict import Violation
from keyfence.policy.wording.prepared import Draft, Filler
from keyfence.session.conversation.refusal import prepared_refusal, refusal


def violation(message: str, hint: str = "") -> Violation:
    return Violation("scope.write", "must", 1, b"k", "k", "", "", message, hint)


def test_a_refusal_has_rule_who_what_remedy_contact_and_id() -> None:
    text = refusal(violation("CubeProxy may not SET k", "its writers: CubeMaster"), "#cube", "d-1")
    assert text == (
        b"-NOPERM [scope.write] CubeProxy may not SET k; its writers: CubeMaster. Ask #cube. (d-1)\r\n"
    )


def test_unknown_parts_of_a_refusal_are_left_out() -> None:
    assert (
        refusal(violation("A may not SET k"), "", "d-1")
        == b"-NOPERM [scope.write] A may not SET k. (d-1)\r\n"
    )


def test_a_line_break_in_a_name_cannot_end_the_reply() -> None:
    text = refusal(violation("A may not SET k\r\n+OK\r\n$3", "use \x00\x1b"), "#c\n", "d-1")
    assert text.count(b"\r\n") == 1
    assert text.endswith(b"\r\n")
    assert text[:-2].isascii()
    assert b"\n" not in text[:-2]


def upper(key: bytes) -> str:
    return key.decode().upper()


def test_a_refusal_is_prepared_for_every_key() -> None:
    draft = Draft(b"k1")
    shown, hint = draft.mark(b"k1", Filler(bytes.decode)), draft.mark(b"k1", Filler(upper))
    worded = violation(f"A may not SET {shown}", f"use {hint}, not {shown}")
    found = violation("A may not SET k1", "use K1, not k1")._replace(key=b"k1", shown="k1")
    prepared = prepared_refusal(found, worded, draft, "#c", "d-1")
    assert prepared is not None
    assert prepared.reply(b"k2") == refusal(violation("A may not SET k2", "use K2, not k2"), "#c", "d-1")


def test_a_refusal_is_not_prepared_where_its_words_depend_on_another_key() -> None:
    draft = Draft(b"k1")
    worded = violation(f"A may not SET {draft.mark(b'k2', Filler(bytes.decode))}")
    assert prepared_refusal(violation("A may not SET k2"), worded, draft, "", "d-1") is None


def test_a_refusal_is_not_prepared_where_its_words_would_differ_for_the_same_key() -> None:
    draft = Draft(b"k1")
    worded = violation(f"A may not SET {draft.mark(b'k1', Filler(upper))}")
    found = violation("A may not SET k1")._replace(key=b"k1")
    assert prepared_refusal(found, worded, draft, "", "d-1") is None
    empty = violation("A may not SET k1", draft.mark(b"k1", Filler(lambda _: "")))
    assert prepared_refusal(found, empty, draft, "", "d-1") is None
    marked = violation("A may not SET \ue000")  # a policy may contain what looks like a mark
    assert prepared_refusal(marked, marked, Draft(b"k1"), "", "d-1") is None


def test_a_refusal_that_shows_no_key_stays_in_one_part() -> None:
    found = violation("A may not FLUSHALL")._replace(rule="command.forbidden", key=None, shown="")
    prepared = prepared_refusal(found, found, Draft(b"k"), "", "d-1")
    assert prepared is not None
    assert prepared.reply(b"other") == refusal(found, "", "d-1")
