"""Commands whose keys are unknown, and grants of everything.

Rule: an unknown key counts as any key. A policy of five lines allows everything.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keyfence.authoring.diff import Difference
from keyfence.commands.model import Streamed
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.patterns.globs import Glob
from tests.commands.calls import ARGUMENTS, GRAMMATICAL, NAMES, calls
from tests.policy.engine.test_which_rule_fires import BLOCKS

EVERYTHING = next(block for block in BLOCKS if block.startswith("policy: everything"))
POLICY_TEXTS = {
    "scope and grant": EVERYTHING,
    "grant alone": """
policy: granted
services: [app]
unregistered_scripts: declared
grants: {app: {commands: "*", keys: "*", channels: "*"}}
""",
}


def rules(policy: CompiledPolicy | str, command: str | list[bytes], service: str = "app") -> list[str]:
    """Returns the rules that a command breaks."""
    compiled = parse_policy(policy) if isinstance(policy, str) else policy
    argv = command.encode().split(b" ") if isinstance(command, str) else command
    return [one.rule for one in Evaluator(compiled).decide(compiled.number(service), argv).violations]


# -- everything


def test_five_lines_allow_everything() -> None:
    assert len(EVERYTHING.strip().splitlines()) == 5


def test_the_known_key_of_a_command_with_too_many_options_is_evaluated_too() -> None:
    policy = """
        policy: p
        services: [app, other]
        scopes: {s: {prefix: "s:", writers: [other], unregistered: allow}}
    """
    for words, option in (("SET s:a 1", "KEEPTTL"), ("GETEX s:a", "PERSIST")):
        many = f"{words}{f' {option}' * 5_001}"
        assert rules(policy, many) == ["command.unknown", "scope.read", "scope.write"]
        assert rules(policy, many, "other") == ["command.unknown"]


@pytest.mark.parametrize("name", POLICY_TEXTS)
@settings(max_examples=1500)
@given(data=st.data())
def test_no_input_breaks_the_widest_policy(name: str, data: st.DataObject) -> None:
    evaluator = _EVALUATORS[name]
    argv = data.draw(GRAMMATICAL | calls(NAMES) | st.lists(st.binary(max_size=9) | ARGUMENTS, min_size=1))
    if data.draw(st.booleans()) and len(argv) > 1:
        at = data.draw(st.integers(1, len(argv) - 1))
        argv[at] = Streamed(argv[at] * 300, 100_000)
    found = evaluator.decide(0, argv).violations
    if argv[0]:  # no command has an empty name
        assert not found, (argv, found)


_EVALUATORS = {name: Evaluator(parse_policy(text)) for name, text in POLICY_TEXTS.items()}


@pytest.mark.parametrize("name", POLICY_TEXTS)
def test_no_command_of_the_table_breaks_the_widest_policy(name: str) -> None:
    evaluator = _EVALUATORS[name]
    every = [row.command.name for one in COMMANDS.values() for row in (one, *one.subcommands.values())]
    for command in every:
        for more in ([], [b"a"], [b"a", b"0", b"b"], [b"a", b"1", b"b", b"c", b"d", b"e", b"f"]):
            argv = [*command.encode().split(), *more]
            assert not evaluator.decide(0, argv).violations, argv


@pytest.mark.parametrize(
    "command",
    [
        "FROBNICATE a",
        "CONFIG FROB",
        "XT.FIND index query",
        "PUBSUB CHANNELS",
        "PSUBSCRIBE *",
        "PSUBSCRIBE __keyspace@*",
        "SUBSCRIBE __keyevent@0__:set",
        "PUBLISH __keyspace@0__:a x",
        "SUBSCRIBE ",
        "SORT l BY w_* GET a_*->f STORE d",
        "EVAL x 0",
        "FCALL f 0",
        "RANDOMKEY",
        "FLUSHALL",
        "CLIENT TRACKING ON BCAST PREFIX a PREFIX b",
    ],
)
@pytest.mark.parametrize("name", POLICY_TEXTS)
def test_the_widest_policy_allows_commands_with_unknown_keys(name: str, command: str) -> None:
    assert rules(POLICY_TEXTS[name], command) == []


def test_the_widest_policy_allows_other_services_nothing() -> None:
    assert rules(EVERYTHING, "GET a", "unknown") == ["scope.read"]
    assert rules(EVERYTHING, "FLUSHALL", "unknown") == ["command.forbidden"]
    assert rules(EVERYTHING, "FROBNICATE a", "unknown") == ["command.unknown"]


# -- any key: rights on every key are required

ROOMY = """
policy: roomy
services: [app, reader, other]
placeholders: {id: "[a-z]+"}
scopes:
  all: {prefix: "", writers: [app], readers: [reader], unregistered: allow}
  own: {prefix: "own:", writers: [other], readers: [app, reader], unregistered: allow}
channels: {news: {channel: "news:<id>", subscribers: [app]}}
"""


@pytest.mark.parametrize(
    ("service", "command", "broken"),
    [
        ("reader", "SORT_RO l BY w_*", []),
        ("reader", "SORT_RO l BY w_* GET a_*->f GET #", []),
        ("other", "SORT_RO own:l BY own:w_*->f", []),
        ("other", "SORT_RO own:l BY own:w_* GET own:x:*:y", []),
        ("other", "SORT_RO own:l BY own:w_* GET a_*", ["command.unknown"]),
        ("other", "SORT_RO own:l BY *own:", ["command.unknown"]),
        ("other", "SORT_RO own:l BY own", []),
        ("reader", "EVAL_RO x 0", []),
        ("reader", "EVAL x 0", ["script.keys"]),
        ("app", "EVAL x 0", ["script.keys"]),
        ("reader", "EVAL_RO x 5 a", []),
        ("reader", "CLIENT TRACKING ON BCAST PREFIX a PREFIX b", []),
        ("other", "CLIENT TRACKING ON BCAST PREFIX own:a PREFIX own:b", []),
        ("other", "CLIENT TRACKING ON BCAST PREFIX own:a PREFIX o", ["scan.scope"]),
        ("reader", "FROBNICATE a", ["command.unknown"]),
        ("reader", "RANDOMKEY", ["command.forbidden"]),
    ],
)
def test_commands_with_unknown_keys_need_rights_on_all_of_them(
    service: str, command: str, broken: list[str]
) -> None:
    assert rules(ROOMY + "unregistered_scripts: declared\n", command, service) == broken


def test_an_unreadable_pattern_of_sort_reaches_any_key() -> None:
    for pattern in (b"own:w\0_*", Streamed(b"own:" * 80, 4000)):
        argv = [b"SORT_RO", b"own:l", b"BY", pattern]
        assert rules(ROOMY, argv, "reader") == []
        assert rules(ROOMY, argv, "other") == ["command.unknown"]


def test_an_unknown_command_must_also_be_allowed() -> None:
    wide = ROOMY.replace("writers: [other]", "writers: [other, app]")
    assert rules(wide, "FROBNICATE a") == ["command.unknown"]
    for allow in ('"*"', "XT.FIND"):
        allowed = f"{wide}commands: {{allow: {allow}}}\n"
        assert rules(allowed, "XT.FIND a") == []
        assert rules(allowed, "xt.find a", "reader") == ["command.unknown"]  # the command may write
    assert rules(f"{wide}commands: {{allow: CONFIG}}\n", "CONFIG FROB") == []
    assert rules(f"{wide}commands: {{allow: '@admin'}}\n", "CONFIG FROB") == ["command.unknown"]


# -- * and forbidden commands


@pytest.mark.parametrize(
    ("forbid", "command", "broken"),
    [
        ("SORT", "SORT a", ["command.forbidden"]),
        ("CONFIG", "CONFIG GET x", ["command.forbidden"]),
        ("CONFIG GET", "CONFIG GET x", ["command.forbidden"]),
        ("CONFIG GET", "CONFIG SET x y", []),
        ("'@dangerous'", "FLUSHALL", ["command.forbidden"]),
        ("'@dangerous'", "FROBNICATE", ["command.unknown"]),
        ("XT.FIND", "XT.FIND a", ["command.unknown"]),
        ("XT.FIND", "xt.find a", ["command.unknown"]),
        ("XT.CONFIG SET", "XT.CONFIG set a", ["command.unknown"]),
        ("XT.CONFIG SET", "XT.CONFIG get a", []),
        ("SORT", "FROBNICATE", []),
        ("FT.SEARCH", "FT.SEARCH i q", ["command.forbidden", "command.unknown"]),
        ("FT.CONFIG SET", "FT.CONFIG SET a b", ["command.unknown"]),
    ],
)
@pytest.mark.parametrize("section", ["allow", "grant"])
def test_a_star_includes_no_forbidden_command(
    section: str, forbid: str, command: str, broken: list[str]
) -> None:
    policy = EVERYTHING
    if section == "allow":
        policy = policy.replace('commands: "*"', "commands: GET").replace('keys: "*", ', "")
        policy += f'commands: {{allow: "*", forbid: [{forbid}]}}\n'
    else:
        policy += f"commands: {{forbid: [{forbid}]}}\n"
    assert rules(policy, command) == broken


def test_granting_a_forbidden_command_by_name_allows_it() -> None:
    forbid = EVERYTHING + "commands: {forbid: [SORT]}\n"
    assert rules(forbid.replace('commands: "*"', 'commands: ["*", SORT]'), "SORT a") == []


def test_a_policy_cannot_forbid_every_command() -> None:
    with pytest.raises(FileError, match=r"\* is only for allow and grants; forbid commands by name"):
        parse_policy('policy: p\nservices: [a]\ncommands: {forbid: "*"}\n')


def test_a_diff_shows_what_a_grant_of_every_command_opens() -> None:
    old = parse_policy("policy: p\nservices: [a]\n")
    new = parse_policy('policy: p\nservices: [a]\ngrants: {a: {commands: "*", keys: "*", channels: "c*"}}\n')
    sentences = [change.sentence for change in Difference(old, new).changes]
    assert any(
        "a may now use" in one and "commands that keyfence does not know" in one for one in sentences
    ), sentences
    assert "the grant to a: * on * and the channels c*, was none" in sentences


# -- granted channels

CHANNELS = """
policy: p
services: [app, reader]
scopes: {own: {prefix: "own:", writers: [app], unregistered: allow}}
grants:
  app: {commands: [SUBSCRIBE, PSUBSCRIBE, PUBLISH, "PUBSUB CHANNELS"], channels: ["chat:*", "one", "_*"]}
"""


@pytest.mark.parametrize(
    ("command", "broken"),
    [
        ("SUBSCRIBE chat:a one", []),
        ("SUBSCRIBE two", ["channel.read"]),
        ("SSUBSCRIBE chat:a", ["channel.read"]),
        ("PUBLISH chat:a x", []),
        ("PUBLISH two x", ["channel.write"]),
        ("PSUBSCRIBE chat:* chat:a?", []),
        ("PSUBSCRIBE chat* *", ["channel.read", "channel.read"]),
        ("PSUBSCRIBE one", []),
        ("PSUBSCRIBE on?", ["channel.read"]),
        ("PUBSUB CHANNELS chat:*", []),
        ("PUBSUB CHANNELS", ["channel.read"]),
        ("PSUBSCRIBE _a*", []),
        ("PSUBSCRIBE __key*", ["channel.read"]),
        ("PSUBSCRIBE _*", ["channel.read"]),
        ("SUBSCRIBE __keyevent@0__:set", ["channel.read"]),
        ("SUBSCRIBE __keyspace@0__:own:a", []),
        ("SUBSCRIBE __keyspace@0__:a", ["key.unregistered"]),
    ],
)
def test_a_grant_allows_its_channels_only(command: str, broken: list[str]) -> None:
    assert rules(CHANNELS, command) == broken
    assert "command.forbidden" not in rules(CHANNELS, command, "reader")


@settings(max_examples=300)
@given(st.text("ab*?[]_\\", max_size=5), st.text("ab*?[]_\\", max_size=5), st.text("ab_", max_size=5))
@example("a*", "a*", "ab")
def test_a_granted_pattern_reaches_only_granted_channels(grant: str, pattern: str, name: str) -> None:
    """If a grant allows PSUBSCRIBE on a pattern, it allows SUBSCRIBE on every channel that matches."""
    policy = parse_policy(CHANNELS.replace('"chat:*", "one", "_*"', f"'{grant}'"))
    reached = Glob(pattern.encode()).matches(name.encode())
    if reached and not rules(policy, [b"PSUBSCRIBE", pattern.encode()]):
        assert not rules(policy, [b"SUBSCRIBE", name.encode()])
