"""The role in a reply to HELLO."""

from __future__ import annotations

import pytest

from keyfence.resp.role import MASTER, REPLICA, role_in


@pytest.mark.parametrize("role", [MASTER, REPLICA])
@pytest.mark.parametrize("start", [b"*4\r\n", b"%2\r\n"], ids=["resp2", "resp3"])
def test_the_role_is_found(role: str, start: bytes) -> None:
    reply = start + b"$5\r\nproto\r\n:2\r\n$4\r\nrole\r\n$%d\r\n%s\r\n" % (len(role), role.encode())
    assert role_in(reply) == role


@pytest.mark.parametrize("reply", [b"", b"-NOAUTH no\r\n", b"*2\r\n$4\r\nrole\r\n$5\r\nslave\r\n"])
def test_any_other_reply_names_no_role(reply: bytes) -> None:
    assert role_in(reply) == ""
