"""Where a node stands, as its reply to INFO replication says."""

from __future__ import annotations

import pytest

from keyfence.upstream.replicas.position import Position, position_in


def info(**fields: object) -> bytes:
    """The reply of a node with these fields."""
    text = "# Replication\r\n" + "".join(f"{name}:{value}\r\n" for name, value in fields.items())
    return f"${len(text)}\r\n{text}\r\n".encode()


PRIMARY = info(role="master", connected_slaves=1, master_replid="ab", master_repl_offset=70)
REPLICA = info(
    role="slave",
    master_link_status="up",
    slave_repl_offset=60,
    master_replid="ab",
    master_repl_offset=61,
)


def test_a_primary_and_its_replica_say_how_far_they_are() -> None:
    primary, replica = position_in(PRIMARY), position_in(REPLICA)
    assert primary == Position("master", "ab", 70, "it is a primary")
    assert replica == Position("slave", "ab", 60, "")
    assert primary.is_primary
    assert not replica.is_primary
    assert primary.includes(replica)
    assert not replica.includes(primary)


def test_nodes_of_different_histories_include_nothing_of_each_other() -> None:
    assert not position_in(PRIMARY).includes(position_in(REPLICA)._replace(history="cd"))


def test_a_replica_without_its_primary_is_not_read() -> None:
    cut_off = REPLICA.replace(b"status:up", b"status:down")
    assert position_in(cut_off).trouble == "its link to the primary is down"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"-NOPERM no permissions\r\n", "it answered NOPERM no permissions"),
        (info(role="master"), "it does not say how far its replication is"),
        (info(role="slave", master_replid="ab", slave_repl_offset="x"), "it does not say"),
        (b"+OK\r\n", "it does not say"),
    ],
)
def test_a_node_that_does_not_say_it_is_no_guess(reply: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        position_in(reply)
