"""Legacy forms with their own rights, services and end dates; forms under `instead`; and denials."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from keyfence.authoring.lint import check_policy
from keyfence.commands.extract import extract
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from tests.policy.evaluations import admits, begun

HEAD = """policy: p
claims: ["p:"]
services: [writer, reader, other]
placeholders: {id: "[a-z]+", token: {is: "[a-z]+", secret: true}}
scopes: {s: {prefix: "p:s:", writers: writer, readers: reader}}
keys:
  k: {key: "p:s:k:<id>"}
  t: {key: "p:s:t:<token>"}
"""


def at(day: str) -> float:
    return datetime.datetime.fromisoformat(day + "T12:00:00+00:00").timestamp()


def rules(
    policy: CompiledPolicy, service: str, command: str, now: float = at("2026-06-15")
) -> list[tuple[str, str]]:
    found = Evaluator(policy, lambda: now).decide(
        policy.number(service), [word.encode() for word in command.split()]
    )
    return [(one.rule, one.hint) for one in found.violations]


def legacy(section: str) -> CompiledPolicy:
    return parse_policy(f"{HEAD}legacy: {section}\n")


TABLE = [
    # allow, who reads, who deletes, who writes
    ("[]", [], [], []),
    ("[read]", ["writer", "reader"], [], []),
    ("[delete]", [], ["writer"], []),
    ("[read, delete]", ["writer", "reader"], ["writer"], []),
    ("[read, delete, write]", ["writer", "reader"], ["writer"], ["writer"]),
]


@pytest.mark.parametrize(("allow", "readers", "deleters", "writers"), TABLE)
@pytest.mark.parametrize("own", [False, True])
def test_a_legacy_form_is_readable_deletable_or_nothing(
    allow: str, readers: list[str], deleters: list[str], writers: list[str], own: bool
) -> None:
    if own:
        policy = legacy(f'{{allow: [write], keys: {{"old:<id>": {{entry: k, allow: {allow}}}}}}}')
    else:
        policy = legacy(f'{{allow: {allow}, keys: {{"old:<id>": k}}}}')
    for command, who in (("GET old:a", readers), ("DEL old:a", deleters), ("SET old:a 1", writers)):
        for service in ("writer", "reader", "other", "unknown"):
            expected = [] if service in who else [("key.legacy", "use p:s:k:a")]
            assert rules(policy, service, command) == expected, (service, command)


def test_a_legacy_form_may_be_limited_to_some_services() -> None:
    policy = legacy(
        '{allow: [read], services: [reader], keys: {"a:<id>": k, "b:<id>": {entry: k, services: writer}}}'
    )
    assert [rules(policy, one, "GET a:x") == [] for one in ("writer", "reader", "other")] == [
        False,
        True,
        False,
    ]
    assert [rules(policy, one, "GET b:x") == [] for one in ("writer", "reader", "other")] == [
        True,
        False,
        False,
    ]


DATED = (
    '{{allow: [read], until: 2026-06-20, on_expiry: {0}, keys: {{"a:<id>": k, "b:<id>": {{entry: k, {1}}}}}}}'
)


@pytest.mark.parametrize("day", ["2026-06-20", "2026-06-21", "2027-01-01"])
def test_an_end_date_alone_refuses_nothing(day: str) -> None:
    policy = legacy(DATED.format("report", "until: 2026-06-25"))
    assert rules(policy, "reader", "GET a:x", at(day)) == []


def test_an_end_date_refuses_with_on_expiry_refuse_and_only_after_the_last_day() -> None:
    policy = legacy(DATED.format("refuse", "until: 2026-06-25"))
    assert rules(policy, "reader", "GET a:x", at("2026-06-20")) == []
    assert rules(policy, "reader", "GET a:x", at("2026-06-21")) == [("key.legacy", "use p:s:k:x")]
    assert rules(policy, "reader", "GET b:x", at("2026-06-21")) == []
    assert rules(policy, "reader", "GET b:x", at("2026-06-26")) == [("key.legacy", "use p:s:k:x")]
    one_only = legacy(DATED.format("report", "on_expiry: refuse"))
    assert rules(one_only, "reader", "GET a:x", at("2027-01-01")) == []
    assert rules(one_only, "reader", "GET b:x", at("2027-01-01")) == [("key.legacy", "use p:s:k:x")]


def test_a_running_evaluator_notices_an_end_date() -> None:
    text = (
        f"{HEAD}legacy: {DATED.format('refuse', 'until: 2026-06-25')}\n"
        'grants: {other: {commands: [DEL, KEYS], keys: ["p:s:*"], until: 2026-06-20, on_expiry: refuse}}\n'
    )
    policy = parse_policy(text)
    now = [at("2026-06-20")]
    evaluator = Evaluator(policy, lambda: now[0])

    def broken(service: str, command: str) -> list[str]:
        argv = [word.encode() for word in command.split()]
        touches = extract(argv)
        number = policy.number(service)
        verdict = evaluator.evaluate(Asker(number), argv, touches)
        one = begun(evaluator, number, argv, touches)
        assert not evaluator.checks.admits(one) or verdict.allowed
        return [one.rule for one in verdict.violations]

    commands = [
        ("reader", "GET a:x"),
        ("other", "DEL p:s:k:x"),
        ("other", "KEYS p:s:k:*"),
        ("reader", "GET p:s:k:x"),
    ]
    assert [broken(*one) for one in commands] == [[], [], [], []]
    now[0] = at("2026-06-21")
    assert [broken(*one) for one in commands] == [
        ["key.legacy"],
        ["scope.write"],
        ["command.forbidden", "scan.scope"],
        [],
    ]
    message = evaluator.decide(policy.number("reader"), [b"GET", b"a:x"]).violations[0].message
    assert message == "reader may not GET a:x, a deprecated form that was tolerated for a while"


def test_the_decision_cache_admits_nothing_by_a_lapsed_grant() -> None:
    policy = parse_policy(
        f"{HEAD}grants: {{writer: {{commands: [DBSIZE], until: 2026-06-20, on_expiry: refuse}}}}\n"
    )
    now = [at("2026-06-20")]
    evaluator = Evaluator(policy, lambda: now[0])
    touches = extract([b"DBSIZE"])
    assert evaluator.evaluate(Asker(0), [b"DBSIZE"], touches).allowed
    assert admits(evaluator, 0, [b"DBSIZE"], touches)
    now[0] = at("2026-06-21")
    lapsed = begun(evaluator, 0, [b"DBSIZE"], touches)
    assert not evaluator.checks.admits(lapsed)
    assert not evaluator.evaluate(Asker(0), [b"DBSIZE"], touches).allowed


def test_check_warns_two_weeks_before_an_end_date_and_fails_after_it(tmp_path: Path) -> None:
    section = (
        '{allow: [read], until: 2026-06-14, keys: {"a:<id>": {entry: k, until: 2026-06-29}, '
        '"b:<id>": {entry: k, until: 2026-06-30}, "c:<id>": {entry: k, until: 2026-06-01}}}'
    )
    file = tmp_path / "p.yaml"
    file.write_text(f"{HEAD}legacy: {section}\n")
    errors, warnings, _ = check_policy(file, datetime.date(2026, 6, 15))
    assert [one.message for one in errors] == [
        "legacy ended on 2026-06-14; remove it or change the date",
        "the legacy form 'c:<id>' ended on 2026-06-01; remove it or change the date",
    ]
    assert [one.message for one in warnings if "ends" in one.message] == [
        "the legacy form 'a:<id>' ends on 2026-06-29, in 14 days",
    ]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('{keys: {"a:<id>": kk}}', "9:27: error: 'kk' is not an entry under keys; did you mean k?"),
        ('{keys: {"a:<id>": {entry: kk}}}', "9:35: error: 'kk' is not an entry under keys; did you mean k?"),
        ('{keys: {"a:<id>": {allow: [read]}}}', "9:17: error: 'entry' is missing"),
        (
            '{keys: {"a:<id>": {entry: k, services: [redaer]}}}',
            "9:49: error: 'redaer' is not listed under services; did you mean reader?",
        ),
        (
            '{keys: {"a:<id>": {entry: k, on_expiry: refus}}}',
            "9:49: error: 'refus' is not admitted here; expected report or refuse",
        ),
    ],
)
def test_a_fault_of_a_legacy_form_is_reported_at_its_place(section: str, message: str) -> None:
    with pytest.raises(FileError) as caught:
        legacy(section)
    assert [str(one).removeprefix("<policy>:") for one in caught.value.diagnostics] == [message]


# -- wrong forms that are in use

STRAYS = f'{HEAD}instead: {{"kk:<id>": k, "tt:<token>": t}}\n'


def test_a_form_under_instead_is_unregistered_and_its_hint_is_the_standard_key() -> None:
    policy = parse_policy(STRAYS)
    assert rules(policy, "writer", "SET kk:a 1") == [("key.unregistered", "use p:s:k:a")]
    assert rules(policy, "writer", "SET zz:a 1") == [("key.unregistered", "every key begins with p:")]


def test_a_form_under_instead_is_grouped_by_shape() -> None:
    policy = parse_policy(STRAYS)
    [found] = Evaluator(policy).decide(0, [b"GET", b"kk:a"]).violations
    assert (found.entry, found.shape, found.severity) == ("", "", "must")


def test_a_form_under_instead_shows_no_secret() -> None:
    policy = parse_policy(STRAYS)
    [found] = Evaluator(policy).decide(0, [b"GET", b"tt:geheim"]).violations
    assert "geheim" not in "".join((found.message, found.hint, found.shown))


def test_the_hint_for_a_key_without_its_scope_s_prefix_is_the_whole_key() -> None:
    policy = parse_policy(HEAD)
    assert rules(policy, "reader", "GET k:a") == [("key.unregistered", "use p:s:k:a")]
    assert rules(policy, "reader", "GET t:geheim") == [("key.unregistered", "use p:s:t:<token>")]
    # The hint does not name a key that the caller may not use.
    assert rules(policy, "reader", "SET k:a 1") == [("key.unregistered", "every key begins with p:")]
    assert rules(policy, "other", "GET k:a") == [("key.unregistered", "every key begins with p:")]


def test_a_form_under_instead_inside_the_claims_is_an_error() -> None:
    with pytest.raises(
        FileError, match="is in the policy's own part of the key space; write it under legacy"
    ):
        parse_policy(f'{HEAD}instead: {{"p:x:<id>": k}}\n')


def test_an_empty_list_of_services_lets_nobody_use_a_form() -> None:
    policy = legacy("{allow: [read], keys: {'p:old:<id>': {entry: k, services: []}}}")
    assert rules(policy, "reader", "GET p:old:a")[0][0] == "key.legacy"


AROUND = """policy: p
claims: ["p:"]
services: [a, b]
placeholders: {id: "[a-z]+"}
scopes: {s: {prefix: "p:s:", writers: b, deny_read: a, deny_write: a, commands: {never: delete}}}
keys: {k: {key: "p:k:<id>", writers: [a, b]}}
"""


def test_a_form_is_denied_what_the_scope_around_it_denies() -> None:
    policy = parse_policy(AROUND + "legacy: {allow: [read, delete, write], keys: {'p:s:<id>': k}}\n")
    assert [rules(policy, "a", command)[0][0] for command in ("GET p:s:x", "SET p:s:x 1")] == [
        "key.legacy"
    ] * 2
    assert rules(policy, "b", "SET p:s:x 1") == []
    assert rules(policy, "b", "DEL p:s:x")[0][0] == "command.forbidden"
    assert rules(policy, "b", "DEL p:k:x") == []


def test_a_form_that_is_partly_in_a_scope_with_denials_is_an_error() -> None:
    with pytest.raises(
        FileError, match=r"some keys of 'p:<id>:old', such as 'p:s:old', are under the prefix"
    ):
        parse_policy(AROUND + "legacy: {allow: [read], keys: {'p:<id>:old': k}}\n")


# -- denials

DENIALS = """policy: p
claims: ["p:"]
services: [a, b, c]
placeholders: {id: "[a-z]+"}
scopes:
  wide: {prefix: "p:", writers: [a, b], readers: c, deny_write: c}
  narrow: {prefix: "p:n:", writers: [a, c], deny_read: b}
keys:
  plain: {key: "p:plain:<id>"}
  own: {key: "p:own:<id>", writers: [a, c]}
  but: {key: "p:plain:but", deny_write: a, deny_read: b}
  inner: {key: "p:n:inner:<id>", writers: [b, c]}
"""


@pytest.mark.parametrize(
    ("key", "readers", "writers"),
    [
        ("p:plain:x", "abc", "ab"),
        ("p:own:x", "ac", "a"),  # the scope's denial applies although the entry lists c
        ("p:plain:but", "ac", "b"),  # the more specific entry decides, with its own denials
        ("p:n:inner:x", "c", "b"),  # the denials of both scopes apply, that of the wide one for c
        ("p:n:other", "ac", "a"),
    ],
)
def test_a_denial_wins_over_rights(key: str, readers: str, writers: str) -> None:
    policy = parse_policy(DENIALS)
    reads = {one for one in "abc" if "scope.read" not in dict(rules(policy, one, f"GET {key}"))}
    writes = {one for one in "abc" if "scope.write" not in dict(rules(policy, one, f"SET {key} 1"))}
    assert (reads, writes) == (set(readers), set(writers))


def test_a_tie_between_entries_is_an_error_of_check(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        'policy: p\nservices: [a]\nplaceholders: {id: "[a-z]+", n: "[a-f]+"}\n'
        'keys:\n  one: {key: "p:<id>:x", writers: a}\n  two: {key: "p:<n>:x", writers: a}\n'
    )
    errors, _, _ = check_policy(file)
    [error] = errors
    assert error.place.line == 6
    assert re.fullmatch(
        r"'p:<n>:x' and 'p:<id>:x' are equally specific and both match 'p:[a-f]+:x'; "
        "make one of them more specific",
        error.message,
    )
