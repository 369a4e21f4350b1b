"""A line of the command log is bounded, says what it lacks, and holds only arguments of a known kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from keyfence.commands.extract import extract
from keyfence.commands.model import READ, Access, Streamed, Touches, sequence
from keyfence.commands.table import COMMANDS
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.wording.command_log import MAX_LINE, MAX_NAME, MAX_NAMES, as_line, from_line

TEXT = """policy: p
services: [one]
placeholders: {id: "[a-z]{1,9}"}
scopes: {s: {prefix: "a:", writers: [one]}}
keys: {cart: {key: "a:cart:<id>"}}
"""
PLAIN = parse_policy(TEXT)

HIDING = parse_policy(
    TEXT.replace('}"}', '}", token: {is: "[a-z0-9]{8,64}", secret: true}}').replace(
        "cart: {", 'session: {key: "a:session:<token>"}, cart: {', 1
    )
)
SECRET = b"hunter2-is-the-password"
CARD = b"4111111111111111"  # a value that is an integer
CENTURY = 100 * 365 * 86_400  # seconds


def line(*argv: bytes, policy: Any = PLAIN) -> dict[str, Any]:
    return as_line(policy, "one", list(argv), extract(list(argv)), 1)


def test_a_command_of_few_names_is_whole() -> None:
    keys = [b"a:cart:%d" % number for number in range(MAX_NAMES)]
    kept = line(b"MGET", *keys)
    assert "cut" not in kept
    assert [access.key for access in from_line(kept).touches.accesses] == keys
    assert not from_line(kept).is_cut


@pytest.mark.parametrize(
    "argv",
    [
        [b"MGET", *[b"k%d" % number for number in range(200_000)]],
        [b"DEL", *[b"\xff" * 900] * 3000],
        [b"HSET", b"k", *[b"f", b"v"] * 5000],
        [b"SUNIONSTORE", b"k", *[b"s"] * 5000],
        [b"SUBSCRIBE", *[b"c" * 500] * 5000],
        [b"EVAL", b"return 1", b"5000", *[b"k"] * 5000],
        [b"SORT", b"k", *[b"GET", b"x_*"] * 5000],
        [b"GET", b"k" * 400_000],
        [b"GET", b"\xff" * MAX_NAME],
        [b"SCAN", b"0", b"MATCH", b"x*" * 100_000],
        [b"EVALSHA", b"x" * 100_000, b"1", b"k"],
        [b"MSET", *[b"\x00" * 1000, b"v"] * 200],
    ],
    ids=lambda argv: argv[0].decode(),
)
@pytest.mark.parametrize("policy", [PLAIN, HIDING], ids=["plain", "secrets"])
def test_no_line_is_longer_than_its_bound_whatever_the_command(argv: list[bytes], policy: Any) -> None:
    kept = line(*argv, policy=policy)
    assert len(json.dumps(kept)) <= MAX_LINE
    from_line(json.loads(json.dumps(kept)))


@pytest.mark.parametrize(
    "argv",
    [
        [b"MGET", *[b"k%d" % number for number in range(MAX_NAMES + 1)]],
        [b"GET", b"k" * (MAX_NAME + 1)],
        [b"GET", Streamed(b"k" * 256, 100_000)],
        [b"HSET", b"k", *[b"f", b"v"] * MAX_NAMES],
        [b"HSET", b"k", b"f" * 200, b"v"],
        [b"SUBSCRIBE", *[b"c"] * (MAX_NAMES + 1)],
        [b"SCAN", b"0", b"MATCH", b"x" * 200],
        [b"SCAN", b"0", b"MATCH", b"x\\*"],
    ],
    ids=lambda argv: argv[0].decode(),
)
def test_a_line_without_the_whole_command_says_so(argv: list[bytes]) -> None:
    assert from_line(line(*argv)).is_cut


def test_a_line_looks_at_no_more_of_a_command_than_it_holds() -> None:
    made = 0

    def accesses() -> Iterator[Access]:
        nonlocal made
        for number in range(200_000):
            made += 1
            yield Access(number + 1, b"k%d" % number, READ)

    touches = Touches(COMMANDS[b"MGET"].command, sequence(200_000, accesses))
    kept = as_line(PLAIN, "one", [b"MGET"] * 200_001, touches, 1)
    assert made <= 3 * MAX_NAMES
    assert (kept["cut"], kept["arguments"], len(kept["accesses"])) == (True, 200_001, MAX_NAMES)


def test_a_pattern_that_an_older_version_cut_or_masked_is_not_the_whole_one() -> None:
    kept = line(b"SCAN", b"0", b"MATCH", b"x*")
    assert not from_line(kept).is_cut
    for glob in ("x" * 128 + "…", "a:<masked>", "a\\\\*"):
        assert from_line({**kept, "pattern": [3, glob]}).is_cut


@pytest.mark.parametrize(
    "argv",
    [
        [b"SETEX", b"k", SECRET, b"60"],
        [b"PSETEX", b"k", SECRET, b"60"],
        [b"SET", b"k", b"60", b"EX", SECRET],
        [b"GETEX", b"k", b"PX", SECRET],
        [b"EXPIRE", b"k", SECRET],
        [b"RESTORE", b"k", SECRET, b"0"],
        [b"XADD", b"k", b"MAXLEN", SECRET, b"*", b"f", b"v"],
        [b"EVALSHA", SECRET, b"1", b"k"],
        [b"FCALL", SECRET, b"1", b"k"],
        [b"SELECT", SECRET],
        [b"HSET", b"k", b'{"password": "' + SECRET + b'"}', b"f"],
        [b"HSET", b"k", b"the password is " + SECRET, b"f"],
        [b"OBJECT", SECRET, b"k"],
        [SECRET, b"k"],
    ],
    ids=lambda argv: argv[0].decode(),
)
def test_a_value_in_the_place_of_another_argument_is_not_kept(argv: list[bytes]) -> None:
    kept = json.dumps(line(*argv))
    assert "hunter2" not in kept.lower()


@pytest.mark.parametrize(
    "argv",
    [
        [b"SETEX", b"k", CARD, b"60"],
        [b"PSETEX", b"k", CARD, b"60"],
        [b"SET", b"k", b"60", b"EX", CARD],
        [b"SET", b"k", b"60", b"PXAT", CARD],
        [b"SET", b"k", b"60", b"EX", b"9" + CARD],  # too large for Redis
        [b"GETEX", b"k", b"PX", CARD],
        [b"EXPIRE", b"k", b"-" + CARD],
        [b"EXPIREAT", b"k", CARD],
        [b"RESTORE", b"k", CARD, b"0"],
        [b"XADD", b"k", b"MAXLEN", b"~", CARD, b"*", b"f", b"v"],
        [b"XADD", b"k", b"MAXLEN", b"~", CARD, b"LIMIT", b"5", b"*", b"f", b"v"],
        [b"SELECT", CARD],
        [b"MOVE", b"k", CARD],
        [b"COPY", b"k", b"l", b"DB", CARD],
    ],
    ids=lambda argv: b" ".join(argv).decode(),
)
def test_a_number_that_can_be_no_time_no_length_and_no_database_is_not_kept(argv: list[bytes]) -> None:
    kept = line(*argv)
    assert CARD.decode() not in json.dumps(kept)
    assert from_line(kept).is_cut


@pytest.mark.parametrize(
    ("argv", "more"),
    [
        ([b"SETEX", b"k", b"%d" % CENTURY, b"v"], b"%d" % (CENTURY + 1)),
        ([b"PEXPIRE", b"k", b"%d" % (CENTURY * 1000)], b"%d" % (CENTURY * 1000 + 1)),
        ([b"EXPIRE", b"k", b"-1"], b"-%d" % (CENTURY + 1)),
        ([b"EXPIREAT", b"k", b"4294967295"], b"%d" % (2 * CENTURY + 1)),
        ([b"RESTORE", b"k", b"0", b"v"], b"%d" % (CENTURY * 1000 + 1)),
    ],
    ids=lambda one: b" ".join(one).decode() if isinstance(one, list) else "",
)
def test_a_time_of_up_to_a_hundred_years_is_kept(argv: list[bytes], more: bytes) -> None:
    kept = from_line(line(*argv))
    assert kept.argv[2] == argv[2].decode()
    assert kept.touches.accesses[0].ttl == extract(argv).accesses[0].ttl
    assert not kept.is_cut
    argv[2] = more
    beyond = from_line(line(*argv))
    ttl = beyond.touches.accesses[0].ttl
    assert (beyond.argv[2], beyond.is_cut) == ("?", True)
    assert ttl is not None
    assert ttl.milliseconds is None


def test_one_word_in_the_place_of_a_name_is_kept_as_this_name() -> None:
    """docs/operations.md says so: nothing tells such a word from a name."""
    field, function = line(b"HSET", b"k", b"hunter2", b"f"), line(b"FCALL", b"hunter2", b"1", b"k")
    assert field["accesses"][0]["content"]["fields"] == [[2, "hunter2"]]
    assert function["script"][2] == "hunter2"


def test_times_and_lengths_are_kept() -> None:
    assert line(b"SETEX", b"k", b"60", b"v")["argv"] == ["SETEX", "k", "60", "?"]
    assert line(b"XADD", b"k", b"MAXLEN", b"100", b"*", b"f", b"v")["argv"][3] == "100"


@pytest.mark.parametrize(
    "argv",
    [
        [b"GET", b"a:session:hunter22"],
        [b"GET", b"a:session:Hunter22"],
        [b"MGET", b"a:cart:b", b"a:session:hunter22"],
        [b"SUBSCRIBE", b"__keyspace@0__:a:session:hunter22"],
        [b"FCALL", b"hunter22", b"1", b"a:cart:b"],
    ],
    ids=lambda argv: argv[0].decode(),
)
def test_a_line_says_that_other_text_replaces_a_secret(argv: list[bytes]) -> None:
    assert from_line(line(*argv, policy=HIDING)).is_masked
    assert not from_line(line(*argv)).is_masked


def test_a_line_without_a_secret_is_not_masked() -> None:
    assert "masked" not in line(b"MGET", b"a:cart:b", b"a:cart:c", policy=HIDING)
