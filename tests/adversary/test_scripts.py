"""The class: an unregistered script touches a key without breaking a rule.

The search lets a real Redis run the admitted scripts, and checks whether a key changed that only another
service may touch.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

import pytest

from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from tests.adversary.conftest import Search
from tests.commands.conftest import Live
from tests.servers import running_redis, server_binaries

ELSEWHERE = "their:key"
KNOWN = "return redis.call('GET', KEYS[1])"
TOUCHING = f"return redis.call('SET', '{ELSEWHERE}', '1')"
READING = f"return redis.call('GET', '{ELSEWHERE}')"
MARK = b"marker"
LIBRARY = f"""#!lua name=lib
redis.register_function('known', function(keys) return redis.call('GET', keys[1]) end)
redis.register_function('touching', function() return redis.call('SET', '{ELSEWHERE}', '1') end)
redis.register_function{{function_name='reading', flags={{'no-writes'}},
  callback=function() return redis.call('GET', '{ELSEWHERE}') end}}
"""


def sha1(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


def policy(rng: random.Random) -> str:
    """Returns a policy that registers nothing, or scripts that touch only their declared keys."""
    lines = ["policy: p", "services: [app, other]"]
    lines += ["scopes:", "  own: {prefix: 'own:', writers: [app], unregistered: allow}"]
    lines += ["  their: {prefix: 'their:', writers: [other], unregistered: allow}"]
    if rng.random() < 0.7:
        digits = rng.choice([sha1(KNOWN), sha1(KNOWN)[:8] + "..."])
        lines.append(f"scripts: {{known: {{sha1: '{digits}', keys: 1}}}}")
    if rng.random() < 0.7:
        lines.append("functions: {known: {keys: 1}}")
    if rng.random() < 0.5:
        lines.append(f"unregistered_scripts: {rng.choice(['load_only', 'forbid'])}")
    if rng.random() < 0.3:
        lines.append("commands: {allow: ['@scripting']}")
    if rng.random() < 0.3:
        lines.append("grants: {app: {commands: [EVAL, EVALSHA, FCALL], keys: ['own:*']}}")
    return "\n".join(lines) + "\n"


def call(rng: random.Random) -> list[str]:
    text = rng.choice([KNOWN, TOUCHING, READING]) + rng.choice(["", "", " ", "\n", "--"])
    digest = sha1(text)
    name, what = rng.choice(
        [
            ("EVAL", text),
            ("EVAL_RO", text),
            ("EVALSHA", rng.choice([digest, digest.upper(), digest[:8], digest + " "])),
            ("EVALSHA_RO", digest),
            ("FCALL", rng.choice(["known", "touching", "reading", "TOUCHING", "touching ", "known\0"])),
            ("FCALL_RO", rng.choice(["reading", "Reading"])),
        ]
    )
    keys = [rng.choice(["own:a", "own:b"]) for _ in range(rng.randrange(3))]
    number = rng.choice([str(len(keys))] * 5 + ["0", "01", "+1", "-0", ""])
    spelt = rng.choice([name, name.lower(), name.title()])
    return [spelt, what, number, *keys, *rng.choice([[], ["x"], ["their:key"]])]


@pytest.fixture(scope="module", params=server_binaries(), ids=lambda binary: binary.id)
def server(request: pytest.FixtureRequest) -> Iterator[Live]:
    with running_redis(request.param) as redis:
        live = Live(str(redis.socket_path), request.param.version)
        yield live
        live.connection.disconnect()


def test_no_admitted_script_touches_undeclared_keys(server: Live, search: Search) -> None:
    server("FUNCTION", "LOAD", LIBRARY)
    for text in (KNOWN, TOUCHING, READING):
        for more in ("", " ", "\n", "--"):
            server("SCRIPT", "LOAD", text + more)
    for rng in search.attempts_of_at_least(300):
        evaluator = Evaluator(parse_policy(policy(rng)))
        server("SET", ELSEWHERE, MARK)
        for _ in range(10):
            argv = call(rng)
            if not evaluator.decide(0, [word.encode() for word in argv]).violations:
                assert server(*argv) != MARK, argv
                assert server("GET", ELSEWHERE) == MARK, argv
