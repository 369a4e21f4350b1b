"""Which modules run compiled, and whether what was compiled is what stands in the source.

Rule: an edited source never runs as an old extension. Each extension carries the SHA-256 of what it was
built from. One that does not match stops the start: keyfence neither loads nor ignores it.

The modules are ordinary Python; without their extensions they run the same, slower. `KEYFENCE_PURE=1` skips
the extensions that are there. This module needs nothing but the standard library: setup.py loads it by its
path.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

# What is compiled, once its .py and the .pxd beside it are there.
MODULES = (
    "keyfence.resp.requests",
    "keyfence.resp.replies",
    "keyfence.policy.patterns.automaton",
    "keyfence.shapes.skeleton",
    "keyfence.shapes.short_names",
    "keyfence.policy.wording.prepared",
    "keyfence.policy.wording.instead",
    "keyfence.policy.compiled.written",
    "keyfence.policy.compiled.named",
    "keyfence.policy.compiled.hash_slots",
    "keyfence.policy.engine.counts",
    "keyfence.policy.engine.forms",
    "keyfence.policy.engine.runs",
    "keyfence.policy.engine.decision_cache",
    "keyfence.policy.engine.asker",
    "keyfence.policy.engine.writes",
    "keyfence.policy.engine.pending",
    "keyfence.telemetry.traffic",
    "keyfence.session.conversation.reply_slots",
    "keyfence.session.conversation.identity",
    "keyfence.session.conversation.reply_queue",
    "keyfence.session.conversation.routing",
    "keyfence.session.conversation.conversation",
    "keyfence.session.conversation.known_client",
    "keyfence.session.conversation.executor",
    "keyfence.session.passthrough",
    "keyfence.session.fastpath",
    "keyfence.session.slowpath",
    "keyfence.session.whole",
    "keyfence.session.session",
    "keyfence.upstream.exchange",
    "keyfence.upstream.shared",
    "keyfence.upstream.dedicated",
    "keyfence.upstream.links",
    "keyfence.upstream.single.cutting",
    "keyfence.upstream.single.turns",
    "keyfence.upstream.single.sides",
    "keyfence.upstream.single.dealing",
    "keyfence.upstream.single.shares",
    "keyfence.upstream.single.links",
    "keyfence.downstream.flow",
    "keyfence.downstream.context",
    "keyfence.downstream.client",
)

# An extension without a source: what Cython has for all of them (memory views, how functions are called).
SHARED = "keyfence._cython"

PURE_SWITCH = "KEYFENCE_PURE"
_ROOT = Path(__file__).resolve().parent.parent
_MARK = b"keyfence-source-sha256:"
_MARKED = re.compile(_MARK + b"([0-9a-f]{64})")


class StaleExtensionError(ImportError):
    """An extension was built from other sources than those beside it."""


def is_pure(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for the interpreted modules."""
    return environ.get(PURE_SWITCH, "0") not in ("", "0")


def source(module: str, root: Path = _ROOT) -> Path:
    """The path of a module's .py under `root`, the directory that holds the package."""
    return root.joinpath(*module.split(".")).with_suffix(".py")


def modules(root: Path = _ROOT) -> list[str]:
    """Those of MODULES that are there to be compiled."""
    return [
        module
        for module in MODULES
        if source(module, root).exists() and source(module, root).with_suffix(".pxd").exists()
    ]


def source_hash(module: str, root: Path = _ROOT) -> str:
    """The SHA-256, in hexadecimal, of all that a module's extension depends on.

    That is its .py, and the .pxd of every compiled module: a class's C layout is compiled into those that
    use it.
    """
    return _hash_with(module, root, _declarations(root))


def _declarations(root: Path) -> bytes:
    """What every extension depends on: the .pxd of every compiled module."""
    return b"".join(_named(source(module, root).with_suffix(".pxd")) for module in modules(root))


def _named(path: Path) -> bytes:
    content = path.read_bytes().replace(b"\r\n", b"\n")  # as git may check them out elsewhere
    return b"%s %d\n%s" % (path.name.encode(), len(content), content)


def _hash_with(module: str, root: Path, declarations: bytes) -> str:
    return hashlib.sha256(_named(source(module, root)) + declarations).hexdigest()


def mark(module: str, root: Path = _ROOT) -> str:
    """C code that makes an extension carry its source's hash."""
    name = module.replace(".", "_")
    return f'const char keyfence_source_of_{name}[] = "{_MARK.decode()}{source_hash(module, root)}";\n'


def extension(module: str, root: Path = _ROOT) -> Path | None:
    """The file that Python would load for a module in place of its .py, None if there is none."""
    stem = source(module, root).with_suffix("")
    candidates = (stem.with_name(stem.name + suffix) for suffix in EXTENSION_SUFFIXES)
    return next((path for path in candidates if path.exists()), None)


def check(root: Path = _ROOT) -> None:
    """Raise StaleExtensionError if an extension does not belong to the sources beside it."""
    declarations = _declarations(root)
    has_shared = extension(SHARED, root) is not None
    for module in MODULES:
        built = extension(module, root)
        if built is None or not source(module, root).exists():
            continue
        found = _MARKED.search(built.read_bytes())
        if not has_shared or found is None or found[1].decode() != _hash_with(module, root, declarations):
            raise StaleExtensionError(
                f"{built} does not match {source(module, root).name}, or {SHARED} is missing: "
                f"run `make build`, or delete the file, or set {PURE_SWITCH}=1",
                name=module,
                path=str(built),
            )


class SourceFinder(MetaPathFinder):
    """Finds the .py of the modules that may be compiled, before the extension is looked for."""

    def __init__(self, root: Path = _ROOT) -> None:
        self.root = root

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES or not source(fullname, self.root).exists():
            return None
        return spec_from_file_location(fullname, source(fullname, self.root))


def prepare() -> None:
    """Called once, when the package is imported: check the extensions, or hide them if that is wished."""
    if not is_pure():
        check()
    elif not any(isinstance(finder, SourceFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, SourceFinder())


def status() -> dict[str, bool]:
    """For each module that can be compiled: whether it runs compiled, or will when it is imported."""
    return {module: _is_compiled(module) for module in modules()}


def _is_compiled(module: str) -> bool:
    loaded = sys.modules.get(module)
    if loaded is not None and loaded.__spec__ is not None:
        return isinstance(loaded.__spec__.loader, ExtensionFileLoader)
    return not is_pure() and extension(module) is not None


def describe(found: Mapping[str, bool] | None = None) -> str:
    """`status()`, or what is given in its place, in one line for people."""
    found = status() if found is None else found
    slow = [module for module, compiled in found.items() if not compiled]
    if not slow:
        return "compiled"
    if len(slow) < len(found):
        return f"partly compiled: {', '.join(slow)} interpreted, slower"
    if is_pure():
        return f"interpreted ({PURE_SWITCH} is set; slower)"
    return "interpreted (no compiled modules; slower)"
