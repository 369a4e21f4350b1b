"""Rooms import only what they may, the core does no I/O, and no file is tied to the machine that made it."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import PROJECT

PACKAGE = PROJECT / "proxy"

# Which rooms a room may import; its own modules and `keyfence._compiled` are open to all. Rooms that aren't
# listed (server, admin, config, cli …) may import every room.
MAY_IMPORT: dict[str, set[str]] = {
    "wire": set(),
    "commands": set(),
    "policy": {"commands"},
    "relay": {"wire", "commands", "policy"},
    "upstream": {"wire"},
    "telemetry": {"policy.verdict", "policy.repeats", "policy.secrecy", "policy.show", "policy.units"},
}
# What the rooms without I/O stay away from. Each is tested with values in and values out.
PURE_ROOMS = ("wire", "commands", "policy", "relay")
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


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(module: Path) -> str:
    inside = module.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imported(module: Path) -> Iterator[str]:
    """Yields the dotted name of everything that a module imports, `from a import b` as "a.b"."""
    package = (PACKAGE.name, *module.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(module.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{name.name}" for name in node.names)


def imported_here(module: Path) -> set[str]:
    """Returns what a module imports of this project, as "policy.verdict.Violation"."""
    names = (name.partition(".") for name in imported(module))
    return {rest for package, _, rest in names if package == PACKAGE.name}


def name_of(module: Path) -> str:
    return str(module.relative_to(PROJECT))


@pytest.mark.parametrize("module", modules(), ids=name_of)
def test_a_room_imports_only_the_rooms_below_it(module: Path) -> None:
    room = room_of(module)
    if room in MAY_IMPORT:
        open_to_it = MAY_IMPORT[room] | {room, "_compiled", "__version__"}
        closed = {
            name
            for name in imported_here(module)
            if not any(f"{name}.".startswith(f"{o}.") for o in open_to_it)
        }
        assert closed == set()


@pytest.mark.parametrize("module", [m for m in modules() if room_of(m) in PURE_ROOMS], ids=name_of)
def test_the_core_rooms_import_nothing_that_does_io(module: Path) -> None:
    assert not {name.split(".")[0] for name in imported(module)} & IO_MODULES


@pytest.mark.parametrize("module", modules(), ids=name_of)
def test_every_module_says_what_it_is_for(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_bytes())), "a module without a docstring"


def test_the_rooms_of_the_table_are_there() -> None:
    assert {room for room in MAY_IMPORT if not (PACKAGE / room / "__init__.py").exists()} == set()


def project_files() -> list[Path]:
    """Returns what git tracks or would track; where this is no clone, all that isn't made by a build."""
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
    # Spelt in two parts, so that this file passes its own test.
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
