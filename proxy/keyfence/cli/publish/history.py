"""`keyfence history`: the versions that were pushed, and when which rule was enforced.

Rule: it changes nothing. It answers from a whole chain only: a history that was tampered with is exit code 2,
whatever the question was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from keyfence.cli.terminal.options import format_option, is_given, print_json, value_option
from keyfence.cli.terminal.output import fail, say
from keyfence.config.fields import parse_store
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.findings.history.chain import Fault, Head, Row, chains_of, faults, parse_heads
from keyfence.findings.spans import span_text
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.rules import RULES
from keyfence.policy.show import in_lines, one_line
from keyfence.policy.units import counted

from .keys import TRUST_HELP
from .stores import STORE, STORE_VARIABLE, ca_option, name_option

_T = TypeVar("_T")
FINDINGS_VARIABLE = "KEYFENCE_FINDINGS"
BROKEN = 2
PRINT = "-"  # the value of --head without a file
WIDTH = 80  # columns
MAX_FAULTS = 20  # that are shown as text


def moment(text: str) -> float:
    """A date, or RFC 3339, in Unix seconds. Raises ValueError."""
    import datetime

    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write a date (2026-07-01) or RFC 3339") from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)).timestamp()


def findings_url(url: str, config: str) -> str:
    """The URL of the store that the options name. Ends the command if they name none."""
    if config and not is_given(click.get_current_context(), "findings"):
        url = load_settings(config, Overrides(), needs_policy=False).findings
        return url or fail(f"{config} says findings: none, so there is no history")
    if config or not url:
        fail("name the findings store: either --findings URL, or --config FILE that names it")
    return url


def store_options(command: Any) -> Any:
    """Adds the options that name the findings store."""
    shown = {"envvar": FINDINGS_VARIABLE, "show_envvar": True}
    url = value_option("--findings", "URL", "The findings store.", parse_store, default=None, **shown)
    return url(value_option("--config", "FILE", "The configuration that names the findings store.")(command))


@click.command()
@value_option("--rule", "RULE", "When this rule was enforced, for each service.")
@value_option("--service", "NAME", "Only for this service.")
@value_option("--since", "DATE", "From this day on, or RFC 3339.", moment, default=None)
@value_option("--until", "DATE", "Until this day, or RFC 3339.", moment, default=None)
@click.option("--verify", is_flag=True, help="Say whether all rows are those that were written.")
@click.option(
    "--head",
    metavar="[FILE]",
    is_flag=False,
    flag_value=PRINT,
    default="",
    help="Print the last row of each chain, to keep elsewhere. With FILE: compare with those that were kept.",
)
@store_options
@value_option(
    "--from place", STORE, "List what was pushed to this store.", envvar=STORE_VARIABLE, show_envvar=True
)
@name_option()
@click.option("--trust", "trust", metavar="KEY", multiple=True, help=TRUST_HELP)
@ca_option
@format_option("text", "json")
def history(place: str, name: str, trust: Sequence[str], ca: str, form: str, **asked: Any) -> None:
    """Show when a rule was enforced, who changed what, or what was pushed.

    With --rule it says for each service when the rule was enforced, only observed or off, and when nobody
    knows. Without, it lists the changes of policy, modes, waivers, break-glass and candidate. Both read a
    findings store, and check its chain of rows first.

    With --from and --name it lists the versions of a policy in a store, the newest first; with --trust it
    says of each whether it is as one of these keys has signed it.

    Exit code 0: enforced all the time, or nothing is wrong; 1: not enforced all the time, a pushed version
    is not as it was signed, or a store does not answer; 2: rows were changed or removed, or wrong usage.
    """
    if name:
        if asked["rule"] or asked["verify"] or asked["head"]:
            fail("--name is about versions that were pushed; omit it with --rule, --verify and --head")
        if not place:
            fail("name the store of the versions with --from STORE")
        from .push import print_versions

        print_versions(place, name, trust, ca, form)
        return
    if is_given(click.get_current_context(), "place"):
        fail("--from is about versions that were pushed; name the policy with --name")
    chained = read(findings_url(asked["findings"] or "", asked["config"]), lambda reader: reader.chained())
    if asked["head"] == PRINT:
        _print_heads(chained, form)
        return
    check(chained, _kept(asked["head"]), form)
    if asked["verify"] or asked["head"]:
        _print_right(chained, form)
    else:
        _answer(chained, form, asked)


def _answer(chained: Any, form: str, asked: dict[str, Any]) -> None:
    try:
        if asked["rule"]:
            of = {one: asked[one] for one in ("rule", "service", "since", "until")}
            _print_enforced(chained, form, **of)
        else:
            _print_changes(chained.rows, asked["since"] or 0.0, asked["until"] or time.time(), form)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        fail("the history has a row that keyfence does not write, although its hash is right", BROKEN)


def read(url: str, question: Callable[[Any], _T]) -> _T:
    """What a findings store answers. Ends the command with 1 if it does not."""
    from sqlalchemy.exc import SQLAlchemyError

    from keyfence.findings.database import Database, StoreError, reason
    from keyfence.findings.queries import Reader

    settings = load_settings("", Overrides(findings=url), needs_policy=False)
    try:
        database = Database(settings.findings, create=False)
    except StoreError as exc:
        fail(str(exc), 1)
    try:
        return question(Reader(database))
    except SQLAlchemyError as exc:
        fail(f"the findings store {database.shown} cannot be read: {reason(exc)}", 1)
    finally:
        database.close()


def _kept(file: str) -> list[Head]:
    if not file:
        return []
    try:
        return parse_heads(Path(file).read_text("utf-8"))
    except OSError as exc:
        fail(f"{file}: {exc.strerror}")
    except ValueError as exc:
        fail(f"{file}: {exc}")


def check(chained: Any, known: Sequence[Head], form: str) -> None:
    """End the command with 2 if the rows are not those that were written."""
    found = faults(chains_of(chained.rows), chained.heads, known)
    if not found:
        return
    if form == "json":
        print_json({"right": False, "faults": [one._asdict() for one in found]})
    else:
        say("The history is not as it was written:")
        for one in found[:MAX_FAULTS]:
            _say(f"  {fault_text(one)}", "    ")
        if len(found) > MAX_FAULTS:
            say(f"  and {len(found) - MAX_FAULTS} more")
    sys.exit(BROKEN)


def fault_text(one: Fault) -> str:
    row = f"row {one.number}: " if one.number else ""
    return f"{one_line(one.instance)}: {row}{one_line(one.text)}"


def _say(text: str, rest: str = "  ") -> None:
    """Prints a text for a terminal of 80 columns. `rest` begins its other lines."""
    say("\n".join(in_lines(text, WIDTH, rest=rest)))


def _print_heads(chained: Any, form: str) -> None:
    if form == "json":
        print_json([one._asdict() for one in chained.heads])
    for one in chained.heads if form != "json" else ():
        say(one.text)


def _print_right(chained: Any, form: str) -> None:
    if form == "json":
        print_json({"right": True, "rows": len(chained.rows), "chains": len(chained.heads)})
        return
    chains = counted(len(chained.heads), "chain")
    say(f"All {counted(len(chained.rows), 'row')} of {chains} are as they were written.")


# -- when a rule was enforced


def _print_enforced(
    chained: Any, form: str, *, rule: str, service: str, since: float | None, until: float | None
) -> None:
    from keyfence.findings.enforced import Enforcement, totals

    if rule not in RULES:
        fail(f"--rule: {rule!r} is not a rule{did_you_mean(rule, RULES)}")
    began = min((row.at for row in chained.rows), default=0) / 1000
    now = time.time()
    begin, end = began if since is None else since, now if until is None else min(until, now)
    if not chained.rows:
        fail("the store has no history: no keyfence of a version that writes one has used it", 1)
    if begin >= end:
        fail("--since must be before --until, and not in the future")
    found = Enforcement(chained, int(begin * 1000), int(end * 1000))
    services = [service] if service else found.services()
    if service and service not in found.services():
        fail(f"--service: no policy of this time has {service!r}{did_you_mean(service, found.services())}", 1)
    answers = {one: found.of(rule, one) for one in services}
    always = {one: {each.status for each in said} == {"enforced"} for one, said in answers.items()}
    if form == "json":
        rows = [
            {
                "service": one,
                "always_enforced": always[one],
                "seconds": {status: ms / 1000 for status, ms in totals(said).items()},
                "spans": [each.as_object() for each in said],
            }
            for one, said in answers.items()
        ]
        print_json({"rule": rule, "since": found.since / 1000, "until": found.until / 1000, "services": rows})
    else:
        say(f"{rule} from {_clock(found.since)} to {_clock(found.until)}, UTC")
        for one, said in answers.items():
            verdict = "enforced all the time" if always[one] else "not enforced all the time"
            sums = ", ".join(f"{status} {span_text(ms / 1000)}" for status, ms in totals(said).items() if ms)
            say("")
            _say(f"{one_line(one)}: {verdict} ({sums})")
            for each in said:
                _say(f"{_span(each)}  {one_line(each.why)}".rstrip(), "    ")
    sys.exit(0 if answers and all(always.values()) else 1)


def _span(one: Any) -> str:
    times = f"{_clock(one.begin)}  {_clock(one.end)}"
    return f"  {one.status:<8}  {times} {span_text((one.end - one.begin) / 1000):>7}"


def _clock(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at / 1000))


# -- who changed what


def _print_changes(rows: Sequence[Row], since: float, until: float, form: str) -> None:
    shown = [row for row in rows if since * 1000 <= row.at < until * 1000]
    if form == "json":
        print_json([{**row._asdict(), "detail": row.data()} for row in shown])
        return
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        text = "; ".join(_said(row, last.get((row.instance, row.kind), {})))
        last[row.instance, row.kind] = row.data()
        if text and since * 1000 <= row.at < until * 1000:
            _say(f"{_clock(row.at)}  {one_line(row.who)}: {one_line(text)}", "    ")
    if not shown:
        say("No changes.")


def _said(row: Row, before: dict[str, Any]) -> Iterator[str]:
    """What a row says that the one before of its kind did not."""
    now = row.data()
    if row.kind in ("start", "stop"):
        yield f"{row.kind} of {row.instance}" + (f" ({now['why']})" if "why" in now else "")
    elif row.kind == "policy":
        signed = now.get("signed", {})
        by = f", sequence {signed['sequence']}, signed by {signed['key']}" if signed else ""
        where = f" in {now['environment']}" if "environment" in now else ""
        yield (
            "passthrough" if now.get("passthrough") else f"policy {now['name']} {now['revision']}{where}{by}"
        )
    elif row.kind == "modes":
        yield from _modes_said(now, before)
    elif row.kind == "waivers":
        old, new = before.get("in_force", []), now["in_force"]
        for verb, some, others in (("waived", new, old), ("no more waived", old, new)):
            yield from (f"{verb}: {one['rule']} by {one['service']}" for one in some if one not in others)
    elif row.kind == "break-glass":
        yield f"break-glass {now['change']}, {len(now['open'])} open"
    elif row.kind == "candidate":
        yield f"candidate {now['change']}: {now['policy']} {now['revision']}"


def _modes_said(now: dict[str, Any], before: dict[str, Any]) -> Iterator[str]:
    for mode in ("enforce", "disabled"):
        old, new = before.get(mode, {}), now.get(mode, {})
        changed: dict[str, list[str]] = {}
        for rule, services in new.items():
            if services != old.get(rule):
                of = "all services" if services == ["*"] else ", ".join(services)
                changed.setdefault(f"{mode} for {of}", []).append(rule)
        if gone := [rule for rule in old if rule not in new]:
            changed[f"no more {mode}"] = gone
        for text, rules in changed.items():
            yield f"{text}: {'every rule' if set(rules) >= RULES.keys() else ', '.join(rules)}"
