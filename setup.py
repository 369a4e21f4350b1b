"""Compiles the hot modules with Cython, if there is a compiler; otherwise the install goes on without.

Rule: a build never fails because a compiler is missing, unless KEYFENCE_COMPILED=required says that it must
be there (for CI and release builds). KEYFENCE_PURE=1 compiles nothing. KEYFENCE_BUILT=1 says that this
checkout has its extensions, or gets them meanwhile, so nothing is compiled either.
proxy/keyfence/_compiled.py lists the modules; pyproject.toml has all other metadata.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "proxy"  # the directory that holds the package
POLICIES = "policies"  # shipped with the package, as keyfence/policies
COMMIT = "COMMIT"  # a file of an sdist, and of keyfence/ in a wheel, that says from which commit it was built
GENERATED = Path("build", "cython")
REQUIRED = os.environ.get("KEYFENCE_COMPILED") == "required"
# Who sets an optimization level means it: the fuzzers' -O1, and -O0 where only the build itself is tested.
# Without debug information, which would be three quarters of the file.
OPTIONS = ["-g0"] if "-O" in os.environ.get("CFLAGS", "") else ["-O2", "-g0"]

# Loaded by its path: importing keyfence._compiled would import the package, which refuses stale extensions
# that this build is about to replace.
_spec = importlib.util.spec_from_file_location("keyfence_compiled", SOURCES / "keyfence" / "_compiled.py")
compiled = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compiled)


def extensions() -> list[Extension]:
    if compiled.is_pure() or os.environ.get("KEYFENCE_BUILT"):
        return []
    return [
        Extension(
            module,
            [compiled.source(module, SOURCES).relative_to(ROOT).as_posix()],
            extra_compile_args=OPTIONS,
            optional=not REQUIRED,
        )
        for module in compiled.modules(SOURCES)
    ]


def translate(extension: Extension) -> Extension | None:
    """The extension in C, with its source's hash; None if Cython is missing or fails."""
    try:
        from Cython import __version__
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError
    except ImportError:
        if REQUIRED:
            raise
        print(f"keyfence: no Cython, {extension.name} stays interpreted", file=sys.stderr)
        return None
    marked = GENERATED.joinpath(*extension.name.split(".")).with_suffix(".source.c")
    mark = f"/* Cython {__version__} */\n{compiled.mark(extension.name, SOURCES)}"
    # Time stamps do not show whether generated C is up to date (a checkout may set them back).
    generated = GENERATED.joinpath(extension.sources[0]).with_suffix(".c")
    if not generated.exists() or not marked.exists() or marked.read_text() != mark:
        try:
            cythonize(
                [extension],
                build_dir=str(GENERATED),
                force=True,
                quiet=True,
                compiler_directives={"language_level": "3", "auto_pickle": False},
                shared_utility_qualified_name=compiled.SHARED,
            )
        except CompileError as error:
            if REQUIRED:
                raise
            print(f"keyfence: {extension.name} stays interpreted: {error}", file=sys.stderr)
            return None
        marked.parent.mkdir(parents=True, exist_ok=True)
        marked.write_text(mark)
    sources = [generated.as_posix(), marked.as_posix()]
    return Extension(extension.name, sources, extra_compile_args=OPTIONS, optional=extension.optional)


def shared() -> Extension:
    """The extension with what Cython would otherwise put into each of the others, two fifths of their C."""
    from Cython import __version__

    path = GENERATED / f"shared-{__version__}.c"
    if not path.exists():
        command = [sys.executable, "-m", "cython", "--generate-shared", str(path)]
        subprocess.run([*command, "--module-name", compiled.SHARED], check=True)
    return Extension(compiled.SHARED, [path.as_posix()], extra_compile_args=OPTIONS, optional=not REQUIRED)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def translate_all(found: list[Extension]) -> list[Extension]:
    """What Cython can translate. That takes as long as the C compiler, so each core does a share of it."""
    if hasattr(os, "fork"):
        context = multiprocessing.get_context("fork")  # in others, a setup.py without a file cannot be found
        shares = [found[first :: cores()] for first in range(min(cores(), len(found)))]
        processes = [context.Process(target=translate_share, args=(share,)) for share in shares]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    translated = [extension for extension in map(translate, found) if extension is not None]
    # The largest first, so that no core has one left to compile when the others have nothing to do.
    translated.sort(key=lambda one: -os.path.getsize(one.sources[0]))
    return [shared(), *translated] if translated else []


def translate_share(share: list[Extension]) -> None:
    """Writes the C files. `translate_all` calls `translate` for each once more, and that call tells what
    fails."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    for extension in share:
        translate(extension)


class BuildExtensions(build_ext):
    def finalize_options(self) -> None:
        if not self.distribution.have_run.get("translate"):  # several commands may run this one
            self.distribution.ext_modules = translate_all(self.distribution.ext_modules or [])
            self.distribution.have_run["translate"] = True
        super().finalize_options()
        self.parallel = self.parallel or min(cores(), 4)  # each gcc takes up to 300 MB

    def run(self) -> None:
        # An extension that this build does not replace must not stay behind: it would be stale.
        if self.inplace or getattr(self, "editable_mode", False):
            for module in compiled.MODULES:
                while (stale := compiled.extension(module, SOURCES)) is not None:
                    stale.unlink()
        super().run()


def commit() -> str:
    """The commit of these sources, with "-dirty" if some are changed; "" if nothing knows."""
    if (ROOT / COMMIT).exists():
        return (ROOT / COMMIT).read_text()
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        return ""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    return subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


class BuildModules(build_py):
    """Puts into the package what a checkout has elsewhere: the shipped policies, and which commit it is."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            package = Path(self.build_lib, "keyfence")
            shutil.copytree(ROOT / POLICIES, package / POLICIES, dirs_exist_ok=True)
            (package / COMMIT).write_text(commit())


class PackSources(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        Path(base_dir, COMMIT).write_text(commit())


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildExtensions, "build_py": BuildModules, "sdist": PackSources},
)
