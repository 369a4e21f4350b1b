"""Placeholders in scopes' prefixes: the scope of a key, the rights in it, and invalid prefixes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from keyfence.authoring.lint import check_policy
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiler.prefixes import PrefixIndex, lies_in, meeting, parse_prefix
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.loading.recovery import Recovered
from keyfence.policy.patterns.patterns import parse_class, parse_pattern
from keyfence.policy.source.yaml import Source

HEAD = """policy: ac
claims: ["ac:"]
services: [a, b, ops]
placeholders: {stage: "stg|dev|prod[0-9]{1,3}", any: "[a-z0-9]+", id: "[a-z]{1,4}", wide: ".*", day: date,
  key: {is: "[a-z]+", secret: yes}}
"""
FAMILIES = (
    HEAD
    + """writers: [a, b]
scopes:
  a: {prefix: "ac:<stage>:a:", writers: a, ttl: {max: 1h, or_none: true}}
  b: {prefix: "ac:<stage>:b:", writers: b, readers: a, deny_read: ops}
  tmp: {prefix: "ac:<any>:tmp:", writers: [a, b], unregistered: allow}
  dev: {prefix: "ac:dev:", readers: ops, deny_write: ops}
keys:
  item: {key: "ac:<stage>:a:item:<id>", type: string}
  lock: {key: "ac:<stage>:b:lock:<id>", deny_write: b}
  queues: {key: queues, type: set}
"""
)
# A regression: the placeholder was taken for literal text, and no key was in the scope.
STAGES = (
    HEAD
    + """scopes:
  a: {prefix: "ac:<stage>:a:", writers: a}
  b: {prefix: "ac:<stage>:b:", writers: b, readers: a}
keys:
  item: {key: "ac:<stage>:a:item:<id>"}
  lock: {key: "ac:<stage>:<scope>:lock:<id>"}
"""
)


def told(policy: CompiledPolicy, service: str, command: str) -> list[str]:
    argv = [word.encode() for word in command.split()]
    return [one.rule for one in Evaluator(policy).decide(policy.number(service), argv).violations]


@pytest.mark.parametrize(
    ("service", "command", "broken"),
    [
        ("a", "SET ac:stg:a:item:x 1", []),
        ("a", "SET ac:prod12:a:item:x 1", []),
        ("b", "SET ac:stg:a:item:x 1", ["scope.write"]),
        ("a", "SET ac:dev:a:lock:x 1", []),
        ("a", "GET ac:dev:b:lock:x", []),
        ("a", "SET ac:dev:b:lock:x 1", ["scope.write"]),
        ("b", "SET ac:dev:b:lock:x 1", []),
        ("a", "GET ac:stg:a:other", ["key.unregistered"]),
        ("b", "GET ac:stg:a:other", ["scope.read", "key.unregistered"]),
        # The form is broken after the scope's prefix, and before its end.
        ("a", "GET ac:stg:a:item:X", ["key.format"]),
        ("a", "GET ac:stg:a:item", ["key.format"]),
        ("b", "GET ac:stg:a:item:", ["scope.read", "key.format"]),
        ("a", "GET ac:nix:a:item:x", ["key.format"]),
        ("a", "GET ac:prod1234:a:item:x", ["key.format"]),
        ("a", "GET ac:stg", ["key.format"]),
        ("a", "GET x", ["key.unregistered"]),
        # Patterns are decided by inclusion, lengths included.
        ("a", "SCAN 0 MATCH ac:stg:a:*", []),
        ("a", "SCAN 0 MATCH ac:prod1:b:lock:*", []),
        ("a", "SCAN 0 MATCH ac:prod[0-9]:a:*", []),
        ("b", "SCAN 0 MATCH ac:stg:a:*", ["scan.scope"]),
        ("a", "SCAN 0 MATCH ac:stg:*", ["scan.scope"]),
        ("a", "SCAN 0 MATCH ac:*:a:*", ["scan.scope"]),
        ("a", "SCAN 0 MATCH ac:prod????:a:*", ["scan.scope"]),
    ],
)
def test_a_placeholder_in_a_prefix_makes_a_family_of_scopes(
    service: str, command: str, broken: list[str]
) -> None:
    assert told(parse_policy(STAGES), service, command) == broken


@pytest.mark.parametrize(
    ("key", "scope"),
    [
        ("ac:stg:a:x", "a"),
        ("ac:dev:a:x", "a"),  # longer than ac:dev:
        ("ac:dev:c:x", "dev"),
        ("ac:stg:tmp:x", "tmp"),
        ("ac:nix:tmp:x", "tmp"),
        ("ac:dev:tmp:x", "tmp"),
        ("ac:stg:c:x", ""),
    ],
)
def test_the_longest_prefix_decides(key: str, scope: str) -> None:
    target = parse_policy(FAMILIES).target(key.encode())
    assert target is not None
    assert (target.name, target.kind) == (scope, "scope" if scope else "claim")


def test_of_equally_long_prefixes_the_more_specific_decides() -> None:
    policy = parse_policy(
        HEAD
        + 'scopes: {a: {prefix: "ac:<stage>:a:", writers: a}, stg: {prefix: "ac:stg:a:", writers: b},\n'
        + '  bit: {prefix: "ac:stg:<any>:q", writers: ops}, half: {prefix: "ac:s<any>:a:", readers: ops}}\n'
    )
    found = [policy.target(key) for key in (b"ac:dev:a:x", b"ac:stg:a:x", b"ac:stg:a:qx", b"ac:stx:a:x")]
    assert [one.name for one in found if one is not None] == ["a", "stg", "bit", "half"]


def test_a_prefix_s_literal_angle_brackets_are_escaped() -> None:
    policy = parse_policy(
        'policy: p\nservices: [a]\nscopes: {s: {prefix: "x\\\\<y\\\\>:\\\\x00", writers: a}}\n'
        'keys: {k: {key: "x\\\\<y\\\\>:\\\\x00k"}}\n'
    )
    assert Evaluator(policy).decide(0, [b"GET", b"x<y>:\0k"]).allowed
    target = policy.target(b"x<y>:\0z")
    assert target is not None
    assert (target.kind, target.text) == ("scope", "x\\<y\\>:\\x00…")


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (
            "ac:<stge>:a:",
            "'ac:<stge>:a:': placeholder <stge> is not declared (at offset 3); declare it under "
            "placeholders, or "
            "its values under bind; did you mean stage?",
        ),
        (
            "ac:<wide>:a:",
            "'ac:<wide>:a:': <wide> may hold a colon, so no key shows where the prefix ends; exclude "
            "the colon, or "
            "list the values under bind (at offset 3)",
        ),
        (
            "ac:<id...>:a:",
            "'ac:<id...>:a:': <id> may hold a colon, so no key shows where the prefix ends; exclude "
            "the colon, or "
            "list the values under bind (at offset 3)",
        ),
        (
            "ac:x<id>",
            "'ac:x<id>': no colon follows <id>, so no key shows where the prefix ends; write a colon "
            "after it (at offset 4)",
        ),
        (
            "ac:<key>:",
            "'ac:<key>:': <key> is secret, and messages show a scope's prefix; take it out of the prefix "
            "(at offset 3)",
        ),
        (
            "ac:<x",
            "'ac:<x': '<' does not open a placeholder: write <name> or <name...>; a literal one is "
            "written \\< (at offset 3)",
        ),
        ("<id>:", "'<id>:' is outside the policy's claims (ac:)"),
    ],
)
def test_an_invalid_prefix_is_one_error_with_a_remedy(prefix: str, message: str) -> None:
    text = f'{HEAD}scopes: {{s: {{prefix: "{prefix}", writers: a}}}}\n' + (
        'keys: {k: {key: "ac:x"}, l: {key: "ac:<scope>:y"}, m: {key: "ac:z"}}\n'
    )
    found = Recovered(Source("f", text, keep_going=True)).errors
    assert [str(one) for one in found] == [f"f:6:22: error: {message}"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'scopes: {a: {prefix: "ac:<any>:", writers: a}, b: {prefix: "ac:<id>:", writers: b}}',
            "6:60: error: the prefixes of b and a are equally long and both begin 'ac:x:x2'; write "
            "literal text in "
            "one of them, or let their placeholders share no value",
        ),
        (
            'scopes: {a: {prefix: "ac:<id>:", writers: a}, b: {prefix: "ac:<id>:", writers: b}}',
            "6:59: error: the scope a has the same prefix",
        ),
        (
            'scopes: {a: {prefix: "ac:<stage>:", writers: a, deny_write: b}, '
            'b: {prefix: "ac:<any>:b:", writers: b}}',
            "6:77: error: some keys of 'ac:<any>:b:', such as 'ac:dev:b:', are under the "
            "prefix of the scope a, which denies what this allows; repeat its deny_write and deny_read "
            "here, or use the same placeholder",
        ),
        (
            'scopes: {dev: {prefix: "ac:dev:", writers: a, deny_write: b}}\n'
            'keys: {k: {key: "ac:<stage>:k", writers: b}}',
            "7:17: error: some keys of 'ac:<stage>:k', such as 'ac:dev:k', are under the "
            "prefix of the scope dev, which denies what this allows; repeat its deny_write and deny_read "
            "here, or use the same placeholder",
        ),
        (
            'scopes: {a: {prefix: "ac:<stage>:a:", writers: a}}\nkeys: {k: {key: "ac:<scope>:<stage>:k"}}',
            "7:17: error: <scope> makes 'ac:a:<stage>:k', which is outside the scope's prefix "
            "'ac:<stage>:a:'",
        ),
    ],
)
def test_prefixes_that_contradict_each_other_are_errors(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"{HEAD}{line}\n")
    errors, _, _ = check_policy(file)
    assert [str(one).removeprefix(f"{file}:") for one in errors] == [message]


@pytest.mark.parametrize(
    "denials", ["deny_write: b", "deny_write: [a, b]", "deny_write: b, deny_read: b, readers: b"]
)
def test_an_entry_may_repeat_a_scope_s_denial(denials: str) -> None:
    policy = parse_policy(
        f'{HEAD}scopes: {{dev: {{prefix: "ac:dev:", writers: a, deny_write: b}}}}\n'
        f'keys: {{k: {{key: "ac:<stage>:k", writers: b, {denials}}}}}\n'
    )
    assert "scope.write" in told(policy, "b", "SET ac:dev:k 1")


RESTRICTED = """policy: p
services: [a]
placeholders: {st: "stg|dev", id: "[a-z]+"}
scopes:
  d: {prefix: "d:", writers: a}
  stg: {prefix: "d:stg:", writers: a, commands: {never: delete, forbid: APPEND}}
"""


@pytest.mark.parametrize("key", ["d:<st>:<id>", "d:<id...>"])
def test_an_entry_that_is_partly_in_a_scope_that_restricts_commands_is_an_error(key: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_policy(f"{RESTRICTED}keys: {{k: {{key: '{key}'}}}}\n")
    remedy = "which restricts their commands; repeat its forbid and never here, or use the same placeholder"
    assert remedy in str(caught.value)


def test_an_entry_may_repeat_a_scope_s_restrictions() -> None:
    commands = "{never: delete, forbid: APPEND}"
    policy = parse_policy(f"{RESTRICTED}keys: {{k: {{key: 'd:<st>:<id>', commands: {commands}}}}}\n")
    assert policy.target(b"d:stg:a") is not None


FAMILY = """policy: p
claims: ["ac:"]
services: [web, base]
placeholders: {stage: "stg|dev", id: "[a-z]+"}
scopes:
  base: {prefix: "ac:", writers: base}
  web: {prefix: "ac:<stage>:web:", writers: web, unregistered: allow}
keys: {conf: {key: "ac:stg:<id>"}}
"""


def test_the_beginning_of_an_entry_takes_no_key_of_a_scope_with_a_longer_prefix() -> None:
    policy = parse_policy(FAMILY)
    kinds = {
        key: policy.target(key) for key in (b"ac:dev:web:x", b"ac:stg:web:x", b"ac:stg:x:y", b"ac:stg:x")
    }
    assert [one.kind if one is not None else "" for one in kinds.values()] == [
        "scope",
        "scope",
        "malformed",
        "entry",
    ]


@pytest.mark.parametrize("field", ["writers", "readers", "consumers"])
def test_an_entry_that_lists_no_service_is_an_error(field: str) -> None:
    with pytest.raises(FileError, match="an entry that lists no service has the rights around it"):
        parse_policy(
            f"policy: p\nservices: [a]\nscopes: {{s: {{prefix: 's:', writers: a}}}}\n"
            f"keys: {{k: {{key: 's:k', {field}: []}}}}\n"
        )


def test_a_scope_with_a_bound_prefix_expands_in_keys() -> None:
    """A regression: there were 24 errors, one for each pair of a scope and a value."""
    policy = parse_policy(
        "policy: p\nservices: [a, b]\nbind: {stage: {a: [stg, dev], b: [dev, prod]}}\nplaceholders: "
        "{id: '[a-z]+'}\n"
        'scopes: {one: {prefix: "ac:<stage>:one:", writers: [a, b]}, two: {prefix: '
        '"ac:<stage>:two:", readers: a}}\n'
        'keys: {lock: {key: "ac:<stage>:<scope>:lock:<id>"}}\n'
    )
    assert told(policy, "a", "SET ac:stg:one:lock:x 1") == []
    assert told(policy, "b", "SET ac:stg:one:lock:x 1") == ["scope.write"]
    assert told(policy, "b", "SET ac:prod:one:lock:x 1") == []
    assert told(policy, "a", "GET ac:dev:two:lock:x") == []
    assert told(policy, "a", "SET ac:dev:two:lock:x 1") == ["scope.write"]


def test_a_scope_with_a_bound_prefix_that_a_key_leaves_out_is_one_error() -> None:
    scopes = ", ".join(f'{name}: {{prefix: "ac:<stage>:{name}:", writers: a}}' for name in "uvwxyz")
    text = (
        "policy: p\nservices: [a]\nbind: {stage: {a: [stg, dev, int, prod]}}\nplaceholders: {id: '[a-z]+'}\n"
        f'scopes: {{{scopes}}}\nkeys: {{lock: {{key: "ac:<scope>:lock:<id>"}}}}\n'
    )
    found = Recovered(Source("f", text, keep_going=True)).errors
    assert [str(one) for one in found] == [
        "f:6:20: error: <scope> makes 'ac:u:lock:<id>', which is outside the scope's prefix 'ac:<stage>:u:' "
        "(and 5 more like this)"
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'claims: ["ac:<id>:"]',
            "2:10: error: 'ac:<id>:': a claim is plain text, so <id> means just this text; "
            "write 'ac:', or "
            "a claim for each value",
        ),
        (
            'grants: {a: {commands: [DEL], keys: ["ac:<id>:*"]}}',
            "2:38: error: 'ac:<id>:*': a grant's keys are globs, so <id> means just this text; "
            "write * in "
            "its place",
        ),
    ],
)
def test_no_placeholder_is_silently_literal(line: str, message: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_policy(
            f"policy: p\n{line}\nservices: [a]\nplaceholders: {{id: '[a-z]'}}\n"
            "keys: {k: {key: 'ac:<id>:k', writers: a}}\n",
            "f",
        )
    assert [str(one) for one in caught.value.diagnostics] == [f"f:{message}"]


# -- compared with a naive reading: the longest of the prefixes that a key has

CLASSES = {"s": "[ab]", "t": "[a-c]{1,2}", "u": "a|bc"}
PIECES = st.sampled_from(["a", "b", "ab", "<s>", "<t>", "<u>", "a<s>", "<t>c"])
TEXT = st.text("abc:", max_size=9)


@st.composite
def prefixes(draw: st.DrawFn) -> str:
    pieces = draw(st.lists(PIECES, max_size=3))
    holes: set[str] = set()
    for piece in pieces:
        names = set(re.findall("<(.)>", piece))
        assume(not names & holes)
        holes |= names
    return "".join(f"{piece}:" for piece in pieces) + draw(st.sampled_from(["", "", "a", "ab"]))


def taken(prefix: str, key: str) -> int:
    """The length of the prefix in the key; -1: the key does not have the prefix."""
    found = re.match(re.sub("<(.)>", lambda hole: f"(?:{CLASSES[hole[1]]})", prefix), key)
    return found.end() if found is not None else -1


@settings(max_examples=300, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    st.lists(prefixes(), min_size=1, max_size=4, unique=True),
    st.lists(TEXT, min_size=1, max_size=20),
    st.data(),
)
def test_the_scope_of_a_key_is_that_of_the_longest_prefix(
    given_prefixes: list[str], keys: list[str], data: st.DataObject
) -> None:
    given_prefixes = [one for one in given_prefixes if one]
    assume(given_prefixes)
    scopes = ", ".join(f's{n}: {{prefix: "{one}", writers: a}}' for n, one in enumerate(given_prefixes))
    classes = ", ".join(f'{name}: "{text}"' for name, text in CLASSES.items())
    policy = parse_policy(f"policy: p\nservices: [a]\nplaceholders: {{{classes}}}\nscopes: {{{scopes}}}\n")
    keys += [re.sub("<.>", "a", data.draw(st.sampled_from(given_prefixes))) + "x"]
    for key in keys:
        sizes = {f"s{n}": taken(one, key) for n, one in enumerate(given_prefixes)}
        longest = {name for name, size in sizes.items() if size == max(sizes.values()) >= 0}
        target = policy.target(key.encode())
        assert (target.name if target is not None else "") in (longest or {""})


PARSED = {name: parse_class(text) for name, text in CLASSES.items()} | {"w": parse_class("[a:]*")}
KEY_PATTERNS = st.lists(PIECES | st.sampled_from(["c", "<w>", "<s...>"]), min_size=1, max_size=4).map(
    ":".join
)


@settings(max_examples=300)
@given(st.lists(prefixes(), max_size=6, unique=True), KEY_PATTERNS)
def test_the_prefix_index_finds_the_same_as_a_full_search(texts: list[str], key: str) -> None:
    holes = re.findall(r"<(.)", key)
    assume(len(holes) == len(set(holes)))
    pattern = parse_pattern(key, PARSED)
    known = [parse_prefix(text, PARSED) for text in texts]
    index = PrefixIndex((one, one) for one in known)
    around = [one for one in known if lies_in(pattern, one)]
    assert sorted(map(str, index.around(pattern))) == sorted(map(str, around))
    assert {one for one in known if meeting(pattern, one)} <= {one for _, one in index.near(pattern)}
    for one in around:
        assert one.matches(pattern.example())
