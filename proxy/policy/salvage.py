"""What is left of a policy file when its faults are taken out, so that one run of `check` tells all of them.

Rule: a fault that only follows from what was taken out is not told; what is left is checked, never run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from .compile import compile_policy
from .compiled import CompiledPolicy
from .diagnostics import Diagnostic, FileError, follows
from .model import PolicyModel
from .validate import validate
from .yaml_source import PathKey, Pruned, Source

MAX_ROUNDS = 16


class Salvaged:
    """The errors of a policy file, and what could be compiled: of a file without errors, all of it."""

    def __init__(self, whole: Source) -> None:
        self.errors: list[Diagnostic] = list(whole.faults)
        self.source = whole
        self.model: PolicyModel | None = None
        self.policy: CompiledPolicy | None = None
        self._whole = whole
        self._out: set[PathKey] = set()
        for _ in range(MAX_ROUNDS):
            try:
                model = validate(PolicyModel, self.source)
                self.policy = compile_policy(model, self.source)
            except FileError as exc:
                if not self._take_out(exc.diagnostics):
                    break
            else:
                self.model = model
                break

    def _take_out(self, faults: Sequence[Diagnostic]) -> bool:
        """Note the faults and take them out; whether anything is left."""
        before = frozenset(self._out)
        for fault in faults:
            self._out.add(self._part(fault, before))
        self.errors += [fault for fault in faults if not self._follows(fault, before)]
        self.source = Pruned(self._whole, self._out)
        return () not in self._out

    def _part(self, fault: Diagnostic, before: Collection[PathKey]) -> PathKey:
        """What to take out for a fault: where it is, or if that is out already, what it was part of."""
        path = fault.path
        while path and path in before:
            path = path[:-1]
        return path

    def _follows(self, fault: Diagnostic, before: Collection[PathKey]) -> bool:
        """Whether a fault is there only because something was taken out."""
        if any(path[: len(fault.path)] == fault.path or follows(fault, path) for path in before):
            return True
        mine = self._part(fault, before)
        return any(name in fault.message for path in self._out - {mine} for name in self._names(path))

    def _names(self, path: PathKey) -> Iterator[str]:
        """The names that go with a part, as messages show them."""
        if len(path) != 2:
            return
        section, name = path
        if section == "services":
            name = self._whole.data[section][name]
        if isinstance(name, str):
            yield repr(name)
            if section in ("placeholders", "bind"):
                yield from (f"<{one}>" for one in name.split("|"))
