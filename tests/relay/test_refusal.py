"""How a refusal reads."""

from __future__ import annotations

from proxy.policy.verdict import Violation
from proxy.relay.refusal import refusal


def violation(message: str, hint: str = "") -> Violation:
    return Violation("scope.write", "must", 1, b"k", "k", "", "", message, hint)


def test_a_refusal_is_rule_who_what_remedy_contact_and_id() -> None:
    text = refusal(violation("CubeProxy may not SET k", "its writers: CubeMaster"), "#cube", "d-1")
    assert text == (
        b"-NOPERM [scope.write] CubeProxy may not SET k; its writers: CubeMaster. Ask #cube. (d-1)\r\n"
    )


def test_what_is_not_known_is_left_out() -> None:
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
