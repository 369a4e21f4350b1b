"""Measures single steps of a command without sockets: reading, extraction, evaluation, and a whole session.

Run it from the repository's root: `python -m benchmarks.micro`. It takes prefixes of the names to run, and
pyperf's options: `--fast` is quicker, and `-o FILE` stores the results for `python -m pyperf compare_to`.
With KEYFENCE_PURE=1 it measures the interpreted modules. Times are for a single command, key or reply.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pyperf

from benchmarks import sessions
from keyfence import _compiled
from keyfence.commands.extract import extract
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.resp.encode import command
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.replies import ReplyFramer
from keyfence.resp.requests import RequestReader

POLICIES = Path(__file__).parents[1] / "policies"
SET = command("SET", "cube:v1:shared:sandbox:proxy:7c8f3a", b"x" * 64)
PIPELINE = 16
COMMANDS = 1_600

# Runs in the measuring process, before the clock starts. Returns the function to measure.
Make = Callable[[], Callable[[], object]]
Bench = tuple[str, Make, int]  # name; maker; commands, keys or replies in one call


def reading(chunk: bytes, size: int = 0) -> Callable[[], object]:
    """Returns a function that feeds `chunk` to a reader, in pieces of `size` (0: whole), and reads it."""
    reader = RequestReader(IDENTIFIED)
    parts = [chunk[at : at + size] for at in range(0, len(chunk), size)] if size else [chunk]

    def read() -> None:
        for part in parts:
            reader.feed(part)
            while reader.next() is not None:
                pass

    return read


def framing(reply: bytes) -> Callable[[], object]:
    framer, replies = ReplyFramer(), reply * PIPELINE
    return lambda: framer.advance(replies, 0, PIPELINE)


def resp() -> Iterator[Bench]:
    mget = command("MGET", *(f"key:{n}" for n in range(100)))
    big = command("SET", "k", b"x" * 1_000_000)
    yield "SET of 64 bytes", partial(reading, SET), 1
    yield "SET of 64 bytes, 16 per read", partial(reading, SET * PIPELINE), PIPELINE
    yield "SET of 64 bytes, in pieces of 100 bytes", partial(reading, SET * PIPELINE, 100), PIPELINE
    yield "inline PING", partial(reading, b"PING\r\n"), 1
    yield "MGET of 100 keys", partial(reading, mget), 1
    yield "SET of 1 MB in pieces of 64 KiB", partial(reading, big, 65536), 1
    yield "+OK", partial(framing, b"+OK\r\n"), PIPELINE
    yield "reply of 64 bytes", partial(framing, b"$64\r\n" + b"x" * 64 + b"\r\n"), PIPELINE
    yield "reply of 10 strings", partial(framing, b"*10\r\n" + b"$8\r\n12345678\r\n" * 10), PIPELINE


def extraction() -> Iterator[Bench]:
    for text in (
        "GET a",
        "SET a b EX 60",
        "MSET a 1 b 2 c 3",
        "XREAD COUNT 9 STREAMS a b 0 0",
        "EVAL s 2 a b c",
    ):
        argv = text.encode().split()
        yield text, partial(partial, extract, argv), 1


@cache
def general(naming_rules: bool) -> CompiledPolicy:
    """Returns the general policy, with or without its naming rules."""
    if naming_rules:
        return load_policy(POLICIES / "general.yaml")
    return parse_policy((POLICIES / "general.yaml").read_text().split("\nnames:")[0])


def decision() -> Iterator[Bench]:
    bad = [b"GET", b"session:token:uid:abc123:ts:20230823"]
    good = [b"GET", b"session:token:uid:abc123:ts:1692806400"]

    def admitting(naming_rules: bool, argv: list[bytes]) -> Callable[[], object]:
        evaluator = Evaluator(general(naming_rules))
        touches = extract(argv)
        evaluator.evaluate(Asker(0), argv, touches)  # only an evaluated permission is admitted
        if not evaluator.checks.admits(evaluator.evaluation(Asker(0), argv, touches)):
            raise AssertionError(argv)
        return lambda: evaluator.checks.admits(evaluator.evaluation(Asker(0), argv, touches))

    def evaluating(argv: list[bytes]) -> Callable[[], object]:
        evaluator = Evaluator(general(True))
        touches = extract(argv)
        return lambda: evaluator.evaluate(Asker(0), argv, touches)

    def classifying() -> Callable[[], object]:
        first = sessions.policy().classifier.first
        key = b"cube:v1:master:instance:meta:000000123456"
        return lambda: first(key)

    yield "classifying a key", classifying, 1
    yield "GET, admitted", partial(admitting, True, good), 1
    yield "GET, admitted, without naming rules", partial(admitting, False, good), 1
    yield "GET, slow path", partial(evaluating, good), 1
    yield "GET of a key that breaks a naming rule, slow path", partial(evaluating, bad), 1


def session() -> Iterator[Bench]:
    def serving(pipeline: int, name: str) -> Callable[[], object]:
        load = next(one for one in sessions.loads(COMMANDS, pipeline) if one.name == name)
        serves = sessions.session_for(load)
        return lambda: sessions.serve(serves, load.reads)

    for pipeline in (1, PIPELINE, 100):
        for load in sessions.loads(pipeline, pipeline):  # one read for each load
            yield load.name, partial(serving, pipeline, load.name), load.commands * (COMMANDS // pipeline)


GROUPS: dict[str, Callable[[], Iterator[Bench]]] = {
    "resp": resp,
    "extraction": extraction,
    "decision": decision,
    "session": session,
}


def timing(make: Make) -> Callable[[int], float]:
    made = cache(make)

    def timed(loops: int) -> float:
        run = made()
        begun = pyperf.perf_counter()
        for _ in range(loops):
            run()
        return pyperf.perf_counter() - begun

    return timed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro")
    parser.add_argument(
        "only", nargs="*", metavar="NAME", help=f"{', '.join(GROUPS)}, or the beginning of a benchmark's name"
    )
    chosen: list[str] = []
    runner = pyperf.Runner(
        values=3,
        processes=5,
        metadata={"hot_modules": _compiled.describe()},
        program_args=("-m", "benchmarks.micro"),
        add_cmdline_args=lambda command, _options: command.extend(chosen),
        _argparser=parser,
    )
    parser.set_defaults(inherit_environ=["KEYFENCE_PURE"])
    options = runner.parse_args()
    chosen.extend(options.only)
    every = [
        (f"{group}: {name}", make, units)
        for group, benches in GROUPS.items()
        for name, make, units in benches()
    ]
    for one in chosen:
        if not any(name.startswith(one) for name, _, _ in every):
            parser.error(
                f"no benchmark's name begins with {one!r}; choose from:\n  "
                + "\n  ".join(name for name, _, _ in every)
            )
    if not options.worker:
        print(f"hot modules: {_compiled.describe()}")
    for name, make, units in every:
        if name.startswith(tuple(chosen) or ""):
            runner.bench_time_func(name, timing(make), inner_loops=units)


if __name__ == "__main__":
    main()
