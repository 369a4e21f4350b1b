"""`keyfence status` and `keyfence modes`: the state of a running keyfence, and the modes of rules.

Rule: these commands change nothing. Their text shows the same facts as --format json.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from keyfence.admin.client import AskError, ask
from keyfence.cli.terminal.policies import POLICY
from keyfence.config.limits import ANY_SERVICE
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.policy.enforcement.modes import Modes, advised
from keyfence.policy.show import one_line
from keyfence.policy.units import clock_text, counted
from keyfence.process.serving.reload import load

from .terminal.asking import ask_admin, checked_answer
from .terminal.options import admin_option, format_option, is_given, print_json, value_option
from .terminal.output import fail, fits, print_table, say, wrapped

MAX_NODES = 50  # of a cluster, in the text
SLOTS = 16384  # of every Redis Cluster
_STYLES = {"enforce": "bold red", "observe": "green", "disabled": "dim"}
_VERBS = {"enforce": "enforced", "observe": "observed", "disabled": "disabled"}


@click.command()
@admin_option
@format_option("text", "json")
def status(admin: str, form: str) -> None:
    """Show the state of a running keyfence: policy, modes, Redis, workers, clients.

    Exit code 0: it can serve clients; 1: it cannot, or no keyfence answers.
    """
    answer = ask_admin(admin, "/status")
    with checked_answer(admin):
        is_ready = answer["ready"] is True
        lines = list(_status_lines(answer))
    if form == "json":
        print_json(answer)
    else:
        for name, text in [*lines, *_next_lines(admin)]:
            say(f"{name:11} {one_line(text)}")
    sys.exit(0 if is_ready else 1)


def _next_lines(admin: str) -> Iterator[tuple[str, str]]:
    """Yields what to do now, and the command. An earlier keyfence does not say it."""
    with contextlib.suppress(AskError):
        step = ask(admin, "/next")
        with checked_answer(admin):
            yield "next", step["sentence"]
            if step["command"] and not step["command"].startswith("keyfence status"):  # this one
                yield "", step["command"]


def _status_lines(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    policy, upstream = answer["policy"], answer["upstream"]
    lines = [
        ("keyfence", f"{answer['version']}, process {answer['pid']}, since {clock_text(answer['started'])}")
    ]
    if answer.get("environment"):
        lines.append(("environment", answer["environment"]))
    lines.append(("ready", "yes" if answer["ready"] else f"no: {'; '.join(answer['reasons'])}"))
    lines += [("warning", text) for text in answer["warnings"]]
    if policy is None:
        lines.append(("policy", "none: it runs with --splice and applies no policy"))
    else:
        text = f"{policy['name']}, revision {policy['revision']}, since {clock_text(policy['loaded'])}"
        lines.append(("policy", f"{text}: {policy['file']}"))
        if policy.get("signed"):
            lines.append(("version", _signed_text(policy["signed"])))
        if policy.get("reload") == "auto":
            lines.append(("reload", "auto: when the files have changed"))
        if policy.get("server"):
            lines.append(("server", _server_text(policy["server"])))
        if answer["candidate"] is not None:
            lines.append(("candidate", _candidate_text(answer["candidate"])))
        lines.append(("modes", _modes_text(answer["modes"])))
        lines += [("break-glass", _glass_text(one)) for one in answer["break_glass"]]
        lines.append(("waivers", str(answer["waivers"])))
    if upstream is not None:
        state = "up" if upstream["up"] else f"down ({upstream['reason']})"
        node = f" at {upstream['node']}" if upstream.get("node") else ""
        lines.append(
            ("upstream", f"{upstream['address']}{node}, {state} since {clock_text(upstream['since'])}")
        )
        lines += [("replica", _replica_text(one)) for one in upstream.get("replicas", ())]
        if upstream.get("last_failover"):
            lines.append(("failover", _failover_text(upstream["last_failover"])))
        if upstream.get("cluster"):
            lines += _cluster_lines(upstream["cluster"])
        split = upstream.get("split", {})
        lines += [("split", _split_text(service, names)) for service, names in split.items()]
        if upstream.get("credentials"):
            lines.append(("credentials", _credentials_text(upstream["credentials"])))
    lines += [("listener", f"{one['address']}, {one['whose']}") for one in answer["listeners"]]
    lines += [("process", _worker_text(one)) for one in answer["workers"]]
    clients = {service: number for service, number in sorted(answer["clients"].items()) if number}
    of = ", ".join(f"{service} {number}" for service, number in clients.items())
    return [*lines, ("clients", f"{sum(clients.values())}{f' ({of})' if of else ''}")]


def _signed_text(one: Mapping[str, Any]) -> str:
    """Returns which published version is in force, who published it and why."""
    about = f": {one['message']}" if one["message"] else ""
    return f"{one['name']} {one['sequence']} by {one['author']} at {one['time']}, key {one['key']}{about}"


def _server_text(one: Mapping[str, Any]) -> str:
    """Returns when the policy's server has confirmed the policy last, and how old it may be."""
    text = f"confirmed {clock_text(one['confirmed'])}, asked each {one['poll']:g} s"
    if one["stale_after"]:
        text += f"; stale after {one['stale_after']:g} s, then {one['then']}"
    return f"{text}; stale now" if one["is_stale"] else text


def _failover_text(one: Mapping[str, Any]) -> str:
    """Returns to which node, when, why, and how long it took."""
    text = f"to {one['node']} at {clock_text(one['at'])}, known from {one['why']}"
    return text if one["seconds"] is None else f"{text}; {one['seconds']:.1f} s without service"


def _replica_text(one: Mapping[str, Any]) -> str:
    """Returns whether reads go to a replica, and how far it is behind."""
    text = f"{one['address']}, {'not used: ' + one['reason'] if one['reason'] else 'used'}"
    return text if one["behind"] is None else f"{text}, {counted(one['behind'], 'byte')} behind"


def _cluster_lines(one: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns how whole the cluster is, and how each node stands."""
    nodes = one["nodes"]
    known = "its topology is not known yet" if one["age"] is None else f"topology {one['age']:.1f} s old"
    text = f"{counted(len(nodes), 'node')}, {one['slots']} of {SLOTS} hash slots are served, {known}"
    lines = [("cluster", text), *(("node", _node_text(node)) for node in nodes[:MAX_NODES])]
    if len(nodes) > MAX_NODES:
        lines.append(("node", f"{len(nodes) - MAX_NODES} more (--format json has all)"))
    return lines


def _split_text(service: str, names: Sequence[str]) -> str:
    """Returns which commands of a service are sent in parts."""
    whose = "every other service" if service == ANY_SERVICE else service
    return f"{whose}: {', '.join(names) or 'none'}"


def _node_text(one: Mapping[str, Any]) -> str:
    """Returns what a node is, and under which address clients find it."""
    announced = {None: "", "": "; clients cannot reach it"}.get(
        one["announced"], f"; clients use {one['announced']}"
    )
    slots = f", {counted(one['slots'], 'hash slot')}" if one["slots"] else ""
    of = f" of {one['primary']}" if one["primary"] else ""
    return f"{one['node']}, {one['role']}{of}{slots}, {'up' if one['up'] else 'down'}{announced}"


def _credentials_text(one: Mapping[str, Any]) -> str:
    """Returns where keyfence's login comes from, since when it is in force, and when it ends."""
    parts = [one["source"]]
    if one["since"]:
        parts.append(f"of {clock_text(one['since'])}")
    if one["expires_at"]:
        parts.append(f"until {clock_text(one['expires_at'])}")
    if one["failures"]:
        parts.append(f"{counted(one['failures'], 'failure')} since")
    return ", ".join(parts)


def _candidate_text(one: Mapping[str, Any]) -> str:
    """Returns which policy is compared with the one in force, and since when."""
    return f"{one['policy']}, revision {one['revision']}, since {clock_text(one['since'])}: {one['file']}"


def _modes_text(modes: Mapping[str, Mapping[str, int]]) -> str:
    """Returns how many rules have each mode. Services with equal numbers share one part of the text."""
    alike: dict[str, list[str]] = {}
    for service, numbers in modes.items():
        used = {mode: number for mode, number in numbers.items() if number}
        parts = [f"{_rules(number)} {_VERBS[mode]}" for mode, number in used.items()]
        text = f"all rules {_VERBS[next(iter(used))]}" if len(used) == 1 else ", ".join(parts)
        alike.setdefault(text, []).append(service)
    if len(alike) == 1:
        return next(iter(alike))
    return "; ".join(f"{', '.join(services)}: {text}" for text, services in alike.items())


def _rules(number: int) -> str:
    return counted(number, "rule")


def _glass_text(one: Mapping[str, Any]) -> str:
    what = " ".join([one["rule"] or "every rule", *(["by", one["service"]] if one["service"] else [])])
    return f"violations of {what} are not refused until {clock_text(one['until'])}"


def _worker_text(one: Mapping[str, Any]) -> str:
    connections = counted(one["connections"], "connection")
    return f"{one['pid']}, {one['state']}, {connections}, since {clock_text(one['started'])}"


@click.command()
@value_option("--config", "FILE", "Show the modes of this configuration.")
@value_option("--policy", "POLICY", "Policy, instead of the configuration's.", type=POLICY)
@admin_option
@format_option("text", "json")
@click.pass_context
def modes(context: click.Context, config: str, policy: str, admin: str, form: str) -> None:
    """Show the mode of each rule for each service: observe, enforce or disabled.

    Without --config and --policy, shows the modes of a running keyfence.
    """
    if (config or policy) and is_given(context, "admin"):
        fail("give either --admin or --config and --policy, not both")
    answer = _configured(config, policy) if config or policy else ask_admin(admin, "/modes")
    with checked_answer(admin):
        if answer.get("splice"):
            fail("keyfence runs with --splice: it applies no policy", 1)
        table = _modes_table(answer)
        advice = {rule: ", ".join(what) for rule, what in answer.get("advised", {}).items()}
        glass = [_glass_text(one) for one in answer["break_glass"]]
    if form == "json":
        print_json(answer)
        return
    if fits(table):
        print_table(table)
    else:
        _print_modes(answer)
    for rule, what in advice.items():
        say(f"{rule} is reported and never refused (should) for: {what}")
    for text in glass:
        say(f"break-glass: {text}")


def _configured(config: str, policy: str) -> dict[str, Any]:
    """Returns the answer that a running keyfence would give with this configuration."""
    settings = load_settings(config, Overrides(policy=policy))
    compiled = load(settings)
    return {
        "policy": compiled.name,
        "revision": compiled.revision,
        "should": sorted(compiled.should),
        "advised": advised(compiled),
        "modes": Modes(settings.modes, compiled.services, settings.waived()).matrix(),
        "break_glass": [],
    }


def _print_modes(answer: Mapping[str, Any]) -> None:
    """Prints the modes on a terminal too narrow for one column per service."""
    say(f"modes of {answer['policy']}")
    margin = max(map(len, answer["modes"])) + 2
    for rule, by_service in answer["modes"].items():
        should = rule in answer["should"]
        services: dict[str, list[str]] = {}
        for service, mode in by_service.items():
            services.setdefault(_mode_text(mode, should), []).append(service)
        parts = [f"{mode}: {', '.join(names)}" for mode, names in services.items()]
        say(wrapped(next(iter(services)) if len(services) == 1 else "; ".join(parts), f"{rule:{margin}}"))


def _mode_text(mode: str, should: bool) -> str:
    return "observe (should)" if should and mode == "enforce" else mode


def _modes_table(answer: Mapping[str, Any]) -> Table:
    table = Table(title=f"modes of {answer['policy']}", title_justify="left")
    table.add_column("rule", no_wrap=True)
    rows = answer["modes"]
    for service in next(iter(rows.values())):
        table.add_column(Text(service), no_wrap=True)
    for rule, by_service in rows.items():
        should = rule in answer["should"]
        cells = [Text(_mode_text(mode, should), style=_STYLES[mode]) for mode in by_service.values()]
        table.add_row(rule, *cells)
    return table
