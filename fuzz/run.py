#!/usr/bin/env python3
"""Runs the fuzzers one after the other, with extensions built for fuzzing.

Rule: a failed check ends the run with exit code 1 and the folder of the input that reproduces it. Without
atheris, nothing is fuzzed and the exit code is 0. Without a compiler, the fuzzers test the checkout itself.

    fuzz/run.py --minutes 10              all fuzzers, ten minutes in total
    fuzz/run.py --minutes 10 requests     one fuzzer, for ten minutes
    fuzz/run.py --seed 1                  from the same seed: two runs try mostly the same inputs
    fuzz/run.py --minimize                reduce fuzz/corpus to inputs that add coverage, new ones included
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

import corpus

PROJECT = Path(__file__).resolve().parent.parent
FUZZ = PROJECT / "fuzz"
BUILD = PROJECT / "build" / "fuzz"
LEARNT = BUILD.with_name("fuzz-corpus")
KEPT = BUILD.with_name("fuzz-kept")  # the inputs of fuzz/corpus as files
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in FUZZ.glob("fuzz_*.py"))
# Longer inputs are slow and find nothing that shorter ones miss.
MAX_INPUT = 2048
SECONDS_PER_INPUT = 20
MEMORY_MB = 4096

# Compilers with their sanitizers, best first. clang counts branches for libFuzzer; both check memory.
COMPILERS = {
    "clang": "-fsanitize=address,fuzzer-no-link",
    "gcc": "-fsanitize=address",
}
FLAGS = "-g -O1 -fno-omit-frame-pointer"


def build() -> str:
    """Builds the extensions in BUILD. Returns the compiler that built them, or "" if none could."""
    BUILD.mkdir(parents=True, exist_ok=True)
    shutil.copytree(PROJECT / "proxy", BUILD / "proxy", ignore=_left_out, dirs_exist_ok=True)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(PROJECT / name, BUILD / name)
    made = BUILD / "made-by"
    for compiler, sanitizers in COMPILERS.items():
        if not shutil.which(compiler):
            continue
        if made.exists() and made.read_text() == f"{sanitizers} {FLAGS}" and _is_fresh():
            return compiler
        env = os.environ | {
            # Not for linking: the preloaded runtime has it all, and clang's own is a package of its own.
            "CC": f"{compiler} {sanitizers}",
            "CFLAGS": FLAGS,
            "LDSHARED": f"{compiler} -shared",
            "KEYFENCE_COMPILED": "required",
        }
        env.pop("KEYFENCE_PURE", None)
        done = subprocess.run(
            # All of them: objects of another compiler are not to be mixed with this one's.
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"],
            cwd=BUILD,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            made.write_text(f"{sanitizers} {FLAGS}")
            return compiler
        print(f"fuzz: {compiler} cannot build with {sanitizers}: {done.stderr.strip()[-500:]}")
    return ""


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Connections are not fuzzed, so their modules are not compiled: they are a third of all."""
    rooms = Path(folder).relative_to(PROJECT / "proxy").parts
    patterns = ["*.so", "*.c", "__pycache__"]
    if "upstream" in rooms or "downstream" in rooms:
        patterns.append("*.pxd")
    return shutil.ignore_patterns(*patterns)(folder, names)


def _is_fresh() -> bool:
    """Returns whether BUILD has all extensions, built from the sources beside them."""
    ask = "from keyfence import _compiled; import sys; sys.exit(not all(_compiled.status().values()))"
    env = {name: value for name, value in os.environ.items() if name != "KEYFENCE_PURE"}
    return not subprocess.run(
        [sys.executable, "-c", ask], cwd=BUILD / "proxy", env=env, capture_output=True, check=False
    ).returncode


def environment(compiler: str) -> dict[str, str]:
    """Returns the environment in which a fuzzer tests the build of `compiler` ("": the checkout)."""
    env = os.environ | {"PYTHONHASHSEED": "0"}
    if not compiler:
        return env
    if compiler == "clang":
        runtime = Path(sysconfig.get_path("platlib")) / "asan_with_fuzzer.so"  # part of atheris
    else:
        found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, check=True)
        runtime = Path(found.stdout.decode().strip())
    return env | {
        "KEYFENCE_FUZZ_BUILD": str(BUILD / "proxy"),
        "LD_PRELOAD": str(runtime),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # CPython does not free everything
        "PYTHONMALLOC": "malloc",  # otherwise small objects lie in arenas, which are not checked
    }


def fuzz(target: str, seconds: int, seed: int, env: dict[str, str]) -> int:
    """Runs one fuzzer and returns its exit code. New inputs go to build/, failing ones to fuzz/found/."""
    learnt, found = LEARNT / target, FUZZ / "found"
    for folder in (learnt, found):
        folder.mkdir(parents=True, exist_ok=True)
    kept = corpus.unpack(corpus.inputs(target), KEPT / target)
    print(f"fuzz: {target} for {seconds} s", flush=True)
    return subprocess.run(
        [
            *(sys.executable, str(FUZZ / f"fuzz_{target}.py"), str(learnt), str(kept)),
            *(f"-seed={seed}", f"-max_total_time={seconds}", f"-timeout={SECONDS_PER_INPUT}"),
            *(f"-max_len={MAX_INPUT}", f"-rss_limit_mb={MEMORY_MB}"),
            *(f"-artifact_prefix={found}/{target}-", "-print_final_stats=1"),
            *("-verbosity=0", *_dictionary(target)),
        ],
        env=env,
        check=False,
    ).returncode


def _dictionary(target: str) -> list[str]:
    words = FUZZ / f"{target}.dict"
    return [f"-dict={words}"] if words.exists() else []


def minimize(target: str, env: dict[str, str]) -> None:
    """Keeps the fewest inputs that cover all branches that the kept and the learnt corpus cover."""
    kept, learnt = corpus.unpack(corpus.inputs(target), KEPT / target), LEARNT / target
    chosen = corpus.unpack(corpus.regressions(target), BUILD.with_name("fuzz-chosen") / target)
    learnt.mkdir(parents=True, exist_ok=True)
    again = PROJECT / "build" / f"fuzz-{target}"
    again.write_text(f'#!/bin/sh\nexec {sys.executable} {FUZZ}/fuzz_{target}.py "$@"\n')
    again.chmod(0o755)
    subprocess.run(
        [
            *(sys.executable, FUZZ / f"fuzz_{target}.py", "-set_cover_merge=1", chosen, kept, learnt),
            # How often a branch is taken does not count: it would keep seven times as many inputs.
            *("-use_counters=0", f"-max_len={MAX_INPUT}", "-verbosity=0"),
        ],
        env=env | {"KEYFENCE_FUZZ_AGAIN": str(again)},
        check=True,
        stderr=subprocess.DEVNULL,
    )
    data = [path.read_bytes() for path in chosen.iterdir()]
    corpus.keep(target, data)
    print(f"fuzz: the corpus of {target} has {len(data)} inputs, {sum(map(len, data))} bytes in total")


def main() -> int:
    """Runs the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Run keyfence's fuzzers.")
    parser.add_argument("targets", nargs="*", help=f"{', '.join(TARGETS)}; default: all")
    parser.add_argument("--minutes", type=float, default=1.0, help="in total, for all targets; default: 1")
    parser.add_argument("--seed", type=int, default=0, help="of libFuzzer's choices; default: by chance")
    parser.add_argument("--minimize", action="store_true", help="reduce the kept corpus")
    chosen = parser.parse_args()
    targets = chosen.targets or TARGETS
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(TARGETS)}")
    if importlib.util.find_spec("atheris") is None:
        print("fuzz: atheris is not installed (pip install atheris): nothing is fuzzed")
        return 0
    compiler = build()
    descriptions = {
        "clang": "built with clang: guided by the extensions' branches too, memory checked",
        "gcc": "built with gcc: guided by interpreted code only, memory checked",
        "": "no compiler can build with memory checks: testing the checkout itself",
    }
    print(f"fuzz: {descriptions[compiler]}", flush=True)
    env = environment(compiler)
    if chosen.minimize:
        for target in targets:
            minimize(target, env)
        return 0
    for target in targets:
        code = fuzz(target, max(1, round(chosen.minutes * 60 / len(targets))), chosen.seed, env)
        if code:
            print(f"fuzz: {target} failed; its input is in {FUZZ / 'found'}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
