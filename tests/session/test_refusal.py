"""The text of a refusal."""

from __future__ import annotations

from keyfence.policy.verdict import Violation
from keyfence.session.conversation.refusal import around_key, refusal


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


def test_a_refusal_is_cut_around_the_key_where_all_else_would_be_the_same() -> None:
    found = violation("A may not SET cube:k:1", "its writers: B")._replace(shown="cube:k:1", key=b"cube:k:1")
    reply = refusal(found, "#c", "d-1")
    parts = around_key(found, reply)
    assert parts is not None
    assert b"cube:k:2".join(parts) == reply.replace(b":1", b":2")


def test_a_refusal_is_not_cut_where_the_key_shows_twice_or_in_the_hint() -> None:
    found = violation("A may not SET k", "its writers: king")
    assert around_key(found, refusal(found, "", "d-1")) is None
    other = found._replace(rule="key.legacy", shown="A may", hint="use cube:k")
    assert around_key(other, refusal(other, "", "d-1")) is None


def test_a_refusal_that_shows_no_key_stays_in_one_part() -> None:
    found = violation("A may not FLUSHALL")._replace(rule="command.forbidden", key=None, shown="")
    reply = refusal(found, "", "d-1")
    assert around_key(found, reply) == (reply,)
