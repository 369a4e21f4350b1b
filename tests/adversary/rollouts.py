"""Random policies, changes of them, and random commands, for simulated rollouts.

The names in commands are the names in policies or close to them, so that a change of a policy often allows
what was seen, or a part of it.
"""

from __future__ import annotations

import hashlib
import random
import re
from typing import Any, NamedTuple

from keyfence.policy.engine.command_evidence import NONE, Evidence

SERVICES = ("shop", "bill")
CLASSES = ("[0-9]+", "[a-z0-9]+", "[0-9]{1,3}", "[a-z]+", "[a-z]{5,9}")
VALUES = ("number", "[a-z]+", None, None)
TTLS = ({"max": "2h"}, "none", {"required": False, "max": "1h"}, None, None)
KEYS = (
    "sh:{}",
    "sh:cart:{}",
    "sh:cart:{}:x",
    "sh:log:{}",
    "sh:{}:cart",
    "old:{}",
    "bl:{}",
    "bl:cart:{}",
    "zz:{}",
)
IDS = ("1", "42", "12345", "abc", "a1", "A", "-5", "x.y", "A!1")


CHANNELS = ("ev:{}", "ev:cart:{}", "ev:{}:x", "news", "own:{}", "own:acme:{}", "__keyspace@0__:sh:cart:{}")
CHANNEL_FORMS = (
    "ev:<id>",
    "ev:cart:<no>",
    "ev:<any...>",
    "news",
    "own:<tenant>",
    "own:<tenant>:<any>",
    "own:<any>",
)
PATTERNS = ("ev:*", "ev:cart:*", "ev:{}:*", "news", "own:*", "*", "__keyspace@0__:sh:*")
SCRIPTS = {name: f"return '{name}'" for name in ("one", "two")}
FUNCTIONS = ("bump", "drop")
WORDS = ("declared", "report", "load_only", "forbid")
USERS = (b"acme", b"globex", None)


class Command(NamedTuple):
    at: float
    service: str
    argv: list[bytes]
    user: bytes | None = None  # that the client has logged in as
    evidence: Evidence = NONE


# -- policies


def random_policy(rng: random.Random) -> dict[str, Any]:
    """A policy of two services, as plain values."""
    policy: dict[str, Any] = {
        "policy": "roll",
        "claims": ["sh:", "bl:"],
        "services": list(SERVICES),
        "placeholders": {
            "id": _placeholder(rng),
            "no": "[0-9]+",
            "any": "[^:]+",
            "tenant": "[a-z]{1,12}",
        },
        "scopes": {"sh": _scope(rng, "sh:", "shop"), "bl": _scope(rng, "bl:", "bill")},
        "keys": {},
        "channels": {},
    }
    if rng.random() < 0.3:
        policy["bind"] = {"tenant": {"from": "user"}}
    for _ in range(rng.randrange(4)):
        change(rng, policy)
    return policy


def _placeholder(rng: random.Random) -> str | dict[str, Any]:
    """A class of ids, which may be secret. What replaces secrets may be of another class than the secrets."""
    of_class = rng.choice(CLASSES)
    return {"is": of_class, "secret": True} if rng.random() < 0.3 else of_class


def _scope(rng: random.Random, prefix: str, owner: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"prefix": prefix, "writers": [owner]}
    if rng.random() < 0.5:
        scope["unregistered"] = "allow"
    if rng.random() < 0.3:
        scope["readers"] = [one for one in SERVICES if one != owner]
    return scope


def change(rng: random.Random, policy: dict[str, Any]) -> None:
    """Change a policy in one place."""
    keys = policy["keys"]
    match rng.randrange(15):
        case 0 | 1:
            name = rng.choice(("cart", "log", "any", "mine", "other"))
            forms = ("sh:cart:<id>", "sh:log:<id>", "sh:<no>", "bl:cart:<no>", "bl:<id>", "sh:<id>:cart")
            keys[name] = _entry(rng, rng.choice(forms))
        case 2 if keys:
            del keys[rng.choice(sorted(keys))]
        case 3 if keys:
            one = rng.choice(sorted(keys))
            keys[one] = _entry(rng, keys[one]["key"])
        case 4:
            policy["placeholders"]["id"] = _placeholder(rng)
        case 5:
            prefix, owner = rng.choice((("sh", "shop"), ("bl", "bill")))
            policy["scopes"][prefix] = _scope(rng, f"{prefix}:", owner)
        case 6:
            policy["commands"] = rng.choice(({}, {"forbid": ["INCR"]}, {"allow": ["KEYS", "FLUSHALL"]}))
        case 7:
            grant = {"commands": [rng.choice(("GET", "SET", "DEL"))], "keys": [rng.choice(("bl:*", "sh:c*"))]}
            policy["grants"] = rng.choice(({}, {rng.choice(SERVICES): grant | {"reason": "x"}}))
        case 8:
            policy["should"] = rng.sample(
                ("key.unregistered", "ttl.required", "type.mismatch"), rng.randrange(2)
            )
        case 9 | 10 | 11:
            name = rng.choice(("ev", "news", "own", "more"))
            policy["channels"][name] = _channel(rng)
        case 12 if policy["channels"]:
            del policy["channels"][rng.choice(sorted(policy["channels"]))]
        case 13:
            _change_scripts(rng, policy)
        case 14:
            policy["bind"] = rng.choice(({}, {"tenant": {"from": "user"}}))
            keys["own"] = _entry(rng, rng.choice(("sh:<tenant>:x", "bl:<tenant>")))


def mend(rng: random.Random, policy: dict[str, Any], service: str, rule: str, names: list[str]) -> None:
    """Allow what the examples of a finding show, as somebody does who has only looked at these."""
    name = re.sub("<[a-z]+>", "1", rng.choice(names))  # a masked one shows where the id is
    if rule == "script.unregistered":
        _change_scripts(rng, policy)
    elif re.fullmatch("[a-z0-9:]+", name):
        pattern = re.sub("[0-9]+", rng.choice(("<no>", "<id>", "<any>")), name, count=1)
        if rule.startswith("channel."):
            policy["channels"]["mended"] = {
                "channel": pattern,
                "publishers": [service],
                "subscribers": [service],
            }
        else:
            policy["keys"]["mended"] = {"key": pattern, "writers": [service], "readers": [service]}


def _channel(rng: random.Random) -> dict[str, Any]:
    names = {field: rng.sample(SERVICES, rng.randrange(3)) for field in ("publishers", "subscribers")}
    return {"channel": rng.choice(CHANNEL_FORMS), **names}


def _change_scripts(rng: random.Random, policy: dict[str, Any]) -> None:
    """Register a script or a function, or change what others may do."""
    match rng.randrange(4):
        case 0:
            known = rng.sample(sorted(SCRIPTS), rng.randrange(3))
            keys = rng.choice(("any", 1, ["sh:cart:<any>"]))
            policy["scripts"] = {one: {"sha1": sha1_of(SCRIPTS[one]), "keys": keys} for one in known}
        case 1:
            known = rng.sample(FUNCTIONS, rng.randrange(3))
            policy["functions"] = {one: {"keys": "any", "declared": "read"} for one in known}
        case 2:
            policy["unregistered_scripts"] = rng.choice(WORDS)
        case 3:
            policy["scopes"]["sh"]["unregistered_scripts"] = rng.choice(WORDS)


def sha1_of(text: str) -> str:
    """The name of a script."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _entry(rng: random.Random, key: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"key": key, "type": rng.choice(("string", "hash"))}
    values, ttl = rng.choice(VALUES), rng.choice(TTLS)
    if values is not None and entry["type"] == "string":
        entry["values"] = values
    if ttl is not None:
        entry["ttl"] = ttl
    if rng.random() < 0.5:
        entry["writers"] = rng.sample(SERVICES, rng.randrange(1, 3))
    if rng.random() < 0.3:
        entry["readers"] = rng.sample(SERVICES, rng.randrange(1, 3))
    if rng.random() < 0.2 and entry["type"] == "string":
        entry["max_value"] = rng.choice(("2b", "10b"))
    return entry


# -- traffic


def random_command(rng: random.Random) -> list[bytes]:
    key, other = (rng.choice(KEYS).format(rng.choice(IDS)) for _ in range(2))
    value = rng.choice(("7", "abc", "longer than ten bytes"))
    text = SCRIPTS[rng.choice(sorted(SCRIPTS))]
    if rng.random() < 0.35:
        words = _on_a_channel(rng, value) if rng.random() < 0.6 else _of_a_script(rng, key, text)
        return [word.encode() for word in words]
    words = rng.choice(
        (
            ["GET", key],
            ["SET", key, value],
            ["SET", key, value, "EX", rng.choice(("60", "90000"))],
            ["SET", key, value, "EX", "60", "GET"],
            ["DEL", key],
            ["INCR", key],
            ["HSET", key, "f", value],
            ["HGETALL", key],
            ["EXPIRE", key, "60"],
            ["MGET", key, other],
            ["COPY", key, other],
            ["RENAME", key, other],
            ["SCAN", "0", "MATCH", f"{key[:3]}*"],
            ["KEYS", "sh:cart:*"],
            ["PUBLISH", key, "x"],
            ["EVAL", text, "1", key],
            ["EVALSHA", sha1_of(text), "1", key],
            ["EVAL", "return 1", "1", key],
            ["FLUSHALL"],
            ["NOSUCH", key],
        )
    )
    return [word.encode() for word in words]


def _on_a_channel(rng: random.Random, value: str) -> list[str]:
    one, other = (rng.choice(CHANNELS).format(rng.choice(IDS)) for _ in range(2))
    return rng.choice(
        (
            ["PUBLISH", one, value],
            ["SPUBLISH", one, value],
            ["SUBSCRIBE", one],
            ["SUBSCRIBE", one, other],
            ["SSUBSCRIBE", one],
            ["PSUBSCRIBE", rng.choice(PATTERNS).format(rng.choice(IDS))],
            ["PUBSUB", "NUMSUB", one],
            ["PUBSUB", "CHANNELS", rng.choice(PATTERNS).format(rng.choice(IDS))],
        )
    )


def _of_a_script(rng: random.Random, key: str, text: str) -> list[str]:
    return rng.choice(
        (
            ["EVAL", text, "0"],
            ["EVAL", text, "1", key],
            ["EVALSHA", sha1_of(text), "1", key],
            ["EVALSHA", sha1_of(text).upper(), "1", key],
            ["SCRIPT", "LOAD", text],
            ["FCALL", rng.choice(FUNCTIONS), "1", key],
            ["FCALL", "other", "0"],
        )
    )


def many_of_a_kind(rng: random.Random) -> list[list[bytes]]:
    """One kind of command on many names."""
    words, at, forms = rng.choice(
        (
            (["GET", ""], 1, KEYS),
            (["SET", "", "7"], 1, KEYS),
            (["SET", "", "7", "EX", "60"], 1, KEYS),
            (["DEL", ""], 1, KEYS),
            (["EVALSHA", sha1_of(SCRIPTS["one"]), "1", ""], 3, KEYS),
            (["PUBLISH", "", "7"], 1, CHANNELS),
            (["SUBSCRIBE", ""], 1, CHANNELS),
            (["SSUBSCRIBE", ""], 1, CHANNELS),
            (["PSUBSCRIBE", ""], 1, PATTERNS),
        )
    )
    form = rng.choice(forms)
    # A finding keeps five examples. The others may be of the same shape, and not of the same class.
    ids = [str(one) for one in rng.sample(range(1000), 5)]
    ids += rng.choices(("-5", "1.5", "12345", "777", *IDS), k=rng.randrange(1, 5))
    commands = []
    for one in ids:
        words[at] = form.format(one)
        commands.append([word.encode() for word in words])
    return commands
