"""Every rule that a command can break: one table.

Rule: this table is the only list of rules, and its order is the order in which the evaluator looks for
violations. The documentation, the schemas, the modes and the waivers take their rules from here.

A new rule is a row here, a check in `policy/engine` that finds its violations, and a section of
`policy/source` if the policy states it. A requirement of entries is also a row in
`policy/compiled/requirements.py`. The check of a naming rule is in `policy/compiler/naming.py` and
`policy/compiled/names.py`. CONTRIBUTING.md, task 2, has all steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

# The evaluator's stages, in order: the command; then key by key, from "rights" to "lifetime"; last all keys
# together. "unseen" is for effects that the command does not show.
Stage = Literal[
    "session",
    "command",
    "database",
    "pattern",
    "channel",
    "unseen",
    "rights",
    "form",
    "type",
    "content",
    "lifetime",
    "together",
]
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)


# The parts of a policy that decide about a rule. If one changes, evidence of the rule begins again. "reach"
# is what a pattern, or a command with unknown keys, can reach. All others are about single keys.
Part = Literal["commands", "rights", "form", "name", "type", "content", "size", "ttl", "slots", "reach"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)

# What commands that break a rule have in common. "counted": all commands of one form, on keys of one kind,
# whose names and content have the same faults, break it. "worded": that is also all that the words of the
# violation depend on, beside the key itself.
Alike = Literal["", "counted", "worded"]


class Rule(NamedTuple):
    """One rule. Names are stable: they are metric labels, and configurations and waivers use them."""

    name: str
    stage: Stage
    meaning: str  # of a violation, as a sentence without its full stop
    decided_by: str  # the part of the policy that decides, or the person to ask
    remedy: str  # the remedy, as a sentence without its full stop
    late: bool = False  # some violations show only in Redis' later answers, so they cannot be refused
    parts: tuple[Part, ...] = ()
    alike: Alike = ""
    on_values: bool = False  # written values decide, which keyfence does not store


_ALL: Final = (
    # -- session
    Rule(
        "internal.error",
        "session",
        "the decision itself failed",
        "keyfence's operator",
        "report it to keyfence's operator, with the decision's id",
    ),
    Rule(
        "session.opaque",
        "session",
        "the session changed to one that cannot be read command by command",
        "keyfence's operator",
        "leave out the command, or observe this rule",
    ),
    Rule(
        "redis.address",
        "session",
        "Redis tells the client an address at which keyfence is not asked",
        "keyfence's operator",
        "use a client for a single Redis, and a Redis that is not a cluster",
    ),
    # -- command
    Rule(
        "command.forbidden",
        "command",
        "the command is forbidden to the service, or on this key",
        "`commands` and `grants`; on a key, the `commands` of its entry or scope",
        "use another command, or grant this one",
        parts=("commands",),
        alike="worded",
    ),
    # -- database
    Rule(
        "database.forbidden",
        "database",
        "the database is outside the policy",
        "`databases`",
        "use a listed database, or list this one",
    ),
    # -- pattern
    Rule(
        "scan.scope",
        "pattern",
        "the pattern reaches keys that the service may not read",
        "`readers` of every key that the pattern can match",
        "use a pattern that begins with a prefix of the service's own keys",
        parts=("reach",),
    ),
    # -- channel
    Rule(
        "channel.read",
        "channel",
        "the service may not subscribe to this channel",
        "`subscribers` under `channels`",
        "list the service, or subscribe to a channel that lists it",
        parts=("reach",),
    ),
    Rule(
        "channel.write",
        "channel",
        "the service may not publish to this channel",
        "`publishers` under `channels`",
        "list the service, or publish to a channel that lists it",
    ),
    # -- unseen
    Rule(
        "command.unknown",
        "unseen",
        "the command, or what it touches, is not known",
        "the command table; `commands` can allow a command by its name",
        "use a command whose keys are known, or allow this one by its name",
        parts=("commands", "reach"),
    ),
    Rule(
        "script.keys",
        "unseen",
        "the script's keys cannot be known",
        "`scripts` and `functions`",
        "pass all keys as KEYS, or register the script with its keys",
        parts=("commands", "reach"),
    ),
    Rule(
        "script.unregistered",
        "unseen",
        "the script is not registered with the policy",
        "`scripts`, `functions` and `unregistered_scripts`",
        "register the script",
    ),
    # -- rights
    Rule(
        "scope.read",
        "rights",
        "the service may not read this key",
        "`readers`, `writers` and `deny_read` of the entry or scope",
        "let a service read it that may, or list this one",
        parts=("rights",),
        alike="worded",
    ),
    Rule(
        "scope.write",
        "rights",
        "the service may not write this key",
        "`writers`, `consumers` and `deny_write` of the entry or scope",
        "let a service write it that may, or list this one",
        parts=("rights",),
        alike="worded",
    ),
    Rule(
        "key.legacy",
        "rights",
        "the key is of a deprecated form",
        "`legacy`; `replaces` and `allow` of the entry's next version",
        "use the standard key",
        parts=("rights", "form"),
        alike="worded",
    ),
    # -- form
    Rule(
        "key.format",
        "form",
        "the key breaks the form of its kind",
        "the entry's `key`; `claims` and `scopes`",
        "write the key as its entry has it",
        parts=("form", "name"),
        alike="worded",
    ),
    Rule(
        "key.unregistered",
        "form",
        "no entry of the policy covers the key",
        "`keys`; `unregistered` of the scope",
        "use the key of an entry, or register this one",
        parts=("form",),
        alike="worded",
    ),
    Rule(
        "key.length",
        "form",
        "the key is too long",
        "`max_length` of the entry, or under `names`",
        "shorten the key",
        parts=("name",),
        alike="worded",
    ),
    Rule(
        "key.charset",
        "form",
        "the key holds bytes that the policy does not admit",
        "`charset` under `names`",
        "leave these bytes out",
        parts=("name",),
        alike="worded",
    ),
    Rule(
        "key.hash_tag",
        "form",
        "the key's hash tag is missing, empty or doubled",
        "`hash_tag` of the entry or scope, or under `names`",
        "give the key one hash tag, as {tag}",
        parts=("name",),
        alike="worded",
    ),
    # -- type
    Rule(
        "type.mismatch",
        "type",
        "the command is for another value type than the key has",
        "`type` of the entry; `type_words`",
        "use the commands of the key's type",
        parts=("type",),
        alike="worded",
    ),
    # -- content
    Rule(
        "field.unknown",
        "content",
        "the hash or stream field is not listed for the key",
        "`fields` of the entry",
        "use a listed field, or list this one",
        parts=("content",),
        alike="counted",
    ),
    Rule(
        "value.invalid",
        "content",
        "the value is not of the listed form",
        "`fields`, `values`, `members` and `scores` of the entry",
        "write a value of this form",
        parts=("content",),
        alike="counted",
        on_values=True,
    ),
    Rule(
        "value.size",
        "content",
        "the value is longer than it may be",
        "`max_value` of the entry",
        "write less, or raise the limit",
        late=True,
        parts=("size",),
        alike="counted",
        on_values=True,
    ),
    Rule(
        "key.members",
        "content",
        "the key has more fields or elements than it may",
        "`max_fields` and `max_members` of the entry",
        "write fewer, or raise the limit",
        late=True,
        parts=("size",),
        on_values=True,
    ),
    Rule(
        "stream.maxlen",
        "content",
        "the stream is not trimmed as it must be",
        "`maxlen` of the entry",
        "give XADD a MAXLEN within the limit",
        parts=("size",),
        alike="worded",
    ),
    # -- lifetime
    Rule(
        "ttl.required",
        "lifetime",
        "the key must have a time to live",
        "`ttl` of the entry",
        "set a time to live with the write",
        late=True,
        parts=("ttl",),
        alike="worded",
    ),
    Rule(
        "ttl.forbidden",
        "lifetime",
        "the key must not have a time to live",
        "`ttl: none` of the entry",
        "leave the time to live out",
        late=True,
        parts=("ttl",),
        alike="worded",
    ),
    Rule(
        "ttl.range",
        "lifetime",
        "the time to live is out of range",
        "`ttl` of the entry",
        "set a time to live within the range",
        late=True,
        parts=("ttl",),
        alike="worded",
    ),
    # -- together
    Rule(
        "slot.cross",
        "together",
        "the keys of one command lie in different hash slots",
        "`cluster`",
        "give the keys one hash tag, as {tag}",
        parts=("slots",),
    ),
)
RULES: Final[Mapping[str, Rule]] = {rule.name: rule for rule in _ALL}


def rules_with(part: Part) -> tuple[str, ...]:
    """Returns the rules that a part of the policy decides about."""
    return tuple(rule.name for rule in _ALL if part in rule.parts)


def rules_at(stage: Stage) -> tuple[str, ...]:
    """Returns the rules of one of the evaluator's stages."""
    return tuple(rule.name for rule in _ALL if rule.stage == stage)
