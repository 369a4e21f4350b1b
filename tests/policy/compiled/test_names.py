"""Naming rules: each rule alone, all together, and compared with a naive reading."""

from __future__ import annotations

import datetime
import pickle
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keyfence.commands.extract import extract
from keyfence.policy.compiled.named import NameCheck
from keyfence.policy.compiled.names import Names, hash_tag_fault, lowered
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiler.naming import compare, surely_short
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.decision_cache import DecisionCache
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.patterns.patterns import parse_class, parse_pattern
from keyfence.policy.remedies.explain import explain
from tests.policy.evaluations import admits

OPEN = 'policy: p\nservices: [app]\nscopes: {all: {prefix: "", writers: [app], unregistered: allow}}\n'


def policy(names: str, more: str = "") -> CompiledPolicy:
    return parse_policy(f"{OPEN}names: {names}\n{more}")


def names_of(compiled: CompiledPolicy) -> Names:
    return compiled.homes[0].names


def told(names: str, key: str | bytes, more: str = "") -> list[tuple[str, str, str, str]]:
    """(rule, severity, message, hint) of each violation of a GET of the key."""
    argv = [b"GET", key.encode() if isinstance(key, str) else key]
    return [
        (one["rule"], one["severity"], one["message"], one["hint"] or "")
        for one in explain(policy(names, more), "app", argv)["violations"]
    ]


TABLE = [
    ("{lowercase: yes}", "user:id:1", "", "", ""),
    (
        "{lowercase: yes}",
        "orderStatus:Id:1",
        "key.format",
        "orderStatus:Id:1 holds capital letters: order_status:id:1",
        "write it in lower case, with _ between words",
    ),
    ("{levels: {min: 2, max: 3}}", "a:b", "", "", ""),
    ("{levels: {min: 2, max: 3}}", "a:b:c", "", "", ""),
    ("{levels: {min: 2}}", "a", "key.format", "a has 1 level", "at least 2, separated by :"),
    ("{levels: {max: 2}}", "a:b:c", "key.format", "a:b:c has 3 levels", "at most 2, separated by :"),
    (
        "{levels: {min: 2}}",
        "a:b:",
        "key.format",
        "level 3 of a:b: is empty",
        "write something between the colons",
    ),
    ("{levels: {max: 3}}", "a::", "", "", ""),
    ('{level: "[a-z]+(_[a-z]+)*"}', "a_b:c", "", "", ""),
    (
        '{level: "[a-z]+(_[a-z]+)*"}',
        "a:b__c",
        "key.format",
        "level 2 of a:b__c is not of the form [a-z]+(_[a-z]+)*",
        "",
    ),
    ("{level: date}", "20240229", "", "", ""),
    ("{after: {date: date}}", "x:date:20240229:y", "", "", ""),
    (
        "{after: {date: date}}",
        "x:date:date",
        "key.format",
        "in x:date:date, the level after date is not of the form date",
        "for example date:20241122",
    ),
    (
        "{after: {date: date, ts: epoch}}",
        "ts:1692806400:date:20230229",
        "key.format",
        "in ts:1692806400:date:20230229, the level after date is not of the form date",
        "for example date:20241122",
    ),
    (
        "{after: {ts: epoch}}",
        "x:ts",
        "key.format",
        "in x:ts, the level after ts is not of the form epoch",
        "for example ts:1692806400",
    ),
    ("{after: {ts: epoch}}", "x:tss:1", "", "", ""),
    ("{avoid: {usr: user}}", "usrs:a_usrx:user", "", "", ""),
    (
        "{avoid: {usr: user}}",
        "a:old_usr:1",
        "key.format",
        "a:old_usr:1 holds the abbreviation usr",
        "write user",
    ),
    ("{avoid: {tmp: ''}}", "tmp", "key.format", "tmp holds the abbreviation tmp", "write it out"),
    ('{charset: "[!-~]"}', "a:b", "", "", ""),
    ('{charset: "[!-~]"}', "a b", "key.charset", "a b holds bytes outside [!-~]", ""),
    ('{charset: "[!-~]"}', b"a\x00", "key.charset", "a\\x00 holds bytes outside [!-~]", ""),
    ("{max_length: 4}", "äb", "", "", ""),
    ("{max_length: 3 bytes}", "äbc", "key.length", "äbc is 4 bytes long", "at most 3 bytes"),
    ("{max_length: 3 characters}", "äbc", "", "", ""),
    ("{max_length: 3 characters}", "äbcd", "key.length", "äbcd is 4 characters long", "at most 3 characters"),
    (
        "{max_length: 3 characters}",
        b"\xff\xfe\xfd\xfc",
        "key.length",
        "\\xff\\xfe\\xfd\\xfc is 4 characters long",
        "at most 3 characters",
    ),
    ("{hash_tag: required}", "a:{b}:c", "", "", ""),
    (
        "{hash_tag: required}",
        "a:b",
        "key.hash_tag",
        "a:b has no hash tag",
        "use one pair of braces, around the part that keys share",
    ),
    ("{hash_tag: optional}", "a:b", "", "", ""),
    (
        "{hash_tag: optional}",
        "a:{}:b",
        "key.hash_tag",
        "the hash tag of a:{}:b is empty",
        "use one pair of braces, around the part that keys share",
    ),
    (
        "{hash_tag: optional}",
        "{a}{b}",
        "key.hash_tag",
        "{a}{b} has braces beyond one hash tag",
        "use one pair of braces, around the part that keys share",
    ),
    (
        "{hash_tag: optional}",
        "a}{",
        "key.hash_tag",
        "the braces of a}{ do not make a hash tag",
        "use one pair of braces, around the part that keys share",
    ),
]


@pytest.mark.parametrize(("names", "key", "rule", "message", "hint"), TABLE)
def test_each_naming_rule_is_checked(
    names: str, key: str | bytes, rule: str, message: str, hint: str
) -> None:
    assert told(names, key) == ([(rule, "must", message, hint)] if rule else [])


@pytest.mark.parametrize(("names", "key", "rule", "message", "hint"), TABLE)
def test_a_naming_rule_under_should_never_refuses(
    names: str, key: str | bytes, rule: str, message: str, hint: str
) -> None:
    expected = [(rule, "should", message, hint)] if rule else []
    assert told(f"{{should: {names}}}", key) == expected


def test_a_rule_broken_in_several_ways_is_reported_once_and_rules_keep_their_order() -> None:
    names = '{lowercase: yes, charset: "[!-~]", should: {levels: {max: 1}, max_length: 3}}'
    assert told(names, "A b:c") == [
        (
            "key.format",
            "must",
            "A b:c holds capital letters: a b:c; it has 2 levels",
            "write it in lower case, with _ between words",
        ),
        ("key.length", "should", "A b:c is 5 bytes long", "at most 3 bytes"),
        ("key.charset", "must", "A b:c holds bytes outside [!-~]", ""),
    ]


def test_of_two_broken_limits_the_must_is_reported() -> None:
    names = "{max_length: 6, should: {max_length: 3}}"
    assert [(one[1], one[3]) for one in told(names, "abcd")] == [("should", "at most 3 bytes")]
    assert [(one[1], one[3]) for one in told(names, "abcdefg")] == [("must", "at most 6 bytes")]


def test_a_secret_is_not_shown_in_lower_case_either() -> None:
    more = 'placeholders: {token: {is: "[A-Za-z]+", secret: true}}\nkeys: {s: {key: "Session:<token>"}}\n'
    [(rule, _, message, hint)] = told("{lowercase: yes}", "Session:SeCret", more)
    assert rule == "key.format"
    assert "secret" not in (message + hint).lower().replace("session", "")
    assert message == "Session:<token> holds capital letters: session:<token>"


SPELLED = """
policy: p
services: [a]
claims: ["p:"]
names: {lowercase: yes, NAMES}
placeholders: {id: "[A-Za-z0-9-]{1,40}", token: {is: "[A-Za-z0-9]{8,}", secret: true}}
bind: {eu: {a: [EU]}}
scopes: {s: {prefix: "p:", writers: a, unregistered: allow}}
keys:
  order: {key: "p:order:<id>"}
  session: {key: "p:session:<token>:<uuid>"}
  region: {key: "p:<eu>:<id>"}
  own: {key: "p:orderItem:<id>"}
legacy: {allow: [read], keys: {"Order:<id>": order}}
"""


@pytest.mark.parametrize(
    ("key", "names", "broken"),
    [
        ("p:order:Ab-7", "", []),
        ("p:session:S3cretToken:585E0676-0782-4952-A8B5-0A6D5C7B1C5D", "", []),
        ("p:EU:Ab", "", []),
        ("p:orderItem:ab", "", ["key.format"]),  # the entry's own text
        ("p:other:Ab", "", ["key.format"]),  # a key of no entry: it does not show which part is an id
        ("p:other:ab", "", []),
        ("Order:Ab", "", []),
        # Every other rule still applies to ids.
        ("p:order:Ab", "charset: '[a-z:]'", ["key.charset"]),
        ("p:order:Ab", "level: '[a-z]+'", ["key.format"]),
        ("p:order:ab", "level: '[a-z]+'", []),
        ("p:order:ABC", "max_length: 10", ["key.length"]),
        ("p:order:Ab", "should: {lowercase: yes, levels: {max: 2}}", ["key.format"]),
    ],
)
def test_lower_case_applies_to_words_and_not_to_ids(key: str, names: str, broken: list[str]) -> None:
    compiled = parse_policy(SPELLED.replace("NAMES", names))
    evaluator, argv = Evaluator(compiled), [b"GET", key.encode()]
    for one in (evaluator, Evaluator(pickle.loads(pickle.dumps(compiled)))):
        assert [found.rule for found in one.decide(0, argv).violations] == broken
    cache = DecisionCache(evaluator, 0, frozenset({"GET"}))
    assert [cache.find(argv).is_admitted for _ in range(2)] == [not broken and key[0] != "O"] * 2


def test_ids_with_capitals_cost_nothing() -> None:
    compiled = parse_policy(SPELLED.replace("NAMES", ""))
    sure = {one.name: one.names_sure for one in compiled.targets if one.kind == "entry"}
    assert sure == {"order": True, "session": True, "region": True, "own": False}


def test_lowering_separates_words_where_a_hump_was() -> None:
    assert lowered("orderStatusID:AB:<userId>") == "order_status_id:ab:<userId>"


ENTRIES = """
placeholders: {id: "[a-z]{1,8}", any: "[^:]+"}
keys:
  k: {key: "k:{<id>}", max_length: 6, should: [key.length, type.mismatch], type: string}
  l: {key: "l:<any>", hash_tag: required}
  m: {key: "m:<id>", hash_tag: any}
"""


def test_an_entry_may_set_its_own_limits_and_severities() -> None:
    found = explain(policy("{hash_tag: required}", ENTRIES), "app", [b"LPUSH", b"k:{abcdefgh}", b"x"])
    assert [(one["rule"], one["severity"]) for one in found["violations"]] == [
        ("key.length", "should"),
        ("type.mismatch", "should"),
    ]
    assert [one[0] for one in told("{hash_tag: required}", "l:abc", ENTRIES)] == ["key.hash_tag"]
    assert told("{hash_tag: required}", "m:abc", ENTRIES) == []
    assert [one[0] for one in told("{hash_tag: optional}", "l:abc", ENTRIES)] == ["key.hash_tag"]


def test_a_scope_s_hash_tag_and_should_apply_to_its_keys() -> None:
    text = """policy: p
services: [a, b]
claims: ["p:"]
placeholders: {id: "[a-z]+"}
names: {hash_tag: required}
scopes:
  s: {prefix: "p:s:", writers: a, hash_tag: any, should: [scope.write]}
  t: {prefix: "p:t:", writers: a}
keys:
  k: {key: "p:s:k:<id>"}
  l: {key: "p:t:l:<id>"}
"""
    compiled = parse_policy(text)

    def rules(key: bytes) -> list[tuple[str, str]]:
        found = explain(compiled, "b", [b"SET", key, b"1"])["violations"]
        return [(one["rule"], one["severity"]) for one in found]

    assert rules(b"p:s:k:x") == [("scope.write", "should")]
    assert rules(b"p:s:x") == [("scope.write", "should"), ("key.unregistered", "must")]
    assert rules(b"p:t:l:x") == [("scope.write", "must"), ("key.hash_tag", "must")]
    assert rules(b"p:x") == [("key.format", "must"), ("key.hash_tag", "must")]


def test_naming_rules_do_not_apply_outside_the_claims_or_to_legacy_forms() -> None:
    compiled = parse_policy(
        'policy: p\nservices: [a]\nclaims: ["p:"]\nnames: {lowercase: yes}\nplaceholders: {id: "[A-Z]+"}\n'
        'scopes: {s: {prefix: "p:", writers: a}}\nkeys: {k: {key: "p:k:<id>"}}\n'
        'legacy: {allow: [read], keys: {"OLD:<id>": k}}\n'
    )
    assert explain(compiled, "a", [b"GET", b"OLD:X"])["violations"] == []
    assert [one["rule"] for one in explain(compiled, "a", [b"GET", b"X:Y"])["violations"]] == [
        "key.unregistered"
    ]


def test_a_malformed_key_is_reported_once() -> None:
    compiled = parse_policy(
        'policy: p\nservices: [a]\nclaims: ["p:"]\nnames: {lowercase: yes, max_length: 8}\n'
        'placeholders: {id: "[a-z]+"}\n'
        'scopes: {s: {prefix: "p:", writers: a}}\nkeys: {k: {key: "p:k:<id>"}}\n'
    )
    found = explain(compiled, "a", [b"GET", b"p:k:AAAAAAAAA"])["violations"]
    assert [one["rule"] for one in found] == ["key.format", "key.length"]
    assert found[0]["message"] == "p:k:AAAAAAAAA is not of the form p:k:<id>"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("{levels: {min: 3, max: 2}}", "4:17: error: min is above max: no name can keep this"),
        ("{levels: {min: 99}}", "4:23: error: '99': input should be less than or equal to 64"),
        ("{level: '<id>'}", "4:16: error: <id> is not declared under placeholders"),
        ("{level: '[^a]+'}", "4:16: error: '[^a]+' may hold a colon, and a level has none"),
        ("{level: '[a'}", "4:16: error: '[a': '[' is never closed (at offset 0)"),
        ("{charset: 'ab'}", "4:18: error: 'ab': write a class for one byte, such as [a-z0-9:_]"),
        ("{charset: '[a-z]*'}", "4:18: error: '[a-z]*': write a class for one byte, such as [a-z0-9:_]"),
        (
            "{after: {'a:b': date}}",
            "4:24: error: 'a:b' is not a level of a key; write the word between two colons",
        ),
        ("{after: {date: '.'}}", "4:23: error: '.' may hold a colon, and a level has none"),
        ("{avoid: {'a-b': x}}", "4:24: error: 'a-b' is not an abbreviation; use letters and digits"),
        ("{lowercase: some}", "4:20: error: 'some' is neither true nor false"),
        ("{hash_tag: yes}", "4:19: error: 'yes' is not admitted here; expected required, optional or any"),
        ("{word: x}", "4:9: error: unknown key 'word'; did you mean lowercase?"),
        ("{should: {word: x}}", "4:18: error: unknown key 'word'"),
    ],
)
def test_a_senseless_naming_rule_is_an_error(names: str, message: str) -> None:
    with pytest.raises(FileError) as caught:
        policy(names)
    assert any(
        str(one).removeprefix("<policy>:").startswith(message.split(";", maxsplit=1)[0])
        for one in caught.value.diagnostics
    ), str(caught.value)


# -- compared with a naive reading

AVOIDED = {"usr": "user", "tmp": "temporary", "t": ""}
LEVEL = "[a-z]+(_[a-z0-9]+)*|[0-9]+"
FULL = (
    f'{{levels: {{min: 2, max: 4}}, lowercase: yes, charset: "[!-~]", level: "{LEVEL}", '
    "after: {date: date, d: '[0-9]'}, avoid: {usr: user, tmp: temporary, t: ''}}"
)
COMPILED = policy(FULL)
NAMES = names_of(COMPILED)
# The same rules, each in its own policy.
LEVEL_CLASS = re.compile(LEVEL.encode())


def is_date(level: bytes) -> bool:
    try:
        return len(level) == 8 and bool(datetime.datetime.strptime(level.decode(), "%Y%m%d"))
    except ValueError:
        return False


def naive(key: bytes) -> set[str]:
    """The kinds of rules that a key breaks, by a naive reading."""
    levels = key.split(b":")
    broken = set()
    if not 2 <= len(levels) <= 4 or not all(levels):
        broken.add("levels")
    if re.search(rb"[A-Z]", key):
        broken.add("lowercase")
    if re.search(rb"[^!-~]", key):
        broken.add("charset")
    if not all(LEVEL_CLASS.fullmatch(level) for level in levels):
        broken.add("level")
    at = 0
    while at < len(levels):
        if levels[at] in (b"date", b"d"):
            follows = levels[at + 1] if at + 1 < len(levels) else b""
            good = is_date(follows) if levels[at] == b"date" else bool(re.fullmatch(rb"[0-9]", follows))
            if not good:
                broken.add("after")
            at += 1
        at += 1
    if set(re.split(rb"[^a-zA-Z0-9]+", key)) & {word.encode() for word in AVOIDED}:
        broken.add("avoid")
    return broken


KEYS = (
    st.lists(
        st.sampled_from(
            [
                "user",
                "usr",
                "date",
                "d",
                "20240229",
                "20230229",
                "1",
                "a_b",
                "tmp",
                "t",
                "A",
                "",
                " ",
                "é",
                "x",
                "_",
                "-",
            ]
        )
        | st.text("adetuUsr_1", max_size=4),
        min_size=1,
        max_size=5,
    )
    .flatmap(lambda parts: st.sampled_from([":".join(parts), "_".join(parts), "".join(parts)]))
    .map(str.encode)
)


def keeps(names: Names, key: bytes) -> bool:
    """Whether a name keeps all rules, in the midst of other bytes."""
    return NameCheck(names, None, "any").faults(b"A" + key + b"A", 1, len(key) + 1) == 0


@given(KEYS)
@example(b"date:20240229")
@example(b"d:date")
@example(b"")
def test_the_automaton_agrees_with_a_naive_reading(key: bytes) -> None:
    expected = naive(key)
    broken = {check.kind for check in NAMES.checks if not check.admits(key)}
    # A mark that also matches the class after a mark has two readings; neither lets it pass.
    assert broken == expected
    assert keeps(NAMES, key) == (not expected)
    assert {fault.rule for fault in NAMES.faults(key)} == {
        "key.charset" if kind == "charset" else "key.format" for kind in expected
    }


@given(KEYS, st.sampled_from([b"GET", b"DEL", b"EXISTS"]))
def test_an_admitted_name_breaks_no_rule(key: bytes, command: bytes) -> None:
    evaluator = Evaluator(COMPILED)
    touches = extract([command, key])
    verdict = evaluator.evaluate(Asker(0), [command, key], touches)
    assert admits(evaluator, 0, [command, key], touches) == verdict.allowed


PATTERNS = [
    "k:<id>",
    "k:<any>",
    "<id>:<any>",
    "k:date:<day>",
    "k:<up>",
    "k:<id...>",
    "usr:<id>",
    "k:<any>:<num>",
]
CLASSES = {
    "id": parse_class("[a-s]{1,8}"),
    "any": parse_class("[^:]+"),
    "day": parse_class("[0-9]{8}"),
    "up": parse_class("[A-Z]"),
    "num": parse_class("[0-9]+"),
}


@pytest.mark.parametrize("text", PATTERNS)
@given(st.data())
def test_an_entry_marked_as_well_named_has_no_key_that_breaks_a_rule(text: str, data: st.DataObject) -> None:
    pattern = parse_pattern(text, CLASSES)
    against = compare(pattern, NAMES)
    key = data.draw(st.from_regex(re.compile(_regex(text)), fullmatch=True))
    if not pattern.matches(key):
        return
    clean = keeps(NAMES, key)
    assert against.some_keep if clean else against.some_break
    if surely_short(pattern, NAMES) and not against.some_break:
        assert clean


def _regex(text: str) -> bytes:
    for name, expression in (
        ("id", "[a-s]{1,3}"),
        ("any", "[a-zA-Z_0-9]+"),
        ("day", "2024022[0-9]"),
        ("up", "[A-Z]"),
        ("num", "[0-9]+"),
    ):
        text = text.replace(f"<{name}>", expression).replace(f"<{name}...>", f"{expression}(:{expression})*")
    return text.encode()


def test_entries_that_cannot_break_a_rule_are_not_checked() -> None:
    more = (
        'placeholders: {id: "[a-s]{1,8}", any: "[^:]+", h: sha256}\n'
        'keys: {k: {key: "k:<id>"}, l: {key: "l:<any>"}, m: {key: "m:{<id>}", hash_tag: required},'
        ' n: {key: "n:<h>", max_length: 66}}\n'
    )
    compiled = policy("{lowercase: yes, levels: {min: 2}, max_length: 80}", more)
    assert {one.name: one.names_sure for one in compiled.targets if one.kind == "entry"} == {
        "k": True,
        "l": False,
        "m": True,
        "n": True,
    }


def test_naming_rules_survive_pickling() -> None:
    again = pickle.loads(pickle.dumps(NAMES))
    for key in (b"a:b", b"A:b", b"date:20230229", b"usr:x"):
        assert list(again.faults(key)) == list(NAMES.faults(key))
        assert keeps(again, key) == keeps(NAMES, key)


@given(st.text("{}ab", max_size=8).map(str.encode))
def test_a_hash_tag_is_one_pair_of_braces_around_something(key: bytes) -> None:
    one = re.fullmatch(rb"[ab]*\{[ab]+\}[ab]*", key) is not None
    assert (hash_tag_fault(key, "required") is None) == one
    assert (hash_tag_fault(key, "optional") is None) == (one or not set(key) & set(b"{}"))
    assert hash_tag_fault(key, "any") is None
