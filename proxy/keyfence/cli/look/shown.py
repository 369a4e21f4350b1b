"""What `keyfence look` prints: keys that are there, news while clients work, and who uses what.

Rule: every line fits into 80 columns unless one name alone is longer, and nothing in it can control the
terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from keyfence.cli.keyspace.report import size_text
from keyfence.findings.spans import span_text
from keyfence.policy.services import UNKNOWN
from keyfence.policy.show import in_lines, one_line
from keyfence.policy.units import counted

from .naming import MAX_SERVICES, OTHERS
from .there import Kind, There
from .used import NO_KEY, Service, Use

WIDTH = 80
MAX_KINDS = 30  # of keys, in a list
MAX_NEWS = 8  # lines at a time
_NAME = 34  # columns for the kind of keys
_UNTOLD = {
    UNKNOWN: "clients without user, name and library",
    OTHERS: f"clients beyond {MAX_SERVICES} services",
}


def there_text(shown: str, there: There) -> list[str]:
    """The keys that are there, by kind."""
    lines = [*_wrapped(f"{shown}, database {there.database}: {looked_at(there)}.")]
    if there.kinds:
        lines += ["", f"{'kind of keys':{_NAME}}{'keys':>10}{'size':>10}  {'type':8}expire"]
    lines += [_kind_line(there, one) for one in there.kinds[:MAX_KINDS]]
    if len(there.kinds) > MAX_KINDS:
        lines.append(f"and {counted(len(there.kinds) - MAX_KINDS, 'more kind')}")
    for number, keys in sorted(there.others.items()):
        lines += _wrapped(
            f"Database {number} was not looked at: {counted(keys, 'key')}; name it with /{number}."
        )
    return [*lines, *(line for note in there.notes for line in _wrapped(f"{note}."))]


def looked_at(there: There) -> str:
    """How many keys there are, and how many of them were looked at."""
    if not there.total:
        return "no keys"
    size = size_text(there.estimate(sum(one.size for one in there.kinds)))
    if not there.is_sample:
        return f"{counted(there.total, 'key')}, {size}, all looked at"
    return (
        f"{counted(there.total, 'key')}, about {size}; {there.looked_at:,} of them were looked at, the other "
        "numbers are estimates"
    )


def _kind_line(there: There, one: Kind) -> str:
    sign = "~" if there.is_sample else ""
    keys, size = f"{sign}{there.estimate(one.keys):,}", f"{sign}{size_text(there.estimate(one.size))}"
    return _row(one.name, f"{keys:>10}{size:>10}  {'/'.join(one.by_number):8}{expiry(one)}")


def expiry(one: Kind) -> str:
    """Which of these keys expire, and when the last of them does."""
    if one.lasting == one.keys:
        return "never"
    longest = f"in {span_text(one.longest / 1000)}"
    return longest if not one.lasting else f"{(one.keys - one.lasting) / one.keys:.0%} {longest}"


# -- who uses what


def news(known: set[tuple[str, str]], services: Sequence[Service]) -> list[str]:
    """A line for each service that uses a kind of keys for the first time. `known` gets the shapes."""
    lines = []
    for service in services:
        for one in service.ordered:
            facts = {(service.name, shape) for shape in one.shapes}
            if facts.isdisjoint(known):
                lines.append(_cut(f"  {one_line(service.name)} {_does(one)}"))
            known |= facts
    more = len(lines) - MAX_NEWS
    return lines if more <= 1 else [*lines[:MAX_NEWS], f"  and {more} more; the summary has all"]


def _does(one: Use) -> str:
    if one.kind == NO_KEY:
        return f"sends {', '.join(one.names)}"
    verbs = (("reads", one.reads), ("writes", one.writes), ("runs", one.others))
    does = [verb for verb, times in verbs if times]
    return f"{' and '.join(does)} {one_line(one.kind)}"


def totals(services: Sequence[Service]) -> str:
    """How much was seen, in a few words."""
    kinds = {one.kind for service in services for one in service.uses.values() if one.is_of_keys}
    times = counted(sum(service.times for service in services), "use")
    return f"{counted(len(services), 'service')}, {counted(len(kinds), 'kind')} of keys, {times}"


def services_text(services: Iterable[Service]) -> Iterator[str]:
    """Every service, and what it does with each kind of keys."""
    for service in services:
        yield ""
        yield from _wrapped(f"{service.name} ({about(service)})")
        yield f"{'':{_NAME}}{'reads':>9}{'writes':>9}  commands"
        uses = service.ordered
        yield from (_use_line(one) for one in uses[:MAX_KINDS])
        if len(uses) > MAX_KINDS:
            yield f"  and {counted(len(uses) - MAX_KINDS, 'more kind')}"


def about(service: Service) -> str:
    """How a service is told from others, and by which libraries it comes."""
    told = f"told by {service.by}" if service.by else _UNTOLD.get(service.name, "")
    return "; ".join(filter(None, (told, ", ".join(service.libraries))))


def _use_line(one: Use) -> str:
    return _row(f"  {one.kind}", f"{_number(one.reads)}{_number(one.writes)}  {' '.join(one.names)}")


def _number(count: int) -> str:
    return f"{f'{count:,}' if count else '–':>9}"


def _row(name: str, cells: str) -> str:
    name = one_line(name)
    if len(name) < _NAME:
        return _cut(f"{name:{_NAME}}{cells}")
    return f"{name}\n{_cut(' ' * _NAME + cells)}"


def _cut(text: str) -> str:
    text = text.rstrip()
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _wrapped(text: str) -> list[str]:
    return in_lines(one_line(text), WIDTH, "", "  ")
