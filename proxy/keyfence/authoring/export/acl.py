"""A policy as Redis ACL rules: one `ACL SETUSER` line for each service, with what it cannot express.

Rule: ACL admits nothing that the policy refuses, except what the comments above a line list. Each listed gap
has a rule, and the entry or the commands that it concerns.

A user has one set of commands and keys, and further ones in parentheses (selectors); a command must be
admitted by one of them as a whole. The first set has the commands that work on keys of any type. Each type
has a selector with its keys and its commands, and so have consumer groups, channels, grants, and entries that
restrict commands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from keyfence.commands.effects import GROUP_COMMANDS
from keyfence.commands.model import DELETE, GROUP, READ, WRITE, Command
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.permissions import selects
from keyfence.policy.compiled.policy import CompiledPolicy, Grant
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.show import in_lines, one_line

from .acl_commands import (
    FUNCTIONS,
    REMOVING,
    SCANNING,
    SCRIPTS,
    Commands,
    commands_of,
    lent_by,
    names_keys,
    words,
)
from .acl_gaps import Gap, declares_other_keys, gaps_of, why
from .acl_keys import DATA_TYPES, Keys, glob_of, granted, is_narrow, keys_of, word_of
from .builders import services_in
from .render import code_templates

COMMENT_WIDTH = 100
MOST_COMMANDS = 6  # named in a comment


class User(NamedTuple):
    """One service's ACL user."""

    service: str
    rules: tuple[str, ...]  # the words after ACL SETUSER NAME
    gaps: tuple[Gap, ...]  # ACL admits, although the policy refuses
    stricter: tuple[str, ...]  # ACL refuses, although the policy admits

    @property
    def line(self) -> str:
        return f"ACL SETUSER {self.service} {' '.join(self.rules)}"

    @property
    def admits(self) -> list[str]:
        """The gaps in words, one text for each rule."""
        by_rule: dict[str, list[Gap]] = {}
        for gap in self.gaps:
            by_rule.setdefault(gap.rule, []).append(gap)
        return ["; ".join([f"{rule}: {why(rule)}", *_where(gaps)]) for rule, gaps in by_rule.items()]


def acl_of(policy: CompiledPolicy, service: str = "", server: str = "redis-7.0") -> str:
    """Returns the lines for all services, or for one. Raises ValueError for an unknown service."""
    users = [user_of(policy, one, server) for one in services_in(policy, service)]
    templates = code_templates("keyfence.authoring.export", one_line=one_line, comment=_comment)
    return templates.get_template("acl.txt.jinja").render(policy=policy, server=server, users=users)


def user_of(policy: CompiledPolicy, service: str, server: str = "redis-7.0") -> User:
    """Returns the ACL user of a service, without what has lapsed (`on_expiry: refuse`)."""
    number = policy.number(service)
    evaluator = Evaluator(policy)
    policy = evaluator.policy

    def is_forbidden(command: Command) -> object:
        return evaluator.checks.permissions.reason(number, command)

    keys, without = keys_of(policy, number)
    grants = policy.grants.get(number, ())
    commands = commands_of(policy, number, is_forbidden, server)
    if not grants and not any(one.held & READ for one in keys):
        commands = commands._replace(keyless=commands.keyless - SCANNING)
    plain = [one for one in keys if not _restricts(one)]
    rules = ["on", "resetkeys", "resetchannels", "clearselectors", "-@all"]
    rules += _general(policy, plain, commands)
    rules += _selectors_of_types(plain, commands)
    rules += _selectors_of_restricted(keys, commands)
    rules += _selectors_of_channels(policy, number, commands)
    lent = [(grant, lent_by(grant, is_forbidden, server)) for grant in grants]
    for grant, names in lent:
        rules += _selectors_of_grant(policy, grant, names)
    rules += _selector_of_scripts(policy, commands)
    reached = [one for grant in grants for one in granted(policy, grant)]
    gaps = gaps_of(policy, number, keys, reached, commands.joined(*(names for _, names in lent)))
    if any(grant.legacy for grant in grants):
        without += [one for one in policy.targets if one.kind == "legacy" and not is_narrow(one)]
    stricter = [
        f"{one_line(one.text)} ({one.name}): an ACL pattern for it would match every key" for one in without
    ]
    return User(service, tuple(rules), tuple(gaps), (*stricter, *_stricter(policy, number, keys)))


def _restricts(keys: Keys) -> bool:
    entry = keys.target.entry if keys.target is not None else None
    return entry is not None and entry.commands is not None


def _has_groups(keys: Keys) -> bool:
    """Whether the service may use consumer groups of these keys.

    In ACL their commands need the right to write the stream, but not in the policy. So they have selectors of
    their own.
    """
    return bool(keys.held & GROUP) and (not keys.types or "stream" in keys.types)


def _only_removes(keys: Keys) -> bool:
    """Whether the service may delete these keys and write nothing else to them."""
    return bool(keys.held & DELETE) and not keys.held & WRITE


def _general(policy: CompiledPolicy, keys: Sequence[Keys], commands: Commands) -> Iterator[str]:
    """Yields the keys and commands of the first set."""
    yield from _patterns(keys)
    yield from words(commands.keyless)
    if policy.databases is None:
        yield "+select"
    else:
        yield from (f"+select|{number}" for number in sorted(policy.databases))
    if keys:
        yield from words(commands.generic)
        if not any(one.types for one in keys):
            yield from words(commands.on_keys - commands.generic - commands.groups)


def _patterns(keys: Sequence[Keys], limit: int = READ | WRITE) -> list[str]:
    """Returns the patterns of keys with the rights that are theirs, each once."""
    rights: dict[str, tuple[Keys, int]] = {}
    for one in keys:
        held = one.held & limit & (READ | WRITE)
        known = rights.get(one.glob)
        rights[one.glob] = one, held | (known[1] if known else 0)
    return [one.word(held) for one, held in rights.values() if held]


def _selector(*parts: Collection[str]) -> str:
    return f"({' '.join(word for part in parts for word in part)})"


def _selectors_of_types(keys: Sequence[Keys], commands: Commands) -> Iterator[str]:
    for one in DATA_TYPES if any(key.types for key in keys) else ():
        patterns = _patterns([key for key in keys if not key.types or one in key.types])
        if patterns and commands.of_type[one]:
            yield _selector(patterns, words(commands.of_type[one]))
    groups = [key for key in keys if _has_groups(key)]
    if groups and commands.groups:
        yield _selector(
            [f"~{glob}" for glob in dict.fromkeys(one.glob for one in groups)], words(commands.groups)
        )
    removed = [key for key in keys if _only_removes(key)]
    if removed:
        names = words(REMOVING & commands.generic)
        yield _selector([f"%W~{glob}" for glob in dict.fromkeys(one.glob for one in removed)], names)


def _selectors_of_restricted(keys: Sequence[Keys], commands: Commands) -> Iterator[str]:
    """Yields a selector for each entry that restricts the commands on its keys."""
    for one in filter(_restricts, keys):
        entry = one.target.entry if one.target is not None else None
        restriction = entry.commands if entry is not None else None
        assert restriction is not None
        typed = (commands.of_type[name] for name in (one.types or DATA_TYPES) if name in commands.of_type)
        names = commands.generic.union(*typed)
        if "delete" in restriction.never:
            names -= REMOVING
        groups = commands.groups if _has_groups(one) else frozenset()
        removed = [f"%W~{one.glob}"] if _only_removes(one) else []
        for patterns, some in (
            (_patterns([one]), names),
            ([f"~{one.glob}"], groups),
            (removed, names & REMOVING),
        ):
            listed = {name for name in some if _admits(restriction.forbid, restriction.allow, name)}
            if patterns and listed:
                yield _selector(patterns, words(listed))


def _admits(forbid: frozenset[str], allow: frozenset[str], name: str) -> bool:
    command = COMMANDS[name.encode()].command
    return not selects(forbid, command) and (not allow or selects(allow, command))


def _selectors_of_channels(policy: CompiledPolicy, service: int, commands: Commands) -> Iterator[str]:
    channels = [one for one in policy.channels if one.kind == "channel"]
    for right, names in ((WRITE, commands.publishing), (READ, commands.subscribing)):
        held = [one for one in channels if one.rights[service] & ~one.denied[service] & right]
        globs = dict.fromkeys(glob_of(one.pattern)[0] for one in held)
        if globs and names:
            yield _selector([f"&{glob}" for glob in globs], words(names))


def _selectors_of_grant(policy: CompiledPolicy, grant: Grant, names: Collection[str]) -> Iterator[str]:
    on_keys = [name for name in names if names_keys(name)]
    patterns = [f"~{one.glob}" for one in granted(policy, grant)]
    if patterns and on_keys:
        yield _selector(patterns, words(on_keys))
    channels = [f"&{word_of(glob)}" for glob in grant.channels]
    if channels and names:
        yield _selector(channels, words(name for name in names if name not in on_keys))


def _selector_of_scripts(policy: CompiledPolicy, commands: Commands) -> Iterator[str]:
    """Yields a selector for scripts whose declared keys are no keys that they use. Declaring a key gives no
    right: Redis checks each command of a script as the user's own."""
    if declares_other_keys(policy):
        yield _selector(["~*"], words(commands.generic & (SCRIPTS | FUNCTIONS)))


def _stricter(policy: CompiledPolicy, service: int, keys: Sequence[Keys]) -> Iterator[str]:
    channels = [one for one in policy.channels if one.kind == "channel" and not one.pattern.is_literal]
    if any(one.rights[service] & ~one.denied[service] & READ for one in channels):
        yield "PSUBSCRIBE, unless its pattern is one of these rules, letter by letter"
    if any(not set(one.types) <= set(DATA_TYPES) for one in keys):
        yield "commands of modules"
    if any(one.held & GROUP and not one.held & WRITE for one in keys):
        yield f"a consumer's {', '.join(sorted(GROUP_COMMANDS)[:2])} … together with other streams"


def _where(gaps: Sequence[Gap]) -> Iterator[str]:
    """Yields where the gaps of one rule are, in words."""
    if any(not gap.entry and not gap.commands for gap in gaps):
        return
    for gap in gaps:
        if gap.commands:
            more = len(gap.commands) > MOST_COMMANDS
            shown = ", ".join(sorted(gap.commands)[:MOST_COMMANDS]) + (" …" if more else "")
            yield f"with {shown}{f' of {gap.entry}' if gap.entry else ''}"
    own = [gap.entry for gap in gaps if not gap.commands and not gap.through]
    if own:
        yield f"keys of {', '.join(dict.fromkeys(own))}"
    for through in dict.fromkeys(gap.through for gap in gaps if not gap.commands and gap.through):
        names = dict.fromkeys(gap.entry for gap in gaps if not gap.commands and gap.through == through)
        yield f"keys of {', '.join(names)}, which the pattern of {through} matches"


def _comment(text: str) -> str:
    return "\n".join(in_lines(one_line(text), COMMENT_WIDTH, "#   ", "#     "))
