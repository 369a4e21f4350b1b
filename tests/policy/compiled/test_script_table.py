"""The scripts of a service mesh that computes every key from a namespace: policies can register all of them.

Each takes one of KEYS: the namespace, a prefix that the script itself never touches. `*` stands for values
that only Redis knows (a version that is counted there, the members of a set).
"""

from __future__ import annotations

import pytest

from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy

CONFIG = """
    writes: ["<ns>:cfg_idx", "<ns>:cfg:<ARGV.1>", "<ns>:cfg_htr_idx:<ARGV.1>", "<ns>:cfg_htr:<ARGV.1>:*"]
    publishes: ["<ns>:cfg:<ARGV.1>"]"""
INSTANCE = """
    writes: ["<ns>:svc_itc:<ARGV.1>"]
    publishes: ["<ns>:svc_itc:<ARGV.1>"]"""
SERVICE = """
    writes: ["<ns>:svc_idx", "<ns>:svc_stat", "<ns>:svc_itc_idx:<ARGV.1>"]
    publishes: ["<ns>:svc_idx"]"""
MEMBERS = """
    writes: ["<ns>:svc_itc_idx:<ARGV.1>", "<ns>:svc_itc:*"]
    publishes: ["<ns>:svc_itc:*"]"""
STAT = """
    reads: ["<ns>:svc_idx", "<ns>:svc_itc_idx:*"]
    writes: ["<ns>:svc_stat"]"""

# name: (beginning of its SHA-1, its registration, ARGV of a call, ARGV that its keys depend on)
SCRIPTS = {
    "config_set": ("62f78b8d", CONFIG, ["db.yaml", "x: 1", "h1"], 1),
    "config_remove": ("84aaa18e", CONFIG, ["db.yaml"], 1),
    "config_rollback": ("61fc4a0a", CONFIG, ["db.yaml", "3"], 1),
    "registry_register": (
        "1ff4c1dc",
        """
    writes: ["<ns>:svc_idx", "<ns>:svc_itc_idx:<ARGV.2>", "<ns>:svc_itc:<ARGV.3>", "<ns>:svc_stat"]
    publishes: ["<ns>:svc_idx", "<ns>:svc_itc:<ARGV.3>"]""",
        ["60", "orders", "orders@http#h#80", "http", "h", "80", "1"],
        3,
    ),
    "registry_deregister": (
        "0c52a420",
        """
    writes: ["<ns>:svc_itc_idx:<ARGV.1>", "<ns>:svc_itc:<ARGV.2>"]
    publishes: ["<ns>:svc_itc:<ARGV.2>"]""",
        ["orders", "orders@http#h#80"],
        2,
    ),
    "registry_renew": ("9e6a55cf", INSTANCE, ["orders@http#h#80", "60"], 1),
    "registry_set_metadata": ("e9ec5a56", INSTANCE, ["orders@http#h#80", "_zone", "a"], 1),
    "registry_set_service": ("a14b71e8", SERVICE, ["orders"], 1),
    "registry_remove_service": ("664a30ee", SERVICE, ["orders"], 1),
    "discovery_get_instances": ("dfc6f2e6", MEMBERS, ["orders"], 1),
    "discovery_get_instance": ("808dcb09", MEMBERS, ["orders", "orders@http#h#80"], 1),
    "discovery_get_instance_ttl": ("4d79f671", MEMBERS, ["orders", "orders@http#h#80"], 1),
    "instance_count_stat": ("b1bedb87", STAT, [], 0),
    "service_stat": ("a1b80109", STAT, ["orders"], 0),
    "service_topology_add": (
        "c60b0d71",
        """
    writes: ["<ns>:topology_idx", "<ns>:topology:<ARGV.1>"]""",
        ["orders", "billing"],
        1,
    ),
    "service_topology_get": ("00514bc2", '\n    reads: ["<ns>:topology_idx", "<ns>:topology:*"]', [], 0),
}


def sha1(name: str) -> str:
    return SCRIPTS[name][0] + "0" * 32


POLICY = """
policy: mesh
services: [app, other, reader]
placeholders:
  ns: "(cosky-\\\\{default\\\\}|\\\\{cosky-default\\\\}|cosky-\\\\{system\\\\})"
  id|ver: "[A-Za-z0-9_.@#-]{1,128}"
scopes:
  default: {prefix: "cosky-{default}:", writers: [app], readers: [reader], unregistered: allow}
  tagged: {prefix: "{cosky-default}:", writers: [app], readers: [reader], unregistered: allow}
  system: {prefix: "cosky-{system}:", writers: [other], unregistered: allow}
channels:
  default: {channel: "cosky-{default}:<id>", publishers: [app]}
  tagged: {channel: "{cosky-default}:<id>", publishers: [app]}
  config: {channel: "cosky-{default}:cfg:<id>", publishers: [app]}
  config-tagged: {channel: "{cosky-default}:cfg:<id>", publishers: [app]}
  instance: {channel: "cosky-{default}:svc_itc:<id>", publishers: [app]}
  instance-tagged: {channel: "{cosky-default}:svc_itc:<id>", publishers: [app]}
unregistered_scripts: forbid
scripts:
""" + "".join(
    f'  {name}:\n    sha1: {sha1(name)}\n    keys: ["<ns>"]{registration}\n'
    for name, (_, registration, _, _) in SCRIPTS.items()
)


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(parse_policy(POLICY))


def rules(evaluator: Evaluator, service: str, name: str, namespace: str, args: list[str]) -> list[str]:
    argv = ["EVALSHA", sha1(name), "1", namespace, *args]
    verdict = evaluator.decide(evaluator.policy.number(service), [word.encode() for word in argv])
    return [violation.rule for violation in verdict.violations]


@pytest.mark.parametrize("namespace", ["cosky-{default}", "{cosky-default}"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_service_may_run_each_script_in_its_own_namespace(
    evaluator: Evaluator, name: str, namespace: str
) -> None:
    assert rules(evaluator, "app", name, namespace, SCRIPTS[name][2]) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_in_another_namespace_each_key_is_a_violation(evaluator: Evaluator, name: str) -> None:
    broken = rules(evaluator, "app", name, "cosky-{system}", SCRIPTS[name][2])
    assert {"scope.write"} <= set(broken) or {"scope.read"} <= set(broken)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_reader_may_run_only_scripts_that_read(evaluator: Evaluator, name: str) -> None:
    broken = set(rules(evaluator, "reader", name, "cosky-{default}", SCRIPTS[name][2]))
    assert ("scope.write" in broken) == (name != "service_topology_get")
    assert "scope.read" not in broken


@pytest.mark.parametrize("name", [name for name, script in SCRIPTS.items() if script[3]])
def test_a_call_without_a_needed_argument_is_a_violation(evaluator: Evaluator, name: str) -> None:
    needed = SCRIPTS[name][3]
    assert rules(evaluator, "app", name, "cosky-{default}", SCRIPTS[name][2][: needed - 1]) == ["script.keys"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_call_with_an_invalid_namespace_is_a_violation(evaluator: Evaluator, name: str) -> None:
    first, *others = rules(evaluator, "app", name, "default", SCRIPTS[name][2])
    assert first == "script.keys"
    assert set(others) <= {"scope.read", "scope.write", "channel.write"}  # of keys in any namespace
