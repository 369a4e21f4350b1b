"""The class: keyfence shows a secret in a key, because the secret is not where the policy expects it.

The search puts a secret into names of every kind, in every spelling, and looks for it in all refusals, logs,
reports, recordings and explanations. Another search compares the fast paths of masking with the complete
check.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
from typing import Any

from keyfence.commands.extract import extract
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.baseline import baseline
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.remedies.explain import explain
from keyfence.policy.show import printable
from keyfence.policy.verdict import Finding, Violation
from keyfence.policy.wording.command_log import as_line
from keyfence.policy.wording.masking import shown_in
from keyfence.session.conversation.refusal import refusal
from keyfence.telemetry.telemetry import Telemetry
from tests.adversary.conftest import Search

CLASSES = {  # placeholder → letters of its secrets, and their length
    "[a-z]{1,12}": ("hsgrtbwaeiou", 8),
    "[a-z0-9]{6,40}": ("hsgrtbwaeiou0123456789", 12),
    "[A-Za-z0-9_.~-]{8,64}": ("hsgrtbwHSGRTBW012_-.~", 16),
    "uuid": ("", 0),
    "[^ ]+": ("hsgrtbw0123@|!", 10),
    "[0-9A-F]{8}": ("0123456789ABCDEF", 8),
}
WORDS = ["shop", "v1", "session", "cart", "lock", "jwt_active", "acme", "user", "sess-"]


def secret(rng: random.Random, expression: str) -> str:
    if expression == "uuid":
        digits = "".join(rng.choice("0123456789abcdef") for _ in range(32))
        return "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]])
    letters, length = CLASSES[expression]
    return "".join(rng.choice(letters) for _ in range(length))


def policy(rng: random.Random, expression: str) -> CompiledPolicy:
    forms = rng.sample(
        [
            "session: {key: 'shop:v1:web:session:<token>'}",
            "nested: {key: 'shop:v1:web:<token>:cart:<id>'}",
            "glued: {key: 'shop:v1:sess-<token>'}",
            "tagged: {key: 'shop:{<token>}:lock', writers: [a]}",
            "behind: {key: 'shop:v1:<id>:own:<token>'}",
        ],
        rng.randint(0, 4),
    )
    lines = ["policy: p", "services: [a, b]", "placeholders:", "  id: '[0-9]{1,6}'"]
    lines += [f"  token: {{is: '{expression}', secret: true}}", "scopes:"]
    lines += [f"  web: {{prefix: 'shop:v1:', writers: [a], unregistered: {rng.choice(['allow', 'forbid'])}}}"]
    lines += ["keys:", "  level: {key: 'shop:v1:level:<id>', type: string}", *("  " + form for form in forms)]
    if rng.random() < 0.5:
        lines.append("claims: ['shop:']")
    if rng.random() < 0.3:
        lines.append("legacy: {allow: [read], keys: {'old:<token>': level}}")
    if rng.random() < 0.5:
        lines.append("channels: {inbox: {channel: 'inbox:<token>', publishers: [a], subscribers: [a]}}")
    if rng.random() < 0.3:
        lines.append("names: {charset: '[a-z:]', max_length: 40}")
    return parse_policy("\n".join(lines) + "\n")


def spelt(rng: random.Random, text: str) -> str:
    """Returns a glob that also matches the text."""
    at = rng.randrange(len(text))
    rest = text[1:]
    return rng.choice([text, f"*{rest}", f"?{rest}", f"[{text[0]}]{rest}", f"{text[:at]}*{text[at:]}"])


def name_with(rng: random.Random, marker: str, as_glob: bool) -> str:
    words = [rng.choice(WORDS) for _ in range(rng.randint(0, 4))]
    if as_glob:
        words = [spelt(rng, word) for word in words]
    around = rng.choice(["{}", "{}", "{}*", "*{}", "x{}", "{}!", "{}_1", "{{{}}}", "sess-{}"])
    words.insert(rng.randint(0, len(words)), around.format(marker))
    name = ":".join(words)
    before = ["", "", "shop:v1:", "shop:v1:web:", "shop:v1:level:", "shop:v1:web:session:", "old:"]
    return rng.choice(before) + name


def command(rng: random.Random, marker: str) -> list[str]:
    key, glob = name_with(rng, marker, False), name_with(rng, marker, True)
    space = rng.choice(["__keyspace@0__:", "__key*__:", "__keyspace@*__:", "__keyevent@0__:"])
    return rng.choice(
        [
            ["GET", key],
            ["SET", key, "v", "EX", "soon"],
            ["HSET", key, "f", "v"],
            ["RENAME", key, name_with(rng, marker, False)],
            ["MGET", "shop:v1:level:1", key],
            ["EVAL", "return 1", "1", key],
            ["EVALSHA", "0" * 40, "2", key, "shop:v1:level:1"],
            ["FCALL", "f", "1", key],
            ["KEYS", glob],
            ["SCAN", "0", "MATCH", glob],
            ["PSUBSCRIBE", space + glob],
            ["SUBSCRIBE", space + key],
            ["PUBLISH", key, "m"],
            ["PUBSUB", "CHANNELS", glob],
            ["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", key],
            ["XREADGROUP", "GROUP", "g", "c", "STREAMS", key, ">"],
        ]
    )


class Everything:
    """All places where keyfence reports violations under one policy."""

    def __init__(self, policy: CompiledPolicy, path: Any) -> None:
        self.policy = policy
        self.evaluator = Evaluator(policy)
        self.path = path
        self.telemetry = Telemetry.to(str(path))
        self.telemetry.guard(policy.secrecy)

    def shown_at_once(self, service: str, argv: list[bytes]) -> str:
        """Returns everything that keyfence shows of a command at once."""
        found = self.evaluator.decide(self.policy.number(service), argv).violations
        touches = extract(argv)
        name = touches.command.name if touches.command is not None else "other"
        findings = [Finding(one, "refused") for one in found]
        decision = self.telemetry.violations(service, "1.2.3.4:5", name, findings, "r")
        shown = [_text(one) for one in found]
        shown += [str(refusal(one, "", decision)) for one in found]
        shown.append(json.dumps(as_line(self.policy, service, argv, touches, 1)))
        shown.append(json.dumps(explain(self.policy, service, argv)))
        return "\n".join(shown)

    def shown_later(self) -> str:
        """Returns the log and the report."""
        self.telemetry.flush()
        rows = self.telemetry.tally.snapshot()
        self.telemetry.close()
        waivers = baseline(rows, "o", "r", datetime.date(2099, 1, 1)).text
        log = self.path.read_text()
        self.path.unlink()
        return log + json.dumps(rows) + waivers


def _text(one: Violation) -> str:
    return f"{one.shown} {one.message} {one.hint} {one.entry} {one.shape}"


def test_no_output_holds_a_secret(tmp_path: Any, search: Search) -> None:
    for rng in search.attempts_of_at_least(30):
        expression = rng.choice([*CLASSES])
        everything = Everything(policy(rng, expression), tmp_path / "decisions.jsonl")
        markers = [secret(rng, expression) for _ in range(3)]
        for _ in range(40):
            marker = rng.choice(markers)
            argv = [word.encode() for word in command(rng, marker)]
            assert not _holds(everything.shown_at_once(rng.choice("ab"), argv), marker), (marker, argv)
        later = everything.shown_later()
        assert not [one for one in markers if _holds(later, one)], (markers, later)


def _holds(text: str, marker: str) -> bool:
    return marker.lower() in text.lower()


def without_fast_paths(policy: CompiledPolicy) -> CompiledPolicy:
    """Returns the same policy without the fast paths of masking."""
    secrecy = policy.secrecy
    assert secrecy is not None
    return dataclasses.replace(policy, secrecy=dataclasses.replace(secrecy, quick=None, short=None))


def any_name(rng: random.Random, expression: str, known: list[bytes]) -> bytes:
    """Returns a name with a secret, or of the policy's words and random bytes. Many names share a prefix."""
    if rng.random() < 0.3:
        return name_with(rng, secret(rng, expression), rng.random() < 0.3).encode()
    sorts = [
        b"sh",
        b"x" * 12,
        b"0123456789ABCDEF",
        b"A1_",
        b"17",
        b"*",
        b"?",
        b"[",
        b"\\",
        b"{",
        b"}",
        b":",
        b"::",
    ]
    sorts += [b"\n", b"\xff", b"\xc3\xa9", b" ", b'"', b"@|!", b"__key", b"__keyspace@0__:", b"-", *known]
    words = [rng.choice([*sorts, *(word.encode() for word in WORDS)]) for _ in range(rng.randint(0, 5))]
    separators = [rng.choice([b":", b":", b":", b"", b"{", b"}"]) for _ in words]
    before = rng.choice([b"", b"", b"", rng.choice(known), b"__keyspace@0__:" + rng.choice(known)])
    return before + b"".join(word + between for word, between in zip(words, separators, strict=True))


def test_the_fast_paths_mask_like_the_complete_check(search: Search) -> None:
    tried = decided = 0
    for rng in search.attempts_of_at_least(30):
        expression = rng.choice([*CLASSES])
        quick = policy(rng, expression)
        at_length = without_fast_paths(quick)
        known = sorted({one.pattern.literal_prefix for one in (*quick.targets, *quick.channels)})
        for _ in range(60):
            name = any_name(rng, expression, known)
            if rng.random() < 0.3:
                known.append(name[: name.rfind(b":") + 1])
            name += rng.choice([b"", b"", b"x" * rng.randint(90, 130)])
            for target in (quick.target(name), None):
                assert shown_in(quick, name, target) == shown_in(at_length, name, target), name
            tried += 1
            decided += quick.secrecy is not None and quick.secrecy.shown_short(name) is not None
        short = quick.secrecy.short if quick.secrecy is not None else None
        for head in short.heads if short is not None else ():
            assert shown_in(at_length, head, None) == printable(head)
    assert decided > 0.02 * tried  # by the fast path for short names; most of these names are hostile
