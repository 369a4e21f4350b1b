"""Rooms import only what they may, the core does no I/O, and no file is tied to the machine that made it."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.servers import PROJECT

PACKAGE = PROJECT / "proxy" / "keyfence"
MAX_MODULES = 20  # of a folder
MAX_LINES = 600  # of a file
MAX_FUNCTION = 60  # lines of a function
MAX_PARAMETERS = 7  # of a function, without self

MAX_METHODS = 60  # of a class, inherited ones and properties included
MAX_ATTRIBUTES = 15  # of a class with more than …
MAX_FLAGS = 4  # … this many flags, inherited ones included
# The classes beyond, and why.
MANY_ATTRIBUTES = {
    "policy/compiled/policy.py:Target": "what the compiler finds out about one target, for look-ups in C",
    "policy/engine/forms.py:KeyKind": "the evaluator's answer for one kind of key, for look-ups in C",
    "resp/replies.py:ReplyFramer": "a parser's state between two bytes",
    "upstream/dedicated.py:DedicatedLink": "its flags are to become a table of states",
    "upstream/shared.py:SharedConnection": "as DedicatedLink",
}

# Every room, and the rooms it may import. A room is a folder; its own modules, `keyfence._compiled` and
# `keyfence.__version__` are open to it. "policy" means only the modules directly in that folder.
LEAVES = {"policy"}  # verdict, services, diagnostics, units, show: values that every part of the policy uses
MODEL = LEAVES | {"policy.patterns", "policy.source"}
TABLES = MODEL | {"commands", "policy.compiled"}
MAY_IMPORT: dict[str, set[str]] = {
    "resp": set(),
    "commands": set(),
    "net": set(),
    "policy": set(),
    "policy.patterns": LEAVES,
    "shapes": LEAVES,
    "policy.source": LEAVES,
    "policy.compiled": MODEL | {"commands", "shapes"},
    "policy.compiler": TABLES,
    "policy.loading": LEAVES | {"policy.source", "policy.compiled", "policy.compiler"},
    "policy.enforcement": TABLES | {"shapes"},
    "policy.wording": TABLES - {"policy.source"} | {"shapes"},
    "policy.reach": LEAVES | {"commands", "policy.compiled", "policy.patterns"},
    "policy.engine": {
        *(TABLES - {"policy.source"}),
        *("shapes", "policy.enforcement", "policy.reach", "policy.wording"),
    },
    "policy.remedies": TABLES | {"policy.compiler", "policy.engine", "policy.loading", "policy.wording"},
    "authoring": {
        *TABLES,
        *("policy.compiler", "policy.loading", "policy.enforcement"),
        *("policy.engine", "policy.reach", "policy.remedies", "policy.wording"),
    },
    "authoring.learn": {
        *("authoring", "commands", "shapes", "policy", "policy.patterns", "policy.source", "policy.compiled"),
        *("policy.engine", "policy.loading", "policy.wording"),
    },
    "authoring.export": {
        *("commands", "policy", "policy.patterns", "policy.compiled"),
        *("policy.engine", "policy.wording"),
    },
    "identity": {"commands", "policy"},
    "session.conversation": {
        *("resp", "commands", "identity", "net"),
        *("policy", "policy.compiled", "policy.engine", "policy.wording"),
    },
    "session.handlers": {"resp", "commands", "identity", "net", "policy", "session.conversation"},
    "session": {
        *("resp", "commands", "session.conversation", "session.handlers"),
        *("policy", "policy.compiled", "policy.engine"),
    },
    "session.sentinel": {"commands", "net", "resp", "session", "session.conversation"},
    "telemetry": {"policy", "policy.engine", "shapes"},
    "telemetry.reports": {"policy", "telemetry"},
    "telemetry.metrics": {"telemetry"},
    "telemetry.candidate": {"policy", "policy.compiled", "policy.engine", "shapes", "telemetry"},
    "upstream.credentials": set(),
    "upstream": {"net", "resp", "telemetry", "upstream.credentials"},
    "upstream.replicas": {"net", "resp", "telemetry", "upstream"},
    "upstream.sentinel": {"net", "resp", "upstream"},
    "upstream.cluster": {"commands", "net", "resp", "policy.compiled"},
    "upstream.single": {
        *("commands", "net", "policy.compiled", "resp"),
        *("telemetry", "upstream", "upstream.cluster", "upstream.replicas"),
    },
    "findings.proof": {
        *("shapes", "telemetry", "policy"),
        *("policy.compiled", "policy.enforcement", "policy.engine", "policy.patterns"),
    },
    "findings.history": {"policy"},
    "findings": {
        *("commands", "findings.history", "findings.proof", "telemetry", "policy"),
        *("policy.compiled", "policy.enforcement", "policy.engine", "policy.reach", "policy.wording"),
    },
    "findings.news": {
        *("findings", "findings.history", "net", "policy", "telemetry"),
    },
    "findings.gate": {"findings", "policy", "policy.source", "telemetry"},
    "audit.servers": {"policy.compiled", "upstream", "upstream.cluster"},
    "audit": {
        *("audit.servers", "commands", "findings", "shapes"),
        *("policy", "policy.compiled", "policy.engine", "policy.patterns", "policy.wording"),
    },
    "fleet": {"net", "policy", "policy.source"},
    "config": {
        "fleet",
        "policy",
        "policy.compiled",
        "policy.enforcement",
        "policy.source",
        "resp",
        "net",
        "identity",
        "upstream",
        "upstream.credentials",
    },
    "downstream": {
        *("config", "identity", "net", "resp", "session", "session.conversation", "session.sentinel"),
        *("policy", "policy.engine", "policy.source", "telemetry"),
        *("upstream", "upstream.credentials", "upstream.replicas", "upstream.single"),
    },
    "admin": {
        *("config", "downstream", "findings", "net", "upstream"),
        *("telemetry", "telemetry.metrics", "telemetry.reports"),
        *("policy", "policy.compiled", "policy.enforcement", "policy.source"),
    },
    "web": {"admin", "findings", "policy", "policy.compiled", "telemetry", "telemetry.reports"},
    "process.serving": {
        *(
            "admin",
            "commands",
            "config",
            "downstream",
            "fleet",
            "identity",
            "net",
            "resp",
            "session.conversation",
            "shapes",
            "telemetry",
            "telemetry.candidate",
            "upstream",
            "upstream.cluster",
            "upstream.credentials",
            "upstream.replicas",
            "upstream.sentinel",
            "upstream.single",
        ),
        *(
            "policy",
            "policy.compiled",
            "policy.enforcement",
            "policy.engine",
            "policy.loading",
            "policy.remedies",
            "policy.source",
            "policy.wording",
        ),
    },
    "process.workers": {
        *(
            "config",
            "net",
            "process.serving",
            "session.conversation",
            "telemetry",
            "telemetry.candidate",
            "upstream",
            "upstream.cluster",
        ),
        *("policy", "policy.enforcement"),
    },
    "process": {
        *(
            "admin",
            "config",
            "downstream",
            "findings",
            "findings.history",
            "findings.news",
            "findings.proof",
            "fleet",
            "net",
            "resp",
            "session.conversation",
        ),
        *("telemetry", "telemetry.candidate", "telemetry.metrics", "telemetry.reports", "upstream", "web"),
        *("policy", "policy.compiled", "policy.enforcement", "policy.engine"),
        *("policy.remedies", "policy.source", "policy.wording"),
        *("process.serving", "process.workers"),
    },
    "cli.terminal": {"admin", "config", "net", "policy", "telemetry", "telemetry.reports", "upstream"},
    "cli.rollout": {
        *("admin", "cli.terminal", "config", "findings", "findings.gate", "net", "telemetry", "upstream"),
        *("findings.news", "findings.proof"),
        *("audit", "audit.servers", "cli.keyspace", "telemetry.reports"),
        *(
            "policy",
            "policy.compiled",
            "policy.enforcement",
            "policy.loading",
            "policy.source",
            "policy.wording",
        ),
        *("authoring.export", "authoring.learn"),
        *("process", "process.serving"),
    },
    "cli.keyspace": {
        *("audit", "audit.servers", "authoring.export", "cli.terminal", "config", "downstream", "findings"),
        *("policy", "policy.loading", "upstream", "upstream.credentials", "upstream.sentinel"),
    },
    "cli.publish": {
        *("authoring", "cli.terminal", "config", "findings", "findings.history", "fleet"),
        *("policy", "policy.loading", "policy.source"),
    },
    "cli.demo": {
        *("admin", "cli.rollout", "telemetry", "telemetry.reports"),
        *("policy", "policy.compiled", "policy.loading"),
    },
    "cli.look": {
        *("admin", "audit", "audit.servers", "cli.keyspace", "cli.rollout", "cli.terminal", "config"),
        *("authoring", "authoring.learn", "commands", "downstream", "findings", "identity", "net", "shapes"),
        *("policy", "policy.compiled", "process", "process.serving", "telemetry", "telemetry.reports"),
    },
    "cli": {
        *("cli.demo", "cli.keyspace", "cli.look", "cli.publish", "cli.rollout", "cli.terminal"),
        *("admin", "commands", "config", "net", "process", "process.serving"),
        *("telemetry", "telemetry.reports", "upstream"),
        *("authoring", "authoring.export", "policy", "policy.compiled", "policy.enforcement"),
        *("policy.loading", "policy.patterns", "policy.remedies", "policy.source"),
    },
}
# A folder with the rows of a room's own table belongs to the room: the room reads the rows, and the rows use
# the room's types.
PART_OF = {"commands.families": "commands"}
# Modules that the rooms without I/O must not import. Tests of these rooms pass values in and compare values.
PURE_ROOMS = ("authoring", "resp", "commands", "policy", "shapes", "identity", "session")
PURE_MODULES = {  # in other rooms
    "keyfence.upstream.exchange",
    "keyfence.upstream.cluster.announced",
    "keyfence.upstream.cluster.fan_out",
    "keyfence.upstream.cluster.joining",
    "keyfence.upstream.cluster.refresh",
    "keyfence.upstream.cluster.rewriting",
    "keyfence.upstream.cluster.scanning",
    "keyfence.upstream.cluster.splitting",
    "keyfence.upstream.cluster.state",
    "keyfence.upstream.cluster.topology",
    "keyfence.upstream.cluster.troubles",
    "keyfence.upstream.single.again",
    "keyfence.upstream.single.cutting",
    "keyfence.upstream.single.dealing",
    "keyfence.upstream.single.kept",
    "keyfence.upstream.single.missing",
    "keyfence.upstream.single.refusals",
    "keyfence.upstream.single.retries",
    "keyfence.upstream.single.splits",
    "keyfence.upstream.single.spreading",
    "keyfence.upstream.single.turns",
    "keyfence.upstream.single.waiting",
}
IO_MODULES = {
    "aiohttp",
    "asyncio",
    "concurrent",
    "http",
    "multiprocessing",
    "redis",
    "select",
    "selectors",
    "signal",
    "socket",
    "socketserver",
    "ssl",
    "subprocess",
    "threading",
    "urllib",
    "uvloop",
}


_PLACE = re.compile(r"keyfence(\.\w+)+:\w+")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """Returns a module's dotted name: `keyfence.policy.verdict`."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def room_of(path: Path) -> str:
    """Returns the room of a file: `policy.engine`; "" for the package's root."""
    folder = ".".join(path.relative_to(PACKAGE).parts[:-1])
    return PART_OF.get(folder, folder)


MODULES = {module_name(path): path for path in modules()}


def imported(path: Path) -> Iterator[str]:
    """Yields the dotted name of every import of a module, `from a import b` as "a.b". The text "a:b" counts
    too: that is how the command line writes where its commands are."""
    package = path.relative_to(PACKAGE.parent).parts[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _PLACE.fullmatch(node.value):
                yield node.value.replace(":", ".")
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{name.name}" for name in node.names)


def imported_modules(path: Path) -> set[str]:
    """Returns the modules of this project that a module imports, those under TYPE_CHECKING included."""
    found = set()
    for name in imported(path):
        base = name.rpartition(".")[0]
        if name in MODULES:
            found.add(name)
        elif base in MODULES:
            found.add(base)
    return found - {module_name(path), "keyfence", "keyfence._compiled"}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the nodes that lie in circles, as one list; no list if the graph has no circle."""
    left = {node: set(targets) & graph.keys() for node, targets in graph.items()}
    while free := [node for node, targets in left.items() if not targets & left.keys()]:
        for node in free:
            del left[node]
    # Nodes that only lead into a circle are not part of it.
    while loose := [node for node in left if not any(node in targets for targets in left.values())]:
        for node in loose:
            del left[node]
    return [sorted(left)] if left else []


def name_of(module: Path) -> str:
    return str(module.relative_to(PROJECT))


@pytest.mark.parametrize("module", modules(), ids=name_of)
def test_a_room_imports_only_the_rooms_listed_for_it(module: Path) -> None:
    room = room_of(module)
    if room:
        entered = {room_of(MODULES[name]) for name in imported_modules(module)}
        assert entered - MAY_IMPORT[room] - {room} == set()


def test_every_room_is_listed_and_every_listed_room_exists() -> None:
    assert {room_of(path) for path in modules()} - {""} == MAY_IMPORT.keys()


def test_every_listed_import_of_a_room_is_used() -> None:
    entered: dict[str, set[str]] = {}
    for path in modules():
        entered.setdefault(room_of(path), set()).update(
            room_of(MODULES[name]) for name in imported_modules(path)
        )
    direct = {room: may - entered[room] for room, may in MAY_IMPORT.items() if may - entered[room]}
    assert direct == {}


def test_rooms_have_no_import_circle() -> None:
    assert circles(MAY_IMPORT) == []


def test_modules_have_no_import_circle() -> None:
    assert circles({name: imported_modules(path) for name, path in MODULES.items()}) == []


@pytest.mark.parametrize(
    "module",
    [m for m in modules() if room_of(m).split(".")[0] in PURE_ROOMS or module_name(m) in PURE_MODULES],
    ids=name_of,
)
def test_the_core_imports_nothing_that_does_io(module: Path) -> None:
    assert not {name.split(".")[0] for name in imported(module)} & IO_MODULES


def test_every_module_listed_as_one_without_io_exists() -> None:
    assert MODULES.keys() >= PURE_MODULES


@pytest.mark.parametrize("module", modules(), ids=name_of)
def test_every_module_has_a_docstring(module: Path) -> None:
    assert ast.get_docstring(parsed(module)), "a module without a docstring"


@pytest.mark.parametrize("room", sorted({*MAY_IMPORT, *PART_OF}))
def test_a_room_has_few_modules(room: str) -> None:
    here = PACKAGE.joinpath(*room.split("."))
    assert len([path for path in here.glob("*.py") if path.name != "__init__.py"]) <= MAX_MODULES


@pytest.mark.parametrize("module", modules(), ids=name_of)
def test_files_and_functions_are_short(module: Path) -> None:
    text = module.read_text()
    assert text.count("\n") <= MAX_LINES
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
        if node.end_lineno - node.lineno >= MAX_FUNCTION
    }
    assert long == {}


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns how many parameters a function has, without self and cls."""
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_no_function_has_many_parameters_but_those_listed() -> None:
    many = {
        f"{module.relative_to(PACKAGE).as_posix()}:{node.name}"
        for module in modules()
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and parameters(node) > MAX_PARAMETERS
    }
    assert not many


Class = tuple[Path, str]


@cache
def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_bytes())


@cache
def classes() -> dict[Class, ast.ClassDef]:
    return {
        (module, node.name): node
        for module in modules()
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.ClassDef)
    }


def shown(one: Class) -> str:
    return f"{one[0].relative_to(PACKAGE).as_posix()}:{one[1]}"


def lineage(one: Class) -> Iterator[Class]:
    """Yields a class and those of its bases that are this project's: of the same module, or imported by it by
    their names."""
    module, _ = one
    yield one
    known = {
        name.rpartition(".")[2]: MODULES[name.rpartition(".")[0]]
        for name in imported(module)
        if name.rpartition(".")[0] in MODULES
    }
    for base in (ast.unparse(base) for base in classes()[one].bases):
        found = module if (module, base) in classes() else known.get(base)
        if found is not None and (found, base) in classes():
            yield from lineage((found, base))


def methods(one: Class) -> set[str]:
    return {
        each.name
        for owner in lineage(one)
        for each in classes()[owner].body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def is_flag(annotation: ast.expr | None, value: ast.expr | None) -> bool:
    """Whether an attribute is a flag: by its annotation, or because it is first True, False, a comparison, or
    `not` or `in` something."""
    if annotation is not None:
        return ast.unparse(annotation) in ("bool", "Flag")
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.op, ast.Not)
    return isinstance(value, ast.Compare) or (
        isinstance(value, ast.Constant) and isinstance(value.value, bool)
    )


def set_in_init(node: ast.ClassDef) -> Iterator[tuple[str, bool]]:
    """Yields what `__init__` sets on self, and whether it is a flag."""
    bodies = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    for statement in (each for body in bodies for each in ast.walk(body)):
        if isinstance(statement, ast.Assign):
            targets, annotation = statement.targets, None
        elif isinstance(statement, ast.AnnAssign):
            targets, annotation = [statement.target], statement.annotation
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                yield target.attr, is_flag(annotation, statement.value)


def declared_in_c(one: Class) -> Iterator[tuple[str, bool]]:
    """Yields what the .pxd declares for a class; a `bint` is a flag."""
    module, name = one
    types = module.with_suffix(".pxd")
    body = re.search(
        rf"^cdef class {name}\b.*:\n((?:    .*\n|\n)*)",
        types.read_text() if types.exists() else "",
        re.MULTILINE,
    )
    for line in body[1].splitlines() if body else ():
        found = re.fullmatch(r"    cdef (?:public |readonly )?(.+) (\w+)", line)
        if found:
            yield found[2], found[1] == "bint"


def attributes(one: Class) -> dict[str, bool]:
    """Returns the attributes of a class's instances, and whether each is a flag: what `__init__` sets, the
    fields of a dataclass or named tuple, and what the .pxd declares."""
    found: dict[str, bool] = {}
    for owner in lineage(one):
        fields = [each for each in classes()[owner].body if isinstance(each, ast.AnnAssign)]
        for name, flag in (
            *set_in_init(classes()[owner]),
            *declared_in_c(owner),
            *((ast.unparse(each.target), is_flag(each.annotation, each.value)) for each in fields),
        ):
            found[name] = found.get(name, False) or flag
    return found


def test_no_class_has_many_methods() -> None:
    assert {shown(one): len(methods(one)) for one in classes() if len(methods(one)) > MAX_METHODS} == {}


def test_no_class_has_many_attributes_and_flags_but_those_listed() -> None:
    many = {
        shown(one)
        for one in classes()
        if len(found := attributes(one)) > MAX_ATTRIBUTES and sum(found.values()) > MAX_FLAGS
    }
    assert many == MANY_ATTRIBUTES.keys()


def test_the_root_of_the_package_holds_rooms_and_nothing_else() -> None:
    assert {path.name for path in modules() if not room_of(path)} == {
        "__init__.py",
        "__main__.py",
        "_compiled.py",
    }


def test_the_tour_has_a_line_for_every_room() -> None:
    tour = (PROJECT / "docs" / "tour.md").read_text()
    rooms = {f"](../proxy/keyfence/{room.replace('.', '/')}" for room in MAY_IMPORT}
    assert {room for room in rooms if not re.search(re.escape(room) + r"/?\)", tour)} == set()


def project_files() -> list[Path]:
    """Returns the files that git tracks or would track; outside a clone, all files except build products."""
    if shutil.which("git") and (PROJECT / ".git").exists():
        listing = subprocess.run(
            ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=PROJECT,
            capture_output=True,
            check=True,
        )
        paths = [PROJECT / name for name in listing.stdout.decode().split("\0") if name]
    else:
        made = {".venv", "build", "node_modules", "__pycache__", "keyfence.egg-info"}
        made |= {".git", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
        paths = [p for p in PROJECT.rglob("*") if not made.intersection(p.relative_to(PROJECT).parts)]
        paths = [path for path in paths if path.suffix not in (".so", ".c")]
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def test_no_file_names_a_place_on_the_machine_that_made_it() -> None:
    # Written in parts, so that this file passes its own test.
    private = re.compile(rb"/(?:" + b"ho" + rb"me/[a-z]|" + b"ro" + rb"ot/|Us" + rb"ers/|wo" + rb"rk/)")
    found = {
        f"{path.relative_to(PROJECT)}: {match.group().decode()}"
        for path in project_files()
        if (match := private.search(path.read_bytes()))
    }
    assert found == set()


def test_no_file_names_a_package_registry() -> None:
    registry = re.compile(rb"(?:registry\." + rb"npmjs|pypi\." + rb"org|python" + rb"hosted)|\"resolved\": ")
    found = {
        f"{path.relative_to(PROJECT)}: {match.group().decode()}"
        for path in project_files()
        if path.name != Path(__file__).name and (match := registry.search(path.read_bytes()))
    }
    assert found == set()
