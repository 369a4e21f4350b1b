"""Waivers: reading and checking them, counting their uses, and the baseline made from a report."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from keyfence.commands.extract import extract
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.enforcement.baseline import baseline
from keyfence.policy.enforcement.modes import ModeRule, Modes, Waiver, as_waiver, best_waiver
from keyfence.policy.enforcement.waiver_keys import keys_of_shape, waived_keys, waiver_keys
from keyfence.policy.enforcement.waivers import due, read_waivers, uses, waiver_faults
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.patterns.globs import Glob
from keyfence.shapes.shapes import Shapes

TODAY = datetime.date(2026, 6, 15)
POLICY = parse_policy(
    'policy: p\nservices: [one, two]\nclaims: ["p:"]\nplaceholders: {id: "[a-z]+"}\n'
    'scopes: {s: {prefix: "p:s:", writers: one}}\nkeys: {k: {key: "p:s:k:<id>"}, l: {key: "p:s:l:<id>"}}\n'
    'legacy: {keys: {"old:<id>": k}}\nchannels: {news: {channel: "p:news", publishers: [one]}}\n'
)
GOOD = {"service": "two", "rule": "scope.write", "owner": "o", "reason": "r", "until": "2026-12-31"}


def text_of(*waivers: dict[str, str]) -> str:
    lines = ["waivers:"]
    for one in waivers:
        lines.append("  - {" + ", ".join(f"{name}: {value!r}" for name, value in one.items()) + "}")
    return "\n".join(lines) + "\n"


def faults(folder: Path, text: str) -> list[str]:
    file = folder / "w.yaml"
    file.write_text(text)
    try:
        waivers, source = read_waivers(file)
    except FileError as exc:
        found = exc.diagnostics
    else:
        found = waiver_faults(waivers, source, POLICY)
    return [str(one).removeprefix(f"{file}:") for one in found]


def row(**given: Any) -> dict[str, Any]:
    return {
        "service": "two",
        "rule": "scope.write",
        "severity": "must",
        "command": "SET",
        "entry": "k",
        "shape": "",
        "count": 5,
        "actions": {"waived": 5},
        "first": 1.0,
        "last": 9.0,
        "example": "p:s:k:a",
        "hint": "",
        **given,
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"entry": "k", "command": "set"}, []),
        ({"scope": "s", "command": "config  get"}, []),
        ({"entry": "news", "rule": "channel.write"}, []),
        ({"entry": "claim", "rule": "key.format"}, []),
        ({"command": "JSON.SET"}, []),
        ({"rule": "command.unknown", "command": "FROBNICATE"}, []),
        ({"service": "tow"}, ["2:15: error: 'tow' is not a service of the policy; did you mean two?"]),
        ({"rule": "scope.wirte"}, ["2:28: error: 'scope.wirte' is not a rule; did you mean scope.write?"]),
        ({"until": "soon"}, ["2:75: error: 'soon' is not a date; write it as 2027-06-30"]),
        (
            {"entry": "kk"},
            ["2:96: error: 'kk' is not an entry or channel of the policy; did you mean k?"],
        ),
        (
            {"entry": "s"},
            [
                "2:96: error: 's' is not an entry or channel of the policy; for keys of that scope that no "
                "entry covers, write scope: s"
            ],
        ),
        ({"scope": "k"}, ["2:96: error: 'k' is not a scope of the policy; write entry: k"]),
        ({"scope": "ss"}, ["2:96: error: 'ss' is not a scope of the policy; did you mean s?"]),
        (
            {"entry": "k", "scope": "s"},
            ["2:108: error: a key is of an entry, or of a scope and no entry; remove one of the two"],
        ),
        ({"command": "STE"}, ["2:98: error: 'STE' is not a command of Redis or Valkey; did you mean SETEX?"]),
        ({"owner": " "}, ["2:50: error: 'owner' is empty; write at least a word"]),
        ({"reson": "x"}, ["2:89: error: unknown key 'reson'; did you mean reason?"]),
    ],
)
def test_a_waiver_with_an_unknown_name_is_an_error(
    change: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    assert faults(tmp_path, text_of(GOOD | change)) == expected


def test_a_duplicate_waiver_is_an_error(tmp_path: Path) -> None:
    again = GOOD | {"owner": "else"}
    assert faults(tmp_path, text_of(GOOD, GOOD | {"command": "set"}, again, GOOD | {"command": "SET"})) == [
        "4:5: error: line 2 has the same waiver already; remove one",
        "5:5: error: line 3 has the same waiver already; remove one",
    ]


def test_a_waiver_needs_an_owner_a_reason_and_a_date(tmp_path: Path) -> None:
    bare = {"service": "two", "rule": "scope.write"}
    assert [one.split(": ")[-1] for one in faults(tmp_path, text_of(bare))] == [
        "'owner' is missing",
        "'reason' is missing",
        "'until' is missing",
    ]


def read(folder: Path, *waivers: dict[str, str]) -> Any:
    (folder / "w.yaml").write_text(text_of(*waivers))
    return read_waivers(folder / "w.yaml")[0]


def test_the_most_specific_waiver_counts_the_use(tmp_path: Path) -> None:
    listed = read(
        tmp_path,
        GOOD,
        GOOD | {"entry": "k"},
        GOOD | {"entry": "k", "command": "SET"},
        GOOD | {"entry": "l"},
        GOOD | {"until": "2026-06-14", "command": "DEL"},
        GOOD | {"until": "2026-06-20", "rule": "scope.read"},
    )
    rows = [
        row(),
        row(command="GETSET", actions={"waived": 2, "observed": 7}, last=11.0),
        row(entry="s", actions={"waived": 1}),
        row(rule="scope.read", actions={"waived": 1}),
        row(service="one"),
        row(command="HSET", actions={"observed": 1}),
    ]
    found = uses(listed, rows, TODAY)
    assert [(one.times, one.last, one.state) for one in found] == [
        (1, 9.0, "in use"),
        (2, 11.0, "in use"),
        (5, 9.0, "in use"),
        (0, None, "unused"),
        (0, None, "lapsed"),
        (1, 9.0, "ending"),
    ]
    assert [(one.times, one.state) for one in uses(listed[-2:], None, TODAY)] == [
        (None, "lapsed"),
        (None, "ending"),
    ]


@pytest.mark.parametrize(
    ("days", "state"), [(0, "too early"), (6, "too early"), (7, "unused"), (90, "unused")]
)
def test_a_waiver_is_unused_only_after_some_days(days: int, state: str, tmp_path: Path) -> None:
    since = datetime.datetime.combine(TODAY, datetime.time(), datetime.UTC) - datetime.timedelta(days=days)
    listed = read(tmp_path, GOOD, GOOD | {"until": "2026-06-14", "command": "DEL"}, GOOD | {"command": "SET"})
    found = uses(listed, [row()], TODAY, since)
    assert [one.state for one in found] == [state, "lapsed", "in use"]
    assert found[0].as_object()["since"] == since.timestamp()


def test_a_waiver_holds_on_its_last_day(tmp_path: Path) -> None:
    [one] = uses(read(tmp_path, GOOD | {"until": "2026-06-15"}), None, TODAY)
    assert one.state == "ending"


def test_what_is_due_is_what_has_lapsed_or_ends_soon(tmp_path: Path) -> None:
    near = {"2026-06-14": "ttl.required", "2026-06-15": "key.format", "2026-06-29": "type.mismatch"}
    given = [GOOD, *(GOOD | {"rule": rule, "until": until} for until, rule in near.items())]
    found = due(read(tmp_path, *given), TODAY)
    first = {"service": "two", "rule": "ttl.required", "until": "2026-06-14"}
    assert found == {"lapsed": 1, "ending": 2, "first": first}
    assert due(read(tmp_path, GOOD), TODAY) == {"lapsed": 0, "ending": 0, "first": None}


def test_a_baseline_covers_exactly_the_report(tmp_path: Path) -> None:
    rows = [
        row(actions={"observed": 5}),
        row(actions={"observed": 1, "refused": 2, "waived": 2}, command="DEL"),
        row(actions={"waived": 5}, command="HSET"),
        row(severity="should", actions={"observed": 5}),
        row(rule="key.unregistered", entry="", shape="jwt_active:<uuid>:<*>", example="jwt_active:x:y…"),
        row(rule="key.unregistered", entry="", shape="other", actions={"observed": 1}),
        row(rule="key.unregistered", entry="", shape="<*>:<*>", actions={"observed": 1}, example="a:b…"),
        row(rule="command.unknown", command="other", entry="", actions={"observed": 1}),
    ]
    rows[4]["actions"] = {"observed": 5}
    found = baseline(rows, "team: a", "known", datetime.date(2026, 12, 31))
    assert found.left == [
        "two, key.unregistered, SET other, for example p:s:k:a: 5 times",
        "two, key.unregistered, SET <*>:<*>, for example a:b…: 5 times",
    ]
    assert found.wide == [
        "two, command.unknown, any command: admits any command; seen: p:s:k:a",
        "two, key.unregistered, SET: admits any key jwt_active:<uuid>:<*>; seen: jwt_active:x:y…",
    ]
    assert found.text.splitlines() == [
        "# Violations that were known when this file was written. Remove a waiver once its cause is fixed.",
        "waivers:",
        '  - {service: two, rule: command.unknown, owner: "team: a", reason: known, '
        "until: 2026-12-31}  # 5 so far; admits more than the findings: any command",
        '  - {service: two, rule: key.unregistered, command: SET, keys: "jwt_active:<uuid>:<*>", '
        'owner: "team: a", reason: known, until: 2026-12-31}'
        "  # 5 so far; admits more than the findings: any key jwt_active:<uuid>:<*>",
        '  - {service: two, rule: scope.write, entry: k, command: DEL, owner: "team: a", reason: known, '
        "until: 2026-12-31}  # 3 so far",
        '  - {service: two, rule: scope.write, entry: k, command: SET, owner: "team: a", reason: known, '
        "until: 2026-12-31}  # 5 so far",
    ]
    assert faults(tmp_path, found.text) == []
    listed = read_waivers(tmp_path / "w.yaml")[0]
    assert [
        one.times
        for one in uses(listed, [row(**{**one, "actions": {"waived": 1}}) for one in rows[:5]], TODAY)
    ] == [
        0,
        1,
        1,
        2,
    ]


def test_a_key_seen_once_gets_a_waiver_for_that_key() -> None:
    rows = [row(entry="", rule="key.unregistered", shape="a:<*>", example="a:b?c", count=1, actions={})]
    found = baseline(rows, "o", "r", TODAY)
    assert 'keys: "a:b\\\\?c"' in found.text
    assert (found.wide, found.left) == ([], [])


def test_a_shape_that_does_not_match_its_key_is_not_used() -> None:
    """A key may contain text that looks like a placeholder."""
    rows = [row(entry="", rule="key.unregistered", shape="a:<int>", example="a:<int>", actions={})]
    assert 'keys: "a:\\\\<int>"' in baseline(rows, "o", "r", TODAY).text
    assert waiver_keys("a:\\<int>").matches(b"a:<int>")


def test_a_baseline_warns_where_it_opens_other_tenants_keys() -> None:
    hint = "the caller's own tenant: p:acme:k:a"
    rows = [row(rule="scope.read", command="GET", example="p:globex:k:a", hint=hint, actions={"observed": 5})]
    found = baseline(rows, "o", "r", TODAY)
    assert "admits more than the findings: the keys of any tenant" in found.text
    assert found.wide == ["two, scope.read, GET: admits the keys of any tenant; seen: p:globex:k:a"]


def test_each_unregistered_script_gets_its_own_waiver(tmp_path: Path) -> None:
    one, other = "9e6a55cff378f0e77ccf141b5cf64605b2f850a0", "0" * 40
    rows = [row(entry="", rule="script.unregistered", command="EVALSHA", shape=one, example="return 1")]
    rows[0]["actions"] = {"observed": 5}
    text = baseline(rows, "o", "r", TODAY).text
    assert f'script: "{one}"' in text
    assert faults(tmp_path, text) == []
    [waiver] = [one.waiver for one in read_waivers(tmp_path / "w.yaml")[0]]
    found = [
        best_waiver(
            [waiver], as_waiver("two", "script.unregistered", "", "EVALSHA", sha1, is_covered=False), b""
        )
        for sha1 in (one, other)
    ]
    assert found == [waiver, None]


def test_only_waivers_of_script_unregistered_name_a_script(tmp_path: Path) -> None:
    assert faults(tmp_path, text_of(GOOD | {"script": "0" * 40})) == [
        "2:97: error: only waivers of script.unregistered name a script; remove this"
    ]


@pytest.mark.parametrize("name", ["uid", "Int", "user_id", ""])
def test_an_unknown_placeholder_in_keys_is_an_error(name: str, tmp_path: Path) -> None:
    [fault] = faults(tmp_path, text_of(GOOD | {"keys": f"a:<{name}>"}))
    assert f"<{name}> is not a placeholder; write <uuid>, <ip>," in fault


def test_a_baseline_of_an_empty_report_is_a_valid_file(tmp_path: Path) -> None:
    found = baseline([], "o", "r", TODAY)
    assert found.left == []
    assert faults(tmp_path, found.text) == []


@given(st.text("ab:*?[<>\\", min_size=1, max_size=8))
def test_special_characters_of_a_shape_match_literally(literal: str) -> None:
    if "<*>" in literal:
        return
    keys = waiver_keys(keys_of_shape(f"{literal}:<int>"))
    assert keys.matches(f"{literal}:42".encode())
    assert not keys.matches(f"x{literal}:42".encode())
    assert not keys.matches(f"{literal}:42:x".encode())


@pytest.mark.parametrize(
    ("keys", "key", "expected"),
    [
        ("a:<uuid>", "a:585e0676-0782-4952-b1f4-7a5b8ad38c3e", True),
        ("a:<uuid>", "a:585e0676-0782-4952-b1f4-7a5b8ad38c3e:x", False),
        ("a:<uuid>:<int>", "a:585e0676-0782-4952-b1f4-7a5b8ad38c3e:17", True),
        ("a:<hex>", "a:0123456789abcdef", True),
        ("a:<hex>", "a:0123", False),
        ("a:<int>", "a:-1.5", True),
        ("a:<int>", "a:x", False),
        ("a:<id>", "a:x9Zk-_P1", True),
        ("a:<id>", "a:", False),
        ("a:<id>", "a:x:y", False),
        ("a:<*>:b", "a:word:b", True),
        ("a:<*>:b", "a:two:words:b", False),
        ("a:<*>-<*>:<*>", "a:b-c-d:e", True),
        ("a:*:<int>", "a:b:c:1", True),
        ("a:<more>", "a:", True),
        ("a:<date>", "a:2024-01-02T03:04:05.123Z", True),
        ("a:<ip>", "a:2001:db8::1", True),
        ("a:<mac>", "a:00:1b:44:11:3a:b7", True),
        ("a:<email>", "a:b.c@example.com", True),
        ("ac:stg:\\*", "ac:stg:*", True),
        ("ac:stg:\\*", "ac:stg:x", False),
    ],
)
def test_a_placeholder_matches_text_of_its_kind_within_a_segment(keys: str, key: str, expected: bool) -> None:
    assert waiver_keys(keys).matches(key.encode()) == expected


@given(st.text("ab:*?[]<>\\", max_size=8), st.text("ab:*<", min_size=1, max_size=8))
def test_a_glob_without_placeholders_matches_as_redis_does(glob: str, key: str) -> None:
    if "<*>" not in glob and glob:
        assert waiver_keys(glob).matches(key.encode()) == Glob(glob.encode()).matches(key.encode())


def test_matching_takes_time_linear_in_the_key_s_length() -> None:
    keys = waiver_keys("a:" + "<id>-" * 20 + "<int>")
    assert not keys.matches(b"a:" + b"a-" * 4_000 + b"x")
    assert keys.matches(b"a:" + b"a-" * 4_000 + b"1")


@given(st.lists(st.one_of(st.uuids().map(str), st.integers().map(str), st.text("abXY09-_.:", max_size=12))))
def test_the_keys_of_a_shape_match_the_key_that_it_came_from(pieces: list[str]) -> None:
    key = ":".join(["app", *pieces]).encode()
    shape = Shapes(trusting=True).shape(key)
    assert waiver_keys(keys_of_shape(shape)).matches(key), shape


def rulings(waivers: list[Waiver], service: str, command: str) -> list[tuple[str, str]]:
    modes = Modes([ModeRule("enforce")], POLICY.services, waivers)
    argv = [word.encode() for word in command.split()]
    ruling = Authorizer(POLICY, modes).rule(Asker(POLICY.number(service)), argv)
    assert extract(argv).command is not None
    return [(found.violation.rule, found.action) for found in ruling.findings]


def test_a_waived_violation_is_counted_and_never_refused() -> None:
    known = [Waiver("two", "scope.write", "k", "SET"), Waiver("two", "key.unregistered", keys="jwt:*")]
    assert rulings(known, "two", "SET p:s:k:a 1") == [("scope.write", "waived")]
    assert rulings(known, "two", "DEL p:s:k:a") == [("scope.write", "refused")]
    assert rulings(known, "two", "SET p:s:l:a 1") == [("scope.write", "refused")]
    assert rulings(known, "two", "GET jwt:a") == [("key.unregistered", "waived")]
    assert rulings(known, "two", "GET csrf:a") == [("key.unregistered", "refused")]
    assert rulings(known, "one", "GET jwt:a") == [("key.unregistered", "refused")]


WAIVERS = st.lists(
    st.builds(
        Waiver,
        st.sampled_from(["one", "two"]),
        st.sampled_from(["scope.read", "scope.write"]),
        st.sampled_from(["", "k", "l"]),
        st.sampled_from(["", "SET", "GET"]),
        st.sampled_from(["", "a*", "*b", "a?"]),
        st.just(""),
        st.sampled_from(["", "", "k"]),
    ),
    max_size=6,
)


@given(
    WAIVERS,
    st.sampled_from([("", ""), ("k", ""), ("", "k")]),
    st.sampled_from(["SET", "DEL"]),
    st.sampled_from([b"ab", b"xb", b""]),
)
def test_a_violation_is_waived_if_any_waiver_covers_it(
    waivers: list[Waiver], place: tuple[str, str], command: str, key: bytes
) -> None:
    entry, scope = place
    expected = any(
        one.service == "one"
        and one.rule == "scope.read"
        and one.entry in ("", entry)
        and one.scope in ("", scope)
        and one.command in ("", command)
        and (not one.keys or Glob(one.keys.encode()).matches(key))
        for one in waivers
    )
    found = best_waiver(waivers, Waiver("one", "scope.read", entry, command, scope=scope), key)
    assert (found is not None) == expected


NAMESAKES = """policy: p
services: [one, two]
scopes: {web: {prefix: "web:", writers: one}}
keys: {%s: {key: "web:page:<id>"}}
placeholders: {id: "[a-z]+"}
"""


def ruled(policy: CompiledPolicy, waiver: Waiver, command: str) -> list[str]:
    authorizer = Authorizer(policy, Modes([ModeRule("enforce")], policy.services, [waiver]))
    ruling = authorizer.rule(Asker(policy.number("two")), command.encode().split())
    return [one.action for one in ruling.findings if one.violation.rule == "scope.write"]


def test_a_waiver_for_an_entry_does_not_reach_the_scope_of_the_same_name() -> None:
    policy = parse_policy(NAMESAKES % "web")
    for waiver, of_entry, of_scope in (
        (Waiver("two", "scope.write", entry="web"), "waived", "refused"),
        (Waiver("two", "scope.write", scope="web"), "refused", "waived"),
        (Waiver("two", "scope.write"), "waived", "waived"),
    ):
        assert ruled(policy, waiver, "SET web:page:a 1") == [of_entry]
        assert ruled(policy, waiver, "SET web:other 1") == [of_scope]


def test_a_waiver_for_a_renamed_entry_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(text_of(GOOD | {"entry": "web"}))
    waivers, source = read_waivers(tmp_path / "w.yaml")
    assert waiver_faults(waivers, source, parse_policy(NAMESAKES % "web")) == []
    [fault] = waiver_faults(waivers, source, parse_policy(NAMESAKES % "page"))
    assert "'web' is not an entry or channel of the policy; for keys of that scope" in str(fault)


def test_a_baseline_tells_an_entry_from_the_scope_of_the_same_name() -> None:
    rows = [row(entry="web"), row(entry="web", shape="web:<int>", example="web:7")]
    rows = [one | {"actions": {"observed": 5}} for one in rows]
    found = baseline(rows, "o", "r", TODAY)
    assert [("entry: web" in one, "scope: web" in one) for one in found.items] == [
        (False, True),
        (True, False),
    ]


WAIVED = ("a:*", "a:<int>:b", "a:<uuid>", "b?c[0-9]", "*:<hex>", "<email>:x", "\\<int>")


@given(
    st.lists(
        st.sampled_from(["a:", "17", ":b", "b", "c", "deadbeef", "x@y.de", ":x", "<int>", "é"]), max_size=5
    )
    .map("".join)
    .map(str.encode)
)
@example(b"a:123e4567-e89b-12d3-a456-426614174000")
def test_one_automaton_tells_which_waivers_name_a_key(key: bytes) -> None:
    automaton = waived_keys(WAIVED)
    assert automaton is not None
    accepts = automaton.match(key)
    found = automaton.sets[accepts] if accepts >= 0 else ()
    assert [WAIVED[at] for at in found] == [one for one in WAIVED if waiver_keys(one).matches(key)]


def test_no_automaton_is_made_of_waivers_that_name_no_keys_or_too_many() -> None:
    assert waived_keys(()) is None
    assert waived_keys(tuple(f"*{letter}?????????*{letter}??????????*" for letter in "abcdefgh")) is None


@pytest.mark.parametrize("kind", ["more", "ip", "int", "*", "bytes"])
def test_a_waiver_for_keys_with_text_like_a_placeholder_admits_these_keys_only(kind: str) -> None:
    shapes = Shapes(trusting=True)
    key = f"user:<{kind}>:cart:17"
    rows = [row(entry="", rule="key.unregistered", shape=shapes.shape(key.encode()), example=key, actions={})]
    text = baseline(rows, "o", "r", TODAY).text
    keys = waiver_keys(yaml.safe_load(text)["waivers"][0]["keys"])
    assert keys.matches(key.encode())
    assert keys.matches(f"user:<{kind}>:cart:18".encode())
    for other in ("user:17:cart:17", "user::cart:17", "user:a:b:cart:17", "user:10.0.0.1:cart:17"):
        assert not keys.matches(other.encode())


def test_a_shape_of_an_older_version_waives_only_the_key_that_was_seen() -> None:
    rows = [row(entry="", rule="key.unregistered", shape="user:<more>", example="user:<more>", actions={})]
    (waiver,) = yaml.safe_load(baseline(rows, "o", "r", TODAY).text)["waivers"]
    assert waiver_keys(waiver["keys"]).matches(b"user:<more>")
    assert not waiver_keys(waiver["keys"]).matches(b"user:17")
    # The first key of the finding was another one.
    seen = [{"key": "user:17"}, {"key": "user:<more>"}]
    rows = [row(entry="", shape="user:<more>", example="", examples=seen, actions={})]
    assert baseline(rows, "o", "r", TODAY).text.endswith("waivers: []\n")
