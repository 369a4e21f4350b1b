"""Waivers: read and checked, what became of them, and a first list made of a report."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.commands.extract import extract
from proxy.policy.diagnostics import FileError
from proxy.policy.globs import Glob
from proxy.policy.judge import Judge
from proxy.policy.load import parse_policy
from proxy.policy.modes import ModeRule, Modes, Waiver, best_waiver
from proxy.policy.waivers import baseline, read_waivers, shape_glob, uses, waiver_faults

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
        ({"entry": "s", "command": "config  get"}, []),
        ({"entry": "news", "rule": "channel.write"}, []),
        ({"entry": "claim", "rule": "key.format"}, []),
        ({"command": "JSON.SET"}, []),
        ({"rule": "command.unknown", "command": "FROBNICATE"}, []),
        ({"service": "tow"}, ["2:15: error: 'tow' is no service of the policy; did you mean two?"]),
        ({"rule": "scope.wirte"}, ["2:28: error: 'scope.wirte' is no rule; did you mean scope.write?"]),
        ({"until": "soon"}, ["2:75: error: 'soon' is no date; write it as 2027-06-30"]),
        (
            {"entry": "kk"},
            ["2:96: error: 'kk' is no entry, scope or channel of the policy; did you mean k?"],
        ),
        ({"command": "STE"}, ["2:98: error: 'STE' is no command of Redis or Valkey; did you mean SETEX?"]),
        ({"owner": " "}, ["2:50: error: 'owner' is empty; say it in a word"]),
        ({"reson": "x"}, ["2:89: error: unknown key 'reson'; did you mean reason?"]),
    ],
)
def test_a_waiver_names_what_there_is(change: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    assert faults(tmp_path, text_of(GOOD | change)) == expected


def test_the_same_is_not_tolerated_twice(tmp_path: Path) -> None:
    again = GOOD | {"owner": "else"}
    assert faults(tmp_path, text_of(GOOD, GOOD | {"command": "set"}, again, GOOD | {"command": "SET"})) == [
        "4:5: error: the same is tolerated in line 2 already",
        "5:5: error: the same is tolerated in line 3 already",
    ]


def test_an_owner_a_reason_and_a_date_are_asked_for(tmp_path: Path) -> None:
    bare = {"service": "two", "rule": "scope.write"}
    assert [one.split(": ")[-1] for one in faults(tmp_path, text_of(bare))] == [
        "'owner' is missing",
        "'reason' is missing",
        "'until' is missing",
    ]


def read(folder: Path, *waivers: dict[str, str]) -> Any:
    (folder / "w.yaml").write_text(text_of(*waivers))
    return read_waivers(folder / "w.yaml")[0]


def test_uses_go_to_the_waiver_that_says_most(tmp_path: Path) -> None:
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


def test_the_last_day_is_tolerated_still(tmp_path: Path) -> None:
    [one] = uses(read(tmp_path, GOOD | {"until": "2026-06-15"}), None, TODAY)
    assert one.state == "ending"


def test_a_baseline_tolerates_what_a_report_shows_and_nothing_else(tmp_path: Path) -> None:
    rows = [
        row(actions={"observed": 5}),
        row(actions={"observed": 1, "refused": 2, "waived": 2}, command="DEL"),
        row(actions={"waived": 5}, command="HSET"),
        row(severity="should", actions={"observed": 5}),
        row(rule="key.unregistered", entry="", shape="jwt_active:<uuid>:<*>", example="jwt_active:x:y"),
        row(rule="key.unregistered", entry="", shape="other", actions={"observed": 1}),
        row(rule="key.unregistered", entry="", shape="<*>:<int>", actions={"observed": 1}),
        row(rule="command.unknown", command="other", entry="", actions={"observed": 1}),
    ]
    rows[4]["actions"] = {"observed": 5}
    text, left = baseline(rows, "team: a", "known", datetime.date(2026, 12, 31))
    assert left == 2
    assert text.splitlines() == [
        "# Violations that were known when this was written. Whoever mends one takes it out.",
        "waivers:",
        '  - {service: two, rule: command.unknown, owner: "team: a", reason: known, '
        "until: 2026-12-31}  # 5 so far",
        '  - {service: two, rule: key.unregistered, command: SET, keys: "jwt_active:*:*", owner: "team: a", '
        "reason: known, until: 2026-12-31}  # 5 so far",
        '  - {service: two, rule: scope.write, entry: k, command: DEL, owner: "team: a", reason: known, '
        "until: 2026-12-31}  # 3 so far",
        '  - {service: two, rule: scope.write, entry: k, command: SET, owner: "team: a", reason: known, '
        "until: 2026-12-31}  # 5 so far",
    ]
    assert faults(tmp_path, text) == []
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


def test_a_baseline_of_nothing_is_a_file_too(tmp_path: Path) -> None:
    text, left = baseline([], "o", "r", TODAY)
    assert left == 0
    assert faults(tmp_path, text) == []


@given(st.text("ab:*?[<>\\", min_size=1, max_size=8))
def test_a_shape_s_glob_takes_its_signs_for_themselves(literal: str) -> None:
    if "<" in literal or ">" in literal or not literal.strip(":"):
        return
    glob = shape_glob(f"{literal}:<int>")
    assert Glob(glob.encode()).matches(f"{literal}:42".encode())
    assert not Glob(glob.encode()).matches(f"x{literal}:42".encode())


def judged(waivers: list[Waiver], service: str, command: str) -> list[tuple[str, str]]:
    modes = Modes([ModeRule("enforce")], POLICY.services, waivers)
    argv = [word.encode() for word in command.split()]
    ruling = Judge(POLICY, modes).rule(POLICY.number(service), argv)
    assert extract(argv).command is not None
    return [(found.violation.rule, found.action) for found in ruling.findings]


def test_what_is_waived_is_counted_and_never_refused() -> None:
    known = [Waiver("two", "scope.write", "k", "SET"), Waiver("two", "key.unregistered", keys="jwt:*")]
    assert judged(known, "two", "SET p:s:k:a 1") == [("scope.write", "waived")]
    assert judged(known, "two", "DEL p:s:k:a") == [("scope.write", "refused")]
    assert judged(known, "two", "SET p:s:l:a 1") == [("scope.write", "refused")]
    assert judged(known, "two", "GET jwt:a") == [("key.unregistered", "waived")]
    assert judged(known, "two", "GET csrf:a") == [("key.unregistered", "refused")]
    assert judged(known, "one", "GET jwt:a") == [("key.unregistered", "refused")]


WAIVERS = st.lists(
    st.builds(
        Waiver,
        st.sampled_from(["one", "two"]),
        st.sampled_from(["scope.read", "scope.write"]),
        st.sampled_from(["", "k", "l"]),
        st.sampled_from(["", "SET", "GET"]),
        st.sampled_from(["", "a*", "*b", "a?"]),
    ),
    max_size=6,
)


@given(
    WAIVERS, st.sampled_from(["", "k"]), st.sampled_from(["SET", "DEL"]), st.sampled_from([b"ab", b"xb", b""])
)
def test_a_violation_is_waived_if_any_waiver_speaks_of_it(
    waivers: list[Waiver], entry: str, command: str, key: bytes
) -> None:
    expected = any(
        one.service == "one"
        and one.rule == "scope.read"
        and one.entry in ("", entry)
        and one.command in ("", command)
        and (not one.keys or Glob(one.keys.encode()).matches(key))
        for one in waivers
    )
    assert (best_waiver(waivers, "one", "scope.read", entry, command, key) is not None) == expected
