"""The lint of `keyfence check`: errors, warnings and a summary of a policy.

Rule: an error is a fault that the compiler refuses, a tie that makes a verdict depend on chance, or an end
date in the past. A warning is for a policy that loads and works, but probably not as meant.
"""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from keyfence.commands.model import WRITE
from keyfence.policy.compiled.names import lowered
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.scripts import RUNNING, SHA1_DIGITS, Word, most_lenient, strictest
from keyfence.policy.compiled.ttl import BRING_TTL
from keyfence.policy.compiler.context import SCOPE_HOLE
from keyfence.policy.compiler.families import own_members
from keyfence.policy.compiler.naming import compare
from keyfence.policy.compiler.pipeline import compile_policies
from keyfence.policy.compiler.prefixes import (
    beginnings,
    lies_in,
    order,
)
from keyfence.policy.diagnostics import Diagnostic, FileError
from keyfence.policy.loading.load import policy_faults, policy_name, read_policies
from keyfence.policy.loading.recovery import Recovered
from keyfence.policy.patterns.classes import NAMES
from keyfence.policy.patterns.patterns import ClassExpression, Hole, KeyPattern
from keyfence.policy.patterns.regular import ANY_BYTE, SEPARATOR_MASK, Bytes, Concat, Repeat
from keyfence.policy.patterns.set_operations import covered, overlap, overlapping_pairs
from keyfence.policy.show import printable
from keyfence.policy.source.ignores import settle
from keyfence.policy.source.model import PolicyModel, Rights
from keyfence.policy.source.yaml import Source, read_source
from keyfence.policy.units import counted

from .scans import scan_lines

NOTICE = datetime.timedelta(days=14)  # how long before an end date the warnings begin


def check_policy(
    path: str | Path, today: datetime.date | None = None
) -> tuple[list[Diagnostic], list[Diagnostic], str]:
    """Returns the errors, warnings and summary of a policy file. A bad file is an error, not an exception.

    The summary is one line. If the policy loads, the SCAN pattern of each entry follows.
    """
    on = today or datetime.datetime.now(datetime.UTC).date()
    if os.path.isdir(path):
        return _check_folder(path, on)
    try:
        return _check_source(read_source(path, keep_going=True), on)
    except FileError as exc:
        return exc.diagnostics, [], f"{path}: {counted(len(exc.diagnostics), 'error')}"


def check_text(text: str) -> tuple[list[Diagnostic], list[Diagnostic]]:
    """Returns the errors and warnings of a policy that is not in a file."""
    errors, warnings, _ = _check_source(Source("<policy>", text), datetime.datetime.now(datetime.UTC).date())
    return errors, warnings


def _check_source(whole: Source, on: datetime.date) -> tuple[list[Diagnostic], list[Diagnostic], str]:
    recovered = Recovered(whole)
    policy = recovered.policy
    found, ignored = list(recovered.errors), 0
    if policy is not None:
        checks = _Lint(policy, recovered.models[0], recovered.sources[0], on)
        found += checks.all(whole=not recovered.errors)
        ignored = checks.ignored
    errors = sorted((one for one in found if one.level == "error"), key=_by_place)
    warnings = sorted((one for one in found if one.level == "warning"), key=_by_place)
    counts = counted(len(errors), "error")
    if policy is None or recovered.errors:
        counts += f", {counted(len(warnings), 'warning')}" if warnings else ""
        return errors, warnings, f"{whole.file}: {counts}"
    counts += f", {_warnings(len(warnings), ignored)}"
    summary = f"{whole.file}: {counts}; policy {policy.name}, {_holds(policy)}"
    return errors, warnings, "\n".join([summary, *scan_lines(policy)])


def _check_folder(path: str | Path, on: datetime.date) -> tuple[list[Diagnostic], list[Diagnostic], str]:
    """Returns the same for a folder, whose files form one policy."""
    try:
        files = read_policies(path)
        policy = compile_policies(files, policy_name(path, [model for model, _ in files]))
    except FileError as exc:
        faults = policy_faults(path) or exc.diagnostics
        faults = FileError(faults).diagnostics  # in order
        return faults, [], f"{path}: {counted(len(faults), 'error')}"
    checks = [_Lint(policy, model, source, on, home) for home, (model, source) in enumerate(files)]
    found = [one for each in checks for one in sorted(each.all(whole=True), key=_by_place)]
    errors = [one for one in found if one.level == "error"]
    warnings = [one for one in found if one.level == "warning"]
    ignored = sum(one.ignored for one in checks)
    counts = f"{counted(len(errors), 'error')}, {_warnings(len(warnings), ignored)}"
    summary = f"{path}: {counts}; policy {policy.name} of {counted(len(files), 'file')}, {_holds(policy)}"
    return errors, warnings, "\n".join([summary, *scan_lines(policy)])


def _by_place(one: Diagnostic) -> tuple[int, int]:
    return one.place.line, one.place.column


def _holds(policy: CompiledPolicy) -> str:
    """Returns the numbers of a policy's parts as text."""
    kinds = Counter(target.kind for target in policy.targets)
    entries = len({target.name for target in policy.targets if target.kind == "entry"})
    return ", ".join(
        [
            counted(len(policy.services) - 1, "service"),
            counted(kinds["scope"], "scope"),
            counted(entries, "entry", "entries"),
            counted(kinds["legacy"], "legacy form"),
            counted(policy.classifier.automaton.states, "state"),
        ]
    )


def _warnings(number: int, ignored: int) -> str:
    return counted(number, "warning") + (f" ({ignored} ignored)" if ignored else "")


def _is_in(entry: Target, scope: Target) -> bool:
    return lies_in(entry.pattern, scope.pattern)


class _Lint:
    """Checks one file of a policy: the only one, or number `home` of a folder."""

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
        self.ignored = 0

    def all(self, *, whole: bool) -> list[Diagnostic]:
        """Returns every error and warning.

        `whole`: false if parts of the policy were left out because of faults. Checks that the missing parts
        could satisfy are then skipped.
        """
        self._overlaps()
        self._tied_channels()
        self._shadowed()
        self._separators()
        self._expiries()
        self._never_created()
        self._short_hashes()
        self._stricter_files()
        self._nested_claims()
        self._misnamed()
        if whole:
            self._idle_services()
            self._unwritten_scopes()
            self._foreign_entries()
            self._idle_rights()
            self._unclear_forms()
            self._unowned_forms()
        self.found, self.ignored = settle(self.source, self.found, whole=whole)
        return self.found

    def _error(
        self, path: tuple[str | int, ...], message: str, *, of_key: bool = False, example: str = ""
    ) -> None:
        self.found.append(self.source.error(path, message, of_key=of_key, example=example))

    def _warn(
        self, code: str, path: tuple[str | int, ...], message: str, *, of_key: bool = False, example: str = ""
    ) -> None:
        """Adds a warning. `code` is one of `ignores.CODES`."""
        self.found.append(self.source.warning(code, path, message, of_key=of_key, example=example))

    def _path(self, target: Target) -> tuple[str, ...]:
        return ("legacy", "keys", target.text) if target.kind == "legacy" else ("keys", target.name, "key")

    def _overlaps(self) -> None:
        """Finds ties between entries, and legacy forms that match keys of entries."""
        targets = self.policy.targets
        for one, other in overlapping_pairs(self.policy.classifier.automaton):
            left, right = targets[one], targets[other]
            kinds = {left.kind, right.kind}
            if kinds == {"scope"} and left.home == right.home == self.home:
                self._tied_scopes(left, right)
                continue
            if not kinds <= {"entry", "legacy"} or right.home != self.home:
                continue
            if left.home != self.home and "entry" in kinds:
                continue  # of two files, the one that claims the key decides
            if len(kinds) == 1 and left.pattern.specificity != right.pattern.specificity:
                continue
            key = overlap(left.pattern, right.pattern)
            if key is None:
                continue
            example = printable(key)
            if len(kinds) == 1:
                self._tie(self._path(right), left, right, example)
            else:
                self._warn(
                    "legacy-overlap",
                    self._path(right),
                    f"the legacy form {right.text!r} also matches {example!r}, a key of {left.name}",
                    of_key=True,
                    example=example,
                )

    def _tied_channels(self) -> None:
        """Finds channels of which the order would decide who may publish."""
        channels = self.policy.channels
        for one, other in overlapping_pairs(self.policy.channel_classifier.automaton):
            left, right = channels[one], channels[other]
            if not left.kind == right.kind == "channel" or right.home != self.home:
                continue
            if left.pattern.specificity != right.pattern.specificity:
                continue
            name = overlap(left.pattern, right.pattern)
            if name is not None:
                self._tie(("channels", right.name, "channel"), left, right, printable(name))

    def _tie(self, path: tuple[str, ...], left: Target, right: Target, example: str) -> None:
        self._error(
            path,
            f"{right.text!r} and {left.text!r} are equally specific and both match {example!r}; "
            "make one of them more specific",
            of_key=right.kind == "legacy",
            example=example,
        )

    def _tied_scopes(self, left: Target, right: Target) -> None:
        """Finds two families of prefixes that are equally long and begin the same key."""
        if order(left.pattern) != order(right.pattern):
            return
        key = overlap(left.pattern, right.pattern)
        if key is not None:
            example = printable(key)
            self._error(
                ("scopes", right.name, "prefix"),
                f"the prefixes of {right.name} and {left.name} are equally long and both begin {example!r}; "
                "write literal text in one of them, or let their placeholders share no value",
                example=example,
            )

    def _shadowed(self) -> None:
        """Finds entries that never decide because more specific entries match all their keys."""
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
                match = f"{', '.join(takers)} {'matches' if len(takers) == 1 else 'match'}"
                message = f"{target.text!r} never decides: {match} all its keys, for example {example!r}"
                self._warn("never-matches", self._path(target), message, example=example)

    def _idle_services(self) -> None:
        """Finds services without any right."""
        channels = [one for one in self.policy.channels if one.kind == "channel"]
        for number, name in enumerate(self.policy.services):
            if name not in self.model.services or self.policy.grants.get(number):
                continue
            targets = (*self.policy.targets, *channels)
            if not any(target.rights[number] & ~target.denied[number] for target in targets):
                index = self.model.services.index(name)
                message = f"the service {name} has no rights on any key or channel"
                self._warn("idle-service", ("services", index), message)

    def _unwritten_scopes(self) -> None:
        """Finds scopes without a writer. A scope needs none if its entries name their own writers."""
        reported: set[str] = set()  # a family has many scopes of one name
        for scope in self.mine:
            if scope.kind != "scope" or scope.name in reported:
                continue
            inside = [one for one in self.mine if one.kind == "entry" and _is_in(one, scope)]
            if not any(one.names_with(WRITE, self.policy.services) for one in (scope, *inside)):
                reported.add(scope.name)
                example = self._example(scope)
                message = f"no service may write to the scope {scope.name}, for example {example!r}"
                self._warn("unwritten-scope", ("scopes", scope.name), message, of_key=True, example=example)

    def _example(self, scope: Target) -> str:
        """Returns a key of a scope, if possible a key of one of its entries."""
        plain = scope.pattern.literal_prefix + b"x" if scope.pattern.is_prefix else scope.pattern.example()
        inside = (
            target.pattern.example()
            for target in self.policy.targets
            if target.kind == "entry" and _is_in(target, scope)
        )
        return printable(next(inside, plain))

    def _separators(self) -> None:
        """Finds placeholders that may hold a colon, so that a value can span several segments."""
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
                    "colon",
                    ("placeholders", names),
                    f"<{hole.name}> may hold a colon and so span several segments, as in {example!r}; "
                    "exclude the colon, or write <name...> if several segments are meant",
                    example=example,
                )

    def _misnamed(self) -> None:
        """Finds entries whose keys all break the naming rules."""
        reported: set[str] = set()
        for target in self.mine:
            names = self.policy.names(target)
            if target.kind != "entry" or target.names_sure or target.name in reported:
                continue
            key = target.pattern.example()
            if not compare(target.pattern, names).some_keep and (fault := next(names.faults(key), None)):
                reported.add(target.name)
                shown = printable(key)
                message = fault.message.replace("{lower}", lowered(shown)).replace("{key}", repr(shown))
                self._warn(
                    "name-rules",
                    self._path(target),
                    f"every key of {target.name} breaks the naming rules: {message}",
                    example=shown,
                )

    def _foreign_entries(self) -> None:
        """Finds entries whose writers do not include any writer of their scope.

        Additional readers or writers are fine: they are the purpose of an entry's own rights.
        """
        scopes = [target for target in self.mine if target.kind == "scope"]
        reported: set[str] = set()
        for target in self.mine:
            homes = [scope for scope in scopes if target.kind == "entry" and _is_in(target, scope)]
            if not homes or target.name in reported:
                continue
            home = min(homes, key=lambda scope: order(scope.pattern))
            writers = target.names_with(WRITE, self.policy.services)
            owners = home.names_with(WRITE, self.policy.services)
            if writers and owners and not set(writers) & set(owners):
                reported.add(target.name)
                example = printable(target.pattern.example())
                self._warn(
                    "foreign-entry",
                    ("keys", target.name),
                    f"{', '.join(writers)} may write {target.name}, and no writer of its scope {home.name} "
                    f"may ({', '.join(owners)}), for example {example!r}",
                    of_key=True,
                    example=example,
                )

    def _idle_rights(self) -> None:
        """Finds rights at the policy's top level that no entry uses."""
        given = [word for word in Rights.model_fields if getattr(self.model, word)]
        if not given:
            return
        scopes = [target for target in self.mine if target.kind == "scope"]
        for target in self.mine:
            if target.kind != "entry" or any(lies_in(target.pattern, scope.pattern) for scope in scopes):
                continue
            model = self.model.keys.get(target.name.rpartition("/")[2])
            has_own = model is not None and (model.writers or model.readers or model.consumers)
            if not has_own or "deny_write" in given or "deny_read" in given:
                return
        message = "rights at the policy's top level are for entries without a scope and rights of their own"
        self._warn("idle-rights", (given[0],), f"{message}; there is no such entry", of_key=True)

    def _unclear_forms(self) -> None:
        """Finds legacy forms that may mean several keys of one service."""
        services = self.policy.services
        for target in self.mine:
            if target.kind != "legacy" or not target.unclear or target.standard is None:
                continue
            family = [one for one in self.mine if one.kind == "entry" and one.name == target.name]
            service = min(target.unclear)
            keys = [one.text for one in own_members(family, service)]
            who = ", ".join(services[number] for number in sorted(target.unclear))
            names = (*self.model.bind, SCOPE_HOLE)
            name = next((hole.name for hole in target.standard.holes if hole.name in names), "")
            self._warn(
                "unclear-form",
                self._path(target),
                f"the legacy form {target.text!r} may mean several keys of {who}, "
                f"for example {' and '.join(keys[:2])}; put the value into the form as <{name}>, "
                f"or set it with member: {{{name}: …}}",
                of_key=True,
            )

    def _unowned_forms(self) -> None:
        """Finds legacy forms that no service may use, because they do not show a key's owner."""
        callers = {one.name for one in self.policy.bindings}
        for target in self.mine:
            if target.kind != "legacy" or target.standard is None or any(target.rights):
                continue
            shown = {hole.name for hole in target.pattern.holes}
            unshown = (hole.name for hole in target.standard.holes if hole.name not in shown)
            name = next((name for name in unshown if name in callers), "")
            model = self.model.legacy.keys.get(self._path(target)[-1])
            allow = self.model.legacy.allow if model is None or model.allow is None else model.allow
            if name and allow:
                self._warn(
                    "unowned-form",
                    self._path(target),
                    f"no service may use the legacy form {target.text!r}: it lacks the <{name}> that "
                    f"{target.name} is bound by, so its keys show no owner; put <{name}> into the form, list "
                    "a service under across, or grant its keys",
                    of_key=True,
                )

    def _never_created(self) -> None:
        """Finds entries whose every write must set a time to live, but whose types have no such write."""
        reported: set[str] = set()
        for target in self.mine:
            entry = target.entry
            rule = entry.ttl if entry is not None and target.kind == "entry" else None
            if entry is None or rule is None or not rule.required or target.name in reported:
                continue
            if not (rule.at == "write" or rule.immediate) or target.written_by:
                continue
            if entry.types and not BRING_TTL & set(entry.types):
                reported.add(target.name)
                word = "immediate" if rule.immediate else "at: write"
                example = printable(target.pattern.example())
                self._warn(
                    "ttl-at-write",
                    ("keys", target.name),
                    f"{word} requires every write of {target.name} to set its time to live, and no command "
                    f"that writes a {' or '.join(entry.types)} can; without {word}, an EXPIRE may follow",
                    of_key=True,
                    example=example,
                )

    def _short_hashes(self) -> None:
        """Finds scripts that are registered by the beginning of their SHA-1."""
        for name, model in self.model.scripts.items():
            for index, text in enumerate(model.sha1):
                if text.endswith(("...", "…")):
                    self._warn(
                        "short-sha1",
                        ("scripts", name, "sha1", index),
                        f"{text!r} is only the beginning of a SHA-1: a client can make another script that "
                        f"begins so, and it counts as {name}; write all {SHA1_DIGITS} digits",
                    )

    def _stricter_files(self) -> None:
        """Finds a lenient `unregistered_scripts` that a stricter file of the folder overrides.

        The strictest file decides, because a script can touch its keys too. The word of a service may be
        there for another file's scope, so what other files say about the keys of any scope counts.
        """
        homes = self.policy.homes
        others = [number for number in range(len(homes)) if number != self.home]

        def on_keys_here(service: int) -> list[Word]:
            return [homes[number].unregistered_scripts.of(service) for number in others]

        def on_any_keys(service: int) -> list[Word]:
            words = self.policy.on_unregistered(service)
            return [most_lenient(words[number]) for number in others]

        model, field = self.model.unregistered_scripts, "unregistered_scripts"
        lenient: list[
            tuple[tuple[str, ...], Word, Sequence[list[Word]]]
        ] = []  # where, the word, those of the other files for each service
        every = [on_keys_here(number) for number in range(len(self.policy.services))]
        if model.default in RUNNING:
            lenient.append(((field,), model.default, every[-1:]))
        for number, word in homes[self.home].unregistered_scripts.services:
            place = (field, "services", self.policy.services[number])
            lenient.append((place, word, [on_any_keys(number)]))
        for name, scope in self.model.scopes.items():
            if scope.unregistered_scripts is not None:
                lenient.append((("scopes", name, field), scope.unregistered_scripts, every))
        for path, said, of_others in lenient:
            holds = [strictest([said, *words]) for words in of_others]
            if said in RUNNING and said not in holds:
                message = f"another file of the folder is stricter, so {strictest(holds)} applies; "
                message += f"register the scripts, or write {said} in every file"
                self._warn("stricter-file", path, message)

    def _nested_claims(self) -> None:
        """Finds claims inside claims of other files that did not agree, and agreements that nobody uses."""
        homes = self.policy.homes
        around = {claim: number for number, home in enumerate(homes) for claim in home.claims}
        for index, claim in enumerate(self.model.claims):
            outer = next((one for one in beginnings(claim, around) if one != claim), None)
            if outer is None or around[outer] == self.home or claim in homes[around[outer]].delegates:
                continue
            message = f"{claim!r} is inside the claim {outer!r} of {homes[around[outer]].file}, and its keys "
            message += f"are taken out of that file; if both teams agree, write there: delegates: [{claim!r}]"
            self._warn("claim-inside", ("claims", index), message)
        for index, claim in enumerate(self.model.delegates if len(homes) > 1 else ()):
            if claim not in around:
                message = f"no file claims {claim!r}, so its keys still belong to this one"
                self._warn("idle-delegate", ("delegates", index), message)

    def _expiries(self) -> None:
        """Finds end dates that have passed or are near."""
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
                self._error(path, f"{what} ended on {until}; remove it or change the date")
            elif until - self.today <= NOTICE:
                message = f"{what} ends on {until}, in {(until - self.today).days} days"
                self._warn("ends-soon", path, message)


_ANYTHING = Repeat(Bytes(ANY_BYTE), 0, None)
_SOMETHING = Repeat(Bytes(ANY_BYTE), 1, None)
_COLON = Bytes(SEPARATOR_MASK)
# Values that hold a colon: first with text on both sides, then any.
_WITH_COLON = (Concat((_SOMETHING, _COLON, _SOMETHING)), Concat((_ANYTHING, _COLON, _ANYTHING)))


def _with_colon(pattern: KeyPattern, hole: Hole) -> bytes | None:
    """Returns a key in which the placeholder holds a colon;

    None if it cannot, or is meant to hold several.
    """
    if hole.variadic or not hole.expression.alphabet & SEPARATOR_MASK or hole.expression.text in NAMES:
        return None  # built-in classes such as ip include the colon on purpose (IPv6)
    for node in _WITH_COLON:
        held = Hole(hole.name, ClassExpression("", node))
        parts = tuple(held if part == hole else part for part in pattern.parts)
        key = overlap(pattern, KeyPattern(pattern.text, parts))
        if key is not None:
            return key
    return None
