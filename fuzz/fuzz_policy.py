#!/usr/bin/env python3
"""Guided fuzzing of policy files: any text, and lines of a real policy in any order.

Rule: a text either loads as a policy, or raises a FileError that names lines of the text. A loaded policy
evaluates every command without an error.
"""

from __future__ import annotations

from harness import PROJECT, Choices, fuzz, instrumented

with instrumented("keyfence.policy"):
    from keyfence.commands.extract import extract
    from keyfence.policy.diagnostics import FileError
    from keyfence.policy.engine.asker import Asker
    from keyfence.policy.engine.evaluator import Evaluator
    from keyfence.policy.loading.load import parse_policy

REAL = (PROJECT / "policies" / "cubesandbox.yaml").read_text().splitlines()
LINES = [line for line in REAL if line.strip() and not line.lstrip().startswith("#")]
LINES += ["    max_value: 4b", "    max_fields: 1", "    max_members: 1"]
BASE = "policy: p\nowner: {team: t, contact: c}\nclaims: ['a:']\nservices: [s, r]\n"
MAX_LINES = 60
ARGVS = [
    [b"GET", b"a:b"],
    [b"HSET", b"a:b:c", b"f", b"v"],
    [b"SET", b"a:" + b"x" * 300, b"v", b"EX", b"9"],
    [b"RENAME", b"a:b", b"a:b:c"],
    [b"SUNIONSTORE", b"a:b", b"a:c", b"b"],
    [b"RESTORE", b"a:b", b"0", b"\x04"],
    [b"APPEND", b"a:b", b"12345"],
    [b"SADD", b"a:b", b"1", b"2", b"2"],
    [b"SCAN", b"0", b"MATCH", b"a:*"],
    [b"PSUBSCRIBE", b"a:?[b-d]*"],
    [b"EVAL", b"return 1", b"1", b"a:b"],
    [b"NO.SUCH", b"\xff\r\n"],
    [b"SORT", b"a:b", b"BY", b"a:w_*->f", b"GET", b"*"],
    [b"EVAL_RO", b"return 1", b"0"],
    [b"XREADGROUP", b"GROUP", b"g", b"c", b"STREAMS", b"a:b", b">"],
]


def text_of(choices: Choices) -> str:
    """Decodes the input to a text: as it is, after the head of a small policy, or as edited policy lines."""
    kind = choices.number() % 3
    if kind < 2:
        return BASE * kind + choices.rest().decode("utf-8", "surrogateescape" if kind else "replace")
    lines: list[str] = []
    while choices and len(lines) < MAX_LINES:
        number = choices.number()
        if number < 250:
            lines.append(LINES[number % len(LINES)])
        elif lines:
            at, edit = choices.number(), choices.bytes(choices.number() % 12).decode("latin-1")
            lines[-1] = lines[-1][:at] + edit + lines[-1][at + len(edit) * (number % 2) :]
    return "\n".join(lines)


def check_diagnostics(error: FileError, text: str) -> None:
    """Checks that each diagnostic has a message and a line: one of the text, or the next one after it."""
    lines = text.count("\n") + text.count("\r") + 2
    assert error.diagnostics
    assert all(one.message and 1 <= one.place.line <= lines for one in error.diagnostics)


def check(data: bytes) -> None:
    """Checks that the input is a policy that evaluates commands, or has diagnostics."""
    text = text_of(Choices(data))
    try:
        policy = parse_policy(text)
    except FileError as exc:
        check_diagnostics(exc, text)
        return
    evaluator = Evaluator(policy)
    for argv in ARGVS:
        touches = extract(argv)
        for service in range(len(policy.services)):
            verdict = evaluator.evaluate(Asker(service), argv, touches)
            assert verdict.allowed or not evaluator.checks.admits(
                evaluator.evaluation(Asker(service), argv, touches)
            )


if __name__ == "__main__":
    fuzz(check)
