"""Masking: the parts of a key that may be shown, and the key to use instead of a deprecated one.

Rule: the value of a secret placeholder leaves this module only as `<name>`. A key that breaks the form of an
entry with secrets shows only the entry's own text, and the parts before it that are certainly not secret. If
a policy has secrets, a key of no form shows only the parts that `secrecy` knows not to be secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.patterns.patterns import KeyPattern, Literal, written
from keyfence.policy.show import printable, printable_code
from keyfence.policy.verdict import Finding
from keyfence.shapes.secrecy import MASKED, OPEN, Secrecy


def shown(key: bytes, target: Target | None, secrecy: Secrecy) -> str:
    """Returns a key as logs, reports and replies show it: printable, cut, with secrets masked."""
    if target is None or not target.secrets:
        return printable(key)
    captured = target.pattern.capture(key) if target.kind in ("entry", "legacy", "stray") else None
    if captured is None:
        beginning = target.pattern.literal_prefix
        form = target.standard if target.kind == "malformed" else None
        if form is None or not key.startswith(beginning):
            return printable(key[: len(beginning)]) + MASKED.decode()
        return printable(_malformed(key, form, target.secrets, secrecy))
    return printable(fill(target.pattern, captured | {name: f"<{name}>".encode() for name in target.secrets}))


def shown_in(policy: CompiledPolicy, key: bytes, target: Target | None) -> str:
    """Returns a key, channel or pattern of this policy as people may see it."""
    secrecy = policy.secrecy
    if secrecy is None:
        return printable(key)
    if target is not None and (target.secrets or target.kind in _OF_A_FORM):
        return shown(key, target, secrecy)
    brief = secrecy.shown_short(key)
    return brief if brief is not None else _shown_stray(key, secrecy, policy.secret_beginnings)


def masked_by(policy: CompiledPolicy, finding: Finding) -> Finding:
    """Returns a finding of another policy, with its key masked by this one too.

    If this policy masks the key differently, the finding has the masked text as its key, and no hint: the
    hint may quote the key. Without a key, a script's first line may be shown.
    """
    violation = finding.violation
    if policy.secrecy is None:
        return finding
    if violation.key is None:
        first_line = shown_code(policy, violation.shown.encode("utf-8", "backslashreplace"))
        return finding._replace(violation=violation._replace(shown=first_line))
    is_channel = violation.rule.startswith("channel.")
    text = shown_in(policy, violation.key, None if is_channel else policy.target(violation.key))
    plain = printable(violation.key)
    if text in (plain, violation.shown):
        return finding
    if violation.shown != plain:
        text = MASKED.decode()
    key = text.encode("utf-8", "backslashreplace")
    return finding._replace(violation=violation._replace(key=key, shown=text, message="", hint=""))


def shown_as_sent(policy: CompiledPolicy, target: Target | None) -> bool:
    """Returns whether keys of a target, or of none, show nothing but what `printable` shows."""
    if policy.secrecy is None:
        return True
    return target is not None and not target.secrets and target.kind in _OF_A_FORM


class _Piece:
    """The part of a form between two separators."""

    def __init__(self) -> None:
        self.text = b""  # its own text, up to a placeholder
        self.is_literal = True  # there is none
        self.is_secret = False  # there is a secret one


def _pieces_of(form: KeyPattern, secrets: Collection[str]) -> tuple[list[_Piece], list[bytes]]:
    """Returns the pieces of a form and the separators between them, up to a placeholder that may hold
    several."""
    pieces, separators = [_Piece()], []
    for part in form.parts:
        if isinstance(part, Literal):
            first, *more = _SEPARATOR.split(part.text)
            pieces[-1].text += first if pieces[-1].is_literal else b""
            for separator, text in zip(more[::2], more[1::2], strict=True):
                separators.append(separator)
                pieces.append(_Piece())
                pieces[-1].text = text
            continue
        pieces[-1].is_literal = False
        pieces[-1].is_secret |= part.name in secrets
        if part.variadic:
            break
    return pieces, separators


def _malformed(key: bytes, form: KeyPattern, secrets: Collection[str], secrecy: Secrecy) -> bytes:
    """Returns a key that breaks a form with secrets, masked.

    It shows the form's own text in its place, and the parts before it that are certainly not secret. After
    the secret it shows text only if the key has as many pieces as the form, and no secret can hold a
    separator.
    """
    pieces, separators = _pieces_of(form, secrets)
    # Everything after the form's own pieces counts as one piece, however many a client sends.
    parts = _SEPARATOR.split(key[:_LOOKED_AT], len(separators) + 1)
    texts, between = parts[::2], parts[1::2]
    alike = 0
    while alike < min(len(between), len(separators)) and between[alike] == separators[alike]:
        alike += 1
    secret = next((at for at, piece in enumerate(pieces) if piece.is_secret), len(pieces))
    same = [
        at <= alike and at < len(pieces) and pieces[at].is_literal and pieces[at].text == text
        for at, text in enumerate(texts)
    ]
    last = max((at for at in range(min(secret, len(texts))) if same[at] and texts[at]), default=-1)
    is_whole = len(key) <= _LOOKED_AT and between == separators
    spans = any(map(secrecy.may_hold, (b":", b"{", b"}")))
    shows_end = is_whole and not spans
    beginning = key[:_LOOKED_AT] if spans else b"".join(parts[: 2 * last + 1])
    open_at = _open_places(beginning, secrecy) if not all(same[: last + 1]) else frozenset()
    out, at, was_masked = b"", 0, False
    for number, text in enumerate(texts):
        separator = between[number - 1] if number else b""
        if number <= last:
            is_shown = same[number] or not text or at in open_at
        else:
            is_shown = same[number] and (number < secret or shows_end)
        head = pieces[number].text if number <= min(alike, secret) and number < len(pieces) else b""
        if is_shown:
            out += separator + text
        elif not any(texts[number:]) and not any(between[number:]):
            out += separator if not was_masked else b""
        elif not was_masked:
            out += separator + (head if text.startswith(head) else b"") + MASKED
        was_masked = not is_shown
        at += len(text) + 1
    return out


def _open_places(name: bytes, secrecy: Secrecy) -> frozenset[int]:
    """Returns the offsets of those pieces of a name that are certainly not secret."""
    at, found = 0, set()
    for piece, kind in secrecy.pieces(name):
        if kind == OPEN:
            found.add(at)
        at += len(piece)
    return frozenset(found)


_SEPARATOR = re.compile(rb"([:{}])")
_LOOKED_AT = 1024  # bytes of a key
_OF_A_FORM = frozenset({"entry", "legacy", "stray", "channel"})


def _shown_stray(name: bytes, secrecy: Secrecy, beginnings: tuple[bytes, ...]) -> str:
    """Returns a key of no form, a pattern or a channel, masked.

    A name that begins like a form with a secret may hold one, and so may any piece that is not known to be
    open. A channel of keyspace notifications is masked like the key in it.
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


# The beginning that Redis puts before a key, in a channel's name or a pattern.
_NOTIFICATIONS = re.compile(rb"__key(?:space|event)@(?:[0-9]{1,5}|\*)__:")


def shown_code(policy: CompiledPolicy, line: bytes) -> str:
    """Returns a line of a script as people may see it, with everything masked that may be secret."""
    secrecy = policy.secrecy
    if secrecy is None:
        return printable_code(line)
    if any(secrecy.may_hold(byte) for byte in _BETWEEN_RUNS):
        return MASKED.decode() if line else ""
    return printable_code(_CODE_RUN.sub(_masked_unless(secrecy), line))


# A run of bytes between separators of Lua words. Masked runs may be longer, never shorter.
_CODE_RUN = re.compile(rb"[^\s()\[\],;'\"]+")
_BETWEEN_RUNS = (b" ", b"\t", b"(", b")", b",", b";", b"'", b'"')  # signs of globs do not separate
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
    """Returns the standard key for a legacy or replaced key of this service, with every value that is not
    secret. `own` are the caller's own values, which replace those of the key."""
    standard = target.own_form(service) or target.successor or target.standard
    if standard is None:
        return target.text
    captured = target.pattern.capture(key) or {}
    known = {name: value for name, value in captured.items() if name not in target.secrets}
    return filled_text(standard, known | dict(own or {}))


def filled_text(pattern: KeyPattern, values: Mapping[str, bytes]) -> str:
    """Returns a key of the pattern for people, with placeholders in place of unknown values."""
    if pattern.holes and not any(hole.name in values for hole in pattern.holes):
        return pattern.text
    unknown = {hole.name: written((hole,)).encode() for hole in pattern.holes}
    return printable(fill(pattern, {**unknown, **values}))


def fill(pattern: KeyPattern, values: Mapping[str, bytes]) -> bytes:
    """Returns the key of a pattern with these values."""
    return b"".join(part.text if isinstance(part, Literal) else values[part.name] for part in pattern.parts)
