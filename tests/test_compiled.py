"""An extension runs only if it was built from the source beside it. Without extensions, everything runs
interpreted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from keyfence import _compiled

SOURCES = Path(_compiled.__file__).parent.parent
ROOT = SOURCES.parent
MODULE = "keyfence.resp.requests"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the compiled modules' sources, with a matching extension of MODULE."""
    for module in _compiled.modules():
        target = _compiled.source(module, tmp_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (".py", ".pxd"):
            shutil.copy(_compiled.source(module).with_suffix(suffix), target.with_suffix(suffix))
    build(tmp_path)
    extension_of(_compiled.SHARED, tmp_path).touch()
    return tmp_path


def extension_of(module: str, root: Path) -> Path:
    """Where a build puts the extension of a module."""
    return _compiled.source(module, root).with_suffix(EXTENSION_SUFFIXES[0])


def build(root: Path) -> Path:
    """Writes a fake extension that carries the hash but cannot be loaded."""
    extension = extension_of(MODULE, root)
    extension.write_bytes(b"\x7fELF\0" + _compiled.mark(MODULE, root).encode() + b"\0")
    return extension


def test_an_extension_built_from_its_source_is_accepted(tree: Path) -> None:
    _compiled.check(tree)


@pytest.mark.parametrize("suffix", [".py", ".pxd"])
def test_an_edited_source_makes_its_extension_stale(tree: Path, suffix: str) -> None:
    edited = _compiled.source(MODULE, tree).with_suffix(suffix)
    edited.write_text(edited.read_text() + "\n")
    with pytest.raises(_compiled.StaleExtensionError, match=r"make build") as stale:
        _compiled.check(tree)
    assert str(_compiled.extension(MODULE, tree)) in str(stale.value)
    assert "requests.py" in str(stale.value)
    build(tree)
    _compiled.check(tree)


def test_an_edited_pxd_makes_other_modules_extensions_stale(tree: Path) -> None:
    edited = _compiled.source("keyfence.resp.replies", tree).with_suffix(".pxd")
    edited.write_text(edited.read_text() + "\n")
    with pytest.raises(_compiled.StaleExtensionError):
        _compiled.check(tree)


def test_an_extension_without_a_hash_is_refused(tree: Path) -> None:
    build(tree).write_bytes(b"\x7fELF")
    with pytest.raises(_compiled.StaleExtensionError, match=r"requests"):
        _compiled.check(tree)


def test_an_extension_without_the_one_that_all_need_is_refused(tree: Path) -> None:
    extension_of(_compiled.SHARED, tree).unlink()
    with pytest.raises(_compiled.StaleExtensionError, match=r"keyfence\._cython is missing"):
        _compiled.check(tree)


def test_no_extensions_are_not_stale(tree: Path) -> None:
    build(tree).unlink()
    _compiled.check(tree)
    assert _compiled.extension(MODULE, tree) is None


def test_line_endings_do_not_make_an_extension_stale(tree: Path) -> None:
    source = _compiled.source(MODULE, tree)
    source.write_bytes(source.read_bytes().replace(b"\n", b"\r\n"))
    _compiled.check(tree)


@pytest.mark.parametrize(("value", "pure"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_which_values_of_keyfence_pure_count(value: str, pure: bool) -> None:
    assert _compiled.is_pure({"KEYFENCE_PURE": value}) is pure
    assert not _compiled.is_pure({})


def test_the_source_finder_covers_only_compiled_modules(tree: Path) -> None:
    finder = _compiled.SourceFinder(tree)
    spec = finder.find_spec(MODULE, None)
    assert spec is not None
    assert spec.origin == str(_compiled.source(MODULE, tree))
    assert finder.find_spec("keyfence.resp.limits", None) is None
    assert finder.find_spec("json", None) is None


def python(code: str, cwd: Path = SOURCES, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KEYFENCE_")}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=kept | environ, capture_output=True, text=True, check=False
    )


def test_with_keyfence_pure_all_modules_are_interpreted() -> None:
    ran = python(
        "from keyfence import _compiled as c\n"
        "from keyfence.resp import replies, requests\n"
        "assert requests.__file__.endswith('.py') and replies.__file__.endswith('.py')\n"
        "assert not any(c.status().values())\n"
        "print(c.describe())",
        KEYFENCE_PURE="1",
    )
    assert (ran.stdout, ran.stderr) == ("interpreted (KEYFENCE_PURE is set; slower)\n", "")


def test_the_package_refuses_to_start_with_a_stale_extension(tree: Path) -> None:
    for name in ("__init__.py", "_compiled.py"):
        shutil.copy(SOURCES / "keyfence" / name, tree / "keyfence" / name)
    build(tree).write_bytes(b"\x7fELF")
    ran = python("import keyfence", cwd=tree)
    assert ran.returncode == 1
    assert "StaleExtensionError" in ran.stderr
    assert python("import keyfence.resp.requests as r; r.__file__", cwd=tree).returncode == 1
    assert "ImportError" not in python("import keyfence", cwd=tree, KEYFENCE_PURE="1").stderr


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({"a": True, "b": True}, "compiled"),
        ({"a": True, "b": False}, "partly compiled: b interpreted, slower"),
        ({"a": False, "b": False}, "interpreted (no compiled modules; slower)"),
    ],
)
def test_the_version_describes_the_build(
    found: dict[str, bool], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KEYFENCE_PURE", raising=False)
    assert _compiled.describe(found) == line


def test_the_status_describes_the_loaded_modules() -> None:
    from keyfence.resp import requests

    assert _compiled.status()[MODULE] == (not requests.__file__.endswith(".py"))
    assert set(_compiled.status()) == set(_compiled.modules())


# Their tests start servers, which is most of their time, so they do not run a second time.
RUN_ONCE = ("telemetry", "upstream", "downstream")


def test_the_tests_of_every_room_with_a_compiled_module_run_interpreted_too() -> None:
    asks = ["make", "--no-print-directory", "--eval", "asked: ; @echo $(PURE_TESTS)", "asked"]
    named = subprocess.run(asks, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    rooms = {module.removeprefix("keyfence.").rpartition(".")[0] for module in _compiled.MODULES}
    tests = {f"tests/{room.replace('.', '/')}" for room in rooms if not room.startswith(RUN_ONCE)}
    assert not [one for one in tests if not one.startswith(tuple(named))]
    assert all((ROOT / one.partition("::")[0]).exists() for one in named)


# --- real builds -----------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the files that an installation needs, without the extensions of this checkout."""
    pytest.importorskip("setuptools", minversion="77")
    root = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(ROOT / "proxy", root / "proxy", ignore=ignored)
    shutil.copytree(ROOT / "policies", root / "policies")
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    (root / "README.md").touch()
    return root


def leave_one_module(checkout: Path) -> None:
    """Only MODULE is to be compiled: to translate all of them takes a minute, and shows no more."""
    for module in _compiled.modules(checkout / "proxy"):
        if module != MODULE:
            _compiled.source(module, checkout / "proxy").with_suffix(".pxd").unlink()


def build_in(checkout: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KEYFENCE_")}
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=checkout,
        env=kept | {"CFLAGS": "-O0"} | environ,
        capture_output=True,
        text=True,
        check=False,
    )


def built(checkout: Path) -> list[str]:
    return [
        module for module in _compiled.MODULES if _compiled.extension(module, checkout / "proxy") is not None
    ]


DESCRIBE = (
    "from keyfence import _compiled as c; from keyfence.resp import requests, replies; print(c.describe())"
)


def test_without_a_compiler_the_build_succeeds_and_everything_runs_interpreted(checkout: Path) -> None:
    pytest.importorskip("Cython")
    leave_one_module(checkout)
    stale = extension_of(MODULE, checkout / "proxy")
    stale.write_bytes(b"\x7fELF of an earlier build")
    ran = build_in(checkout, CC="/bin/false")
    assert ran.returncode == 0, ran.stderr
    assert built(checkout) == []
    assert python(DESCRIBE, cwd=checkout / "proxy").stdout == "interpreted (no compiled modules; slower)\n"
    assert build_in(checkout, CC="/bin/false", KEYFENCE_COMPILED="required").returncode != 0


def test_a_module_that_cython_cannot_translate_stays_interpreted(checkout: Path) -> None:
    pytest.importorskip("Cython")
    for module in _compiled.modules(checkout / "proxy"):
        _compiled.source(module, checkout / "proxy").with_suffix(".pxd").write_text(
            "this is no declaration\n"
        )
    ran = build_in(checkout)
    assert ran.returncode == 0, ran.stderr
    assert "stays interpreted" in ran.stderr
    assert built(checkout) == []
    assert build_in(checkout, KEYFENCE_COMPILED="required").returncode != 0


def test_keyfence_pure_builds_no_extension(checkout: Path) -> None:
    assert build_in(checkout, KEYFENCE_PURE="1").returncode == 0
    assert built(checkout) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_with_a_compiler_everything_runs_compiled_until_a_source_is_edited(checkout: Path) -> None:
    pytest.importorskip("Cython")
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler is installed")
    leave_one_module(checkout)
    ran = build_in(checkout, KEYFENCE_COMPILED="required")
    assert ran.returncode == 0, ran.stderr
    assert built(checkout) == [MODULE]
    assert python(DESCRIBE, cwd=checkout / "proxy").stdout == "compiled\n"
    assert "KEYFENCE_PURE" in python(DESCRIBE, cwd=checkout / "proxy", KEYFENCE_PURE="1").stdout
    source = _compiled.source(MODULE, checkout / "proxy")
    source.write_text(source.read_text() + "\n")
    assert "StaleExtensionError" in python(DESCRIBE, cwd=checkout / "proxy").stderr
    assert build_in(checkout, KEYFENCE_COMPILED="required").returncode == 0
    assert python(DESCRIBE, cwd=checkout / "proxy").stdout == "compiled\n"
