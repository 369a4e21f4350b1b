"""What of a key may be shown, and what key to use instead of a deprecated one.

Rule: whatever a secret placeholder holds leaves this module only as `<name>`; a key that breaks the form of
an entry with secrets is shown no further than the entry's literal prefix. Where a policy has secrets, what is
of no form is shown as far as `secrecy` knows it to be none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.patterns.patterns import KeyPattern, Literal, written
from keyfence.policy.show import printable, printable_code
from keyfence.shapes.secrecy import MASKED, Secrecy


def shown(key: bytes, target: Target | None) -> str:
    """A key as logs, reports and replies show it: printable, cut, what is secret masked."""
    if target is None or not target.secrets:
        return printable(key)
    captured = target.pattern.capture(key) if target.kind in ("entry", "legacy", "stray") else None
    if captured is None:
        return printable(key[: len(target.pattern.literal_prefix)]) + "<masked>"
    return printable(fill(target.pattern, captured | {name: f"<{name}>".encode() for name in target.secrets}))


def shown_in(policy: CompiledPolicy, key: bytes, target: Target | None) -> str:
    """A key, channel or pattern of what `target` is in this policy, as `shown`."""
    secrecy = policy.secrecy
    if secrecy is None:
        return printable(key)
    if target is not None and (target.secrets or target.kind in _OF_A_FORM):
        return shown(key, target)
    brief = secrecy.briefly(key)
    return brief if brief is not None else _shown_stray(key, secrecy, policy.secret_beginnings)


_OF_A_FORM = frozenset({"entry", "legacy", "stray", "channel"})


def _shown_stray(name: bytes, secrecy: Secrecy, beginnings: tuple[bytes, ...]) -> str:
    """A key that is of no form, a pattern, or a channel: what begins as a form with a secret may hold one,
    and so may all else that isn't known not to.

    A channel of keyspace notifications is shown as the key in it.
    """
    if not name.startswith(b"__key"):
        return printable(_masked(name, secrecy, beginnings))
    before = _NOTIFICATIONS.match(name)
    at = before.end() if before is not None else 0
    return printable(name[:at] + _masked(name[at:], secrecy, beginnings))


def _masked(name: bytes, secrecy: Secrecy, beginnings: tuple[bytes, ...]) -> bytes:
    if name.startswith(beginnings):
        beginning = max((one for one in beginnings if name.startswith(one)), key=len)
        if name[len(beginning) :].strip(b"*"):
            return beginning + MASKED
    return secrecy.shown(name)


# What Redis itself puts before a key, in a name or a pattern.
_NOTIFICATIONS = re.compile(rb"__key(?:space|event)@(?:[0-9]{1,5}|\*)__:")


def shown_code(policy: CompiledPolicy, line: bytes) -> str:
    """A line of a script as people may see it: what may be a secret in it is masked."""
    secrecy = policy.secrecy
    if secrecy is None:
        return printable_code(line)
    if any(secrecy.may_hold(byte) for byte in _BETWEEN_RUNS):
        return MASKED.decode() if line else ""
    return printable_code(_CODE_RUN.sub(_masked_unless(secrecy), line))


# The text between what separates words in Lua. Masked runs may be longer, never shorter.
_CODE_RUN = re.compile(rb"[^\s()\[\],;'\"]+")
_BETWEEN_RUNS = (b" ", b"\t", b"(", b")", b",", b";", b"'", b'"')  # signs of globs are never told apart
_LUA = frozenset(
    b"and break do else elseif end false for function if in local nil not or repeat return then true until "
    b"while redis call pcall server KEYS ARGV tonumber tostring ipairs pairs unpack table insert concat "
    b"string format sub math floor min max cjson encode decode cmsgpack struct error_reply status_reply log "
    b"redis.call redis.pcall server.call server.pcall get set del exists expire pexpire ttl pttl incr decr "
    b"incrby hget hset hdel hgetall zadd zrem zrange lpush rpush lpop rpop sadd srem GET SET DEL EXISTS "
    b"EXPIRE PEXPIRE TTL PTTL INCR DECR INCRBY HGET HSET HDEL HGETALL ZADD ZREM ZRANGE LPUSH RPUSH LPOP RPOP "
    b"SADD SREM = == ~= < > <= >= + - * / .. # { } --".split()
)


def _masked_unless(secrecy: Secrecy) -> Callable[[re.Match[bytes]], bytes]:
    shortest = min(one.shortest for one in secrecy.secrets)

    def masked(run: re.Match[bytes]) -> bytes:
        text = run[0]
        is_open = text in _LUA or text in secrecy.words or len(text) < shortest
        return text if is_open else MASKED

    return masked


def standard_key(key: bytes, target: Target, service: int, own: Mapping[str, bytes] | None = None) -> str:
    """The standard key that stands for a legacy key of this service, filled in where that shows no secret.
    `own` are the values of the caller, who can't use another's."""
    standard = target.own_form(service) or target.standard
    if standard is None:
        return target.text
    captured = None if target.secrets else target.pattern.capture(key)
    if captured is not None and own:
        captured |= own
    if captured is None or not any(hole.name in captured for hole in standard.holes):
        return standard.text if standard.holes else printable(fill(standard, {}))
    unknown = {hole.name: written((hole,)).encode() for hole in standard.holes}
    return printable(fill(standard, unknown | captured))


def fill(pattern: KeyPattern, values: Mapping[str, bytes]) -> bytes:
    """The pattern with its placeholders filled in."""
    return b"".join(part.text if isinstance(part, Literal) else values[part.name] for part in pattern.parts)
