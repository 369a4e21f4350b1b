#!/usr/bin/env python3
"""Runs the fuzzers one after the other, with extensions built for fuzzing.

Rule: a finding ends the run with exit code 1 and the name of a file that reproduces it. If atheris or a
compiler is missing, a message says so, and the rest runs.

    fuzz/run.py --minutes 10              all fuzzers, ten minutes together
    fuzz/run.py --minutes 10 requests     one of them, for ten minutes
    fuzz/run.py --minimize                keep in fuzz/corpus only what adds something, old and new
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
FUZZ = PROJECT / "fuzz"
BUILD = PROJECT / "build" / "fuzz"
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in FUZZ.glob("fuzz_*.py"))
# Inputs longer than this find nothing that shorter ones don't, and take their time.
MAX_INPUT = 2048
SECONDS_PER_INPUT = 20
MEMORY_MB = 4096

# Which compiler, with what it can do: clang counts branches for libFuzzer, both watch memory.
COMPILERS = {
    "clang": "-g -O1 -fno-omit-frame-pointer -fsanitize=address,fuzzer-no-link",
    "gcc": "-g -O1 -fno-omit-frame-pointer -fsanitize=address",
}


def build() -> str:
    """Build the extensions into BUILD. Returns the compiler that did it, "" where none could."""
    BUILD.mkdir(parents=True, exist_ok=True)
    left_out = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    shutil.copytree(PROJECT / "proxy", BUILD / "proxy", ignore=left_out, dirs_exist_ok=True)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(PROJECT / name, BUILD / name)
    made = BUILD / "made-by"
    for compiler, flags in COMPILERS.items():
        if not shutil.which(compiler):
            continue
        if made.exists() and made.read_text() == flags and _is_fresh():
            return compiler
        env = os.environ | {
            "CC": compiler,
            "CFLAGS": flags,
            "LDSHARED": f"{compiler} -shared",
            "LDFLAGS": flags,
            "KEYFENCE_COMPILED": "required",
        }
        env.pop("KEYFENCE_PURE", None)
        done = subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=BUILD,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            made.write_text(flags)
            return compiler
        print(f"fuzz: {compiler} could not build with {flags}: {done.stderr.strip()[-500:]}")
    return ""


def _is_fresh() -> bool:
    """Whether BUILD's extensions are all there and made from the sources beside them."""
    ask = "from keyfence import _compiled; import sys; sys.exit(not all(_compiled.status().values()))"
    env = {name: value for name, value in os.environ.items() if name != "KEYFENCE_PURE"}
    return not subprocess.run(
        [sys.executable, "-c", ask], cwd=BUILD / "proxy", env=env, capture_output=True, check=False
    ).returncode


def environment(compiler: str) -> dict[str, str]:
    """What a fuzzer needs to run against the build that `compiler` made."""
    env = os.environ.copy()
    if not compiler:
        return env
    if compiler == "clang":
        runtime = Path(sysconfig.get_path("platlib")) / "asan_with_fuzzer.so"  # of atheris
    else:
        found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, check=True)
        runtime = Path(found.stdout.decode().strip())
    return env | {
        "KEYFENCE_FUZZ_BUILD": str(BUILD / "proxy"),
        "LD_PRELOAD": str(runtime),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # CPython leaves much to the system
        "PYTHONMALLOC": "malloc",  # else small objects lie in arenas, where nothing is watched
    }


def fuzz(target: str, seconds: int, env: dict[str, str]) -> int:
    """Run one fuzzer. What it learns goes to build/, what it finds to fuzz/found/."""
    learnt, found = PROJECT / "build" / "fuzz-corpus" / target, FUZZ / "found"
    for folder in (learnt, found, FUZZ / "corpus" / target):
        folder.mkdir(parents=True, exist_ok=True)
    print(f"fuzz: {target} for {seconds} s", flush=True)
    return subprocess.run(
        [
            *(sys.executable, str(FUZZ / f"fuzz_{target}.py"), str(learnt), str(FUZZ / "corpus" / target)),
            *(f"-max_total_time={seconds}", f"-max_len={MAX_INPUT}", f"-timeout={SECONDS_PER_INPUT}"),
            *(f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={found}/{target}-", "-print_final_stats=1"),
            *("-verbosity=0", *_dictionary(target)),
        ],
        env=env,
        check=False,
    ).returncode


def _dictionary(target: str) -> list[str]:
    words = FUZZ / f"{target}.dict"
    return [f"-dict={words}"] if words.exists() else []


def minimize(target: str, env: dict[str, str]) -> None:
    """Replace a kept corpus by the smallest inputs that reach all that it and the learnt one reach."""
    kept, learnt = FUZZ / "corpus" / target, PROJECT / "build" / "fuzz-corpus" / target
    fresh = kept.with_name(f"{target}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    for folder in (fresh, kept, learnt):
        folder.mkdir(parents=True, exist_ok=True)
    again = PROJECT / "build" / f"fuzz-{target}"
    again.write_text(f'#!/bin/sh\nexec {sys.executable} {FUZZ}/fuzz_{target}.py "$@"\n')
    again.chmod(0o755)
    subprocess.run(
        [
            *(sys.executable, FUZZ / f"fuzz_{target}.py", "-merge=1", fresh, kept, learnt),
            *(f"-max_len={MAX_INPUT}", "-verbosity=0"),
        ],
        env=env | {"KEYFENCE_FUZZ_AGAIN": str(again)},
        check=True,
        stderr=subprocess.DEVNULL,
    )
    shutil.rmtree(kept)
    fresh.rename(kept)
    sizes = [path.stat().st_size for path in kept.iterdir()]
    print(f"fuzz: the corpus of {target} holds {len(sizes)} inputs of {sum(sizes)} bytes")


def main() -> int:
    """Runs what the command line asks for. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Run keyfence's fuzzers.")
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all, where none is named")
    parser.add_argument("--minutes", type=float, default=1.0, help="for all of them together")
    parser.add_argument("--minimize", action="store_true", help="make the kept corpus small again")
    chosen = parser.parse_args()
    targets = chosen.targets or TARGETS
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"no fuzzer is called {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if importlib.util.find_spec("atheris") is None:
        print("fuzz: atheris is not installed here (pip install atheris): nothing is fuzzed")
        return 0
    compiler = build()
    what = {
        "clang": "clang's build: guided by the extensions' branches too, memory watched",
        "gcc": "gcc's build: guided by interpreted code only, memory watched",
        "": "no compiler that can watch memory: the checkout as it is",
    }
    print(f"fuzz: {what[compiler]}", flush=True)
    env = environment(compiler)
    if chosen.minimize:
        for target in targets:
            minimize(target, env)
        return 0
    for target in targets:
        code = fuzz(target, max(1, round(chosen.minutes * 60 / len(targets))), env)
        if code:
            print(f"fuzz: {target} found something; its input lies in {FUZZ / 'found'}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
