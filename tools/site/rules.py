"""A page for each rule: what it means, an example, the remedy, how to enforce it and how to waive it.

Rule: names, meanings and remedies come from the table of rules. Examples are commands of docs/policy.md and
of `EXAMPLES`, evaluated when the site is built.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from keyfence.policy.loading.load import parse_policy
from keyfence.policy.remedies.explain import explain
from keyfence.policy.rules import RULES, Rule
from tools.site.links import PROJECT

_TAGGED = """\
policy: shop
claims: ["shop:"]
services: [web]
cluster: true
placeholders: {id: "[a-z0-9]{1,8}"}
scopes: {shop: {prefix: "shop:", writers: [web]}}
keys:
  cart: {key: "shop:cart:{<id>}", type: hash, hash_tag: required}
  note: {key: "shop:note:<id...>", type: string, hash_tag: required}
"""
_ROW = re.compile(r"^\| ([^|]+) \| (\w+) \| `([^`]+)` \| ([^|]+) \|$", re.MULTILINE)


class Example(NamedTuple):
    service: str
    command: str
    policy: str = ""  # empty: that of docs/policy.md


# Rules that no row of the table in docs/policy.md breaks.
EXAMPLES = {
    "script.keys": Example("web", 'EVAL "return 1" 0'),
    "script.unregistered": Example("web", "EVAL \"return redis.call('GET', KEYS[1])\" 1 shop:v1:scratch:x"),
    "key.hash_tag": Example("web", "SET shop:note:a 1", _TAGGED),
    "slot.cross": Example("web", "DEL shop:cart:{a} shop:cart:{b}", _TAGGED),
}
# Rules about a session, or about what a running keyfence sees: no single command shows them offline.
IN_WORDS = {
    "internal.error": "A fault of keyfence itself. The decision's id leads its operator to the log.",
    "session.opaque": "`SYNC`, `SCRIPT DEBUG YES`, or `SUBSCRIBE` inside MULTI: no sequence of commands "
    "and replies follows. In observe the session passes unread, and "
    "`keyfence_sessions_opaque_total` counts it.",
    "redis.address": "`CLUSTER SLOTS`, or an error `MOVED`, before a Redis Cluster without "
    "`upstream: cluster`. [Addresses of Redis](differences.md#addresses-of-redis) has all answers that "
    "name one.",
}
_KEYS = 'keys: "shop:old:<int>"'  # without it, the waiver would tolerate new keys as well


def rule_pages() -> dict[str, str]:
    """Returns the pages by their path: one for each rule, and their list."""
    policy = _example_policy()
    pages = {f"rules/{rule.name}.md": "\n".join(_page(rule, policy)) for rule in RULES.values()}
    rows = (f"| [{rule.name}]({rule.name}.md) | {rule.meaning} | {rule.stage} |" for rule in RULES.values())
    listed = "\n".join(["| rule | what it means | stage |", "|---|---|---|", *rows])
    names = "\n".join(f"{name} <{name}>" for name in RULES)
    pages["rules/index.md"] = (
        "# The rules\n\nEach kind of mistake is a rule with a stable name. keyfence looks for them in this "
        "order. [Which rule fires](../policy.md#which-rule-fires) says which ones apply to a key.\n\n"
        f"{listed}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )
    return pages


def _example_policy() -> str:
    """The policy of docs/policy.md, to which its table of commands refers."""
    return (PROJECT / "docs" / "policy.md").read_text().split("```yaml\n")[1].split("```")[0]


def example_of(rule: str, policy: str) -> Example | None:
    """The first command of the documentation that breaks this rule before all others."""
    rows = _ROW.findall((PROJECT / "docs" / "policy.md").read_text())
    for _, service, command, broken in rows:
        if broken.split(", ")[0] == rule:
            return Example(service, command, policy)
    return EXAMPLES.get(rule)


def _page(rule: Rule, policy: str) -> Iterator[str]:
    yield f"# {rule.name}: {rule.meaning}\n"
    yield f"**Decided by:** {rule.decided_by}. **Remedy:** {rule.remedy}.\n"
    if rule.late:
        yield "Some violations show only in later answers of Redis. They are reported, not refused.\n"
    yield "## An example\n"
    yield from _example(rule, policy)
    yield "## Enforce it\n"
    yield "A line under `modes` of the configuration enforces it for a service, or (without `service`) all:\n"
    yield f"```yaml\nmodes:\n  - {{rule: {rule.name}, service: web, mode: enforce}}\n```\n"
    yield "Ask first what that would refuse:\n"
    yield f"    keyfence ready --rule {rule.name}"
    yield f"    keyfence what-if --mode {rule.name}=enforce\n"
    yield "## Waive it\n"
    yield "A waiver tolerates what is known until a date ([waivers](../policy.md#modes-and-waivers)):\n"
    yield waiver_of(rule)
    yield "\n`keyfence waivers` says how often each was used, and which have lapsed. [All rules](index.md)."


def waiver_of(rule: Rule) -> str:
    """An example of a waivers file for a rule."""
    keys = [_KEYS] if rule.name == "key.unregistered" else []
    fields = [f"rule: {rule.name}", *keys, "owner: shop-platform", "reason: known", "until: 2099-06-30"]
    lines = "".join(f"    {field}\n" for field in fields)
    return f"```yaml\nwaivers:\n  - service: web\n{lines}```"


def _example(rule: Rule, policy: str) -> Iterator[str]:
    if rule.name in IN_WORDS:
        yield IN_WORDS[rule.name].replace("](", "](../") + "\n"
        return
    example = example_of(rule.name, policy)
    assert example is not None, f"tools/site/rules.py: no command breaks {rule.name}"
    found = _explained(example)
    violation = next(one for one in found["violations"] if one["rule"] == rule.name)
    if example.policy == _TAGGED:
        yield f"Under this policy:\n\n```yaml\n{_TAGGED}```\n"
        yield f"the service `{example.service}` sends:\n"
    else:
        yield "Under [the example of the policy file](../policy.md#an-example),"
        yield f"the service `{example.service}` sends:\n"
    yield f"    {example.command}\n"
    yield f"The violation:\n\n    {violation['message']}\n"
    if violation.get("hint"):
        yield f"The hint: {_plain(violation['hint'])}.\n"
    remedies = [one for one in found.get("remedies", ()) if one["rule"] == rule.name]
    if remedies:
        yield "To let it pass:\n"
        for one in remedies:
            yield f"- {_plain(one['text'])}" + (f": `{one['command']}`" if one.get("command") else "")
        yield ""


def _explained(example: Example) -> dict[str, Any]:
    policy = parse_policy(example.policy or _example_policy())
    return explain(policy, example.service, [word.encode() for word in shlex.split(example.command)])


def _plain(text: str) -> str:
    """Text of a message as Markdown that shows it as it is."""
    return re.sub(r"([<>*_{}\[\]`])", r"\\\1", text)
