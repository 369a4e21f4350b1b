"""A session is the same asker until its login, database, names, transaction or policy changes."""

from __future__ import annotations

import pytest

from keyfence.policy.engine.authorizer import InForce
from tests.session.sessions import ADMITTED, authorizer_with, cmd, observed, policy, session

OK = b"+OK\r\n"


def test_commands_that_change_nothing_come_from_one_asker() -> None:
    one = session()
    first = one.asker()
    one.from_client(ADMITTED + cmd("GET nobody:1"))
    one.from_upstream(b"*0\r\n")
    assert one.asker() is first
    assert first.service == policy().number("CubeProxy")
    assert (first.database, first.transaction, first.peer.address) == (0, None, "10.0.0.9:5")


@pytest.mark.parametrize(
    ("request_", "attribute", "value"),
    [
        (cmd("AUTH master pw"), "service", policy().number("CubeMaster")),
        (cmd("SELECT 3"), "database", 3),
        (cmd("CLIENT SETNAME me"), "peer", None),
    ],
)
def test_a_reply_ok_makes_another_asker(request_: bytes, attribute: str, value: int | None) -> None:
    one = observed()
    first = one.asker()
    one.from_client(request_)
    assert one.asker() is first
    one.from_upstream(OK)
    found = one.asker()
    assert found is not first
    if value is None:
        assert found.peer.name == "me"
    else:
        assert getattr(found, attribute) == value
    assert found.sender is first.sender
    one.from_client(cmd("RESET"))
    one.from_upstream(b"+RESET\r\n")
    assert (one.asker().service, one.asker().database, one.asker().peer) == (first.service, 0, first.peer)


@pytest.mark.parametrize("end", ["EXEC", "DISCARD"])
def test_a_transaction_has_an_asker_of_its_own(end: str) -> None:
    one = session()
    first = one.asker()
    one.from_client(cmd("MULTI"))
    one.from_upstream(OK)
    inside = one.asker()
    assert one.transaction is not None
    assert inside.transaction is one.transaction.evaluated
    assert one.asker() is inside
    one.from_client(cmd(end))
    one.from_upstream(OK)
    assert one.asker().transaction is None
    assert (one.asker().service, one.asker().sender) == (first.service, first.sender)


def test_another_policy_makes_another_asker_but_not_within_a_transaction() -> None:
    holder = InForce(authorizer_with())
    one = session(in_force=holder)
    first = one.asker()
    one.from_client(cmd("MULTI"))
    one.from_upstream(OK)
    inside = one.asker()
    holder.authorizer = authorizer_with()
    assert one.asker() is inside
    one.from_client(cmd("DISCARD"))
    one.from_upstream(OK)
    assert one.asker() is not first
