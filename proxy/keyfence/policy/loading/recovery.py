"""Error recovery: takes faulty parts out of policy files and goes on, so that one run reports all faults.

Rule: a fault that only follows from a part that was taken out is not reported. The rest is checked, never
used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiler.pipeline import compile_policies
from keyfence.policy.diagnostics import Diagnostic, FileError, follows
from keyfence.policy.source.model import PolicyModel
from keyfence.policy.source.validate import validate
from keyfence.policy.source.yaml import PathKey, Pruned, Source

MAX_ROUNDS = 16

# How messages about an unknown name end. Once a whole section is out, all its names are unknown.
_LOST: Mapping[str | int, str] = {
    "services": " is not listed under services",
    "placeholders": " is not declared",
    "keys": " is not an entry under keys",
    "scripts": " is registered under neither scripts nor functions",
    "functions": " is registered under neither scripts nor functions",
}

_Part = tuple[str, PathKey]  # a file's name, and a path in its data


class Recovered:
    """All errors of a policy's files, and the policy that is left: without errors, the whole policy."""

    def __init__(self, *wholes: Source) -> None:
        self.errors: list[Diagnostic] = [fault for one in wholes for fault in one.faults]
        self.sources: list[Source] = list(wholes)
        self.models: list[PolicyModel] = []  # one for each source, if there is a policy
        self.policy: CompiledPolicy | None = None
        self._wholes = {one.file: one for one in wholes}
        self._out: set[_Part] = set()
        for _ in range(MAX_ROUNDS):
            faults = self._round()
            if not faults or not self._take_out(faults):
                break

    def _round(self) -> list[Diagnostic]:
        """Compiles what is left. Returns the faults of the first stage that finds any."""
        models, faults = [], []
        for source in self.sources:
            try:
                models.append(validate(PolicyModel, source))
            except FileError as exc:
                faults += exc.diagnostics
        if faults:
            return faults
        try:
            name = models[0].policy
            self.policy = compile_policies(list(zip(models, self.sources, strict=True)), name)
        except FileError as exc:
            return exc.diagnostics
        self.models = models
        return []

    def _take_out(self, faults: Sequence[Diagnostic]) -> bool:
        """Records faults and takes their parts out. Returns whether something is left of each file."""
        before = frozenset(self._out)
        for fault in faults:
            self._out.add(self._part(fault, before))
        self.errors += [fault for fault in faults if not self._follows(fault, before)]
        self.sources = [
            Pruned(one, {path for file, path in self._out if file == name})
            for name, one in self._wholes.items()
        ]
        return all(path for _, path in self._out)

    def _part(self, fault: Diagnostic, before: Collection[_Part]) -> _Part:
        """Returns the part to take out for a fault: the faulty one, or if it is out already, the one around
        it."""
        file, path = fault.place.file, fault.path
        while path and (file, path) in before:
            path = path[:-1]
        return file, path

    def _follows(self, fault: Diagnostic, before: Collection[_Part]) -> bool:
        """Whether a fault only follows from a part that was taken out."""
        mine = self._part(fault, before)
        here = [path for file, path in before if file == mine[0]]
        if any(path[: len(fault.path)] == fault.path or follows(fault, path) for path in here):
            return True
        return any(name in fault.message for part in self._out - {mine} for name in self._names(part))

    def _names(self, part: _Part) -> Iterator[str]:
        """Yields the names that are unknown once a part is out, as messages show them."""
        file, path = part
        if len(path) == 1 and path[0] in _LOST:
            yield _LOST[path[0]]
        if len(path) != 2:
            return
        section, name = path
        if section == "services":
            name = self._wholes[file].data[section][name]
        if isinstance(name, str):
            yield repr(name)
            if section in ("placeholders", "bind"):
                yield from (f"<{one}>" for one in name.split("|"))
