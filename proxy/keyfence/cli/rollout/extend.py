"""`keyfence draft --extend`: a patch with what a policy lacks.

Rule: the policy file is read and never written. Answers to questions are kept in a file beside it, so that
asking can go on later.
"""

from __future__ import annotations

import datetime
import difflib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from keyfence.authoring.learn.applications import without
from keyfence.authoring.learn.extend import (
    Extension,
    Lack,
    Proposal,
    applications_beside,
    as_legacy,
    extended,
    proposals_for,
    tried,
)
from keyfence.authoring.learn.requirements import quoted
from keyfence.authoring.learn.sections import hidden_scripts
from keyfence.authoring.learn.seen import Evidence
from keyfence.authoring.learn.text import plain
from keyfence.cli.terminal.output import fail, say
from keyfence.policy.loading.load import load_policy
from keyfence.policy.show import one_line
from keyfence.policy.source.files import replacing
from keyfence.policy.units import counted as count

SUFFIX = ".answers.json"
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_WAIVED_FOR = datetime.timedelta(days=90)
_CHOICES = {"a": "accept", "e": "edit", "l": "legacy", "w": "waive", "s": "skip", "q": "quit"}


def extend(path: str, evidence: Evidence, shipped: Mapping[str, str], *, asks: bool) -> None:
    """Prints the patch. A policy that cannot be read ends the command. `shipped` are the texts of
    applications' policies by name."""
    if os.path.isdir(path):
        fail(f"{path} is a folder; name the file to extend")
    try:
        load_policy(path)
        text = Path(path).read_text(encoding="utf-8")
        applications = applications_beside(text, evidence, shipped)
        evidence = without(evidence, applications)
        found, rest = proposals_for(text, evidence)
    except OSError as exc:
        fail(f"{path}: {exc.strerror}")
    if asks:
        result, waived = _Questions(path, text, evidence).ask(found)
    else:
        result, waived = extended(text, found, evidence), []
    print_patch(path, text, result.text)
    for one in applications:
        say(f"keyfence: {one_line(one.sentence(path))}", err=True)
    if found or rest or evidence.masked_scripts or not applications:
        _report(path, found, result, rest, waived, evidence)


def print_patch(path: str, before: str, after: str) -> None:
    """Prints what is different in a file, as `patch` takes it. The texts have `\\n` where the file may have
    `\\r\\n`."""
    end = "\r\n" if b"\r\n" in Path(path).read_bytes() else "\n"
    old, new = (_LINES.findall(text.replace("\n", end)) for text in (before, after))
    name = f"{path}\t" if " " in path else path  # without the tab, `patch` reads up to the space
    lines = difflib.unified_diff(old, new, name, name, n=2)
    patch = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    if patch:
        say(patch.removesuffix("\n"))


def _report(
    path: str,
    found: list[Proposal],
    result: Extension,
    rest: list[Lack],
    waived: list[Proposal],
    evidence: Evidence,
) -> None:
    if not found and not rest and not evidence.masked_scripts:
        say(f"keyfence: {path} lacks nothing of what was seen", err=True)
        return
    say(f"keyfence: {path}: {len(result.taken)} of {count(len(found), 'proposal')} in the patch", err=True)
    for one in result.taken:
        say(f"keyfence: adds {one_line(one.title)}", err=True)
    for one, why in result.dropped:
        say(f"keyfence: does not add {one_line(one.title)}: {one_line(why)}", err=True)
    for sentence in hidden_scripts(evidence):
        say(f"keyfence: {sentence}", err=True)
    for lack in rest:
        what = f"{lack.rule}: {lack.service} {lack.command} {lack.entry}".rstrip()
        say(f"keyfence: no proposal for {one_line(what)}, {count(lack.times, 'time')}", err=True)
    for one in waived:
        say(f"keyfence: for the waivers file: {_waiver(one)}", err=True)


def _waiver(one: Proposal) -> str:
    until = datetime.datetime.now(datetime.UTC).date() + _WAIVED_FOR
    services = sorted(one.kind.facts.uses) if one.kind is not None else []
    keys = one.kind.glob if one.kind is not None else ""
    return "; ".join(
        f"{{service: {plain(service)}, rule: key.unregistered, keys: {quoted(keys)}, "
        f'owner: "", reason: "", until: {until}}}'
        for service in services
    )


class _Questions:
    """Asks about each proposal, and remembers the answers."""

    def __init__(self, path: str, text: str, evidence: Evidence) -> None:
        self.file = Path(path + SUFFIX)
        self.text = text
        self.evidence = evidence
        self.answers: dict[str, dict[str, Any]] = self._read()
        self.taken: list[Proposal] = []
        self.dropped: list[tuple[Proposal, str]] = []
        self.waived: list[Proposal] = []

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as exc:
            fail(f"{self.file} cannot be read ({exc}); remove it to begin anew")
        return {str(one): dict(answer) for one, answer in dict(found).items()}

    def ask(self, found: list[Proposal]) -> tuple[Extension, list[Proposal]]:
        """Asks about the proposals that have no answer yet. Returns what was accepted, and what is waived."""
        for number, one in enumerate(found, 1):
            known = self.answers.get(one.id)
            if known is None or not self._take(one, known):
                answer = self._question(one, f"{number}/{len(found)}")
                if answer is None:
                    break
                self.answers[one.id] = answer
                with replacing(self.file, json.dumps(self.answers, indent=1)):
                    pass
        return Extension(self.text, self.taken, self.dropped, []), self.waived

    def _question(self, one: Proposal, place: str) -> dict[str, Any] | None:
        """Asks until there is an answer that works. None: later."""
        say(f"\n{place}  {one_line(one.title)}", err=True)
        if one.doubt:
            say(f"  {one_line(one.doubt.partition(',')[0])}", err=True)
        changed, why = tried(self.text, one, self.evidence)
        if why:
            say(f"  it does not work: {one_line(why)}", err=True)
        for line in _added(self.text, changed):
            say(f"  {line}", err=True)
        allowed = [key for key in _CHOICES if _fits(key, one)]
        words = ", ".join(f"[{key}]{_CHOICES[key][1:]}" for key in allowed)
        while True:
            key = click.prompt(f"  {words}", type=click.Choice(allowed), show_choices=False, err=True)
            if key == "q":
                return None
            answer: dict[str, Any] = {"answer": _CHOICES[key], "title": one.title}
            if key == "l":
                answer["entry"] = click.prompt("  deprecated form of which entry", err=True)
            if key == "e":
                edited = click.edit(changed, extension=".yaml")
                if edited is None:
                    continue
                answer |= {"base": _digest(self.text), "text": edited}
            if self._take(one, answer):
                return answer

    def _take(self, one: Proposal, answer: dict[str, Any]) -> bool:
        """Carries an answer out. Returns whether that was possible."""
        word = answer.get("answer")
        if word == "waive":
            self.waived.append(one)
            return True
        if word == "skip":
            return True
        if word == "edit" and answer.get("base") != _digest(self.text):
            return False  # the policy is another one now
        chosen = one
        if word == "legacy":
            chosen = as_legacy(one, str(answer.get("entry")))
        elif word == "edit":
            edited = str(answer.get("text"))
            chosen = Proposal("edited", one.name, one.title, lambda _: edited)
        changed, why = tried(self.text, chosen, self.evidence)
        if why:
            say(f"  it does not work: {one_line(why)}", err=True)
            return False
        self.text = changed
        self.taken.append(chosen)
        return True


def _fits(key: str, one: Proposal) -> bool:
    return key not in ("l", "w") or one.kind is not None


def _added(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0)
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
