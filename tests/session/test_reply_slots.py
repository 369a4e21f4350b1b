"""The queue of reply slots."""

from __future__ import annotations

from keyfence.session.conversation.reply_slots import SLOT_BYTES, Forward, Inspect, Local, Replace, ReplySlots


def test_a_run_of_forwarded_requests_is_one_reply_slot() -> None:
    slots = ReplySlots()
    slots.forward(3)
    slots.forward(2)
    assert slots.awaited == 5
    run = slots.pop()
    assert isinstance(run, Forward)
    assert run.count == 5
    assert not slots


def test_a_local_reply_separates_two_runs() -> None:
    slots = ReplySlots()
    slots.forward(1)
    slots.add(Local(b"-no\r\n"))
    slots.forward(1)
    assert [type(slots.pop()) for _ in range(3)] == [Forward, Local, Forward]


def test_only_local_replies_whose_turn_has_come_are_ready() -> None:
    slots = ReplySlots()
    slots.add(Local(b"a"))
    slots.add(Local(b"b"))
    slots.forward(1)
    slots.add(Local(b"c"))
    assert slots.ready() == [b"a", b"b"]
    assert slots.ready() == []
    slots.pop()
    assert slots.ready() == [b"c"]


def test_waiting_bytes_and_due_replies_are_counted() -> None:
    slots = ReplySlots()
    slots.forward(2)
    slots.add(Local(b"12345"))
    slots.add(Replace(b"123"))
    slots.add(Inspect(lambda _: None))
    assert slots.held_bytes == 4 * SLOT_BYTES + 8
    assert slots.awaited == 4
    while slots:
        slots.pop()
    assert slots.held_bytes == 0
    assert slots.awaited == 0
    assert slots.head is None
