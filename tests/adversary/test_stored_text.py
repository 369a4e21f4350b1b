"""The class: text that keyfence stores about a command holds a value, or has no bound.

The search sends commands with a secret as a value, also in the place of a number, a SHA-1 or a function, with
many and with long arguments, and looks at what the log's line, the report and the waivers hold of them.
"""

from __future__ import annotations

import datetime
import json
import random
from typing import Any

import pytest
import yaml

from keyfence.commands.extract import extract
from keyfence.policy.analysis.baseline import baseline
from keyfence.policy.analysis.command_log import MAX_LINE, as_line, from_line
from keyfence.policy.enforcement.waiver_keys import WaiverKeys
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.verdict import Finding
from keyfence.session.conversation.observer import Sent
from keyfence.telemetry.telemetry import Telemetry
from tests.adversary.conftest import Search

POLICY = parse_policy("""policy: p
services: [a]
placeholders: {id: "[a-z]+"}
keys: {cart: {key: "shop:cart:<id>", writers: a}}
""")
VALUE = "hunter2 is a value"
PLACEHOLDERS = ["<more>", "<ip>", "<int>", "<*>", "<bytes>", "<masked>", r"\x3c"]
MAX_ROW = 8 * 1024


def key_of(rng: random.Random) -> str:
    parts = [rng.choice(["user", "cart", "7", "42", *PLACEHOLDERS]) for _ in range(rng.randint(1, 5))]
    return ":".join(["foreign", *parts])


def command_of(rng: random.Random) -> list[str]:
    key, many = key_of(rng), rng.choice([1, 2, 70, 3000])
    return rng.choice(
        [
            ["SETEX", key, VALUE, "60"],
            ["PSETEX", key, "60", VALUE],
            ["SET", key, VALUE, "EX", rng.choice(["60", VALUE])],
            ["GETEX", key, "PX", VALUE],
            ["EXPIRE", key, VALUE],
            ["XADD", key, "MAXLEN", VALUE, "*", "f", VALUE],
            ["EVALSHA", VALUE, "1", key],
            ["FCALL", VALUE, "1", key],
            ["HSET", key, *["f", VALUE] * many],
            ["HSET", key, VALUE, "f"],
            ["MSET", *[part for _ in range(many) for part in (key_of(rng), VALUE)]],
            ["MGET", *[key_of(rng) for _ in range(many)]],
            ["SADD", key, *[VALUE] * many],
            ["DEL", key + "x" * rng.choice([0, 2000, 100_000])],
        ]
    )


@pytest.mark.search_seconds(20)
def test_what_is_stored_of_a_command_is_bounded_and_holds_no_value(search: Search) -> None:
    evaluator, day = Evaluator(POLICY), datetime.date(2099, 1, 1)
    for rng in search.attempts_of_at_least(30):
        telemetry = Telemetry()
        telemetry.describe = lambda policy, service, argv, touches: as_line(policy, service, argv, touches, 1)
        keys: set[bytes] = set()
        for _ in range(5):
            argv = [word.encode() for word in command_of(rng)]
            touches = extract(argv)
            keys |= {access.key for access in touches.accesses}
            assert len(json.dumps(as_line(POLICY, "a", argv, touches, 1))) <= MAX_LINE
            from_line(as_line(POLICY, "a", argv, touches, 1))
            found = evaluator.evaluate(POLICY.number("a"), argv, touches).violations
            name = touches.command.name if touches.command is not None else "other"
            findings = [Finding(one, "observed") for one in found]
            telemetry.violations("a", "1.2.3.4:5", name, findings, "r", sent=Sent(POLICY, argv, touches))
        rows = [row for _, row in telemetry.tally.rows()]
        assert "hunter2" not in json.dumps(rows).lower()
        assert all(len(json.dumps({**row, "examples": []})) <= MAX_ROW for row in rows)
        check_waivers(rows, keys, day)


def check_waivers(rows: Any, keys: set[bytes], day: datetime.date) -> None:
    """Fails if a waiver admits a key whose literal text was never seen."""
    for one in yaml.safe_load(baseline(rows, "o", "r", day).text)["waivers"]:
        pattern = WaiverKeys(one.get("keys", "")) if one.get("keys") else None
        if pattern is not None and not any(len(key) > 256 for key in keys):
            assert any(pattern.matches(key) for key in keys)
            assert not pattern.matches(b"foreign:never:seen:at:all:by:anyone:here")
