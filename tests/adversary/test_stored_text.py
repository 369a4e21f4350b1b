"""The class: text that keyfence stores about a command holds a value, or has no bound.

The search sends commands with a secret as a value, also in the place of a number, a SHA-1, a function or a
field, with many and with long arguments, and looks at what the log's line, the decision log, the report and
the waivers hold of them. The secret is words, one word or a number, where no name or number of this form may
stand.
"""

from __future__ import annotations

import datetime
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from keyfence.commands.extract import extract
from keyfence.policy.enforcement.baseline import baseline
from keyfence.policy.enforcement.waiver_keys import waiver_keys
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.verdict import Finding
from keyfence.policy.wording.command_log import MAX_LINE, as_line, from_line
from keyfence.session.conversation.observer import Sent
from keyfence.telemetry.telemetry import Telemetry
from tests.adversary.conftest import Search

POLICY = parse_policy("""policy: p
services: [a]
databases: [0]
placeholders: {id: "[a-z]+"}
writers: a
keys:
  cart: {key: "shop:cart:<id>", type: string, ttl: {min: 5s, max: 1h, at: write}, values: [on, off]}
  user: {key: "shop:user:<id>", type: hash, ttl: none, field_case: exact, fields: {name: "[a-z]", F: any}}
  news: {key: "shop:news:<id>", type: stream, maxlen: "~100", fields: {f: ip}}
  tags: {key: "shop:tags:<id>", type: set, members: uuid}
""")
VALUE = "hunter2 is a value"
WORD = "hunter2"  # no number
NUMBER = "4111111111111111"  # more than a time, a length or a database can be
PLACEHOLDERS = ["<more>", "<ip>", "<int>", "<*>", "<bytes>", "<masked>", r"\x3c"]
MAX_ROW = 8 * 1024


def key_of(rng: random.Random) -> str:
    """A key of no entry or, less often, of one that requires something of the command."""
    if rng.random() < 0.3:
        return f"shop:{rng.choice(['cart', 'user', 'news', 'tags'])}:{rng.choice('abc')}"
    parts = [rng.choice(["user", "cart", "7", "42", *PLACEHOLDERS]) for _ in range(rng.randint(1, 5))]
    return ":".join(["foreign", *parts])


def command_of(rng: random.Random) -> list[str]:
    key, many = key_of(rng), rng.choice([1, 2, 70, 3000])
    # What a client may send in the place of a number, by mistake; and as a value, in its own place.
    number = rng.choice([VALUE, WORD, NUMBER, f"-{NUMBER}", f"9{NUMBER}00"])
    value = rng.choice([VALUE, WORD, NUMBER])
    return rng.choice(
        [
            ["SETEX", key, number, "60"],
            ["PSETEX", key, "60", value],
            ["PSETEX", key, number, value],
            ["SET", key, value, rng.choice(["EX", "PX", "EXAT", "PXAT"]), rng.choice(["60", number])],
            ["GETEX", key, rng.choice(["PX", "EXAT"]), number],
            [rng.choice(["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"]), key, number],
            ["RESTORE", key, number, value],
            ["XADD", key, "MAXLEN", rng.choice(["~", "="]), number, "*", "f", value],
            ["XADD", key, "MAXLEN", "~", number, "LIMIT", number, "*", "f", value],
            ["SELECT", number],
            ["MOVE", key, number],
            ["COPY", key, key, "DB", number],
            ["SETRANGE", key, number, value],
            ["INCRBY", key, number],
            ["HINCRBY", key, "f", number],
            ["EVAL", "return 1", number, key],
            ["EVALSHA", rng.choice([VALUE, WORD, NUMBER]), "1", key],
            ["FCALL", VALUE, "1", key],
            ["HSET", key, *["f", value] * many],
            ["HSET", key, VALUE, "f"],
            ["MSET", *[part for _ in range(many) for part in (key_of(rng), value)]],
            ["MGET", *[key_of(rng) for _ in range(many)]],
            ["SADD", key, *[value] * many],
            ["DEL", key + "x" * rng.choice([0, 2000, 100_000])],
        ]
    )


@pytest.mark.search_seconds(20)
def test_what_is_stored_of_a_command_is_bounded_and_holds_no_value(search: Search, tmp_path: Path) -> None:
    evaluator, day, log = Evaluator(POLICY), datetime.date(2099, 1, 1), tmp_path / "decisions.log"
    for rng in search.attempts_of_at_least(30):
        log.unlink(missing_ok=True)
        telemetry = Telemetry.to(str(log))
        telemetry.describe = lambda policy, service, argv, touches: as_line(policy, service, argv, touches, 1)
        keys: set[bytes] = set()
        for _ in range(5):
            argv = [word.encode() for word in command_of(rng)]
            touches = extract(argv)
            keys |= {access.key for access in touches.accesses}
            line = as_line(POLICY, "a", argv, touches, 1)
            assert len(json.dumps(line)) <= MAX_LINE
            assert not holds_a_value(line)
            from_line(line)
            found = evaluator.evaluate(Asker(POLICY.number("a")), argv, touches).violations
            name = touches.command.name if touches.command is not None else "other"
            findings = [Finding(one, "observed") for one in found]
            telemetry.violations("a", "1.2.3.4:5", name, findings, "r", sent=Sent(POLICY, argv, touches))
        rows = [row for _, row in telemetry.tally.rows()]
        telemetry.close()
        assert not holds_a_value(rows)
        assert not holds_a_value(log.read_text())
        assert all(len(json.dumps({**row, "examples": []})) <= MAX_ROW for row in rows)
        check_waivers(rows, keys, day)


def holds_a_value(stored: Any) -> bool:
    text = json.dumps(stored).lower()
    return WORD in text or NUMBER in text


def check_waivers(rows: Any, keys: set[bytes], day: datetime.date) -> None:
    """Fails if a waiver admits a key whose literal text was never seen."""
    for one in yaml.safe_load(baseline(rows, "o", "r", day).text)["waivers"]:
        pattern = waiver_keys(one.get("keys", "")) if one.get("keys") else None
        if pattern is not None and not any(len(key) > 256 for key in keys):
            assert any(pattern.matches(key) for key in keys)
            assert not pattern.matches(b"foreign:never:seen:at:all:by:anyone:here")
