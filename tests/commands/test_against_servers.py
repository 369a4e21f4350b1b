"""`extract` agrees with live servers' COMMAND GETKEYS, COMMAND GETKEYSANDFLAGS and ACL DRYRUN."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from redis.exceptions import ResponseError

from keyfence.commands.arguments import glob_escape, integer, word
from keyfence.commands.extract import extract
from keyfence.commands.model import READ, WRITE
from tests.commands.calls import GRAMMATICAL, NAMES, TRICKY, Argv, calls
from tests.commands.conftest import Live

live = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

COUNT_AT = {
    **dict.fromkeys(b"EVAL EVALSHA EVAL_RO EVALSHA_RO FCALL FCALL_RO BLMPOP BZMPOP".split(), 2),
    **dict.fromkeys(b"ZUNIONSTORE ZINTERSTORE ZDIFFSTORE".split(), 2),
    **dict.fromkeys(b"MSETEX LMPOP ZMPOP SINTERCARD ZINTERCARD ZUNION ZINTER ZDIFF".split(), 1),
}
SORT_OPTIONS = frozenset({b"STORE", b"GET", b"BY", b"LIMIT"})
BY_OPTIONS = frozenset(b"GEORADIUS GEORADIUSBYMEMBER SORT MIGRATE XREAD XREADGROUP STRALGO".split())
# Redis 6.2 returns the third argument for all subcommands of these, although only some take a key.
CONTAINERS_6 = frozenset(b"OBJECT XGROUP XINFO MEMORY".split())


# Servers say that these only check existence.
CONTENT = frozenset(b"HEXISTS HLEN HSTRLEN LLEN MEMORY OBJECT SCARD SISMEMBER STRLEN XLEN ZCARD".split())


class Difference(NamedTuple):
    """Why the server's GETKEYS differs from the command's accesses, and whether all its keys are touched."""

    reason: str
    is_part: bool


def known_difference(server: Live, argv: Argv) -> Difference | None:
    """The complete list of differences between `extract` and the servers' GETKEYS."""
    name = word(argv[0])
    words = [word(argument) for argument in argv]
    if name in (b"GEORADIUS", b"GEORADIUSBYMEMBER"):
        if sum(w in (b"STORE", b"STOREDIST") for w in words[5:]) > 1:
            return Difference(
                "names the first STORE and STOREDIST; the command writes the last of all", False
            )
        if name == b"GEORADIUS" and set(words[5:6]) & {b"STORE", b"STOREDIST"}:
            return Difference("takes the unit for an option; the command answers an error", False)
    if name == b"MIGRATE" and server.version.startswith("6") and words[6:].count(b"KEYS") > 1:
        return Difference("takes the first word KEYS, even where it is a password", False)
    if name == b"XREADGROUP" and words[4:].count(b"STREAMS") > 1:
        return Difference("takes the first word STREAMS, even where it is the consumer's name", False)
    if name == b"SORT" and any(w == b"STORE" and after in SORT_OPTIONS for w, after in pairwise(words)):
        return Difference("takes a destination named like an option for one; the command does not", False)
    if name == b"STRALGO" and words[1] != b"LCS":
        return Difference("does not look at the algorithm; one that nobody knows is a problem", False)
    if name == b"PFMERGE" and len(argv) == 2:
        return Difference(
            "finds no source, and drops the destination with it; the command still writes it", False
        )
    if server.version.startswith("6") and name in CONTAINERS_6:
        return Difference("names a key for every subcommand, HELP too", False)
    if name in COUNT_AT:
        at = COUNT_AT[name]
        count = integer(argv[at]) if at < len(argv) else None
        if name == b"MSETEX" and count is not None:
            count *= 2  # a value after each key
        if count is None or not 0 < count <= len(argv) - at - 1:
            return Difference("reads numkeys with atoi; the command itself answers an error", True)
    if name in BY_OPTIONS and runs_nowhere(server.transacted(argv)):
        return Difference("it is an error, so every place that may hold a key is taken", True)
    return None


def runs_nowhere(reply: Any) -> bool:
    return isinstance(reply, ResponseError) and not str(reply).startswith(("NOGROUP", "WRONGTYPE"))


def needs_difference(argv: Argv) -> str:
    """Why the server's flags differ from the command's effect, if they do."""
    name = word(argv[0])
    if name == b"XREADGROUP":
        return "flagged read-only, but it writes the group's state"
    if name in (b"XCLAIM", b"XAUTOCLAIM"):
        return "flagged as not reading, but it answers the entries, or their IDs"
    if name in CONTENT:
        return "flagged as not reading, but its reply depends on what the key holds"
    if name == b"ZADD":
        return "flagged as not reading, but with INCR it answers the score"
    if name == b"GETEX" and len(argv) == 2:
        return "flagged as a write, but without options it is a GET"
    if name == b"HGETEX":
        return "flagged as a write, but without options it is an HMGET"
    if name in (b"DELEX", b"DELIFEQ"):
        return "flagged as not reading, but with a condition it tells whether the value is this one"
    if name.startswith(b"V") and extract(argv).command.flags >= {"module", "readonly"}:  # type: ignore[union-attr]
        return "flagged as a write, which Redis does to all keys of a module that says nothing better"
    if name == b"MIGRATE":
        return "flagged as a write, but with COPY it is not"
    return ""


def needs_of_flags(flags: list[bytes]) -> int:
    read = READ if b"access" in flags else 0
    return read | WRITE if {b"insert", b"update", b"delete"} & set(flags) else read


def compare_keys(server: Live, argv: Argv, theirs: list[bytes]) -> None:
    ours = Counter(access.key for access in extract(argv).accesses)
    difference = known_difference(server, argv)
    if difference is None:
        assert ours == Counter(theirs), argv
    elif difference.is_part:
        assert Counter(theirs) <= ours, (argv, difference)


def has_no_keys(reply: Any) -> bool:
    return isinstance(reply, ResponseError) and "no key arguments" in str(reply)


def check_with_flags(server: Live, argv: Argv) -> None:
    reply = server("COMMAND", "GETKEYSANDFLAGS", *argv)
    if has_no_keys(reply) and word(argv[0]) not in (b"DEBUG",):
        assert not extract(argv).accesses, argv
    if isinstance(reply, ResponseError):
        return
    theirs = [(bytes(key), needs_of_flags(flags)) for key, flags in reply]
    compare_keys(server, argv, [key for key, _ in theirs])
    if not known_difference(server, argv) and not needs_difference(argv):
        ours = [(access.key, access.needs & (READ | WRITE)) for access in extract(argv).accesses]
        assert Counter(ours) == Counter(theirs), argv


def check_with_redis6(server: Live, argv: Argv) -> None:
    reply = server("COMMAND", "GETKEYS", *argv)
    if isinstance(reply, list):
        compare_keys(server, argv, [bytes(key) for key in reply])


def check_dryrun(server: Live, argv: Argv) -> None:
    """The ACL allows the command with exactly the needed rights on each key, and refuses it without one."""
    accesses = extract(argv).accesses
    if not accesses or known_difference(server, argv) or needs_difference(argv):
        return
    if any(b"\0" in access.key for access in accesses):  # an ACL pattern cannot hold it
        return
    needs: dict[bytes, int] = {}
    for access in accesses:
        needs[access.key] = needs.get(access.key, 0) | access.needs
    if server_says(server, argv, needs) != b"OK":
        # DRYRUN gives no answer for a wrong number of arguments or a wrong count of keys.
        assert server_says(server, argv, None) != b"OK", argv
        return
    for key, need in needs.items():
        others = {other: its for other, its in needs.items() if other != key}
        assert server_says(server, argv, others) != b"OK", (argv, key)
        for held in (READ, WRITE):
            if need & ~held & (READ | WRITE):
                assert server_says(server, argv, {**needs, key: held}) != b"OK", (argv, key, held)


def server_says(server: Live, argv: Argv, needs: dict[bytes, int] | None) -> Any:
    """The reply of ACL DRYRUN with these rights, or with all rights for None."""
    rights = {0: b"%R~", READ: b"%R~", WRITE: b"%W~", READ | WRITE: b"%RW~"}
    if needs is None:
        patterns = [b"~*"]
    else:
        patterns = [rights[need & (READ | WRITE)] + glob_escape(key) for key, need in needs.items()]
    assert server("ACL", "SETUSER", "tester", "reset", "+@all", "&*", *patterns) == b"OK"
    return server("ACL", "DRYRUN", "tester", *argv)


@pytest.mark.parametrize("argv_of", [GRAMMATICAL, calls(TRICKY)], ids=["well-formed", "broken"])
def test_tricky_commands_have_the_keys_and_needs_of_newer_servers(newer: Live, argv_of: Any) -> None:
    names = newer.names()

    @live
    @given(argv=argv_of)
    def check(argv: Argv) -> None:
        if argv[0] in names:
            check_with_flags(newer, argv)

    check()


@pytest.mark.parametrize("argv_of", [GRAMMATICAL, calls(TRICKY)], ids=["well-formed", "broken"])
def test_tricky_commands_have_the_keys_of_redis_6(redis6: Live, argv_of: Any) -> None:
    names = redis6.names()

    @live
    @given(argv=argv_of)
    def check(argv: Argv) -> None:
        if argv[0] in names:
            check_with_redis6(redis6, argv)

    check()


def every_command(server: Live) -> list[bytes]:
    """The server's own list of commands, all of which must be in the table."""
    names = server.names()
    assert names <= set(NAMES) | {name for name in names if b" " not in name}
    return sorted(names & set(NAMES))


def test_every_command_has_the_keys_and_needs_of_newer_servers(newer: Live) -> None:
    for name in every_command(newer):

        @settings(live, max_examples=12)
        @given(argv=calls([name]))
        def check(argv: Argv) -> None:
            check_with_flags(newer, argv)

        check()


def test_every_command_has_the_keys_of_redis_6(redis6: Live) -> None:
    for name in every_command(redis6):

        @settings(live, max_examples=12)
        @given(argv=calls([name]))
        def check(argv: Argv) -> None:
            check_with_redis6(redis6, argv)

        check()


def test_newer_servers_refuse_a_user_without_one_of_the_keys_or_needs(newer: Live) -> None:
    names = newer.names()

    @live
    @given(argv=GRAMMATICAL)
    def check(argv: Argv) -> None:
        if argv[0] in names:
            check_dryrun(newer, argv)

    check()
    for name in every_command(newer):

        @settings(live, max_examples=3)
        @given(argv=calls([name]))
        def check_one(argv: Argv) -> None:
            check_dryrun(newer, argv)

        check_one()
