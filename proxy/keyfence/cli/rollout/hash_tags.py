"""`keyfence draft --hash-tags`: a patch that puts hash tags into the keys of a policy.

Rule: the policy file is read and never written. The patch goes to standard output, and everything that people
must know about it to standard error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from keyfence.authoring.learn.hash_tags import Pairs, propose, written
from keyfence.cli.terminal.asking import ask_admin, checked_answer, is_url, source_url
from keyfence.cli.terminal.output import fail, say
from keyfence.config.fields import is_store
from keyfence.policy.compiled.hash_tags import Linked
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.loading.load import load_policy
from keyfence.policy.show import one_line
from keyfence.policy.units import counted
from keyfence.policy.wording.command_log import feed_lines, from_line
from keyfence.upstream.address import without_password

from .extend import print_patch

_REDIS = ("redis://", "rediss://", "unix://")
_SHOWN_FAULTS = 5


def hash_tags(path: str, sources: Iterable[str]) -> None:
    """Prints the patch. A policy or a source that cannot be read ends the command."""
    if os.path.isdir(path):
        fail(f"{path} is a folder; name the file to change")
    try:
        policy = load_policy(path)
        text = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        fail(f"{path}: {exc.strerror}")
    pairs = Pairs()
    for source in sources:
        if is_store(source) or source.startswith(_REDIS):
            shown = without_password(source)
            fail(f"{shown} does not show which keys are used together; name a command log or a keyfence")
        url = source if is_url(source) else "" if os.path.exists(source) else source_url(source)
        if url:
            _add_running(pairs, url)
        else:
            _add_log(pairs, policy, source)
    found = propose(policy.written_forms(), pairs)
    after, taken, dropped = written(text, found.tags)
    print_patch(path, text, after)
    if not pairs.seen:
        say("keyfence: no keys were seen together in different hash slots", err=True)
    for tag in taken:
        change = f"{tag.entry}: {tag.before} becomes {tag.after}, for {counted(tag.times, 'use')}"
        if tag.has_few_values:
            change += (
                f"; <{tag.placeholder}> had {counted(tag.values, 'value')}, so few hash slots hold all keys"
            )
        say(f"keyfence: {one_line(change)}", err=True)
    for sentence in (*dropped, *found.left):
        say(f"keyfence: {one_line(sentence)}", err=True)
    if taken:
        say("keyfence: the old forms stay as legacy forms; keyfence migrate renames their keys", err=True)


def _add_running(pairs: Pairs, url: str) -> None:
    """Adds what the rehearsal of a running keyfence has seen."""
    answer = ask_admin(url, "/rehearsal")
    with checked_answer(url):
        if answer["rehearsal"] is None:
            fail(f"{url} rehearses no cluster; begin with: keyfence candidate load --for cluster")
        for row in answer["rows"]:
            if len(row["keys"]) == 2:
                first, second = (one["name"] if one["is_entry"] else "" for one in row["keys"])
                found = map(_linked, row["links"]) if first and second else ()
                pairs.add(first, second, int(row["times"]), found)


def _linked(one: Mapping[str, Any]) -> Linked:
    """A link as a rehearsal tells it. It tells the number of the values only, so the trace is made up."""
    return Linked((one["first"], one["second"]), int(one["times"]), (1 << int(one["values"])) - 1)


def _add_log(pairs: Pairs, policy: CompiledPolicy, path: str) -> None:
    """Adds the commands of a command log."""
    faults: list[str] = []
    try:
        with click.open_file(path, "rb") as lines:
            feed_lines(
                lines,
                lambda line: pairs.add_command(policy, from_line(line)),
                lambda number, fault: faults.append(f"line {number} is skipped: {fault}"),
            )
    except OSError as exc:
        fail(f"{path}: {exc.strerror}")
    for fault in faults[:_SHOWN_FAULTS]:
        say(f"keyfence: {path}: {one_line(fault)}", err=True)
