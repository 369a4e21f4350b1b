"""Policy tests: files of commands with the verdicts that a policy must give.

Rule: a test uses the session's own authorizer. The test file sets the time, the existing keys and the client,
so that the result is the same on every machine and every day.

A test is one command, or a sequence of commands on one connection; docs/tools.md has the format.
"""

from __future__ import annotations

import datetime
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from keyfence.commands.model import Touches
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiled.tenants import NOBODY, Caller
from keyfence.policy.diagnostics import Diagnostic, FileError, Place, did_you_mean
from keyfence.policy.loading.load import load_policy
from keyfence.policy.source.model import Date, Duration, Names, RuleName
from keyfence.policy.source.validate import file_kind, validate
from keyfence.policy.source.yaml import Source, read_source
from keyfence.policy.units import duration_text, milliseconds
from keyfence.policy.verdict import Verdict

from .coverage import Coverage
from .simulator import Late, Simulator, caller_after

SUFFIX = ".test.yaml"
NOW = datetime.date(2026, 1, 1)  # the day of tests in files that name none
DAY = 86_400_000

Command = Annotated[str | list[str], Field(description="its words, quoted as in a shell; or a list")]
Lives = Annotated[str, Field(description="none, gone, or how long it has left, as 60s")]


def _rules(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExpectationModel(_Model):
    """A command, and its expected outcome."""

    about: str = ""
    service: str = ""
    user: str | None = None  # the user as which the client has logged in; "" for none
    certificate: Names | None = None  # the names in the caller's certificate
    command: Command | None = None
    verdict: Literal["allow", "violation", "aborted"] | None = None  # aborted: EXEC answers EXECABORT
    rule: RuleName | None = None  # the first broken rule
    rules: list[RuleName] | None = None  # all broken rules, in order
    entry: str | None = None
    after: Duration | None = None  # time that passes before the command
    late: Annotated[list[RuleName], BeforeValidator(_rules)] = []  # rules found broken by then
    ttl: dict[str, Lives] = {}  # times to live of keys afterwards


class CaseModel(ExpectationModel):
    """A test: one command, or `sequence`."""

    sentence: Names = []  # the numbers of the convention's sentences that this test shows
    sequence: list[ExpectationModel] | None = None
    given: dict[str, Lives] = {}  # keys that exist before the test
    mode: Literal["enforce", "observe"] = "enforce"  # enforce: a command that breaks a rule is not run


@file_kind("a test file, which 'keyfence test' runs")
class FileModel(_Model):
    """A policy test file."""

    policy: str
    about: str = ""
    now: Date = NOW  # the day of the tests, from 0:00 UTC
    tests: list[CaseModel]


class Step(NamedTuple):
    """One command of a test, or time that passes."""

    path: tuple[str | int, ...]  # its place in the file
    service: str
    caller: Caller
    argv: list[bytes]  # empty: nothing is sent
    verdict: str
    rules: list[str]
    expected: ExpectationModel

    @property
    def whole(self) -> bool:
        """Whether `rules` lists all broken rules; else only the first."""
        return self.expected.rules is not None


class Case(NamedTuple):
    """A test of a file."""

    path: tuple[str | int, ...]
    about: str
    sentences: list[str]
    steps: list[Step]
    given: Mapping[bytes, str]
    enforces: bool


class CaseFile:
    """A test file, checked against its models and its policy's names."""

    def __init__(self, source: Source, model: FileModel) -> None:
        self.source = source
        self.policy = Path(source.file).parent / model.policy
        self.now = (model.now - datetime.date(1970, 1, 1)).days * DAY
        self.faults: list[Diagnostic] = []
        self.cases = [self._case(case, ("tests", number)) for number, case in enumerate(model.tests)]

    def _fault(self, path: Sequence[str | int], message: str, *, of_key: bool = False) -> None:
        self.faults.append(self.source.error(path, message, of_key=of_key))

    def _case(self, model: CaseModel, path: tuple[str | int, ...]) -> Case:
        steps: list[Step] = []
        service, caller = model.service, _caller(model, NOBODY)
        for at, one in self._expectations(model, path):
            service, caller = one.service or service, _caller(one, caller)
            if one.command is None and one is not model:
                self._without_command(one, at)
            if one.command is not None and not service:
                self._fault(at, "'service' is missing: which service sends this?")
            steps.append(self._step(one, at, service, caller))
            caller = caller_after(steps[-1].argv, caller)
        about = model.about or " ".join(word.decode(errors="replace") for word in steps[0].argv)
        return Case(path, about, model.sentence, steps, _keys(model.given), model.mode == "enforce")

    def _expectations(
        self, model: CaseModel, path: tuple[str | int, ...]
    ) -> Iterable[tuple[tuple[str | int, ...], ExpectationModel]]:
        if model.sequence is None:
            if model.command is None:
                self._fault(path, "a test needs 'command' or 'sequence'", of_key=True)
            return [(path, model)]
        if model.command is not None:
            self._fault((*path, "command"), "write the commands of a sequence in its steps", of_key=True)
        for field in ("verdict", "rule", "rules", "entry", "after"):
            if field in model.model_fields_set:
                self._fault((*path, field), f"{field!r} belongs to a step of the sequence", of_key=True)
        steps = [((*path, "sequence", number), step) for number, step in enumerate(model.sequence)]
        if model.late or model.ttl:  # expectations of the sequence as a whole, checked at its end
            last = ExpectationModel(late=model.late, ttl=model.ttl)
            steps.append((path, last))
        if not steps:
            self._fault((*path, "sequence"), "an empty sequence tests nothing")
            steps.append((path, model))
        return steps

    def _without_command(self, step: ExpectationModel, path: tuple[str | int, ...]) -> None:
        """Finds expectations of a command in a step that sends none."""
        remedy = "add 'command'"
        if step.after:
            rule = step.rule or (step.rules or ["ttl.required"])[0]
            remedy = f"write what is found as time passes as 'late: {rule}'"
        for field in ("verdict", "rule", "rules", "entry"):
            if field in step.model_fields_set:
                message = f"{field!r} is about a command, and this step has none; {remedy}"
                self._fault((*path, field), message, of_key=True)

    def _step(
        self, model: ExpectationModel, path: tuple[str | int, ...], service: str, caller: Caller
    ) -> Step:
        argv = self._argv(model.command, (*path, "command"))
        rules = model.rules if model.rules is not None else [model.rule] if model.rule else []
        verdict = model.verdict or ("violation" if rules else "allow")
        if model.rule and model.rules is not None:
            self._fault(
                (*path, "rule"), "write either rule (the first one) or rules (all of them)", of_key=True
            )
        elif rules and verdict != "violation":
            self._fault((*path, "verdict"), "a broken rule needs the verdict violation")
        elif verdict == "violation" and model.rules == []:
            self._fault((*path, "rules"), "no rules; name the broken rules, or omit rules to admit any")
        for field in ("ttl", "given"):
            self._lives(getattr(model, field, {}), (*path, field))
        return Step(path, service, caller, argv, verdict, rules, model)

    def _argv(self, command: str | list[str] | None, path: tuple[str | int, ...]) -> list[bytes]:
        if command is None:
            return []
        try:
            words = shlex.split(command) if isinstance(command, str) else command
        except ValueError as exc:
            self._fault(path, f"{command!r}: {str(exc).lower()}; write the words as a list")
            return []
        if not words:
            self._fault(path, "an empty command")
        return [word.encode("utf-8", "surrogateescape") for word in words]

    def _lives(self, expected: Mapping[str, str], path: tuple[str | int, ...]) -> None:
        for key, text in expected.items():
            if text not in ("none", "gone"):
                try:
                    milliseconds(text)
                except ValueError as exc:
                    self._fault((*path, key), f"{exc}, or none, or gone")

    def check_names(self, policy: CompiledPolicy) -> None:
        """Adds a fault for every name that the policy lacks."""
        entries = {target.name or target.kind for target in (*policy.targets, *policy.channels)}
        for case in self.cases:
            for step in case.steps:
                if step.service and step.service not in policy.services:
                    known = did_you_mean(step.service, policy.services)
                    path = next(
                        at for at in ((*step.path, "service"), (*case.path, "service")) if self.source.has(at)
                    )
                    self._fault(path, f"{step.service!r} is not a service of the policy{known}")
                if step.expected.entry and step.expected.entry not in entries:
                    known = did_you_mean(step.expected.entry, entries)
                    self._fault(
                        (*step.path, "entry"), f"{step.expected.entry!r} is not an entry of the policy{known}"
                    )


def _caller(model: ExpectationModel, before: Caller) -> Caller:
    """Returns the caller of a step. Values that the step omits stay as before."""
    user, names = before
    if model.user is not None:
        user = model.user.encode("utf-8", "surrogateescape") or None
    return Caller(user, names if model.certificate is None else tuple(model.certificate))


def _keys(lives: Mapping[str, str]) -> Mapping[bytes, str]:
    return {key.encode("utf-8", "surrogateescape"): text for key, text in lives.items()}


def read_cases(path: str | Path) -> CaseFile:
    """Reads a test file. Raises FileError with every fault."""
    source = read_source(path)
    file = CaseFile(source, validate(FileModel, source))
    if file.faults:
        raise FileError(file.faults)
    return file


class Result(NamedTuple):
    """One test, with its failures."""

    case: Case
    line: int
    failures: list[Diagnostic]


class FileResult(NamedTuple):
    """A test file, with the results of its tests."""

    path: str
    policy: str
    results: list[Result]

    @property
    def failed(self) -> int:
        return sum(bool(one.failures) for one in self.results)


class Runner:
    """Runs test files, and keeps the coverage of each policy."""

    def __init__(self) -> None:
        self._policies: dict[Path, CompiledPolicy] = {}
        self.coverage: dict[str, Coverage] = {}  # by the policy file's path

    def run(self, path: str | Path) -> FileResult:
        """Runs a test file. Raises FileError if it or its policy is unusable."""
        file = read_cases(path)
        if not os.path.exists(file.policy):
            raise FileError(
                [file.source.error(("policy",), f"there is no {file.policy}; name the policy to test")]
            )
        policy = self._policy(file.policy)
        file.check_names(policy)
        if file.faults:
            raise FileError(file.faults)
        coverage = self.coverage.setdefault(str(file.policy), Coverage(policy))
        results = []
        for case in file.cases:
            failures = list(_Play(policy, file, case, coverage).failures())
            results.append(Result(case, file.source.place(case.path).line, failures))
        return FileResult(str(path), str(file.policy), results)

    def _policy(self, path: Path) -> CompiledPolicy:
        key = path.resolve()
        if key not in self._policies:
            self._policies[key] = load_policy(path)
        return self._policies[key]


class _Play:
    """One test, played command by command on a simulated connection."""

    def __init__(self, policy: CompiledPolicy, file: CaseFile, case: Case, coverage: Coverage) -> None:
        self.policy = policy
        self.file = file
        self.case = case
        self.coverage = coverage
        given = {key: _end(text, file.now) for key, text in case.given.items() if text != "gone"}
        self.connection = Simulator(policy, file.now, enforces=case.enforces, given=given)

    def failures(self) -> Iterator[Diagnostic]:
        for step in self.case.steps:
            if step.expected.after:
                yield from self._late(step, self.connection.wait(step.expected.after))
            if step.argv:
                yield from self._command(step)
            if step.expected.late and not step.expected.after:
                yield from self._late(step, self.connection.wait_for_all())
            yield from self._ttls(step)

    def _fail(self, step: Step, field: str, message: str) -> Diagnostic:
        path = (*step.path, field) if self.file.source.has((*step.path, field)) else step.path
        return self.file.source.error(path, f"{self.case.about}: {message}")

    def _command(self, step: Step) -> Iterator[Diagnostic]:
        answer = self.connection.send(step.service, step.argv, step.caller)
        self.coverage.record(self.policy.number(step.service), answer.touches, answer.verdict)
        yield from self._compare(step, answer.verdict, answer.aborts, answer.touches)

    def _late(self, step: Step, found: Sequence[Late]) -> Iterator[Diagnostic]:
        for one in found:
            self.coverage.record(one.service, Touches(None), Verdict((one.violation,)))
        if [one.violation.rule for one in found] != step.expected.late:
            expected = ", ".join(step.expected.late) or "nothing"
            got = "; ".join(f"{one.violation.rule} ({one.violation.message})" for one in found) or "nothing"
            yield self._fail(step, "late", f"expected late {expected}, got {got}")

    def _compare(self, step: Step, verdict: Verdict, aborts: bool, touches: Touches) -> Iterator[Diagnostic]:
        broken = [one.rule for one in verdict.violations]
        found = "violation" if broken else "aborted" if aborts else "allow"
        if found != step.verdict:
            expected = f"violation {', '.join(step.rules)}" if step.rules else step.verdict
            yield self._fail(step, "verdict", f"expected {expected}, got {_outcome(found, verdict)}")
        elif step.whole and broken != step.rules:
            wanted = ", ".join(step.rules)
            yield self._fail(step, "rules", f"expected all of {wanted}, got {_outcome(found, verdict)}")
        elif step.rules and not step.whole and broken[0] != step.rules[0]:
            yield self._fail(step, "rule", f"expected {step.rules[0]} first, got {_outcome(found, verdict)}")
        if step.expected.entry:
            entry = self._entry(verdict, touches)
            if entry != step.expected.entry:
                yield self._fail(
                    step, "entry", f"expected the entry {step.expected.entry}, got {entry or 'none'}"
                )

    def _entry(self, verdict: Verdict, touches: Touches) -> str:
        """Returns the entry of the first violation, or the entries that an admitted command touches."""
        if verdict.violations:
            return verdict.violations[0].entry
        names = {target.name for access in touches.accesses if (target := self.policy.target(access.key))}
        return names.pop() if len(names) == 1 else ", ".join(sorted(names))

    def _ttls(self, step: Step) -> Iterator[Diagnostic]:
        for key, expected in _keys(step.expected.ttl).items():
            found = self.connection.lives(key)
            if found != (expected if expected in ("none", "gone") else duration_text(milliseconds(expected))):
                shown = key.decode(errors="replace")
                yield self._fail(
                    step, "ttl", f"expected the time to live of {shown}: {expected}, got {found}"
                )


def _end(text: str, now: int) -> int | None:
    return None if text == "none" else now + milliseconds(text)


def _outcome(found: str, verdict: Verdict) -> str:
    if not verdict.violations:
        return found
    return "; ".join(f"violation {one.rule} ({one.message})" for one in verdict.violations)


def test_files(paths: Iterable[str | Path]) -> list[Path]:
    """Returns the test files among files and folders, in order. Raises FileError if a folder has none."""
    files: dict[Path, None] = {}
    for path in map(Path, paths):
        found = sorted(path.rglob("*" + SUFFIX)) if os.path.isdir(path) else [path]
        if not found:
            place = Place(str(path), 1, 1)
            raise FileError([Diagnostic(place, "error", f"this folder has no test file (*{SUFFIX})")])
        files.update(dict.fromkeys(found))
    return list(files)
