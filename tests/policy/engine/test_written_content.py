"""Values, fields and elements in the decision cache: what it admits unread, compared with the evaluator.

Rule: the cache admits a request unread exactly if it admits the parsed request, and only if the evaluator
finds no violation.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.decision_cache import DecisionCache
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.resp.encode import command
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.requests import PLACES, RequestReader

from .test_decision_cache import ALL, admitted, admitted_unread, agree, evaluated_and_counted, found_unread

# An entry of each kind of content, and each of its commands.
CONTENTS = """
policy: contents
services: [app]
placeholders: {id: "[a-z0-9]{1,8}", port: "[0-9]{1,5}", tag: "[a-z]{1,4}(-[a-z]{1,4})?"}
should: [field.unknown]
scopes: {all: {prefix: "c:", writers: app}}
keys:
  route:
    key: "c:route:<id>"
    type: hash
    fields: {ip: ip, n: integer, at: any, "<port>": "<port>", "x-<tag>": json}
  exact: {key: "c:exact:<id>", type: hash, fields: {HostIP: ip, "<id>": integer}, field_case: exact}
  small: {key: "c:small:<id>", type: hash, fields: {a: number, b: date}, max_value: 12b, max_fields: 3}
  plain: {key: "c:plain:<id>", type: hash, max_value: 4b, max_fields: 2}
  state: {key: "c:state:<id>", type: string, values: [on, off, ""], ttl: {max: 1h, at: write}}
  token: {key: "c:token:<id>", type: string, values: uuid, max_value: 40b}
  blob: {key: "c:blob:<id>", type: string, max_value: 8b}
  tags: {key: "c:tags:<id>", type: set, members: "<tag>", max_members: 3}
  queue: {key: "c:queue:<id>", type: list, members: json, max_value: 30b}
  board: {key: "c:board:<id>", type: zset, members: "[a-z]+", scores: "0..100", max_members: 2}
  geo: {key: "c:geo:<id>", type: zset, members: "<id>"}
  events:
    key: "c:events:<id>"
    type: stream
    maxlen: "~1000"
    fields: {op: [create, delete], at: epoch, body: json}
  any: {key: "c:any:<id>", values: integer, members: integer, fields: {a: integer}}
"""
EVALUATOR = Evaluator(parse_policy(CONTENTS))
AUTHORIZER = Authorizer(EVALUATOR.policy, Modes([ModeRule("observe")], EVALUATOR.policy.services))
CACHE = DecisionCache(EVALUATOR, 0, ALL)

# Commands that the policy allows. Every path of the cache has one.
ALLOWED = [
    text.split(b" ")
    for text in (
        b"HSET c:route:1 ip 10.0.0.7",
        b"HSET c:route:1 ip 10.0.0.7 n 5 at x 8080 9090 x-a-b {}",
        b"HMSET c:route:1 ip ::1",
        b"HSETNX c:route:1 n -5",
        b"HINCRBY c:route:1 n 1",
        b"HINCRBYFLOAT c:route:1 n 1.5",
        b"HSET c:exact:1 HostIP 1.2.3.4 other 1",
        b"HSET c:small:1 a 1.5 b 20240229",
        b"HSET c:plain:1 x 1 y 1234",
        b"SET c:state:1 on EX 60",
        b"set c:state:1 off ex 60 nx",
        b"SET c:state:1  PX 60000",
        b"SETEX c:state:1 60 on",
        b"PSETEX c:state:1 60000 off",
        b"SET c:token:1 123e4567-e89b-12d3-a456-426614174000",
        b"SETNX c:token:1 123e4567-e89b-12d3-a456-426614174000",
        b"GETSET c:token:1 123e4567-e89b-12d3-a456-426614174000",
        b"SET c:blob:1 12345678",
        b"SADD c:tags:1 a b-c d",
        b'LPUSH c:queue:1 {"a":1} [1,2,[3,[4]]]',
        b"RPUSH c:queue:1 1",
        b"LPUSHX c:queue:1 null",
        b"RPUSHX c:queue:1 true",
        b"LSET c:queue:1 0 1.5",
        b'LINSERT c:queue:1 BEFORE x "b"',
        b"ZADD c:board:1 1 a 2.5 b",
        b"ZADD c:board:1 NX CH 100 a",
        b"ZADD c:board:1 INCR 500 a",
        b"ZADD c:board:1 1e1 a",
        b"ZINCRBY c:board:1 5 a",
        b"GEOADD c:geo:1 1 2 m 3 4 n",
        b"GEOADD c:geo:1 NX 1 2 m",
        b"XADD c:events:1 MAXLEN ~ 1000 * op create at 1732000000",
        b"XADD c:events:1 MAXLEN = 10 * body {}",
        b"SET c:any:1 5",
        b"SADD c:any:1 5 6",
        b"HSET c:any:1 a 5",
        b"APPEND c:any:1 5",
        b"EXPIRE c:state:1 60",
        b"SETRANGE c:any:1 5 x",
    )
]
BAD = st.sampled_from(
    [
        *(b"", b"\0", b"\r\n", b"x\r\n$1", b"\xff", b"0" * 41, b"x" * 300),
        *b"-1 101 NX nx ON ip IP hostip INCR * a- 5 1.5 [[[1]]] EX 60".split(),
    ]
)


def is_same_either_way(argv: list[bytes]) -> bool:
    """Looks a command up in both ways, and compares the answers. Returns whether it is admitted."""
    agree(EVALUATOR, 0, argv, CACHE)
    parsed = admitted(CACHE, argv)
    unread = admitted_unread(CACHE, argv)
    assert unread is None or unread is parsed
    return unread is not None


def test_every_allowed_command_is_admitted_unread() -> None:
    """Otherwise the comparisons below would be empty."""
    assert [argv for argv in ALLOWED if EVALUATOR.decide(0, argv).violations] == []
    assert [argv for argv in ALLOWED if not is_same_either_way(argv)] == []


@settings(max_examples=1500)
@given(st.data())
def test_a_changed_command_is_admitted_only_if_it_breaks_no_rule(data: st.DataObject) -> None:
    argv = list(data.draw(st.sampled_from(ALLOWED)))
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(2, len(argv)))
        change = data.draw(st.sampled_from(["replace", "insert", "append", "remove", "byte"]))
        word = argv[at] if at < len(argv) else b""
        new = data.draw(BAD)
        if change == "byte":
            place = data.draw(st.integers(0, len(word)))
            new = word[:place] + new[:1] + word[place + data.draw(st.integers(0, 1)) :]
        argv[at : at + (change != "insert")] = [] if change == "remove" else [new]
    allowed = not EVALUATOR.decide(0, argv).violations
    is_admitted = is_same_either_way(argv)
    assert allowed or not is_admitted
    unread = found_unread(CACHE, argv)
    is_plain = unread is not None and not unread.faults  # its options are known
    assert is_admitted == allowed or not is_plain or argv[0] in (b"APPEND", b"LSET", b"LINSERT")


@settings(max_examples=500)
@given(st.sampled_from(ALLOWED), st.integers(2, 12), BAD)
def test_a_counted_command_has_its_counters_violations(argv: list[bytes], at: int, new: bytes) -> None:
    changed = list(argv)
    changed[min(at, len(argv) - 1)] = new
    for _ in range(2):
        evaluated_and_counted(AUTHORIZER, 0, changed)


@given(st.sampled_from(ALLOWED), st.integers(1, 300))
def test_a_request_in_two_pieces_is_never_read_beyond_the_first(argv: list[bytes], cut: int) -> None:
    data = command(*argv)
    cut %= len(data)
    reader = RequestReader(IDENTIFIED)
    reader.feed(data[:cut])
    assert not reader.peek()
    reader.feed(data[cut:])
    assert reader.peek()
    decision = admitted(CACHE, argv)
    lookup = CACHE.find_unread(reader.data(), PLACES, reader.count, ())
    assert decision is (lookup.decision if lookup is not None else None)


@pytest.mark.parametrize("name", [b"HSET", b"SADD", b"ZADD"])
def test_a_command_with_more_arguments_than_are_peeked_is_parsed(name: bytes) -> None:
    pair = {b"HSET": b" at x", b"SADD": b" 5", b"ZADD": b" 5 6"}[name]
    key = b" c:route:1" if name == b"HSET" else b" c:any:1"
    for count in range(20, 70):
        argv = (name + key + pair * count).split()
        if name == b"ZADD":
            argv[2:] = [b"1", b"6"] * count
        assert admitted(CACHE, argv) is not None
        assert (found_unread(CACHE, argv) is not None) == (len(argv) <= len(PLACES) // 2)


def test_forms_that_take_turns_stay_unread() -> None:
    """Each command keeps several forms at hand, not only the last one."""
    cache = DecisionCache(EVALUATOR, 0, ALL)
    turns = [
        text.split()
        for text in (
            b"SET c:state:1 on EX 60 NX",
            b"SET c:state:1 off EX 60",
            b"SET c:blob:1 x",
            b"EXPIRE c:state:1 60",
            b"EXPIRE c:state:1 600",
            b"HSET c:any:1 a 5",
            b"HGET c:any:1 a",
            b"HDEL c:any:1 a",
            b"XADD c:events:1 MAXLEN ~ 1000 * op create",
        )
    ]
    for argv in turns:
        assert admitted(cache, argv) is not None
    assert [argv for argv in turns * 2 if admitted_unread(cache, argv) is None] == []
