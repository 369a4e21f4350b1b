"""What is doubtful about a policy that can be loaded, and its summary: `keyfence check`.

Rule: errors are what `compile` refuses, plus what makes an answer depend on chance (ties) or on a date that
has passed; warnings are what loads and works but is hardly meant.
"""

from __future__ import annotations

import datetime
import os
from collections import Counter
from pathlib import Path

from ..commands.model import READ, WRITE
from .build_names import compare
from .builtin_classes import NAMES
from .compile import compile_policies
from .compiled import CompiledPolicy, Target
from .diagnostics import Diagnostic, FileError
from .languages import covered, overlap, overlapping_pairs
from .load import policy_name, read_policies
from .model import PolicyModel
from .names import lowered
from .patterns import ClassExpression, Hole, KeyPattern, Literal
from .reach import scan_pattern
from .regular import ANY_BYTE, SEPARATOR_MASK, Bytes, Concat, Repeat
from .salvage import Salvaged
from .scripts import SHA1_DIGITS
from .show import printable
from .ttl import BRING_TTL
from .yaml_source import Source, read_source

NOTICE = datetime.timedelta(days=14)


def check_policy(
    path: str | Path, today: datetime.date | None = None
) -> tuple[list[Diagnostic], list[Diagnostic], str]:
    """(errors, warnings, summary) of a policy file. Raises nothing for a bad file.

    The summary is a line, and behind it the SCAN pattern of each entry, if the policy can be loaded.
    """
    on = today or datetime.datetime.now(datetime.UTC).date()
    if os.path.isdir(path):
        return _check_folder(path, on)
    try:
        whole = read_source(path, keep_going=True)
    except FileError as exc:
        return exc.diagnostics, [], f"{path}: {_count(len(exc.diagnostics), 'error')}"
    salvaged = Salvaged(whole)
    policy, model = salvaged.policy, salvaged.model
    found = list(salvaged.errors)
    if policy is not None and model is not None:
        found += _Doubts(policy, model, salvaged.source, on).all(whole=not salvaged.errors)
    errors = sorted((one for one in found if one.level == "error"), key=_by_place)
    warnings = sorted((one for one in found if one.level == "warning"), key=_by_place)
    counts = _count(len(errors), "error")
    if policy is None or salvaged.errors:
        counts += f", {_count(len(warnings), 'warning')}" if warnings else ""
        return errors, warnings, f"{path}: {counts}"
    summary = f"{path}: {counts}, {_count(len(warnings), 'warning')}; policy {policy.name}, {_holds(policy)}"
    return errors, warnings, "\n".join([summary, *_scan_lines(policy)])


def _check_folder(path: str | Path, on: datetime.date) -> tuple[list[Diagnostic], list[Diagnostic], str]:
    """The same of a folder's files, which are one policy."""
    try:
        files = read_policies(path)
        policy = compile_policies(files, policy_name(path, [model for model, _ in files]))
    except FileError as exc:
        return exc.diagnostics, [], f"{path}: {_count(len(exc.diagnostics), 'error')}"
    found = [
        one
        for home, (model, source) in enumerate(files)
        for one in sorted(_Doubts(policy, model, source, on, home).all(whole=True), key=_by_place)
    ]
    errors = [one for one in found if one.level == "error"]
    warnings = [one for one in found if one.level == "warning"]
    counts = f"{_count(len(errors), 'error')}, {_count(len(warnings), 'warning')}"
    summary = f"{path}: {counts}; policy {policy.name} of {_count(len(files), 'file')}, {_holds(policy)}"
    return errors, warnings, "\n".join([summary, *_scan_lines(policy)])


def _by_place(one: Diagnostic) -> tuple[int, int]:
    return one.place.line, one.place.column


def _holds(policy: CompiledPolicy) -> str:
    """What a policy consists of, in numbers."""
    kinds = Counter(target.kind for target in policy.targets)
    entries = len({target.name for target in policy.targets if target.kind == "entry"})
    return ", ".join(
        [
            _count(len(policy.services) - 1, "service"),
            _count(kinds["scope"], "scope"),
            _count(entries, "entry", "entries"),
            _count(kinds["legacy"], "legacy form"),
            _count(policy.classifier.automaton.states, "state"),
        ]
    )


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _scan_lines(policy: CompiledPolicy) -> list[str]:
    """How the keys of each entry are enumerated."""
    patterns = {
        (target.name, printable(scan_pattern(target))): None
        for target in policy.targets
        if target.kind == "entry" and not target.pattern.is_literal
    }
    width = max((len(name) for name, _ in patterns), default=0)
    return [f"  {name:{width}}  SCAN 0 MATCH {pattern}" for name, pattern in sorted(patterns)]


class _Doubts:
    """What is doubtful about one file of a policy, which is the whole of it or number `home`."""

    def __init__(
        self, policy: CompiledPolicy, model: PolicyModel, source: Source, today: datetime.date, home: int = 0
    ) -> None:
        self.policy = policy
        self.home = home
        self.mine = [target for target in policy.targets if target.home == home]
        self.model = model
        self.source = source
        self.today = today
        self.found: list[Diagnostic] = []

    def all(self, *, whole: bool) -> list[Diagnostic]:
        """Every doubt; of a policy that isn't whole, those that what is missing could not have settled."""
        self._overlaps()
        self._shadowed()
        self._separators()
        self._spoilt_scans()
        self._expiries()
        self._never_created()
        self._short_hashes()
        self._stricter_files()
        self._misnamed()
        if whole:
            self._idle_services()
            self._unwritten_scopes()
            self._widenings()
        return self.found

    def _error(
        self, path: tuple[str | int, ...], message: str, *, of_key: bool = False, example: str = ""
    ) -> None:
        self.found.append(self.source.error(path, message, of_key=of_key, example=example))

    def _warn(
        self, path: tuple[str | int, ...], message: str, *, of_key: bool = False, example: str = ""
    ) -> None:
        self.found.append(self.source.warning(path, message, of_key=of_key, example=example))

    def _path(self, target: Target) -> tuple[str, ...]:
        return ("legacy", "keys", target.text) if target.kind == "legacy" else ("keys", target.name, "key")

    def _overlaps(self) -> None:
        """Ties between entries, and legacy forms that take keys of the convention."""
        targets = self.policy.targets
        for one, other in overlapping_pairs(self.policy.classifier.automaton):
            left, right = targets[one], targets[other]
            kinds = {left.kind, right.kind}
            if not kinds <= {"entry", "legacy"} or right.home != self.home:
                continue
            if left.home != self.home and "entry" in kinds:
                continue  # of two files, that of the claim decides
            if len(kinds) == 1 and left.pattern.specificity != right.pattern.specificity:
                continue
            key = overlap(left.pattern, right.pattern)
            if key is None:
                continue
            example = printable(key)
            if len(kinds) == 1:
                self._error(
                    self._path(right),
                    f"{right.text!r} and {left.text!r} are equally specific and both match {example!r}; "
                    "make one of them more specific",
                    of_key=right.kind == "legacy",
                    example=example,
                )
            else:
                self._warn(
                    self._path(right),
                    f"the legacy form {right.text!r} also matches {example!r}, a key of {left.name}",
                    of_key=True,
                    example=example,
                )

    def _shadowed(self) -> None:
        """Entries that never decide because more specific ones take all their keys."""
        targets = [target for target in self.mine if target.kind == "entry"]
        indexes = {id(target): index for index, target in enumerate(targets)}
        rivals: dict[int, list[Target]] = {}
        for one, other in overlapping_pairs(self.policy.classifier.automaton):
            left, right = self.policy.targets[one], self.policy.targets[other]
            if left.kind == right.kind == "entry" and left.home == right.home == self.home:
                rivals.setdefault(indexes[id(right)], []).append(left)
        for index, others in rivals.items():
            target = targets[index]
            if covered(target.pattern, [one.pattern for one in others]):
                takers = sorted({one.name for one in others})
                example = printable(target.pattern.example())
                take = f"{', '.join(takers)} {'takes' if len(takers) == 1 else 'take'}"
                message = f"{target.text!r} can never match: {take} all its keys, as {example!r}"
                self._warn(self._path(target), message, example=example)

    def _idle_services(self) -> None:
        for number, name in enumerate(self.policy.services):
            if name not in self.model.services or self.policy.grants.get(number):
                continue
            if not any(target.rights[number] & ~target.denied[number] for target in self.policy.targets):
                index = self.model.services.index(name)
                self._warn(("services", index), f"the service {name} can do nothing with any key")

    def _unwritten_scopes(self) -> None:
        for target in self.mine:
            if target.kind == "scope" and not target.names_with(WRITE, self.policy.services):
                example = self._example(target)
                message = f"nobody may write to the scope {target.name}, for example {example!r}"
                self._warn(("scopes", target.name), message, of_key=True, example=example)

    def _example(self, scope: Target) -> str:
        """A key of a scope that is of the scope alone, or else of one of its entries."""
        plain = scope.pattern.literal_prefix + b"x"
        inside = (
            target.pattern.example()
            for target in self.policy.targets
            if target.kind == "entry" and scope.pattern.matches(target.pattern.literal_prefix)
        )
        return printable(next(inside, plain))

    def _separators(self) -> None:
        """Placeholders that may hold a colon, so that a key may have other segments than it seems to."""
        for names in self.model.placeholders:
            mine = set(names.split("|"))
            found = next(
                (
                    (hole, key)
                    for target in self.mine
                    for hole in target.pattern.holes
                    if hole.name in mine and (key := _with_colon(target.pattern, hole)) is not None
                ),
                None,
            )
            if found is not None:
                hole, key = found
                example = printable(key)
                self._warn(
                    ("placeholders", names),
                    f"<{hole.name}> may hold a colon, so that it can reach over segments, as in {example!r}; "
                    "exclude it, or write <name...> where several segments are meant",
                    example=example,
                )

    def _spoilt_scans(self) -> None:
        """A placeholder before literal text: scanning for the entry then also finds the keys of others."""
        entries = [target for target in self.mine if target.kind == "entry"]
        for target in entries:
            holes = [at for at, part in enumerate(target.pattern.parts) if isinstance(part, Hole)]
            after = target.pattern.parts[holes[0] + 1 :] if holes else ()
            if not any(isinstance(part, Literal) and part.text.strip(b":") for part in after):
                continue
            prefix = target.pattern.literal_prefix
            others = {
                one.name
                for one in entries
                if one.name != target.name and one.pattern.literal_prefix.startswith(prefix)
            }
            if others:
                pattern, names = printable(scan_pattern(target)), ", ".join(sorted(others))
                example = printable(next(one.pattern.example() for one in entries if one.name == min(others)))
                self._warn(
                    self._path(target),
                    f"SCAN 0 MATCH {pattern} also finds keys of {names}, as {example!r}: "
                    f"<{target.pattern.holes[0].name}> stands before literal text",
                    example=example,
                )

    def _misnamed(self) -> None:
        """Entries all of whose keys break the naming rules, so that nobody could use them in peace."""
        told: set[str] = set()
        for target in self.mine:
            names = self.policy.home(target).names
            if target.kind != "entry" or target.names_sure or target.name in told:
                continue
            key = target.pattern.example()
            if not compare(target.pattern, names).some_keep and (fault := next(names.faults(key), None)):
                told.add(target.name)
                shown = printable(key)
                message = fault.message.replace("{lower}", lowered(shown)).replace("{key}", repr(shown))
                self._warn(
                    self._path(target),
                    f"every key of {target.name} breaks the naming rules: {message}",
                    example=shown,
                )

    def _widenings(self) -> None:
        """An entry that gives a service more than its scope does: allowed, but worth a look."""
        scopes = [target for target in self.mine if target.kind == "scope"]
        told: set[tuple[str, str]] = set()
        for target in self.mine:
            if target.kind != "entry":
                continue
            home = next(
                (s for s in scopes if target.pattern.literal_prefix.startswith(s.pattern.literal_prefix)),
                None,
            )
            if home is None:
                continue
            for word, right in (("write", WRITE), ("read", READ)):
                more = set(target.names_with(right, self.policy.services))
                more -= set(home.names_with(right, self.policy.services))
                if more and (target.name, word) not in told:
                    told.add((target.name, word))
                    who, example = ", ".join(sorted(more)), printable(target.pattern.example())
                    self._warn(
                        ("keys", target.name),
                        f"{who} may {word} {target.name} though not the rest of the scope {home.name}, "
                        f"for example {example!r}",
                        of_key=True,
                        example=example,
                    )

    def _never_created(self) -> None:
        """Entries that must have a time to live from their first write on, which no such write can bring."""
        told: set[str] = set()
        for target in self.mine:
            entry = target.entry
            rule = entry.ttl if entry is not None and target.kind == "entry" else None
            if entry is None or rule is None or not rule.required or target.name in told:
                continue
            if not (rule.at == "write" or rule.immediate) or target.written_by:
                continue
            if entry.types and not BRING_TTL & set(entry.types):
                told.add(target.name)
                word = "immediate" if rule.immediate else "at: write"
                example = printable(target.pattern.example())
                self._warn(
                    ("keys", target.name),
                    f"{word} asks of each write that it brings the time to live of {target.name}, and no "
                    f"command that writes a {' or '.join(entry.types)} can; without it an EXPIRE may follow",
                    of_key=True,
                    example=example,
                )

    def _short_hashes(self) -> None:
        """Scripts that are known by the beginning of their SHA-1."""
        for name, model in self.model.scripts.items():
            for index, text in enumerate(model.sha1):
                if text.endswith(("...", "…")):
                    self._warn(
                        ("scripts", name, "sha1", index),
                        f"{text!r} is the beginning of a SHA-1: whoever may run scripts can make another one "
                        f"that begins so and counts as {name}; write all {SHA1_DIGITS} digits",
                    )

    def _stricter_files(self) -> None:
        """A lenient word on scripts that another file takes back: a script can touch its keys, too."""
        mine, holds = self.model.unregistered_scripts, self.policy.unregistered_scripts
        if mine == "declared" != holds:
            message = f"another file of the folder is stricter, so {holds} holds"
            self._warn(("unregistered_scripts",), f"{message}; register the scripts, or say declared in all")

    def _expiries(self) -> None:
        dates: list[tuple[str, tuple[str, ...], datetime.date | None]] = [
            ("legacy", ("legacy", "until"), self.model.legacy.until)
        ]
        dates += [
            (f"the grant to {s}", ("grants", s, "until"), g.until) for s, g in self.model.grants.items()
        ]
        dates += [
            (f"the legacy form {text!r}", ("legacy", "keys", text, "until"), form.until)
            for text, form in self.model.legacy.keys.items()
        ]
        for what, path, until in dates:
            if until is None:
                continue
            if until < self.today:
                self._error(path, f"{what} ended on {until}; take it out or move the date")
            elif until - self.today <= NOTICE:
                self._warn(path, f"{what} ends on {until}, in {(until - self.today).days} days")


_ANYTHING = Repeat(Bytes(ANY_BYTE), 0, None)
_SOMETHING = Repeat(Bytes(ANY_BYTE), 1, None)
_COLON = Bytes(SEPARATOR_MASK)
# What holds a colon; with something on both sides of it, where that is to be had.
_WITH_COLON = (Concat((_SOMETHING, _COLON, _SOMETHING)), Concat((_ANYTHING, _COLON, _ANYTHING)))


def _with_colon(pattern: KeyPattern, hole: Hole) -> bytes | None:
    """A key in which the placeholder holds a colon; None where it can't, or is meant to hold several."""
    if hole.variadic or not hole.expression.alphabet & SEPARATOR_MASK or hole.expression.text in NAMES:
        return None  # whoever writes ip means IPv6 addresses too
    for node in _WITH_COLON:
        held = Hole(hole.name, ClassExpression("", node))
        parts = tuple(held if part == hole else part for part in pattern.parts)
        key = overlap(pattern, KeyPattern(pattern.text, parts))
        if key is not None:
            return key
    return None
