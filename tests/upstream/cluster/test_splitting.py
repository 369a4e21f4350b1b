"""A command whose keys are in several hash slots is cut by slot, and its reply is that of one Redis."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.commands.model import Streamed
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.resp import encode
from keyfence.resp.frames import FrameError
from keyfence.upstream.cluster.joining import Joined
from keyfence.upstream.cluster.splitting import SPLITTABLE, Split, in_order, split

KEYS = st.lists(
    st.sampled_from([b"{%d}:%d" % (slot, key) for slot in range(5) for key in range(3)]), min_size=1
)


def keys_of(request: bytes) -> list[bytes]:
    return request.split(b"\r\n")[2:-1:2][1:]


def value(key: bytes) -> bytes:
    """A string, or null for some keys."""
    return b"$-1\r\n" if key.endswith(b"2") else b"$%d\r\n%b\r\n" % (len(key), key)


def mget(keys: list[bytes]) -> bytes:
    return b"*%d\r\n%b" % (len(keys), b"".join(map(value, keys)))


def cut(*argv: bytes) -> Split:
    found = split(argv)
    assert found is not None
    return found


@settings(deadline=None)
@given(KEYS)
def test_each_part_has_one_hash_slot_and_each_key_is_in_one_part(keys: list[bytes]) -> None:
    found = split([b"del", *keys])
    slots = {hash_slot(key) for key in keys}
    if len(slots) < 2:
        assert found is None
        return
    assert found is not None
    assert {part.slot for part in found.parts} == slots
    assert len(found.parts) == len(slots)
    assert sorted(place for part in found.parts for place in part.places) == list(range(len(keys)))
    for part in found.parts:
        assert keys_of(part.request) == [keys[place] for place in part.places]
        assert {hash_slot(key) for key in keys_of(part.request)} == {part.slot}


@settings(deadline=None)
@given(KEYS)
def test_values_come_in_the_order_of_the_keys(keys: list[bytes]) -> None:
    found = split([b"MGET", *keys])
    if found is not None:
        replies = [mget(keys_of(part.request)) for part in found.parts]
        assert in_order(found, replies) == mget(keys)


@pytest.mark.parametrize("name", [b"DEL", b"unlink", b"Exists", b"TOUCH"])
def test_numbers_are_added(name: bytes) -> None:
    found = cut(name, b"{a}1", b"{b}1", b"{a}2", b"{b}1")
    assert [part.places for part in found.parts] == [(0, 2), (1, 3)]
    assert found.parts[0].request == encode.command(name, b"{a}1", b"{a}2")
    assert in_order(found, [b":2\r\n", b":1\r\n"]) == b":3\r\n"


@pytest.mark.parametrize("name", sorted(SPLITTABLE))
@pytest.mark.parametrize("error", [b"-ERR one\r\n", b"!7\r\nERR one\r\n"])
def test_an_error_of_a_part_is_the_answer(name: str, error: bytes) -> None:
    found = cut(name.encode(), b"a", b"b", b"c")
    fine = b"*1\r\n$-1\r\n" if name == "MGET" else b":1\r\n"
    assert in_order(found, [fine, error, b"-ERR two\r\n"]) == error


@pytest.mark.parametrize(
    "argv",
    [
        [],
        [b"MGET"],
        [b"MGET", b"a"],
        [b"MGET", b"{a}1", b"{a}2"],
        [b"MSET", b"a", b"1", b"b", b"2"],
        [b"GET", b"a"],
    ],
)
def test_what_needs_no_cut_or_bears_none_is_not_cut(argv: list[bytes]) -> None:
    assert split(argv) is None


def test_a_key_whose_end_is_not_there_is_not_cut() -> None:
    assert split([b"MGET", b"a", Streamed(b"b", 100_000)]) is None
    assert split([b"\xff", b"a", b"b"]) is None


def test_a_reply_with_too_few_values_is_no_reply() -> None:
    with pytest.raises(FrameError, match="more or fewer elements"):
        in_order(cut(b"MGET", b"a", b"b"), [b"*0\r\n", b"*1\r\n$-1\r\n"])


def test_only_commands_that_the_servers_call_so_are_cut_and_only_those_that_are_not_all_or_nothing() -> None:
    named = {row.command.name for row in COMMANDS.values() if row.tips.request == "multi_shard"}
    assert named - SPLITTABLE.keys() == {"MSET", "MSETEX", "MSETNX"}
    assert SPLITTABLE.keys() <= named


def test_the_replies_of_parts_come_in_any_order_and_are_bounded() -> None:
    found = cut(b"MGET", b"a", b"b", b"a")
    slots = [part.slot for part in found.parts]
    for limit, reply in ((1000, mget([b"a", b"b", b"a"])), (20, None)):
        joining = Joined("MGET", functools.partial(in_order, found), slots, limit)
        for part in reversed(found.parts):
            joining.came(part.slot, mget(keys_of(part.request)), True)
        assert joining.is_complete
        assert joining.reply() == reply if reply else b"longer than 20 bytes" in joining.reply()
