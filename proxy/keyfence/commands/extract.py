"""Finds everything that a command touches, from its argv.

Rule: `extract` finds every key that the command can touch, or states why the keys cannot be known. It never
raises, and takes a bounded number of steps for each argument.

When this module is loaded, each row of the table becomes a *plan*: a function from argv to `Touches`, with
everything precomputed that does not depend on argv.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from .arguments import MOST_OPTIONS, TooManyOptions, fold, options, word
from .cache_forms import PLAIN, Layout
from .effects import Effect, effect_of
from .facts import KeyFinder, Named, Rights
from .key_runs import numkeys
from .learned import Learned
from .model import ANY_KEY, DELETE, READ, WRITE, Access, Command, Problem, Touches, Ttl, sequence
from .table import COMMANDS, KeySpec, Row, lookup

Argv = Sequence[bytes]
Plan = Callable[[Argv], Touches]
Accesses = Callable[[Argv], tuple[Sequence[Access], Problem | None]]

_EMPTY = Touches(None, problem=Problem("command.unknown", 0, "the request is empty"))
_UNKNOWN = Touches(None, problem=Problem("command.unknown", 0, "no known server has this command"))


def extract(argv: Sequence[bytes]) -> Touches:
    """Returns the keys and channels that the command `argv` touches; its first argument is the name. Never
    raises.

    No server runs a call with a wrong number of arguments. Such a call gives the keys that are present, and
    no problem.
    """
    if not argv:
        return _EMPTY
    plan = PLANS.get(argv[0]) or PLANS.get(fold(argv[0])) or _learned.plans.get(fold(argv[0]))
    if plan is None:
        return _UNKNOWN
    try:
        return plan(argv)
    except TooManyOptions:
        return _with_too_many_options(argv)


def _with_too_many_options(argv: Argv) -> Touches:
    """The keys at fixed positions, which the unread options may let the command read or write; and a problem,
    because there may be more."""
    problem = Problem("command.unknown", 0, f"it has more than {MOST_OPTIONS} options", ANY_KEY)
    row = lookup(argv) or _learned.rows.get(fold(argv[0]))
    if row is None:
        return Touches(None, problem=problem)
    fixed = [spec for spec in row.specs if spec.is_key and spec.begin == "index"]
    runs = [_Run(positions(spec, argv), READ | WRITE, _ANY_EFFECT, None) for spec in fixed]
    return Touches(row.command, _accesses_of(argv, runs), problem=problem)


_ANY_EFFECT = Effect(READ | WRITE, (), None, None, None, 0)


class _LearnedCommands:
    """Commands that the table lacks, by upper-case name. Subcommands have their full name."""

    rows: Mapping[bytes, Row] = MappingProxyType({})
    plans: Mapping[bytes, Plan] = MappingProxyType({})


_learned = _LearnedCommands()


def adopt(learned: Learned) -> None:
    """Use a server's additional commands from now on, in place of those adopted before.

    This is the only mutable state of this room. It belongs to the process, which serves one upstream.
    """
    _learned.rows = {name: row for name, row in learned.rows.items() if name not in PLANS}
    _learned.plans = {name: _compile(row) for name, row in _learned.rows.items()}


# -- keys by key spec


def positions(spec: KeySpec, argv: Argv) -> range:
    """Where the spec finds keys in `argv` (Redis `src/db.c`, getKeysUsingKeySpecs)."""
    if spec.begin == "index":
        start = spec.start
    elif spec.begin == "keyword":
        start = _after_keyword(spec, argv)
    else:
        return range(0)
    if not 0 < start < len(argv):
        return range(0)
    if spec.find == "range":
        return range(start, min(_last(spec, start, len(argv)) + 1, len(argv)), spec.step)
    if spec.find == "keynum":
        return numkeys(argv, start + spec.count_at, start + spec.first, spec.step)
    return range(0)


def _last(spec: KeySpec, start: int, count: int) -> int:
    if spec.last >= 0:
        return start + spec.last
    if spec.limit <= 1:
        return count + spec.last
    return start + (count - start) // spec.limit + spec.last


def _after_keyword(spec: KeySpec, argv: Argv) -> int:
    """The position after the keyword, searched forwards from `start`, or backwards if `start` is negative."""
    if spec.start > 0:
        search = range(spec.start, len(argv))
    else:
        search = range(len(argv) + spec.start, 0, -1)
    found = next((i + 1 for i in search[:MOST_OPTIONS] if word(argv[i]) == spec.keyword), 0)
    if not found and len(search) > MOST_OPTIONS:
        raise TooManyOptions
    return found


# -- plans


def _compile(row: Row) -> Plan:
    """The cheapest plan that fits the row."""
    if row.subcommands:
        return _container(row)
    facts = row.facts
    specs = [(spec, effect_of(row, role)) for role, spec in enumerate(row.specs) if spec.is_key]
    if facts.named is not None:
        return _with_resources(row.command, _accesses(row, specs), facts.named)
    if facts.found is None and not row.problem:
        if not specs and "movablekeys" not in row.command.flags:
            return _constant(row.command)
        if len(specs) == 1 and _is_one_key(specs[0][0]):
            return _one_key(row.command, specs[0][0].start, specs[0][1], facts.rights)
    return _general(row.command, _accesses(row, specs))


def _container(row: Row) -> Plan:
    """The plan of a container. Without a subcommand it touches nothing: the server answers an error, or a
    description, as COMMAND does."""
    bare = Touches(row.command)
    problem = Problem("command.unknown", 1, "no known server has this subcommand")
    unknown = Touches(row.command, problem=problem)
    plans = {name: _compile(subcommand) for name, subcommand in row.subcommands.items()}
    prefix = row.command.name.encode() + b" "

    def plan(argv: Argv) -> Touches:
        if len(argv) < 2:
            return bare
        subcommand = (
            plans.get(argv[1]) or plans.get(word(argv[1])) or _learned.plans.get(prefix + word(argv[1]))
        )
        return subcommand(argv) if subcommand is not None else unknown

    return plan


def _constant(command: Command) -> Plan:
    touches = Touches(command)
    return lambda _argv: touches


def _is_one_key(spec: KeySpec) -> bool:
    return spec.is_complete and spec.begin == "index" and spec.find == "range" and spec.last == 0


def _one_key(command: Command, index: int, effect: Effect, rights: Rights | None) -> Plan:
    """The plan of GET, SET, HSET, EXPIRE … Most commands are of this kind, so it is written out for speed."""
    bare = Touches(command)
    needs, types, ttl, ttl_of, content_of, losses = effect
    needs_of = rights.needs if rights is not None else None
    if not needs & WRITE or needs & DELETE:
        ttl = ttl_of = content_of = None

    def constant(argv: Argv) -> Touches:
        if len(argv) <= index:
            return bare
        return Touches(command, (Access(index, argv[index], needs, types, ttl, None, losses),))

    def plan(argv: Argv) -> Touches:
        if len(argv) <= index:
            return bare
        needed = needs if needs_of is None else needs_of(argv)
        if not needed & WRITE:
            return Touches(command, (Access(index, argv[index], needed, types),))
        effect_on_ttl = ttl if ttl_of is None else ttl_of(argv)
        content = None if content_of is None else content_of(argv, index)
        return Touches(command, (Access(index, argv[index], needed, types, effect_on_ttl, content, losses),))

    return constant if needs_of is None and ttl_of is None and content_of is None else plan


class OneKey(NamedTuple):
    """A command whose first key has a fixed position, and whose other keys, if any, follow it directly."""

    command: Command
    key_at: int
    options_decide: bool  # whether its effect on the key depends on its arguments
    may_have_more: bool  # whether all arguments after the key are keys too
    shows_content: bool  # whether its arguments may be what the key holds afterwards
    layout: Layout = PLAIN


def _one_key_commands() -> dict[bytes, OneKey]:
    """All such commands by name, in upper and in lower case."""
    found = {}
    for name, row in COMMANDS.items():
        facts = row.facts
        specs = [spec for spec in row.specs if spec.is_key]
        if facts.named or facts.found or row.subcommands or row.problem or b" " in name or len(specs) != 1:
            continue
        several = specs[0].last == -1 and specs[0].step == 1 and specs[0].limit <= 1
        if _is_one_key(specs[0]._replace(last=0 if several else specs[0].last)):
            effect = effect_of(row, row.specs.index(specs[0]))
            decides = facts.rights is not None or effect.ttl_of is not None
            shows = effect.content_of is not None
            one = OneKey(row.command, specs[0].start, decides, several, shows, facts.layout)
            found[name] = found[name.lower()] = one
    return found


def _accesses(row: Row, specs: list[tuple[KeySpec, Effect]]) -> Accesses:
    return _by_options(row, row.facts.found) if row.facts.found is not None else _by_specs(row, specs)


def _by_specs(row: Row, specs: list[tuple[KeySpec, Effect]]) -> Accesses:
    problem = None
    if row.problem:
        problem = Problem("command.unknown", 0, row.problem)
    elif not all(spec.is_complete for spec, _ in specs) or (not specs and "movablekeys" in row.command.flags):
        problem = Problem("command.unknown", 0, "its key specs do not find all of its keys", ANY_KEY)
    keywords = {spec.keyword for spec, _ in specs if spec.begin == "keyword"}

    def accesses(argv: Argv) -> tuple[Sequence[Access], Problem | None]:
        runs = [_run(argv, positions(spec, argv), effect.needs, effect) for spec, effect in specs]
        return _accesses_of(argv, runs), problem or _repeated(keywords, argv)

    return accesses


def _repeated(keywords: Collection[bytes], argv: Argv) -> Problem | None:
    """A problem if a keyword appears twice: key specs take the first one, but that may be a value, and the
    server may use the last one."""
    for keyword in keywords:
        found = (i for i, name in enumerate(options(argv, 1), 1) if name == keyword)
        first_two = list(islice(found, 2))
        if len(first_two) > 1:
            reason = f"{keyword.decode()} appears twice, and only one of the two precedes a key"
            return Problem("command.unknown", first_two[1], reason, ANY_KEY)
    return None


def _by_options(row: Row, by_options: KeyFinder) -> Accesses:
    effects = [effect_of(row, role) for role in range(max(1, len(row.specs)))]
    refinements = [effect.needs & ~(READ | WRITE) for effect in effects]

    def accesses(argv: Argv) -> tuple[Sequence[Access], Problem | None]:
        found, problem = by_options.find(argv)
        runs = [
            _run(argv, keys_at, needs | refinements[role] if needs & WRITE else needs, effects[role])
            for keys_at, needs, role in found
        ]
        return _accesses_of(argv, runs), problem

    return accesses


class _Run(NamedTuple):
    """Positions of keys that have the same effect, the rights needed there, and what becomes of their times
    to live."""

    positions: range
    needs: int
    effect: Effect
    ttl: Ttl | None


def _run(argv: Argv, keys_at: range, needs: int, effect: Effect) -> _Run:
    """A run. Options decide about its times to live, so they are read once and not for each key."""
    ttl = None
    if needs & WRITE and not needs & DELETE and keys_at:
        ttl = effect.ttl if effect.ttl_of is None else effect.ttl_of(argv)
    return _Run(keys_at, needs, effect, ttl)


def _accesses_of(argv: Argv, runs: list[_Run]) -> Sequence[Access]:
    count = sum(len(run.positions) for run in runs)
    return sequence(count, lambda: _each_access(argv, runs), [run.positions for run in runs])


def _each_access(argv: Argv, runs: list[_Run]) -> Iterator[Access]:
    for keys_at, needs, effect, ttl in runs:
        content = None
        content_of = effect.content_of if needs & WRITE else None
        losses = effect.losses if needs & WRITE else 0
        for position in keys_at:
            if content_of is not None:
                content = content_of(argv, position)
            yield Access(position, argv[position], needs, effect.types, ttl, content, losses)


def _general(command: Command, accesses: Accesses) -> Plan:
    def plan(argv: Argv) -> Touches:
        found, problem = accesses(argv)
        return Touches(command, found, problem=problem)

    return plan


def _with_resources(command: Command, accesses: Accesses, named: Named) -> Plan:
    def plan(argv: Argv) -> Touches:
        found, problem = accesses(argv)
        channels, pattern, script, databases, other = named.find(argv)
        return Touches(command, found, channels, pattern, script, databases, problem or other)

    return plan


def _compile_all() -> dict[bytes, Plan]:
    """All plans by name in upper and in lower case, as clients send them. Containers hold their
    subcommands."""
    plans = {name: _compile(row) for name, row in COMMANDS.items() if b" " not in name}
    return plans | {name.lower(): plan for name, plan in plans.items()}


def _keyless_commands() -> dict[bytes, Command]:
    """Commands that touch nothing with any arguments, by name in upper and in lower case."""
    found = {}
    for name, row in COMMANDS.items():
        special = row.facts.named or row.facts.found
        may_touch = row.specs or row.subcommands or row.problem or "movablekeys" in row.command.flags
        if not special and not may_touch and b" " not in name:
            found[name] = found[name.lower()] = row.command
    return found


PLANS = _compile_all()
ONE_KEY: Mapping[bytes, OneKey] = _one_key_commands()
KEYLESS: Mapping[bytes, Command] = _keyless_commands()
