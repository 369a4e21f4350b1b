"""Channels, keyspace notifications, registered scripts and hash slots.

Rule: a script touches the keys and channels of its registration. Notifications of a key need the right to
read it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from keyfence.authoring.lint import check_policy
from keyfence.commands.extract import extract
from keyfence.commands.model import Streamed
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.asker import Asker, Transaction
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy

SHA = "62f78b8d" + "0" * 32
RENEW = "9e6a55cf" + "0" * 32
INSTANCES = "dfc6f2e6" + "0" * 32
OTHER = "77f6e2e6" + "0" * 32
USER_STATE = "05a232a4" + "0" * 32
TEXT = "return redis.call('get', KEYS[1])"

# Part of a service mesh's policy: its namespace is a hash tag, and scripts compose keys with it.
POLICY = f"""
policy: mesh
claims: ["mesh-"]
services: [app, viewer, admin]
placeholders:
  ns: "mesh-\\\\{{[a-z]+\\\\}}"
  id|ver: "[A-Za-z0-9_.@#-]{{1,64}}"
scopes:
  app: {{prefix: "mesh-{{default}}:", writers: [app], readers: [viewer]}}
  admin: {{prefix: "mesh-{{system}}:", writers: [admin]}}
keys:
  config: {{key: "mesh-{{default}}:cfg:<id>", type: hash}}
  config-index: {{key: "mesh-{{default}}:cfg_idx", type: set}}
  history: {{key: "mesh-{{default}}:cfg_htr:<id>:<ver>", type: hash}}
  instance: {{key: "mesh-{{default}}:svc_itc:<id>", type: hash}}
  private: {{key: "mesh-{{default}}:private:<id>", writers: [app]}}
  roles: {{key: "mesh-{{system}}:role_idx", type: set}}
channels:
  config: {{channel: "mesh-{{default}}:cfg:<id>", publishers: [app], subscribers: [app, viewer]}}
  instance: {{channel: "mesh-{{default}}:svc_itc:<id>", publishers: [app], subscribers: [app]}}
  job:
    channel: "mesh-jobs:<id>"
    publishers: [app, admin]
    subscribers: [viewer]
    written_by: [job_done, announce]
scripts:
  config_set:
    sha1: {SHA}
    keys: ["<ns>"]
    writes: ["<ns>:cfg_idx", "<ns>:cfg:<ARGV.1>", "<ns>:cfg_htr:<ARGV.1>:*"]
    publishes: ["<ns>:cfg:<ARGV.1>"]
  instances:
    sha1: {INSTANCES}
    keys: ["<ns>"]
    reads: ["<ns>:svc_itc:*"]
  user_state: {{sha1: {USER_STATE}, keys: 3}}
  job_done: {{sha1: {RENEW}, declared: none, publishes: ["mesh-jobs:<ARGV.1>"]}}
  job_all: {{sha1: {OTHER}, declared: none, publishes: ["mesh-jobs:a"]}}
  getter: {{sha1: "{hashlib.sha1(TEXT.encode()).hexdigest()}", keys: 1, declared: read}}
functions:
  announce: {{declared: none, publishes: ["mesh-jobs:*"]}}
  shout: {{declared: none, publishes: ["mesh-jobs:*"]}}
  bump: {{keys: 1}}
  echo: {{keys: 1, declared: read, writes: ["mesh-{{system}}:echo:<KEYS.1>"]}}
unregistered_scripts: forbid
"""


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(parse_policy(POLICY))


def rules(evaluator: Evaluator, service: str, *argv: str | bytes) -> list[str]:
    words = [word.encode() if isinstance(word, str) else word for word in argv]
    verdict = evaluator.decide(evaluator.policy.number(service), words)
    return [violation.rule for violation in verdict.violations]


@pytest.mark.parametrize(
    ("service", "command", "broken"),
    [
        ("app", "PUBLISH mesh-{default}:cfg:a set", []),
        ("viewer", "PUBLISH mesh-{default}:cfg:a set", ["channel.write"]),
        ("viewer", "SUBSCRIBE mesh-{default}:cfg:a", []),
        ("admin", "SUBSCRIBE mesh-{default}:cfg:a", ["channel.read"]),
        ("viewer", "SUBSCRIBE mesh-{default}:cfg:a mesh-{default}:svc_itc:i", ["channel.read"]),
        ("viewer", "SUBSCRIBE news", ["channel.read"]),
        ("app", "SPUBLISH mesh-{default}:cfg:a set", []),
        ("viewer", "SSUBSCRIBE mesh-{default}:cfg:a", []),
        ("app", "PUBLISH mesh-{default}:cfg:a:b set", ["channel.write"]),
        ("app", "PUBLISH __keyspace@0__:mesh-{default}:cfg:a set", ["channel.write"]),
    ],
)
def test_a_service_uses_only_its_channels(
    evaluator: Evaluator, service: str, command: str, broken: list[str]
) -> None:
    assert rules(evaluator, service, *command.split()) == broken


@pytest.mark.parametrize(
    ("service", "command", "broken"),
    [
        ("app", "PUBLISH mesh-jobs:a done", ["channel.write"]),
        ("app", "SPUBLISH mesh-jobs:a done", ["channel.write"]),
        ("viewer", "PUBLISH mesh-jobs:a done", ["channel.write"]),
        ("viewer", "SUBSCRIBE mesh-jobs:a", []),
        ("viewer", "PSUBSCRIBE mesh-jobs:*", []),
        ("app", f"EVALSHA {RENEW} 0 a", []),
        ("admin", f"EVALSHA {RENEW} 0 a", []),
        ("viewer", f"EVALSHA {RENEW} 0 a", ["channel.write"]),
        ("app", f"EVALSHA {OTHER} 0", ["channel.write"]),
        ("app", "FCALL announce 0", []),
        ("app", "FCALL shout 0", ["channel.write"]),
    ],
)
def test_only_scripts_publish_to_a_channel_that_lists_them(
    evaluator: Evaluator, service: str, command: str, broken: list[str]
) -> None:
    assert rules(evaluator, service, *command.split()) == broken


@pytest.mark.parametrize(("service", "broken"), [("app", []), ("viewer", []), ("admin", ["channel.read"])])
def test_any_right_on_a_channel_allows_counting_its_subscribers(
    evaluator: Evaluator, service: str, broken: list[str]
) -> None:
    argv = [b"PUBSUB", b"NUMSUB", b"mesh-{default}:cfg:a"]
    found = evaluator.decide(evaluator.policy.number(service), argv).violations
    assert [one.rule for one in found] == broken


def test_a_refused_publish_names_the_scripts_that_may(evaluator: Evaluator) -> None:
    (found,) = evaluator.decide(evaluator.policy.number("app"), b"PUBLISH mesh-jobs:a x".split()).violations
    assert found.message == "app may not PUBLISH mesh-jobs:a: only scripts publish there"
    assert found.hint == "it is written by announce, job_done"
    (found,) = evaluator.decide(
        evaluator.policy.number("viewer"), b"PUBLISH mesh-jobs:a x".split()
    ).violations
    assert found.hint == "its publishers: app, admin"


def test_a_channel_may_list_only_registered_scripts() -> None:
    channel = "{channel: c, publishers: [a], written_by: [announc]}"
    with pytest.raises(FileError, match="announc' is registered under neither scripts nor functions"):
        parse_policy(f"policy: p\nservices: [a]\nchannels: {{c: {channel}}}\nfunctions: {{announce: {{}}}}\n")


@pytest.mark.parametrize(
    ("service", "pattern", "broken"),
    [
        ("app", "mesh-{default}:svc_itc:a", []),
        ("app", "mesh-{default}:svc_itc:[ab]?", []),
        ("app", "mesh-{default}:svc_itc:*", []),
        ("app", "mesh-{default}:svc_itc:web@*", []),
        ("app", "mesh-{default}:svc*", ["channel.read"]),
        ("viewer", "mesh-{default}:cfg:a?", []),
        ("viewer", "mesh-{default}:*", ["channel.read"]),
        ("app", "*", ["channel.read"]),
    ],
)
def test_a_channel_pattern_reaches_only_permitted_channels(
    evaluator: Evaluator, service: str, pattern: str, broken: list[str]
) -> None:
    assert rules(evaluator, service, "PSUBSCRIBE", pattern) == broken


INVALIDATE = "__redis__:invalidate"


@pytest.mark.parametrize(
    ("commands", "argv", "broken"),
    [
        ("{}", f"SUBSCRIBE {INVALIDATE}", []),
        ("{}", f"SUBSCRIBE {INVALIDATE} news", ["channel.read"]),
        ("{}", f"PSUBSCRIBE {INVALIDATE}", []),
        ("{}", f"PSUBSCRIBE {INVALIDATE}*", ["channel.read"]),
        ("{}", f"PUBLISH {INVALIDATE} x", ["channel.write"]),
        ("{forbid: [CLIENT TRACKING]}", f"SUBSCRIBE {INVALIDATE}", ["channel.read"]),
        ("{forbid: [CLIENT]}", f"SUBSCRIBE {INVALIDATE}", ["channel.read"]),
        ("{forbid: [SUBSCRIBE]}", f"SUBSCRIBE {INVALIDATE}", ["command.forbidden"]),
    ],
)
def test_rights_to_track_keys_allow_their_notifications(commands: str, argv: str, broken: list[str]) -> None:
    grants = "grants: {b: {commands: [CLIENT TRACKING]}}"
    policy = f"policy: p\nservices: [a, b]\ncommands: {commands}\n{grants}\n"
    evaluator = Evaluator(parse_policy(policy))
    assert rules(evaluator, "a", *argv.split()) == broken
    if "forbid: [CLIENT" in commands:
        verdict = evaluator.decide(0, argv.encode().split())
        assert verdict.violations[0].hint == "it is for services that may use CLIENT TRACKING"
        assert rules(evaluator, "b", *argv.split()) == []  # its grant allows it


@pytest.mark.parametrize(
    ("service", "command", "broken"),
    [
        ("viewer", "SUBSCRIBE __keyspace@0__:mesh-{default}:cfg:a", []),
        ("viewer", "SUBSCRIBE __keyspace@0__:mesh-{default}:private:a", ["scope.read"]),
        ("viewer", "SUBSCRIBE __keyspace@0__:mesh-{system}:role_idx", ["scope.read"]),
        ("viewer", "SUBSCRIBE __keyspace@0__:elsewhere", ["key.unregistered"]),
        ("viewer", "PSUBSCRIBE __keyspace@0__:mesh-{default}:cfg:*", []),
        # The first star also matches `0__:other__`, and so the key `other__:mesh-…`.
        ("viewer", "PSUBSCRIBE __keyspace@*__:mesh-{default}:cfg:*", ["channel.read"]),
        ("viewer", "PSUBSCRIBE __keyspace@0__:mesh-{default}:cfg*", []),
        ("viewer", "PSUBSCRIBE __keyspace@0__:mesh-{default}:*", ["channel.read"]),
        ("app", "PSUBSCRIBE __keyspace@0__:mesh-{default}:*", []),
        ("app", "PSUBSCRIBE __keyspace@[01]__:mesh-{default}:*", []),
        ("app", "PSUBSCRIBE __keyspace@*", ["channel.read"]),
        ("app", "PSUBSCRIBE __keyspace@?__:mesh-{default}:cfg:x", []),
        ("app", "PUBLISH __keyspace@x__:y set", ["channel.write"]),
        ("app", "PUBLISH __keyevent@0__:del k", ["channel.write"]),
        ("app", "PSUBSCRIBE __key*@0__:mesh-{default}:cfg:x", ["channel.read"]),
        ("app", "SUBSCRIBE __keyevent@0__:expired", ["channel.read"]),
        ("app", "PSUBSCRIBE __keyevent@*__:*", ["channel.read"]),
        ("viewer", "CLIENT TRACKING ON BCAST PREFIX mesh-{default}:cfg:", []),
        ("viewer", "CLIENT TRACKING ON BCAST PREFIX mesh-{default}:", ["scan.scope"]),
        ("viewer", "CLIENT TRACKING ON BCAST", ["scan.scope"]),
        ("viewer", "CLIENT TRACKING ON", []),
    ],
)
def test_notifications_of_a_key_need_the_right_to_read_it(
    evaluator: Evaluator, service: str, command: str, broken: list[str]
) -> None:
    assert rules(evaluator, service, *command.split()) == broken


def test_key_events_need_the_right_to_read_every_key() -> None:
    policy = parse_policy(
        """
        policy: one
        services: [owner]
        placeholders: {id: "[a-z]+"}
        scopes: {all: {prefix: "a", writers: [owner]}, rest: {prefix: "b", writers: [owner]}}
        grants: {owner: {commands: [SUBSCRIBE], keys: ["*"]}}
        """
    )
    # Rights on every prefix of the policy are not rights on every key.
    assert rules(Evaluator(policy), "owner", "SUBSCRIBE", "__keyevent@0__:expired") == ["channel.read"]


@pytest.mark.parametrize(
    ("command", "broken"),
    [
        ("SUBSCRIBE __keyspace@0__:s:k", []),
        ("SUBSCRIBE __keyspace@1__:s:k", ["database.forbidden"]),
        ("PSUBSCRIBE __keyspace@0__:s:*", []),
        ("PSUBSCRIBE __keyspace@12__:s:*", []),
        ("PSUBSCRIBE __keyspace@1__:s:*", ["database.forbidden"]),
        ("PSUBSCRIBE __keyspace@1?__:s:*", ["database.forbidden"]),
        ("PSUBSCRIBE __keyspace@123__:s:*", ["database.forbidden"]),
        ("PSUBSCRIBE __keyspace@?__:s:*", ["database.forbidden"]),
        ("SUBSCRIBE __keyevent@0__:set", ["channel.read"]),
        ("SUBSCRIBE __keyevent@7__:set", ["database.forbidden", "channel.read"]),
        ("PSUBSCRIBE __keyevent@*__:set", ["database.forbidden", "channel.read"]),
        ("PSUBSCRIBE news:*", []),
        ("PUBSUB CHANNELS news:*", []),
        ("PUBSUB CHANNELS __keyspace@0__:s:*", []),
        ("PUBSUB CHANNELS __keyspace@0__:*", ["channel.read"]),
        ("PUBSUB CHANNELS", ["database.forbidden", "channel.read"]),
    ],
)
def test_notifications_stay_within_the_databases(command: str, broken: list[str]) -> None:
    policy = """
        policy: one
        services: [a]
        databases: [0, 12]
        scopes: {s: {prefix: "s:", writers: [a], unregistered: allow}}
        placeholders: {id: "[a-z]+"}
        channels: {news: {channel: "news:<id>", subscribers: [a]}}
        """
    assert rules(Evaluator(parse_policy(policy)), "a", *command.split()) == broken


def test_a_grant_reaches_patterns_however_it_selects_the_command() -> None:
    evaluator = Evaluator(
        parse_policy(
            """
            policy: one
            services: [all, some, named]
            scopes: {s: {prefix: "s:", writers: [named]}, t: {prefix: "t:", writers: [named]}}
            commands: {allow: [KEYS]}
            grants:
              all: {commands: ["@keyspace", CLIENT], keys: ["*"]}
              some: {commands: ["@keyspace", CLIENT], keys: ["s:*"]}
              named: {commands: [KEYS], keys: ["*"]}
            """
        )
    )
    for pattern in ("*", "s:*", "anything"):
        assert rules(evaluator, "all", "KEYS", pattern) == []
        assert rules(evaluator, "named", "KEYS", pattern) == []
        assert rules(evaluator, "some", "KEYS", pattern) == ([] if pattern == "s:*" else ["scan.scope"])
    assert rules(evaluator, "all", "RANDOMKEY") == rules(evaluator, "all", "SCAN", "0") == []
    assert rules(evaluator, "all", "CLIENT", "TRACKING", "ON", "BCAST") == []
    assert rules(evaluator, "some", "CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "s:") == []
    assert rules(evaluator, "some", "CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "t:") == ["scan.scope"]
    assert rules(evaluator, "named", "SCAN", "0") == ["scan.scope"]


NS = "mesh-{default}"


@pytest.mark.parametrize(
    ("service", "argv", "broken"),
    [
        ("app", ["EVALSHA", SHA, "1", NS, "db.yaml", "x: 1", "h"], []),
        ("app", ["evalsha", SHA.upper(), "1", NS, "db.yaml", "x: 1", "h"], []),
        (
            "viewer",
            ["EVALSHA", SHA, "1", NS, "db.yaml", "x: 1", "h"],
            ["scope.write"] * 3 + ["channel.write"],
        ),
        (
            "app",
            ["EVALSHA", SHA, "1", "mesh-{system}", "db.yaml"],
            ["scope.write", "key.unregistered"] * 2 + ["scope.write", "channel.write"],
        ),
        # The other rules are checked too: script.keys may be only observed.
        (
            "app",
            ["EVALSHA", SHA, "1", "other", "db.yaml"],
            ["script.keys", "scope.write", "scope.write", "scope.write", "channel.write"],
        ),
        ("app", ["EVALSHA", SHA, "2", NS, NS, "db.yaml"], ["script.keys"]),
        (
            "app",
            ["EVALSHA", SHA, "2", "mesh-{system}", NS, "db.yaml"],
            ["script.keys", *["scope.write", "key.unregistered"] * 2, "scope.write", "channel.write"],
        ),
        (
            "app",
            ["EVALSHA", SHA, "0", NS, "db.yaml"],
            ["script.keys", "scope.write", "scope.write", "scope.write", "channel.write"],
        ),
        ("app", ["EVALSHA", SHA, "1", NS], ["script.keys"]),
        ("app", ["EVALSHA", SHA, "1", NS, "a:b"], ["key.format", "channel.write"]),
        ("app", ["EVALSHA", INSTANCES, "1", NS], []),
        ("viewer", ["EVALSHA", INSTANCES, "1", NS], []),
        ("admin", ["EVALSHA", INSTANCES, "1", NS], ["scope.read"]),
        ("app", ["EVALSHA", USER_STATE, "3", f"{NS}:cfg:a", f"{NS}:cfg:b", f"{NS}:cfg:c", "x"], []),
        (
            "app",
            ["EVALSHA", USER_STATE, "3", f"{NS}:cfg:a", f"{NS}:cfg:b", "mesh-{system}:role_idx"],
            ["scope.read", "scope.write"],
        ),
        ("app", ["EVALSHA", USER_STATE, "2", f"{NS}:cfg:a", f"{NS}:cfg:b"], ["script.keys"]),
        (
            "app",
            ["EVALSHA", USER_STATE, "2", f"{NS}:cfg:a", "mesh-{system}:role_idx"],
            ["script.keys", "scope.read", "scope.write"],
        ),
        (
            "viewer",
            ["EVALSHA", SHA, "1", NS],
            ["script.keys", "scope.write", "scope.write", "scope.write", "channel.write"],
        ),
        ("viewer", ["EVAL", TEXT, "1", f"{NS}:cfg:a"], []),
        ("viewer", ["EVAL", TEXT + " ", "1", f"{NS}:cfg:a"], ["script.unregistered", "scope.write"]),
        ("app", ["EVALSHA", "f" * 40, "1", f"{NS}:cfg:a"], ["script.unregistered"]),
        ("app", ["EVALSHA", "f" * 40, "0"], ["script.keys", "script.unregistered"]),
        ("app", ["SCRIPT", "LOAD", TEXT], []),
        ("app", ["SCRIPT", "LOAD", "return 1"], ["script.unregistered"]),
        ("app", ["FCALL", "bump", "1", f"{NS}:cfg:a"], []),
        ("viewer", ["FCALL", "bump", "1", f"{NS}:cfg:a"], ["scope.write"]),
        ("viewer", ["FCALL", "BUMP", "1", f"{NS}:cfg:a"], ["scope.write"]),
        ("app", ["FCALL", "echo", "1", f"{NS}:cfg:a"], ["scope.write", "key.unregistered"]),
        ("app", ["FCALL", "Echo", "1", f"{NS}:cfg:a"], ["scope.write", "key.unregistered"]),
        ("app", ["FCALL", b"echo\0x", "1", f"{NS}:cfg:a"], ["scope.write", "key.unregistered"]),
        ("app", ["FCALL", "other", "1", f"{NS}:cfg:a"], ["script.unregistered"]),
        ("app", ["FUNCTION", "LOAD", "#!lua name=x"], ["command.forbidden"]),
    ],
)
def test_a_registered_script_touches_the_keys_of_its_registration(
    evaluator: Evaluator, service: str, argv: list[str | bytes], broken: list[str]
) -> None:
    assert rules(evaluator, service, *argv) == broken


def test_what_a_call_of_a_script_does_not_show_counts_as_any_value(evaluator: Evaluator) -> None:
    def shown(*argv: str | Streamed) -> list[tuple[str, str]]:
        words = [word.encode() if isinstance(word, str) else word for word in argv]
        verdict = evaluator.decide(evaluator.policy.number("viewer"), words)
        return [(violation.rule, violation.shown) for violation in verdict.violations]

    assert shown("EVALSHA", SHA, "1", NS)[1:4] == [
        ("scope.write", f"{NS}:cfg_idx"),
        ("scope.write", f"{NS}:cfg:*"),
        ("scope.write", f"{NS}:cfg_htr:*:*"),
    ]
    assert shown("EVALSHA", SHA, "0", "a*")[1:4] == [
        ("scope.write", "*:cfg_idx"),
        ("scope.write", "*:cfg:a\\\\*"),
        ("scope.write", "*:cfg_htr:a\\\\*:*"),
    ]
    assert shown("EVALSHA", SHA, "1", NS, Streamed(b"a", 2_000_000))[2] == ("scope.write", f"{NS}:cfg:*")


def test_a_call_of_a_script_says_what_is_wrong_with_its_number_of_keys(evaluator: Evaluator) -> None:
    def message(*argv: str) -> str:
        verdict = evaluator.decide(evaluator.policy.number("app"), [word.encode() for word in argv])
        return verdict.violations[0].message

    assert message("EVAL", TEXT, "0") == "EVAL of getter declares 0 keys"
    assert message("EVAL", TEXT, "2", NS, NS) == "EVAL of getter declares 2 keys"
    assert message("EVAL", TEXT, "1") == (
        "EVAL of getter cannot be evaluated: its number of keys is not the number of keys that follow"
    )


def test_a_star_in_an_argument_does_not_widen_a_template(evaluator: Evaluator) -> None:
    assert rules(evaluator, "app", "EVALSHA", SHA, "1", NS, "*", "x", "h")[0] == "key.format"


@pytest.mark.parametrize(
    ("word", "run", "declared", "load"),
    [
        ("", ["script.unregistered"], ["script.unregistered", "key.unregistered"], []),
        ("load_only", ["script.unregistered"], ["script.unregistered", "key.unregistered"], []),
        ("declared", [], ["key.unregistered"], []),
        (
            "forbid",
            ["script.unregistered"],
            ["script.unregistered", "key.unregistered"],
            ["script.unregistered"],
        ),
    ],
)
def test_the_policy_decides_about_unregistered_scripts(
    word: str, run: list[str], declared: list[str], load: list[str]
) -> None:
    text = "policy: p\nservices: [a]\nscopes: {s: {prefix: 's:', writers: [a], unregistered: allow}}\n"
    evaluator = Evaluator(parse_policy(text + (f"unregistered_scripts: {word}\n" if word else "")))
    for command in (["EVAL", "return 1"], ["EVALSHA", "f" * 40], ["EVAL_RO", "return 1"], ["FCALL", "f"]):
        assert rules(evaluator, "a", *command, "1", "s:x") == run
        assert rules(evaluator, "a", *command, "1", "t:x") == declared
    assert rules(evaluator, "a", "SCRIPT", "LOAD", "return 1") == load


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (
            ["EVAL", "return 1", "1", "k"],
            "scripts: {NAME: {sha1: e0e1f9fabfc9d4800c877a703b823ac0578ff8db, keys: 1}}",
        ),
        (["EVALSHA", "F" * 40, "2", "k", "l"], f"scripts: {{NAME: {{sha1: {'f' * 40}, keys: 2}}}}"),
        (["EVALSHA", "none", "1", "k"], "scripts by its SHA-1"),
        (["FCALL", "bump", "1", "k"], "functions: {bump: {keys: 1}}"),
    ],
)
def test_the_hint_says_how_to_register_a_script(argv: list[str], hint: str) -> None:
    evaluator = Evaluator(parse_policy("policy: p\nservices: [a]\n"))
    found = evaluator.decide(0, [word.encode() for word in argv]).violations
    assert [one.hint for one in found if one.rule == "script.unregistered"] == [f"register it under {hint}"]


def test_the_strictest_file_decides_about_unregistered_scripts(tmp_path: Path) -> None:
    def broken(*words: str) -> list[str]:
        for number, word in enumerate(words):
            setting = f"unregistered_scripts: {word}\n" if word else ""
            scope = f"scopes: {{s: {{prefix: '{number}:', writers: [a], unregistered: allow}}}}\n"
            text = f"policy: p{number}\nservices: [a]\nclaims: ['{number}:']\n{scope}{setting}"
            (tmp_path / f"{number}.yaml").write_text(text)
        evaluator = Evaluator(load_policy(tmp_path))
        return rules(evaluator, "a", "EVAL", "x", "1", "0:x") + rules(evaluator, "a", "SCRIPT", "LOAD", "x")

    assert broken("declared", "declared") == []
    assert broken("declared", "") == broken("load_only", "") == ["script.unregistered"]
    assert broken("declared", "forbid") == broken("forbid", "") == ["script.unregistered"] * 2
    _, warnings, _ = check_policy(tmp_path)
    assert not [one for one in warnings if "another file" in one.message]
    broken("declared", "")
    _, warnings, _ = check_policy(tmp_path)
    message = (
        "another file of the folder is stricter, so load_only applies; register the scripts, or write "
        "declared in every file"
    )
    assert [one.message for one in warnings if "another file" in one.message] == [message]


def test_a_registration_may_name_a_source_file(tmp_path: Path) -> None:
    (tmp_path / "unlock.lua").write_text("return 1\n")
    file = tmp_path / "p.yaml"
    file.write_text(
        "policy: p\nservices: [a]\nscopes: {s: {prefix: 's:', writers: [a], unregistered: allow}}\n"
        "scripts: {unlock: {source: unlock.lua, keys: 1}}\nunregistered_scripts: forbid\n"
    )
    evaluator = Evaluator(load_policy(file))
    assert rules(evaluator, "a", "EVAL", "return 1\n", "1", "s:x") == []
    assert rules(evaluator, "a", "EVAL", "return 1", "1", "s:x") == ["script.unregistered"]


@pytest.mark.parametrize(
    ("scripts", "message"),
    [
        ("{s: {keys: 1}}", "2:11: error: neither sha1 nor source: nothing identifies this script"),
        ("{s: {sha1: abc}}", "'abc' is not a SHA-1; write 40 hex digits"),
        ("{s: {source: none.lua}}", "none.lua cannot be read: No such file or directory"),
        (f"{{s: {{sha1: {SHA}, reads: ['<nix>:x']}}}}", "'<nix>:x': no call shows <nix>"),
        (
            f"{{s: {{sha1: {SHA}, keys: one}}}}",
            "'one': write the number of keys that it declares, any, or a list",
        ),
        (f"{{s: {{sha1: {SHA}}}, t: {{sha1: {SHA}}}}}", "the script s has the same SHA-1"),
    ],
)
def test_an_error_in_a_registration_has_its_place(scripts: str, message: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_policy(f"policy: p\nscripts: {scripts}\nservices: [a]\n", "p.yaml")
    assert message in str(caught.value)


def test_two_functions_may_not_differ_only_in_case() -> None:
    with pytest.raises(FileError, match="the function bump is the same to Redis"):
        parse_policy("policy: p\nservices: [a]\nfunctions: {bump: {keys: 1}, BUMP: {keys: 2}}\n", "p.yaml")


CLUSTER = """
policy: cluster
services: [a]
cluster: true
scopes: {s: {prefix: "", writers: [a], unregistered: allow}}
""".replace('""', '"k:"')


def test_keys_of_one_command_share_a_hash_slot() -> None:
    evaluator = Evaluator(parse_policy(CLUSTER))
    assert rules(evaluator, "a", "MGET", "k:{a}:1", "k:{a}:2") == []
    assert rules(evaluator, "a", "MGET", "k:{a}:1", "k:{b}:2", "k:{c}:3") == ["slot.cross"]
    assert rules(evaluator, "a", "GET", "k:{a}:1") == []


@pytest.mark.parametrize("pattern", ["k:{a}:*", "k:{a}:*->name", "#", "k:{b}:name"])
def test_sort_reads_keys_of_its_own_hash_slot(pattern: str) -> None:
    evaluator = Evaluator(parse_policy(CLUSTER))
    assert rules(evaluator, "a", "SORT", "k:{a}:1", "BY", pattern, "GET", pattern) == []


@pytest.mark.parametrize("pattern", ["k:{b}:*", "k:{b}:*->name", "k:{*}", "k:*", "k:{}:*", "k:{a*}"])
def test_sort_reads_no_keys_that_may_be_in_another_hash_slot(pattern: str) -> None:
    evaluator = Evaluator(parse_policy(CLUSTER))
    assert rules(evaluator, "a", "SORT_RO", "k:{a}:1", "GET", "k:{a}:*", "GET", pattern) == ["slot.cross"]
    # If it may not read them at all, this says enough.
    assert rules(evaluator, "a", "SORT_RO", "k:{a}:1", "GET", "elsewhere:*") == ["command.unknown"]


def test_outside_a_cluster_sort_may_read_keys_of_any_hash_slot() -> None:
    evaluator = Evaluator(parse_policy(CLUSTER.replace("cluster: true", "")))
    assert rules(evaluator, "a", "SORT", "k:{a}:1", "GET", "k:{b}:*") == []


def test_keys_of_one_transaction_share_a_hash_slot() -> None:
    evaluator = Evaluator(parse_policy(CLUSTER))
    transaction = Transaction()

    def queued(*argv: bytes) -> list[str]:
        return [
            v.rule
            for v in evaluator.evaluate(Asker(0, transaction=transaction), argv, extract(argv)).violations
        ]

    assert queued(b"PING") == []
    assert queued(b"GET", b"k:{a}:1") == []
    assert queued(b"GET", b"k:{a}:2") == []
    assert queued(b"GET", b"k:{b}:2") == ["slot.cross"]
